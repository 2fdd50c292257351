"""A run as its folder tells it: finished, under way, failed, empty, or written by another version.

Training refuses a folder that is not exactly right. Here the folder is only looked at, so whatever
can be read is taken and the rest is named in `problems`.
"""

import fcntl
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nefl.artifacts.facts import Facts, read_facts
from nefl.artifacts.identity import IDENTITY
from nefl.artifacts.notes import CONFIG, FACTS, LOCK, SUMMARY, read_log
from nefl.artifacts.notes import METRICS as LOG
from nefl.artifacts.older import ACCURACY, settings_as_now
from nefl.config import RunConfig
from nefl.config.reading import config_from, flatten, read_config
from nefl.errors import ConfigError, RunError
from nefl.extras import need
from nefl.files import open_without_links, read_small
from nefl.measured import MeasuredBy
from nefl.parsing import parse_json
from nefl.report.reading.log_lines import (
    Attempt,
    RoundEntry,
    read_attempt,
    read_metrics,
    read_round,
)
from nefl.wording import counted

if TYPE_CHECKING:
    import pandas as pd

VERSIONS = ("nefl", "torch", "numpy", "python", "machine")
Status = Literal["finished", "running", "unfinished", "failed", "empty"]


@dataclass(frozen=True)
class Run:
    """A run.

    Attributes:
        path: its folder.
        name: the folder's name, made longer where several runs have the same.
        settings: all settings by dotted keys, with defaults for what the folder leaves out.
        config: the settings as a checked configuration, where this version takes them.
        metric: its primary metric, which "worst", "average" and "best" speak of.
        rounds: what each finished round brought, in order.
        repeated: rounds that did not count.
        status: how far it came.
        stopped: why it ended early, where the log says so.
        versions: versions of what it was started with, by name.
        facts: what it was made of, where the folder notes it.
        fingerprint: the checksum of its family's layout, empty where the folder has none.
        summary: what came out, as in `summary.json`; empty before the run has finished.
        problems: what could not be read, for people.
    """

    path: Path
    name: str
    settings: Mapping[str, Any]
    config: RunConfig | None
    metric: MeasuredBy
    rounds: tuple[RoundEntry, ...]
    repeated: tuple[Attempt, ...]
    status: Status
    stopped: str
    versions: Mapping[str, str]
    facts: Facts | None
    fingerprint: str
    summary: Mapping[str, Any]
    problems: tuple[str, ...]

    @property
    def evaluated(self) -> tuple[RoundEntry, ...]:
        """The rounds in which the submodels were measured."""
        return tuple(entry for entry in self.rounds if entry.scores)

    @property
    def scores(self) -> tuple[float, ...]:
        """The primary metric of each submodel at the last evaluation; nothing before the first."""
        return self.evaluated[-1].scores if self.evaluated else ()

    @property
    def curves(self) -> list[dict[str, Any]]:
        """A record for each submodel at each evaluation.

        `round`, `submodel` (from 1), every metric under its name, and `test_loss`; `updates` and
        `train_loss` are those of that round: how many updates of the submodel counted, and the
        mean training loss of all clients.
        """
        return [
            {
                "round": entry.number,
                "submodel": number,
                **{name: _at(values, number) for name, values in entry.metrics.items()},
                "test_loss": _at(entry.test_loss, number),
                "updates": entry.trained.get(number, 0),
                "train_loss": entry.loss,
            }
            for entry in self.evaluated
            for number in range(1, len(entry.scores) + 1)
        ]

    def frame(self) -> "pd.DataFrame":
        """Return the curves as a pandas frame.

        Raises:
            ConfigError: if pandas is not installed, with the command that installs it.
        """
        made: pd.DataFrame = need("pandas").DataFrame(self.curves)
        return made

    @property
    def last_round(self) -> int:
        """The last finished round, 0 if there is none."""
        return self.rounds[-1].number if self.rounds else 0

    @property
    def planned(self) -> int:
        """The rounds that the settings ask for."""
        return int(self.settings["rounds"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings["seed"])

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.settings["model.method"])

    @property
    def progress(self) -> str:
        """How far it came, in words."""
        where = f"round {self.last_round} of {self.planned}"
        return "finished" if self.status == "finished" else f"{self.status}, {where}"


def _at(values: Sequence[float], submodel: int) -> float:
    return values[submodel - 1] if submodel <= len(values) else math.nan


