"""Small messages: the same bits on every engine and after a kill, and nothing malformed counts."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import Tensor

import nefl
from nefl.artifacts.notes import read_log
from nefl.config import WireConfig
from nefl.config.reading import with_settings
from nefl.engines.flower.messages import (
    ARRAYS,
    FORMAT,
    WEIGHTS,
    Order,
    read_answer,
    to_arrays,
    update_content,
)
from nefl.engines.flower.server.mailbox import Grid
from nefl.errors import UpdateError
from nefl.flower import connect_to, site_client
from nefl.methods import make_family
from nefl.nesting.corners import extract
from nefl.server.check import check_update
from nefl.state import ClientUpdate, TrainTask
from nefl.wire.layouts import SCALES, travel_bytes

from .conftest import Killed, LocalGrid, population

Settings = dict[str, Any]
BOTH = {"wire": {"down": "int8", "up": "int8"}}


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


def on_flower(settings: Settings, out: Path, nodes: int, grid: LocalGrid | None = None) -> str:
    """Train over a grid, killed in the second round and resumed."""
    connect = connect_to(cast("Grid", grid or LocalGrid(site_client(), population(nodes))))
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, out, observers=[Killed()], connect=connect)
    return sha(nefl.resume(out, connect=connect))


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("method", "choice", "down", "up"),
    [
        ("within", "server", "int8", "int8"),
        ("scaffold", "client", "int8", "bfloat16"),
        ("nefl-wd", "client", "bfloat16", "int8"),
        ("fedrolex", "server", "bfloat16", "float32"),
    ],
)
def test_the_same_bits_on_every_engine_also_after_a_kill(
    quick: Settings, tmp_path: Path, method: str, choice: str, down: str, up: str
) -> None:
    changes: Settings = {
        "rounds": 2,
        "model.method": method,
        "model.ratios": [0.3, 0.6, 1.0],
        "data.train": 60,
        "data.test": 50,
        "clients": {"count": 4, "per_round": 3},
        "engine.flower": {"choice": choice, "poll": 0.01},
    }
    plain = nefl.train(with_settings(quick, changes), tmp_path / "plain")
    settings = with_settings(quick, {**changes, "wire": {"down": down, "up": up}})
    here = nefl.train(settings, tmp_path / "here")
    assert sha(here) != sha(plain)
    assert here.summary["failures"] == 0
    assert here.summary["bytes_down"] < plain.summary["bytes_down"]
    assert (here.summary["bytes_up"] < plain.summary["bytes_up"]) == (up != "float32")
    workers = with_settings(settings, {"engine.name": "workers", "engine.workers": 2})
    assert sha(nefl.train(workers, tmp_path / "workers")) == sha(here)
    assert on_flower(settings, tmp_path / "flower", 4) == sha(here)


def test_adapters_travel_small_and_the_base_not_at_all(
    lora_settings: Settings, tmp_path: Path
) -> None:
    settings = with_settings(lora_settings, {**BOTH, "engine.flower": {"poll": 0.01}})
    here = nefl.train(settings, tmp_path / "here")
    grid = LocalGrid(site_client(), population(4))
    assert on_flower(settings, tmp_path / "there", 4, grid) == sha(here)
    sizes = {
        len(m.content.array_records[ARRAYS][WEIGHTS].data)
        for m in grid.sent
        if m.metadata.message_type == "train"
    }
    wanted = {travel_bytes(here.family, k, (), "int8") for k in (1, 2, 3)}
    assert min(wanted) < min(sizes) < min(wanted) + 13 * 150  # names and shapes beside them
    assert max(wanted) < max(sizes) < max(wanted) + 13 * 150
    rounds = [event for event in read_log(tmp_path / "here") if event["event"] == "round"]
    up = {k: travel_bytes(here.family, k, (), "int8") for k in (1, 2, 3)}
    assert rounds[0]["bytes_up"] == sum(up[int(k)] * n for k, n in rounds[0]["trained"].items())


FAMILY = make_family("resnet8", "nefl-wd")
STATE = FAMILY.initial_state(0)
ORDER = Order(TrainTask(1, 0, 2), "", "server", 2, (), {}, wire=WireConfig("int8", "int8"))


def honest() -> dict[str, Tensor]:
    """Return the tensors of a proper answer."""
    wire = ORDER.wire_of(FAMILY)
    began = wire.receive(wire.send(STATE).message(2, ()), 2)
    return wire.answer(ClientUpdate(ORDER.task, _moved(began), 5), began)


def _moved(tensors: Any) -> dict[str, Tensor]:
    return {n: t * 1.01 if t.is_floating_point() else t + 1 for n, t in tensors.items()}


def content(data: bytes) -> RecordDict:
    """Return an answer with these bytes for weights."""
    start = extract(STATE, FAMILY, 2)
    answer = update_content(ClientUpdate(ORDER.task, start, 5))
    answer[ARRAYS] = ArrayRecord({WEIGHTS: Array("uint8", (len(data),), FORMAT, data)})
    return answer


def count(data: bytes) -> None:
    """Read an answer and let it count, if it may."""
    update = read_answer(content(data), ORDER, FAMILY, STATE)
    assert isinstance(update, ClientUpdate)
    check_update(update, FAMILY, 1)


WRONG: dict[str, tuple[Callable[[dict[str, Tensor]], object], str]] = {
    "a code": (lambda t: t["fc.weight"][0].fill_(-128), "fc.weight has the code -128"),
    "a scale below 0": (lambda t: t[SCALES].neg_(), "has a scale below 0"),
    "a scale that is none": (lambda t: t[SCALES].fill_(torch.nan), "not finite"),
    "scales that overflow": (lambda t: t[SCALES].fill_(3e38), "not finite"),
    "a scale too few": (lambda t: t.update({SCALES: t[SCALES][1:].clone()}), f"{SCALES} has shape"),
    "no scales": (lambda t: t.pop(SCALES), f"lacks {SCALES}"),
    "another name": (lambda t: t.update(x=t.pop("fc.bias")), "lacks fc.bias"),
    "plain weights": (
        lambda t: t.update({"fc.bias": t["fc.bias"].float()}),
        "fc.bias has dtype torch.float32",
    ),
    "a small statistic": (
        lambda t: t.update({"bn1.running_mean": t["bn1.running_mean"].to(torch.bfloat16)}),
        "bn1.running_mean has dtype",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_malformed_encoding_is_refused_by_name(wrong: str) -> None:
    spoil, words = WRONG[wrong]
    tensors = {name: tensor.clone() for name, tensor in honest().items()}
    spoil(tensors)
    with pytest.raises(UpdateError, match=words):
        count(safetensors.torch.save(tensors))


def test_no_more_bytes_are_read_than_the_encoding_may_have() -> None:
    plain = to_arrays(extract(STATE, FAMILY, 5))[WEIGHTS].data
    with pytest.raises(UpdateError, match="expected at most"):
        read_answer(content(plain), ORDER, FAMILY, STATE)


def test_any_spoilt_bytes_are_refused_or_harmless() -> None:
    good = safetensors.torch.save({n: t.contiguous() for n, t in honest().items()})
    rng = random.Random(5)
    refused = 0
    for trial in range(150):
        data = bytearray(good)
        most = len(data) if trial % 2 else 3000  # the header, or anywhere
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(most)] = rng.randrange(256)
        if trial % 5 == 0:
            del data[rng.randrange(len(data)) :]
        try:
            count(bytes(data))
        except UpdateError:
            refused += 1
    assert 50 < refused < 150


def test_a_client_with_a_malformed_encoding_costs_its_update(
    quick: Settings, tmp_path: Path
) -> None:
    settings = with_settings(
        quick,
        {
            **BOTH,
            "rounds": 1,
            "clients": {"count": 3, "per_round": 3},
            "engine.flower": {"patience": 0.2, "poll": 0.01},
        },
    )

    def spoil(reply: Message) -> Message:
        tensors = safetensors.torch.load(reply.content.array_records[ARRAYS][WEIGHTS].data)
        tensors[SCALES].neg_()
        reply.content[ARRAYS] = to_arrays(tensors)
        return reply

    grid = LocalGrid(site_client(), population(3))
    liar = next(iter(grid.nodes))
    grid.tamper[liar] = spoil
    nefl.train(settings, tmp_path / "run", connect=connect_to(cast("Grid", grid)))
    (entry,) = (event for event in read_log(tmp_path / "run") if event["event"] == "round")
    (failure,) = entry["failures"]
    assert failure["client"] == grid.nodes[liar]["partition-id"]
    assert "has a scale below 0" in failure["reason"]
    assert sum(entry["trained"].values()) == 2
