"""What came out of the study: a line for each run, and docs/study.md's tables of these lines.

A line holds what the tables need and the checksum of the run's final weights, so that tables can be
made, and a run that was made again be compared, without the folders.
"""

import csv
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path, PurePosixPath

import nefl
from nefl.files import write_atomically
from nefl.report.reading.costs import costs_of, macs_spent

EXCLUSIVE = "exclusive, one run for each"
"""Members alone are shown in one row."""


@dataclass(frozen=True, order=True)
class Result:
    """A finished run.

    Attributes:
        folder: its folder below the study's: `protocol/arm-sSEED`, or `tuning/protocol/arm-step`.
        seed: its seed.
        rounds: how many it had.
        accuracy: of each submodel after the last round, smallest first, as shares.
        macs: what its training took.
        state_sha256: the checksum of its final weights.
    """

    folder: str
    seed: int
    rounds: int
    accuracy: tuple[float, ...]
    macs: float
    state_sha256: str

    @property
    def protocol(self) -> str:
        """What it belongs to."""
        return PurePosixPath(self.folder).parent.as_posix()

    @property
    def arm(self) -> str:
        """What it is called, without its seed."""
        return PurePosixPath(self.folder).name.removesuffix(f"-s{self.seed}")

    @property
    def average(self) -> float:
        """The mean over submodels."""
        return statistics.mean(self.accuracy)


def result_of(folder: Path, out: Path) -> Result:
    run = nefl.read_run(folder)
    return Result(
        folder.relative_to(out).as_posix(),
        int(run.settings["seed"]),
        int(run.summary["rounds"]),
        tuple(run.scores),
        macs_spent(run, costs_of(run)),
        str(run.summary["state_sha256"]),
    )


def read(path: Path) -> list[Result]:
    with path.open(newline="") as file:
        return [
            Result(
                row["folder"],
                int(row["seed"]),
                int(row["rounds"]),
                tuple(map(float, row["accuracy"].split())),
                float(row["macs"]),
                row["state_sha256"],
            )
            for row in csv.DictReader(file)
        ]


def write(path: Path, results: Iterable[Result]) -> None:
    def fill(target: Path) -> None:
        with target.open("w", newline="") as file:
            names = [each.name for each in fields(Result)]
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            for result in sorted(results):
                accuracy = " ".join(f"{value:.4f}" for value in result.accuracy)
                shown = {"accuracy": accuracy, "macs": f"{result.macs:.0f}"}
                writer.writerow(asdict(result) | shown)

    write_atomically(path, fill)


def gather(out: Path, path: Path) -> int:
    """Add the finished runs below a folder to a file; return how many it has then."""
    known = {result.folder: result for result in (read(path) if path.exists() else ())}
    for summary in out.rglob("summary.json"):
        result = result_of(summary.parent, out)
        known[result.folder] = result
    write(path, known.values())
    return len(known)


def spread(values: Sequence[float]) -> str:
    """Return mean and standard deviation (n - 1) in percent."""
    shown = f"{100 * statistics.mean(values):.1f}"
    return f"{shown} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else shown


Arms = Mapping[str, list[Result]]


def by_arm(results: Iterable[Result], protocol: str) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in sorted(results):
        if result.protocol == protocol:
            found.setdefault(result.arm, []).append(result)
    return found


def columns(arms: Arms) -> int:
    return max(len(result.accuracy) for runs in arms.values() for result in runs)


def alone(arm: str) -> bool:
    """Whether an arm is one member alone, and no trial of it with another server step."""
    return re.fullmatch(r"exclusive-\d+", arm) is not None


def place(arm: str, submodel: int, count: int) -> int:
    """Return in which column, from 0, a submodel of an arm stands."""
    member = re.match(r"exclusive-(\d+)", arm)
    if member:
        return int(member[1]) - 1
    return count - 1 if arm.startswith("fedavg") and "small" not in arm else submodel


def teraflop(macs: Iterable[float]) -> str:
    shown = list(dict.fromkeys(f"{value / 1e12:.3f}" for value in sorted(macs)))
    return " to ".join(dict.fromkeys((shown[0], shown[-1])))


def table(arms: Arms) -> Iterator[str]:
    """Yield a protocol's table: a column for each submodel, members alone in one row."""
    count = columns(arms)
    heads = [*map(str, range(1, count + 1)), "average", "seeds", "TMACs"]
    yield f"| arm | {' | '.join(heads)} |"
    yield f"|---|{'---:|' * len(heads)}"
    rows: dict[str, dict[int, str]] = {}
    means: dict[str, str] = {}
    runs_of: dict[str, list[Result]] = {}
    for arm, runs in arms.items():
        name = EXCLUSIVE if alone(arm) else arm
        cells = rows.setdefault(name, {})
        runs_of.setdefault(name, []).extend(runs)
        for k in range(len(runs[0].accuracy)):
            cells[place(arm, k, count)] = spread([run.accuracy[k] for run in runs])
        if len(runs[0].accuracy) == count:
            means[name] = spread([run.average for run in runs])
    for name, cells in rows.items():
        runs = runs_of[name]
        shown = [cells.get(k, "") for k in range(count)]
        each = {run.arm: [r.macs for r in runs if r.arm == run.arm] for run in runs}
        seeds = dict.fromkeys(sorted(map(len, each.values())))
        shown += [means.get(name, ""), " to ".join(map(str, seeds))]
        macs = teraflop(statistics.mean(found) for found in each.values())
        yield f"| `{name}` | {' | '.join(shown)} | {macs} |"


def paired(ours: Sequence[tuple[int, float]], theirs: Sequence[tuple[int, float]]) -> str:
    """Return by how many points one is above the other, over the seeds that both have."""
    other = dict(theirs)
    found = [100 * (value - other[seed]) for seed, value in ours if seed in other]
    if not found:
        return ""
    deviation = f" ± {statistics.stdev(found):.1f}" if len(found) > 1 else ""
    return f"{statistics.mean(found):+.1f}{deviation}"


def goals(arms: Arms, ours: str) -> Iterator[str]:
    """Yield how far a family is above members alone, the small model and every other family."""
    if ours not in arms:
        return
    count, family = columns(arms), arms[ours]
    single: dict[str, dict[int, str]] = {}
    for arm, runs in arms.items():
        if len(runs[0].accuracy) == 1:
            k = place(arm, 0, count)
            name = EXCLUSIVE if alone(arm) else arm
            compared = range(count) if arm == "fedavg-small" else [k]
            theirs = [(run.seed, run.accuracy[0]) for run in runs]
            for column in compared:
                mine = [(run.seed, run.accuracy[column]) for run in family]
                single.setdefault(name, {})[column] = paired(mine, theirs)
    yield f"| `{ours}` above | {' | '.join(map(str, range(1, count + 1)))} | average |"
    yield f"|---|{'---:|' * (count + 1)}"
    for name, cells in single.items():
        yield f"| `{name}` | {' | '.join(cells.get(k, '') for k in range(count))} | |"
    for arm, runs in arms.items():
        if arm == ours or len(runs[0].accuracy) < count:
            continue
        told = [
            paired(
                [(run.seed, run.accuracy[k]) for run in family],
                [(run.seed, run.accuracy[k]) for run in runs],
            )
            for k in range(count)
        ]
        average = paired(
            [(run.seed, run.average) for run in family], [(run.seed, run.average) for run in runs]
        )
        yield f"| `{arm}` | {' | '.join(told)} | {average} |"
