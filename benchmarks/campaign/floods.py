"""Floods: `nefl serve` and `nefl watch` under every attack, bounded, on 127.0.0.1 alone.

A batch is one attack on one server, in a process of its own. Meanwhile an honest client asks four
times a second. Promised: it is always answered, memory stays within a bound and is given back,
nothing fails with a traceback, and no stranger gets an answer.
"""

import http.client
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import nefl
from benchmarks.campaign.attacks import ATTACKS, BOMBS, Attack, picture

FLOODS = tuple((server, attack) for server, attacks in ATTACKS.items() for attack in attacks)
BATCHES = len(FLOODS)

SECONDS = 10.0
ATTACKERS = 16
MAX_ATTACKS = 20_000
"""A flood ends after so long, or so many attacks."""

PATIENCE = 60.0
"""Seconds within which an honest request must have its answer, new tries included."""

MAX_GROWTH, MAX_LEFT = 448, 96
"""MiB above the idle server, at the peak and after the flood: the largest picture takes 256, and
what is sent waits in memory up to 64 KiB a connection."""


@lru_cache
def _material() -> tuple[Path, Path]:
    """Return a run and its elastic file, small and quickly made; make the attackers' pictures."""
    for bomb in BOMBS:
        picture(*bomb)
    folder = Path(tempfile.mkdtemp(prefix="nefl-floods-"))
    settings = {
        "rounds": 1,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits", "train": 200, "test": 100},
        "clients": {"count": 10, "per_round": 2},
        "local": {"epochs": 1, "batch_size": 8},
        "engine": {"name": "serial", "device": "cpu"},
    }
    run = nefl.train(settings, folder / "run").path
    return run, nefl.export_family(run, folder / "family.safetensors", examples=50).path


class Server:
    """A server in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]", port: int) -> None:
        self.port = port
        self.said: list[str] = []
        self._process = process
        threading.Thread(target=self._listen, daemon=True).start()

    def memory(self, field: str) -> float:
        """Return `VmRSS`, or `VmHWM` for its peak, in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(re.findall(rf"{field}:\s+(\d+)", status)[0]) / 1024

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self.said.extend(self._process.stdout)


@contextmanager
def started(kind: str) -> Iterator[Server]:
    """Start a server on a free port, and end it."""
    run, file = _material()
    process = subprocess.Popen(
        [sys.executable, "-m", "nefl", kind, str(file if kind == "serve" else run), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, f"{kind} did not start"
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        yield Server(process, int(found[1]))
    finally:
        process.terminate()
        process.wait(30)


class Honest:
    """A client that asks for what anybody may have, and notes how long it took."""

    def __init__(self, kind: str, port: int) -> None:
        self.seconds: list[float] = []
        self.told_to_wait = 0
        self._port = port
        small = picture("PNG", "L", 64, 64)
        self._asks = ("POST", "/predict", small) if kind == "serve" else ("GET", "/content?seen=")

    def ask(self) -> None:
        """Ask until there is an answer.

        Raises:
            AssertionError: if there is none in time.
        """
        began = time.monotonic()
        status = 0
        while status != 200:
            assert time.monotonic() - began < PATIENCE, f"no answer, last {status}"
            with suppress(OSError, http.client.HTTPException):
                status = self._try()
            if status == 503:
                self.told_to_wait += 1
                time.sleep(0.2)
        self.seconds.append(time.monotonic() - began)

    def _try(self) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request(*self._asks)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()


def flood(
    kind: str, attack: Attack, seed: int, *, seconds: float = SECONDS, attackers: int = ATTACKERS
) -> dict[str, Any]:
    """Flood a new server with one attack, and return what came of it."""
    with started(kind) as server:
        honest, stop, wrong = Honest(kind, server.port), threading.Event(), list[str]()
        honest.ask()  # what is loaded on first use is no part of the flood
        idle, counts = server.memory("VmRSS"), [0] * attackers

        def keep_on(number: int) -> None:
            rng = Random(f"{seed} {number}")  # noqa: S311 -- no secret
            while not stop.is_set() and counts[number] < MAX_ATTACKS // attackers:
                counts[number] += 1
                try:
                    attack(server.port, rng, stop)
                except AssertionError as error:
                    wrong.append(str(error))
                except OSError:
                    pass  # refused, reset or out of time: its own affair

        threads = [threading.Thread(target=keep_on, args=(n,)) for n in range(attackers)]
        for thread in threads:
            thread.start()
        try:
            began = time.monotonic()
            while time.monotonic() - began < seconds:
                honest.ask()
                time.sleep(0.25)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        honest.ask()
        time.sleep(1)
        peak, left = server.memory("VmHWM"), server.memory("VmRSS")
        failed = [line for line in server.said if "Traceback" in line]
    assert not wrong, wrong[0]
    assert not failed, server.said
    assert peak - idle < MAX_GROWTH, f"{kind} {attack.__name__}: {peak:.0f} MiB, idle {idle:.0f}"
    assert left - idle < MAX_LEFT, f"{kind} {attack.__name__}: {left:.0f} stay, idle {idle:.0f}"
    return {
        "server": kind,
        "attack": attack.__name__,
        "attacks": sum(counts),
        "honest": len(honest.seconds),
        "told_to_wait": honest.told_to_wait,
        "median": round(median(honest.seconds), 4),
        "slowest": round(max(honest.seconds), 4),
        "idle": round(idle),
        "peak": round(peak),
        "left": round(left),
    }


def run_batch(number: int) -> dict[str, Any]:
    """Carry out one flood."""
    kind, attack = FLOODS[number % len(FLOODS)]
    return flood(kind, attack, number)


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Return a row for each attack, over all its batches."""
    heads = ("server", "attack", "tries", "honest answers", "told to wait", "median", "slowest")
    lines = [f"| {' | '.join((*heads, 'idle', 'peak', 'after'))} |", "|---|---" + "|---:" * 8 + "|"]
    for kind, attack in FLOODS:
        name = attack.__name__
        found = [e for e in entries if (e["server"], e["attack"]) == (kind, name)]
        if found:
            sums = [sum(e[key] for e in found) for key in ("attacks", "honest", "told_to_wait")]
            times = median(e["median"] for e in found), max(e["slowest"] for e in found)
            sizes = [max(e[key] for e in found) for key in ("idle", "peak", "left")]
            lines.append(
                f"| {kind} | {name.replace('_', ' ')} | {' | '.join(f'{n:,}' for n in sums)} | "
                + " | ".join(f"{t:.3f} s" for t in times)
                + f" | {' | '.join(f'{size} MiB' for size in sizes)} |"
            )
    return "\n".join(lines)
