"""What a run rests on, as checksums that are noted when it starts and compared when it goes on."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nefl.errors import RunError
from nefl.files import read_small, refuse_link, write_atomically
from nefl.parsing import parse_json

IDENTITY = "identity.json"
SETTINGS, CODE, BASE = "settings", "code", "base"
EXTENDED = "extended"
"""The checksum of settings with more rounds, noted before they are written to the run's folder."""

NOTED_LATER = frozenset({"images", CODE})
"""What runs of earlier versions did not note; where it is missing it cannot have changed."""

Identity = Mapping[str, Any]
"""A checksum for each thing that a run rests on; for `code` one for each module by name."""

_log = logging.getLogger(__name__)


def read_identity(run: Path) -> dict[str, Any] | None:
    """Return what a run noted; None if it noted nothing yet.

    Raises:
        RunError: if it cannot be read.
    """
    path = run / IDENTITY
    refuse_link(path)
    try:
        known = parse_json(read_small(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(
            f"{path}: cannot be read ({error.strerror}); delete it to go on without its check"
        ) from None
    except ValueError:
        known = None
    if not isinstance(known, dict):
        raise RunError(f"{path}: is damaged; delete it to go on without its check")
    return known


def write_identity(run: Path, identity: Identity) -> None:
    """Note what a run rests on.

    Raises:
        RunError: if the disk does not take it.
    """
    text = json.dumps(identity, indent=2) + "\n"

    def fill(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    write_atomically(run / IDENTITY, fill, follow_links=False)


def check_unchanged(run: Path, identity: Identity) -> None:
    """Raise if settings, data or model are not what they were. Code is another matter.

    Raises:
        RunError: naming what has changed since the run was started.
    """
    known = read_identity(run)
    if known is None:
        return
    changed = [
        key
        for key, value in identity.items()
        if key != CODE
        and not (key in NOTED_LATER and key not in known)
        and value not in ([known.get(key)] + [known.get(EXTENDED)] * (key == SETTINGS))
    ]
    if changed:
        raise RunError(
            f"{run}: {' and '.join(changed)} changed since the run was started; put them back, "
            "or start another run"
        )


def changed_code(run: Path, code: Mapping[str, str]) -> list[str]:
    """Return the modules of the user's own that are not what they were, are new, or are gone."""
    known = (read_identity(run) or {}).get(CODE)
    if not isinstance(known, dict):
        return []
    return sorted(name for name in known.keys() | code.keys() if known.get(name) != code.get(name))


def warn_of_changed_code(run: Path, code: Mapping[str, str]) -> None:
    """Say in the log that a run is looked at with other code than it was trained with."""
    if changed := changed_code(run, code):
        _log.warning(
            "%s: the source of %s changed since the run was started; results may not be its own",
            run,
            ", ".join(changed),
        )


def settle(run: Path, identity: Identity, *, allow_code: bool) -> list[str]:
    """Note what a run rests on when it starts; refuse to go on with anything else.

    Args:
        run: its folder, held by the caller.
        identity: what it would rest on now.
        allow_code: whether to go on although the user's own code changed.

    Returns:
        The modules that changed, if that was allowed.

    Raises:
        RunError: naming what has changed since the run was started.
    """
    check_unchanged(run, identity)
    changed = changed_code(run, identity.get(CODE, {}))
    if changed and not allow_code:
        raise RunError(
            f"{run}: the source of {', '.join(changed)} changed since the run was started, and the "
            "rest of the run would follow other code than its beginning; put it back, or go on all "
            "the same with --changed-code (in Python: changed_code=True)"
        )
    if read_identity(run) != identity:
        write_identity(run, identity)
    return changed
