"""What a device can do, measured on it: the entry for a fleet's file.

A few probes of one model are trained and asked, on zeros: no data is needed. Of what they show the
slowest counts, so that a design errs on the safe side.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import torch

from nefl.artifacts.facts import read_facts
from nefl.artifacts.notes import read_log, stored_config
from nefl.config import MemberConfig, ModelConfig, RunConfig
from nefl.elastic.model import measure_latency
from nefl.engines.machine import HEADROOM, machine_memory, time_submodels
from nefl.engines.tuning import tuned_process
from nefl.errors import ConfigError, RunError
from nefl.export.measure import peak_memory, start_of_peak
from nefl.methods import family_of, method_of, method_reference
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import PASSES, profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.wording import show_bytes

PROBES = (0.25, 0.5, 1.0)
"""The widths of the probes."""

METHOD = "nefl-w"
"""The method whose networks are probed."""

FETCHED = 16 * 2**20
"""Bytes that are fetched at most to see how fast they come."""

FETCH_SECONDS = 20.0
"""How long they are fetched at most."""


@dataclass(frozen=True)
class Probe:
    """What one probe showed.

    Attributes:
        what: which one it was.
        macs_per_second: multiply-accumulates a second in training.
        inference_macs_per_second: the same in predicting one example; 0 where it was not asked.
    """

    what: str
    macs_per_second: float
    inference_macs_per_second: float = 0.0


@dataclass(frozen=True)
class MeasuredDevice:
    """The entry of a device for a fleet's file.

    Attributes:
        name: what it is called.
        probes: what was measured.
        memory: bytes that training may take, as nefl counts them; None if unknown.
        overhead: how many times as much training really took, where that was measured.
        bandwidth: bytes a second; None if it was not asked for.
    """

    name: str
    probes: tuple[Probe, ...]
    memory: float | None
    overhead: float = 1.0
    bandwidth: float | None = None

    @property
    def macs_per_second(self) -> float:
        """The speed of the slowest probe in training."""
        return min(probe.macs_per_second for probe in self.probes)

    @property
    def inference_macs_per_second(self) -> float:
        """The speed of the slowest probe in predicting; 0 where none was asked."""
        return min(probe.inference_macs_per_second for probe in self.probes)


def measure_device(
    name: str,
    model: str,
    signature: Signature,
    *,
    batch_size: int = 32,
    threads: int = 1,
    memory: float | None = None,
    bandwidth: float | None = None,
) -> MeasuredDevice:
    """Measure this machine.

    Args:
        name: what it shall be called.
        model: whose widths are probed: a name of the table.
        signature: what it takes and gives.
        batch_size: examples in a training step.
        threads: threads that training and predicting may use.
        memory: bytes that training may take; what is free now if left out.
        bandwidth: bytes it sends or receives in a second, where that is known.

    Raises:
        NeflError: if there is no such model, or it cannot take such inputs.
    """
    members = tuple(MemberConfig(width) for width in PROBES)
    family = family_of(ModelConfig(model, METHOD, members=members), signature)
    prices = profile_family(family, signature, batch_size)
    free = memory or machine_memory()
    with tuned_process(threads):
        taken = _training_bytes(family, signature, batch_size)
        seconds = time_submodels(family, signature, batch_size, torch.device("cpu"))
        probes = []
        for price, step in zip(prices, seconds, strict=False):
            module = family.build(family.specs[price.index - 1]).eval()
            example = signature.example(1)
            asked = measure_latency(lambda m=module, x=example: m(x))  # type: ignore[misc]
            probes.append(
                Probe(
                    f"width {price.width:g}: a step of {batch_size} in {step * 1e3:.3g} ms, a "
                    f"prediction in {asked * 1e3:.3g} ms",
                    batch_size * price.train_macs / step,
                    price.macs_total / asked,
                )
            )
    overhead = max(1.0, taken / prices[-1].train_memory_bytes)
    return MeasuredDevice(
        name, tuple(probes), None if free is None else free / overhead, overhead, bandwidth
    )


def _training_bytes(family: Family, signature: Signature, batch_size: int) -> int:
    """Return what a training step of the full model takes of this process's memory."""
    inputs = signature.example(batch_size)
    with torch.random.fork_rng(devices=[]):
        _step(family, 1, inputs)  # what kernels load on first use does not count
        before = start_of_peak()
        _step(family, len(family), inputs)
    return peak_memory() - before


def _step(family: Family, submodel: int, inputs: torch.Tensor) -> None:
    module = family.build(family.specs[submodel - 1])
    torch.autograd.backward(module(inputs).square().mean())


