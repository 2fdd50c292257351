"""What a run was made of, noted when it starts, so that its folder can be read without its data."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from nefl.artifacts.notes import FACTS, write_json
from nefl.artifacts.older import facts_as_now
from nefl.files import read_small
from nefl.measured import MeasuredBy
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.signature import Signature
from nefl.parsing import parse_json

MAX_COUNTS = 200_000
"""Label counts beyond this many numbers are not noted; they would outweigh the log."""


@dataclass(frozen=True)
class Facts:
    """What a run was made of.

    Attributes:
        class_names: the classes, position = label; empty where there are none.
        signature: what models take and give.
        kind: what sort of task it was.
        metrics: what was measured, the most important first.
        train_examples: training examples that were dealt out.
        test_examples: test examples that submodels are measured on.
        label_counts: examples of each class at each client, clients first; empty if too many.
        submodels: the cost of each submodel; runs of earlier versions noted it only for a model of
            the user's own.
        arguments: what a model function of the user's own was called with; runs of earlier versions
            did not note it.
        inputs: what must be known to make inputs and read outputs, as on an exported file's card.
    """

    class_names: tuple[str, ...]
    signature: Signature
    kind: str
    metrics: tuple[MeasuredBy, ...]
    train_examples: int
    test_examples: int
    label_counts: tuple[tuple[int, ...], ...] = ()
    submodels: tuple[SubmodelProfile, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)


_ADAPTER = TypeAdapter(Facts)


def versions() -> dict[str, str]:
    """Return the versions that a result rests on, and the machine's kind."""
    import torch  # only here: facts are read by those who need none of it

    return {
        "nefl": version("nefl"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }


def write_facts(run: Path, find: Callable[[], Facts]) -> None:
    """Note the facts of a run in its folder, once.

    Args:
        run: the folder.
        find: finds them out, if they are not noted yet.

    Raises:
        RunError: if the disk does not take it.
    """
    if not (run / FACTS).exists():
        write_json(run / FACTS, asdict(find()))


def drop_facts(run: Path) -> None:
    """Forget the facts of a run, to be noted anew."""
    (run / FACTS).unlink(missing_ok=True)


def read_facts(run: Path) -> Facts | None:
    """Return the facts of a run; nothing if they are not there or not whole."""
    try:
        values: Any = parse_json(read_small(run / FACTS))
        known = facts_as_now(values) if isinstance(values, Mapping) else values
        return _ADAPTER.validate_python(known)
    except (OSError, ValueError, ValidationError):
        return None
