"""Latency and peak memory of an exported file, measured in a process of its own.

`python -m nefl.export.measure FILE` prints them as JSON. One thread is used, as a device that does
other things as well would give.
"""

import importlib
import json
import resource
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from nefl.elastic.model import measure_latency
from nefl.errors import RunError
from nefl.export.formats import FORMATS, recognise

REPEATS = 30
TIMEOUT = 600


@dataclass(frozen=True)
class Measured:
    """What a file cost on this machine.

    Attributes:
        latency: median seconds for one example, on one thread.
        memory: bytes that opening the file and predicting took at most, beyond what the
            process had before; that includes what the runtime loads on first use.
    """

    latency: float
    memory: int


def measure_file(path: Path) -> Measured:
    """Measure a file in a process that does nothing else.

    Raises:
        RunError: if the process fails.
    """
    command = [sys.executable, "-m", "nefl.export.measure", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    try:
        found = json.loads(done.stdout.splitlines()[-1])
        return Measured(float(found["latency"]), int(found["memory"]))
    except (IndexError, KeyError, ValueError):
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise RunError(f"{path}: could not be measured ({last})") from None


def _measure(path: Path) -> Measured:
    torch.set_num_threads(1)
    form = FORMATS[recognise(path)]
    importlib.import_module(form.runtime)
    torch.nn.functional.conv2d(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 3, 3))  # wake the kernels
    before = start_of_peak()
    runner = form.open(path)
    inputs = runner.card.signature.example(1)
    runner(inputs)
    peak = peak_memory() - before
    return Measured(measure_latency(lambda: runner(inputs), REPEATS), max(peak, 0))


def start_of_peak() -> int:
    """Let the kernel forget the peak so far, where it can; return the memory in use."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return peak_memory()


def peak_memory() -> int:
    """Return the most memory that this process has had, since the peak was last forgotten."""
    with suppress(OSError), Path("/proc/self/status").open(encoding="ascii") as status:
        for line in status:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    result = _measure(Path(sys.argv[1]))
    sys.stdout.write(json.dumps({"latency": result.latency, "memory": result.memory}) + "\n")