def measure_bandwidth(url: str) -> float:
    """Return the bytes a second at which something is fetched.

    Raises:
        ConfigError: if it is no address of the web.
        RunError: if nothing comes.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"--url {url}: give an address that begins with https:// or http://")
    started, received = time.perf_counter(), 0
    try:
        with urlopen(url, timeout=FETCH_SECONDS) as reply:  # noqa: S310 -- looked at above
            while received < FETCHED and time.perf_counter() - started < FETCH_SECONDS:
                part = reply.read(2**16)
                received += len(part)
                if not part:
                    break
    except (URLError, OSError, ValueError) as error:
        raise RunError(f"{url}: could not be fetched ({error}); give --bandwidth") from None
    if not received:
        raise RunError(f"{url}: is empty; name a file of some megabytes")
    return received / (time.perf_counter() - started)


def reported_devices(run: Path, bandwidth: float | None = None) -> list[MeasuredDevice]:
    """Return what the nodes of a Flower run told of themselves when they joined.

    Args:
        run: its folder.
        bandwidth: of all of them, where it is known.

    Raises:
        NeflError: if it is no run, none of its nodes timed its submodels, or it cannot be told what
            work they timed.
    """
    config, facts = stored_config(run), read_facts(run)
    batch = config.local.batch_size
    prices = () if facts is None else facts.submodels
    found: dict[str, MeasuredDevice] = {}
    for event in read_log(run):
        steps = _times(event.get("step_seconds"))
        if event.get("event") != "joined" or not steps or not prices:
            continue
        name = str(event.get("name") or f"client {event.get('client')}")
        memory = event.get("memory")
        timed = zip(prices, steps, strict=False)
        probes = tuple(
            Probe(
                f"submodel {p.index}: a step of {batch} in {s * 1e3:.3g} ms",
                batch * _timed_macs(p, config, run) / s,
            )
            for p, s in timed
        )
        known = memory / HEADROOM if isinstance(memory, int | float) and memory > 0 else None
        found[name] = MeasuredDevice(name, probes, known, bandwidth=bandwidth)
    if not found:
        raise RunError(
            f"{run}: no node timed its submodels; train it with engine.flower.measure = true"
        )
    return list(found.values())


def _timed_macs(price: SubmodelProfile, config: RunConfig, run: Path) -> int:
    """Return the MACs of the step that a node timed, for one example: of the submodel alone.

    What a run notes as the MACs of a step has those of members that are trained within.

    Raises:
        RunError: if they cannot be told apart.
    """
    if not price.frozen:
        return PASSES * price.macs_total
    own = method_reference(config.model.method) is not None  # never imported from a run's notes
    if own or method_of(config.model).objective.needs_members:
        raise RunError(
            f"{run}: its clients train members within over a frozen base, so its notes do not tell "
            "how fast its nodes are; measure them with a run of another method"
        )
    return price.train_macs


def _times(steps: Any) -> list[float]:
    """Return the times that a log, which may be anybody's, has there; none if they are no times."""
    listed = steps if isinstance(steps, list) else []
    sound = all(isinstance(s, int | float) and 0 < s < 1e9 for s in listed)
    return [float(s) for s in listed] if sound else []


def entries_text(devices: Sequence[MeasuredDevice], how: str) -> str:
    """Return entries for a fleet's file; entries of several devices can be put one after another.

    Args:
        devices: what was measured.
        how: under which conditions, in a few words.
    """
    lines = [f"# measured with nefl {version('nefl')}, torch {torch.__version__}: {how}"]
    for device in devices:
        lines += [f"# {_one_line(probe.what)}" for probe in device.probes]
        if device.overhead > 1:
            lines.append(f"# training took {device.overhead:.2f} times the memory that nefl counts")
        quoted = _one_line(device.name).replace("\\", "\\\\").replace('"', '\\"')
        lines += ["[[devices]]", f'name = "{quoted}"', "share = 1.0"]
        lines.append(_amount("memory", device.memory, "bytes that training may take"))
        lines.append(f"macs_per_second = {device.macs_per_second:.4g}")
        lines.append(_amount("bandwidth", device.bandwidth, "bytes a second"))
        if device.inference_macs_per_second:
            lines.append(f"inference_macs_per_second = {device.inference_macs_per_second:.4g}")
        lines.append("")
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:200]


def _amount(key: str, value: float | None, what: str) -> str:
    if value is None:
        return f"# {key} = …  # {what}: not measured, give it"
    return f"{key} = {value:.0f}  # {show_bytes(value)}"
