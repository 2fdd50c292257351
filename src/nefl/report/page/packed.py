"""What a page holds for its script: figures and their data, packed and safe to stand in HTML."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nefl.artifacts.notes import to_json
from nefl.measured import MeasuredBy
from nefl.report.figures.by_name import BY_COST
from nefl.report.figures.run_records import SCORE
from nefl.report.figures.vega import Figure, theme

Packed = dict[str, Any]


@dataclass(frozen=True)
class Content:
    """The JSON of a page, and the key of each figure's data in it."""

    json: dict[str, Any]
    keys: Mapping[str, str]


def make_content(
    runs: Sequence[str],
    figures: Mapping[str, Figure],
    metric: MeasuredBy,
    *,
    live: bool = False,
    version: str = "",
) -> Content:
    """Pack figures; those with the same data share it.

    Args:
        runs: the runs' names.
        figures: the figures, by name.
        metric: what the field `score` of their data is.
        live: whether the page follows its runs.
        version: by which such a page knows whether it is up to date.
    """
    datasets: dict[str, Packed] = {}
    keys: dict[str, str] = {}
    for name, figure in figures.items():
        packed = pack(figure.records)
        digest = hashlib.sha256(json.dumps(packed).encode()).hexdigest()[:16]
        datasets[digest] = packed
        keys[name] = digest
    costs = next((keys[name] for name in BY_COST if name in keys), None)
    content = {
        "runs": list(runs),
        "figures": {n: {"spec": f.spec, "data": keys[n]} for n, f in figures.items()},
        "datasets": datasets,
        "costs": costs,
        "metric": asdict(metric) | {"field": SCORE},
        "themes": {"light": theme("light"), "dark": theme("dark")},
        "live": live,
        "version": version,
    }
    return Content(content, keys)


def pack(records: Sequence[Mapping[str, Any]]) -> Packed:
    """Turn records into columns; a column of words holds each word once."""
    names = dict.fromkeys(name for record in records for name in record)
    columns: dict[str, Any] = {}
    for name in names:
        values = [record.get(name) for record in records]
        if all(isinstance(value, str) for value in values):
            words = list(dict.fromkeys(values))
            place = {word: n for n, word in enumerate(words)}
            columns[name] = {"words": words, "at": [place[value] for value in values]}
        else:
            columns[name] = values
    return {"length": len(records), "columns": columns}


def script_json(content: Mapping[str, Any]) -> str:
    """Write JSON that cannot end the script element it stands in."""
    text = to_json(content)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
