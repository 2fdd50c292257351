"""Runs that are killed again and again come to the same weights as one that is left in peace.

A batch kills the runs of one engine `KILLS` times: the server at a drawn moment, or while it
writes a file (half-written, not yet renamed, just renamed), a worker, or all processes at once.
The last batches put runs to other hardships, see `hardships.py`.
"""

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import safetensors.torch

from benchmarks.campaign.children import Child, check_finished, fork, go_on, undisturbed
from benchmarks.campaign.hardships import HARDSHIPS
from nefl import files
from nefl.artifacts import tensorfile

KILLS, KILLED_BATCHES = 20, 50
BATCHES = KILLED_BATCHES + len(HARDSHIPS)
KILLS_A_RUN = 6
"""After so many a run may end, unless a kill finds it ended before."""

STAGES = ("half-written", "not yet renamed", "just renamed")


def run_batch(number: int) -> dict[str, Any]:
    if number >= KILLED_BATCHES:
        name = list(HARDSHIPS)[number - KILLED_BATCHES]
        return {"hardship": name, **HARDSHIPS[name](random.Random(number))}  # noqa: S311
    # Starting workers takes seconds, so only one batch in five has them.
    return kill_runs("workers" if number % 5 == 1 else "serial", number, KILLS)


def kill_runs(engine: str, seed: int, kills: int) -> dict[str, Any]:
    """Kill and resume runs until there were so many kills; raise if one ends with other weights."""
    draw = random.Random(f"kills {seed}")  # noqa: S311
    place = Path(mkdtemp(prefix="nefl-kills-"))
    started, hits, runs = time.monotonic(), Counter[str](), 0
    try:
        while hits.total() < kills:
            run = place / f"run-{runs}"
            hits += _kill_run(run, engine, draw, min(KILLS_A_RUN, kills - hits.total()))
            check_finished(run, engine)
            runs += 1
            shutil.rmtree(run)
    except AssertionError as error:
        words = (place / "words").read_text(encoding="utf-8")[-2000:]
        raise AssertionError(f"{engine}, batch {seed}: {error}; kept in {place}\n{words}") from None
    shutil.rmtree(place)
    spent = round(time.monotonic() - started, 1)
    return {"engine": engine, "runs": runs, "kills": hits.total(), "hits": hits, "seconds": spent}


def _kill_run(run: Path, engine: str, draw: random.Random, most: int) -> Counter[str]:
    """Carry a run to its end, killing it on the way; return what was hit how often."""
    hits = Counter[str]()
    while True:
        aim = draw.choice(_aims(engine)) if hits.total() < most else "nothing"
        stage, call, share = draw.choice(STAGES), draw.randint(1, 16), draw.random()

        def work(
            aim: str = aim, stage: str = stage, call: int = call, share: float = share
        ) -> None:
            if aim == "writing":
                _die_while_writing(stage, call, share)
            go_on(run, engine)

        child = fork(work, run.with_name("words"))
        moment = draw.random() * undisturbed(engine).seconds
        code = child.wait(moment) if aim not in ("writing", "nothing") else child.wait()
        if code is None:
            hit, code = _strike(child, aim, draw)
        else:
            assert code == 0 or aim == "writing", f"ended with {code} before it was killed"
            hit = f"server, a file {stage}" if code else ""
        hits.update([hit] if hit else [])
        if code == 0:
            return hits
        assert code == -signal.SIGKILL, f"ended with {code}"


def _aims(engine: str) -> Sequence[str]:
    if engine == "serial":
        return ("server", "server", "writing")
    return ("server", "worker", "worker", "all", "writing")


def _strike(child: Child, aim: str, draw: random.Random) -> tuple[str, int]:
    """Kill what was aimed at; return what was hit, and how the server ended.

    A worker alone may die: then the run itself goes on to its end.
    """
    workers = child.workers
    if aim == "worker" and workers:
        with suppress(ProcessLookupError):
            os.kill(draw.choice(workers), signal.SIGKILL)
        code = child.wait()
        assert code is not None
        return "worker", code
    if aim == "all":
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    killed = child.kill()
    _wait_for_the_end(workers)
    if not killed:  # it had just ended
        return "", 0
    return ("all" if aim == "all" and workers else "server"), -signal.SIGKILL


def _wait_for_the_end(workers: Sequence[int]) -> None:
    """Workers end with their server: raise if one outlives it."""
    end = time.monotonic() + 30
    for pid in workers:
        while _is_worker(pid):
            assert time.monotonic() < end, f"worker {pid} outlived its server"
            time.sleep(0.002)


def _is_worker(pid: int) -> bool:
    try:
        return b"nefl.engines.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _die_while_writing(stage: str, call: int, share: float) -> None:
    """Let this process die at its so-manieth file: config, partition, checkpoint or another."""
    calls = 0
    save_file, replace, sync = safetensors.torch.save_file, Path.replace, files.sync_folder

    def due() -> bool:
        nonlocal calls
        calls += 1
        return calls == call

    def save_a_part(tensors: Any, path: Any, metadata: Any = None) -> None:
        save_file(tensors, path, metadata)
        if due():
            os.truncate(path, int(share * Path(path).stat().st_size))
            os.kill(os.getpid(), signal.SIGKILL)

    def die_before(self: Path, target: Any) -> Path:
        if due():
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    def die_after(folder: Path) -> None:
        if due():
            os.kill(os.getpid(), signal.SIGKILL)
        sync(folder)

    if stage == "half-written":
        vars(tensorfile)["save_file"] = save_a_part
    elif stage == "not yet renamed":
        Path.replace = die_before  # type: ignore[method-assign, assignment]
    else:
        files.sync_folder = die_after


def table(entries: Sequence[dict[str, Any]]) -> str:
    killed = [e for e in entries if "kills" in e]
    engines = sorted({e["engine"] for e in killed})
    rows = ["| killed | " + " | ".join(engines) + " |", "|---|" + "--:|" * len(engines)]
    hits = {
        engine: sum((Counter(e["hits"]) for e in killed if e["engine"] == engine), Counter[str]())
        for engine in engines
    }
    rows += [
        f"| {what} | " + " | ".join(str(hits[e][what]) for e in engines) + " |"
        for what in sorted({what for each in hits.values() for what in each})
    ]
    rows.append("| **all** | " + " | ".join(f"**{hits[e].total()}**" for e in engines) + " |")
    runs = [str(sum(e["runs"] for e in killed if e["engine"] == engine)) for engine in engines]
    rows.append("| runs, all with the same weights | " + " | ".join(runs) + " |")
    rows += ["", "| hardship | times | what came of it |", "|---|--:|---|"]
    for entry in entries:
        if "hardship" in entry:
            rows.append(f"| {entry['hardship']} | {entry['times']} | {entry['outcome']} |")
    return "\n".join(rows)