def read_run(path: str | Path) -> Run:
    """Read a run's folder: settings, curves, what came out. It may be in use.

    Raises:
        RunError: if it is no run's folder, or its settings cannot be read at all.
    """
    path = Path(path)
    if not (path / CONFIG).is_file():
        raise RunError(f"{path}: is no run's folder (it has no {CONFIG})")
    problems: list[str] = []
    settings, config = _settings(path, problems)
    events, facts = _events(path, problems), read_facts(path)
    metric = _primary(facts, events, problems)
    rounds = _rounds(events, metric.name, problems)
    attempts = map(read_attempt, (e for e in events if e.get("event") == "repeated"))
    repeated = tuple(attempt for attempt in attempts if attempt is not None)
    stops = [e for e in events if e.get("event") in ("stopped", "round", "resume")]
    stopped = str(stops[-1].get("reason", "")) if stops and stops[-1]["event"] == "stopped" else ""
    start = next((e for e in events if e.get("event") == "start"), {})
    return Run(
        path=path,
        name=path.resolve().name,
        settings=settings,
        config=config,
        metric=metric,
        rounds=rounds,
        repeated=repeated,
        status=_status(path, settings, rounds, repeated, stopped),
        stopped=stopped,
        versions={k: str(start[k]) for k in VERSIONS if k in start},
        facts=facts,
        fingerprint=str(_noted(path / IDENTITY).get("model", "")),
        summary=_noted(path / SUMMARY),
        problems=tuple(problems),
    )


def _settings(path: Path, problems: list[str]) -> tuple[dict[str, Any], RunConfig | None]:
    try:
        values = settings_as_now(read_config(path / CONFIG, stored=True))
    except ConfigError as error:
        raise RunError(str(error)) from None
    defaults = flatten(RunConfig().to_dict())
    try:
        config = config_from(values, str(path / CONFIG))
    except ConfigError as error:
        problems.append(f"settings of another version: {error}")
        merged = defaults | flatten(values)
        for key in ("seed", "rounds"):
            if not isinstance(merged[key], int):
                raise RunError(f"{path / CONFIG}: {key} is {merged[key]!r}, not a number") from None
        return merged, None
    return defaults | flatten(config.to_dict()), config


def _events(path: Path, problems: list[str]) -> list[dict[str, Any]]:
    try:
        return list(read_log(path))
    except OSError as error:
        problems.append(f"{LOG}: cannot be read ({error.strerror})")
        return []


def _primary(
    facts: Facts | None, events: Sequence[Mapping[str, Any]], problems: list[str]
) -> MeasuredBy:
    """Return what a run is measured by: what it noted, else the first thing in its log."""
    if facts is not None and facts.metrics:
        return facts.metrics[0]
    name = next((name for event in events for name in read_metrics(event)), ACCURACY.name)
    if name == ACCURACY.name:
        return ACCURACY
    from nefl.tasks.metrics import METRICS  # loads torch

    known = METRICS.get(name)
    if known is None:
        problems.append(f"{FACTS}: does not say whether {name} is good high or low; high is taken")
        return MeasuredBy(name, "up")
    return MeasuredBy(known.name, known.better, percent=known.percent)


def _rounds(
    events: Sequence[Mapping[str, Any]], primary: str, problems: list[str]
) -> tuple[RoundEntry, ...]:
    found: dict[int, RoundEntry] = {}
    strange = 0
    for event in events:
        if event.get("event") == "round":
            entry = read_round(event, primary)
            if entry is None:
                strange += 1
            else:
                found[entry.number] = entry  # of a round that was run again the last line counts
    if strange:
        problems.append(f"{LOG}: {counted(strange, 'line')} of rounds could not be understood")
    return tuple(entry for _, entry in sorted(found.items()))


def _status(
    path: Path,
    settings: Mapping[str, Any],
    rounds: Sequence[RoundEntry],
    repeated: Sequence[Attempt],
    stopped: str,
) -> Status:
    last = rounds[-1].number if rounds else 0
    if last >= settings["rounds"]:
        return "finished"
    if _is_held(path):
        return "running"
    tries = sum(attempt.number == last + 1 for attempt in repeated)
    gave_up = tries and tries >= settings["server.attempts"]
    if gave_up or (stopped and stopped != "interrupted"):
        return "failed"
    return "unfinished" if rounds else "empty"


def _is_held(path: Path) -> bool:
    """Whether a process holds the folder just now."""
    try:
        with open(path / LOCK, encoding="utf-8", opener=open_without_links) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _noted(path: Path) -> Mapping[str, Any]:
    """Return what a JSON file of the folder holds, nothing where it is not there or damaged."""
    try:
        content = parse_json(read_small(path))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def mean(values: Sequence[float]) -> float:
    """Return the mean, not-a-number of nothing."""
    return sum(values) / len(values) if values else math.nan
