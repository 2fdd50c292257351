"""What a run's folder notes in text: its files by name, settings and log. Weights are elsewhere.

Reading it loads no torch, so that what only looks at runs starts at once.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nefl.artifacts.older import event_as_now, settings_as_now
from nefl.config import RunConfig
from nefl.config.reading import config_from, read_config
from nefl.errors import ConfigError, RunError
from nefl.files import open_without_links, write_atomically
from nefl.parsing import parse_json

CONFIG, PARTITION = "config.json", "partition.safetensors"
METRICS, SUMMARY, LOCK = "metrics.jsonl", "summary.json", ".lock"
FACTS = "facts.json"
MAX_LINE = 2**24
"""Characters of one line of the log; a round of 100,000 clients needs some ten million."""


def to_json(content: Mapping[str, Any] | Sequence[Any], indent: int | None = None) -> str:
    """Write JSON that every parser takes: numbers that are not finite become null."""
    return json.dumps(_finite(content), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write JSON atomically into a run's folder."""
    text = to_json(content, indent=2) + "\n"

    def fill(beside: Path) -> None:
        beside.write_text(text, encoding="utf-8")

    write_atomically(path, fill, follow_links=False)


def stored_config(run: Path) -> RunConfig:
    """Return the configuration of a run.

    Raises:
        RunError: if there is no run, or its configuration cannot be read.
    """
    try:
        there = (run / CONFIG).is_file()
    except OSError as error:
        raise RunError(f"{run}: cannot be looked into ({error.strerror})") from None
    if not there:
        raise RunError(f"{run}: is no run's folder (it has no {CONFIG})")
    try:
        values = settings_as_now(read_config(run / CONFIG, stored=True))
        return config_from(values, str(run / CONFIG))
    except ConfigError as error:
        raise RunError(str(error)) from None


def read_log(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the events of a run's log; none if there is no log.

    A line that a kill cut off, or that is longer than any of ours, is passed over.

    Raises:
        OSError: if it is a link, a pipe or a folder, or cannot be read.
    """
    path = run / METRICS
    if not os.path.lexists(path):
        return
    with open(path, encoding="utf-8", errors="replace", opener=open_without_links) as file:
        for line in iter(lambda: file.readline(MAX_LINE), ""):
            try:
                event = parse_json(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event_as_now(event)
