"""A campaign of faults: kills, malformed updates, hostile files, floods, poisoners.

    python -m benchmarks.campaign kills --out runs/campaign [--batches 50]
    python -m benchmarks.campaign tables --out runs/campaign

Every part is cut into numbered batches whose number is their seed. A finished batch is a line in
a journal, so that a campaign that was stopped goes on where it was. `docs/reliability.md` holds
what came out.
"""

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Protocol, cast

from benchmarks.campaign.journal import Journal

PARTS = ("kills", "updates", "readers", "floods", "poisoners")


class Part(Protocol):
    """What the module of a part has."""

    BATCHES: int
    """Batches of the whole campaign."""

    def run_batch(self, number: int) -> dict[str, Any]:
        """Do a batch and return what came of it; raise if a promise was broken."""

    def table(self, entries: Sequence[dict[str, Any]]) -> str:
        """Return Markdown that sums up finished batches."""


def find(part: str) -> Part:
    return cast("Part", importlib.import_module(f"benchmarks.campaign.{part}"))


def carry_out(part: str, out: Path, batches: int | None) -> None:
    module, journal = find(part), Journal(out / f"{part}.jsonl")
    wanted = range(module.BATCHES if batches is None else batches)
    left = [number for number in wanted if number not in journal.entries]
    started = monotonic()
    for done, number in enumerate(left, start=1):
        journal.note(number, module.run_batch(number))
        spent = monotonic() - started
        print(
            f"{part}: batch {number} done, {len(left) - done} left, "
            f"about {spent / done * (len(left) - done):.0f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", choices=(*PARTS, "all", "tables"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the journals")
    parser.add_argument("--batches", type=int, help="fewer than the whole campaign has")
    given = parser.parse_args()
    if given.part == "tables":
        for part in PARTS:
            entries = Journal(given.out / f"{part}.jsonl").entries
            if entries:
                print(f"### {part}\n\n{find(part).table(list(entries.values()))}\n")
        return
    for part in PARTS if given.part == "all" else (given.part,):
        carry_out(part, given.out, given.batches)


if __name__ == "__main__":
    main()
