"""The engine over a grid in this process: parity with the serial engine, and every fault."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import safetensors.torch
import torch
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from PIL import Image
from torch import Tensor

import nefl
from nefl.artifacts.notes import read_log
from nefl.artifacts.runfolder import RunFolder
from nefl.config.reading import config_from, with_settings
from nefl.engines.flower.messages import ANSWER, ARRAYS, FORMAT, METRICS, WEIGHTS, from_arrays
from nefl.engines.flower.node.site_client import _partition
from nefl.engines.flower.server.engine import FlowerEngine
from nefl.engines.flower.server.exchange import Exchange
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to, serve, site_client
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.rounds import Observer
from nefl.running.assembly import assemble
from nefl.state import ClientFailure, TrainTask
from nefl.tasks.finding import load_task

from .conftest import LocalGrid, population

Settings = dict[str, Any]


@pytest.fixture
def few(quick: Settings) -> Settings:
    """Settings of a run over five clients, all of them in each round."""
    return with_settings(
        quick,
        {
            "rounds": 2,
            "clients": {"count": 5, "per_round": 5, "capability": "fixed"},
            "server": {"evaluate_every": 2, "checkpoint_every": 1, "quorum": 0.4},
            "engine.flower": {"patience": 0.2, "deadline": 30.0, "poll": 0.01},
        },
    )


def train_on(
    grid: LocalGrid, settings: Settings, out: Path, *observers: Observer
) -> nefl.RunResult:
    connect = connect_to(cast("Grid", grid))
    return nefl.train(settings, out, observers=observers, connect=connect)


def events(out: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in read_log(out) if event["event"] == name]


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


@pytest.mark.parametrize("choice", ["server", "client"])
def test_same_bits_as_the_serial_engine(quick: Settings, tmp_path: Path, choice: str) -> None:
    quick["rounds"] = 2
    here = nefl.train(quick, tmp_path / "here")
    settings = with_settings(quick, {"engine.flower": {"choice": choice, "poll": 0.01}})
    there = train_on(LocalGrid(site_client(), population(20)), settings, tmp_path / "there")
    assert sha(here) == sha(there)
    assert here.summary["accuracy"] == there.summary["accuracy"]
    assert len(events(tmp_path / "there", "joined")) == 20


def test_a_message_has_only_its_submodel(few: Settings, tmp_path: Path) -> None:
    grid = LocalGrid(site_client(), population(5))
    result = train_on(grid, few, tmp_path / "run")
    trained = [m for m in grid.sent if m.metadata.message_type == "train"][:5]
    for message, submodel in zip(trained, [5, 4, 3, 2, 1], strict=True):
        layout = result.family.layout(submodel)
        tensors = from_arrays(message.content.array_records[ARRAYS], layout)
        assert {n: t.shape for n, t in tensors.items()} == {n: i.shape for n, i in layout.items()}
    wire = events(tmp_path / "run", "wire")[0]
    weights = next(e for e in read_log(tmp_path / "run") if e["event"] == "round")
    assert weights["bytes_down"] < wire["bytes_down"] < weights["bytes_down"] * 1.3


def _spoil(reply: Message, change: Callable[[dict[str, Tensor]], object]) -> Message:
    """Change the tensors of a reply."""
    tensors = safetensors.torch.load(_packed(reply).data)
    change(tensors)
    return _pack(reply, safetensors.torch.save(tensors))


def _packed(reply: Message) -> Array:
    return reply.content.array_records[ARRAYS][WEIGHTS]


def _pack(reply: Message, data: bytes, stype: str = FORMAT) -> Message:
    reply.content[ARRAYS] = ArrayRecord({WEIGHTS: Array("uint8", (len(data),), stype, data)})
    return reply


def _wrong_names(reply: Message) -> Message:
    return _spoil(reply, lambda t: t.update({"conv9.weight": t.pop("conv1.weight")}))


def _huge(reply: Message) -> Message:
    return _spoil(reply, lambda t: t["fc.weight"].mul_(1e6))


def _bias(reply: Message, bias: Tensor) -> Message:
    return _spoil(reply, lambda t: t.update({"fc.bias": bias}))


def _raises(reply: Message) -> Message:
    reply.__dict__["_content"] = None
    reply.__dict__["_error"] = Error(code=3, reason="<class 'ZeroDivisionError'>")
    return reply


def _task(reply: Message, **changes: int) -> Message:
    record = reply.content.config_records[ANSWER]
    record["task"] = json.dumps({**json.loads(str(record["task"])), **changes})
    return reply


def _bomb(reply: Message) -> Message:
    """A header that promises a terabyte in a hundred bytes."""
    head = {"fc.bias": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}
    text = json.dumps(head).encode()
    return _pack(reply, len(text).to_bytes(8, "little") + text)


def _more_arrays(reply: Message) -> Message:
    reply.content.array_records[ARRAYS]["more"] = Array(np.zeros(3, np.float32))
    return reply


def _no_examples(reply: Message) -> Message:
    reply.content[METRICS] = MetricRecord({"num-examples": -3})
    return reply


def _many_examples(reply: Message) -> Message:
    reply.content[METRICS] = MetricRecord({"num-examples": 10**12})
    return reply


def _another_node(reply: Message) -> Message:
    reply.metadata.__dict__["_src_node_id"] = 5
    return reply


def _empty(reply: Message) -> Message:
    reply.content = RecordDict()
    return reply


FAULTS: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "raises": (_raises, "ZeroDivisionError"),
    "names": (_wrong_names, "lacks conv1.weight and has unexpected 'conv9.weight'"),
    "shape": (lambda r: _bias(r, torch.zeros(11)), "fc.bias has shape (11,), not (10,)"),
    "dtype": (lambda r: _bias(r, torch.zeros(10).half()), "fc.bias has dtype torch.float16"),
    "nan": (lambda r: _bias(r, torch.full((10,), torch.nan)), "fc.bias has values that are not"),
    "norm": (_huge, "times the cohort's median"),
    "claim": (lambda reply: _task(reply, submodel=5), "claims submodel 5, was allowed 1 to 2"),
    "zero": (lambda reply: _task(reply, submodel=0), "claims submodel 0, was allowed 1 to 2"),
    "round": (lambda reply: _task(reply, round_number=7), "its answer is to round 7"),
    "client": (lambda reply: _task(reply, client=4), "it was given TrainTask"),
    "bomb": (_bomb, "its weights are no safetensors"),
    "bytes": (lambda r: _bias(r, torch.zeros(10**6)), "expected at most"),
    "pickle": (lambda r: _pack(r, b"\x80\x04.", "pickle"), "3 bytes of 'pickle'"),
    "arrays": (_more_arrays, "has arrays ['weights', 'more'], not 'weights' alone"),
    "negative": (_no_examples, "-3 examples"),
    "boast": (_many_examples, "1000000000000 examples"),
    "node": (_another_node, "comes from another node, 5"),
    "empty": (_empty, "does not say which task"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_that_update_at_most(few: Settings, tmp_path: Path, fault: str) -> None:
    """And the others' updates give exactly what they give without that client."""
    tamper, expected = FAULTS[fault]
    few = with_settings(few, {"rounds": 1, "server.norm_limit": 5.0})
    grid = LocalGrid(site_client(), population(5))
    culprit = next(n for n, c in grid.nodes.items() if c["partition-id"] == 1)
    grid.tamper[culprit] = tamper
    result = train_on(grid, few, tmp_path / "run")
    [failure] = next(e for e in read_log(tmp_path / "run") if e["event"] == "round")["failures"]
    assert failure["client"] == 1
    assert failure["submodel"] == 2
    assert expected in failure["reason"], failure["reason"]
    assert "client 1" in failure["reason"]
    silent = LocalGrid(site_client(), population(5))
    silent.tamper[culprit] = _raises
    assert sha(train_on(silent, few, tmp_path / "silent")) == sha(result)


def test_late_replies_are_logged_and_do_not_count(
    few: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = with_settings(few, {"engine.flower.deadline": 1.0})
    grid = LocalGrid(site_client(), population(5))
    slow = next(n for n, c in grid.nodes.items() if c["partition-id"] == 3)

    def hold(reply: Message) -> None:
        grid.held[reply.metadata.reply_to_message_id] = reply
        grid.tamper = {}

    def until_the_next_round(numbers: Iterable[str]) -> list[Message]:
        begun = any(m.metadata.group_id == "2" for m in grid.sent)
        return LocalGrid.pull_messages(grid, [n for n in numbers if begun or n not in grid.held])

    grid.tamper[slow] = hold
    monkeypatch.setattr(grid, "pull_messages", until_the_next_round)
    train_on(grid, few, tmp_path / "run")
    [first, second] = events(tmp_path / "run", "round")
    assert "no reply within 1 s" in first["failures"][0]["reason"]
    assert not second["failures"]
    [late] = events(tmp_path / "run", "late")
    assert (late["client"], late["round"]) == (3, 1)


def test_a_reply_or_wish_after_its_time_starts_nothing(
    few: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in what is left of its round nor later, and nothing of it stays in memory."""
    grid = LocalGrid(site_client(choose=lambda order, _: min(order.task.submodel, 2)), {})
    grid.nodes = population(5)
    noted: list[dict[str, Any]] = []
    setting = assemble(config_from(with_settings(few, {"engine.flower.deadline": 5.0})))
    folder = SimpleNamespace(log=lambda event, **rest: noted.append({"event": event, **rest}))
    setting, engine = connect_to(cast("Grid", grid))(setting, cast("RunFolder", folder))
    assert isinstance(engine, FlowerEngine)
    assert setting.plan.cohort.roster is not None
    assert len(setting.plan.cohort.roster.present()) == 5
    state = setting.family.initial_state(0)
    exchange = Exchange(engine._link, state, [TrainTask(1, 4, 5), TrainTask(1, 3, 4)])
    results = list(exchange.run(time.monotonic() - 1.0))  # both wish, and the time is up
    assert all(isinstance(result, ClientFailure) for result in results)
    assert [m.metadata.message_type for m in grid.sent].count("train") == 2
    assert not [n for n in noted if n["event"] == "smaller"]
    # A reply that comes when its task was given up is late, and takes no place in the round.
    late = Exchange(engine._link, state, [TrainTask(1, 0, 1), TrainTask(1, 1, 2)])
    late._send(0, late._tasks[0], time.monotonic() + 5.0)
    assert isinstance(late._give_up(0), ClientFailure)
    late._collect(list(late.pending), time.monotonic() + 5.0)
    assert not late._results
    assert not late.pending
    # And one that never comes is forgotten when Flower has thrown its message away.
    engine._overdue = {n: replace(s, until=0.0) for n, s in late.overdue.items()}
    monkeypatch.setattr(grid, "pull_messages", lambda _: [])
    engine._throw_away_late()
    assert not engine._overdue
    assert not engine._link.mailbox._looking


def test_a_client_takes_a_smaller_submodel_and_says_so(few: Settings, tmp_path: Path) -> None:
    """Its free memory allows submodel 2 of the 4 it is offered."""
    grid = LocalGrid(site_client(), population(5))
    short = next(config for config in grid.nodes.values() if config["partition-id"] == 3)
    family = nefl.make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    needs = [p.train_memory_bytes for p in profile_family(family, Signature((1, 8, 8), 10), 8)]
    short["memory"] = int(needs[1] * 1.3)
    for choice in ("server", "client"):
        few = with_settings(few, {"engine.flower.choice": choice})
        out = tmp_path / choice
        result = train_on(grid, few, out)
        for entry in events(out, "smaller"):
            assert (entry["client"], entry["offered"], entry["takes"]) == (3, 4, 2)
        assert len(events(out, "smaller")) == 2
        assert events(out, "round")[0]["trained"] == {"1": 1, "2": 2, "3": 1, "5": 1}
        assert not result.summary["failures"]
    short["memory"] = 1000
    train_on(grid, few, tmp_path / "none")
    [failure] = events(tmp_path / "none", "round")[0]["failures"]
    assert "1000 bytes are free" in failure["reason"]


def test_clients_choose_for_themselves_within_their_limit(few: Settings, tmp_path: Path) -> None:
    registry = tmp_path / "nodes.toml"
    registry.write_text("[default]\nlargest = 3\n")
    few = with_settings(few, {"engine.flower.choice": "client", "rounds": 1})
    few = with_settings(few, {"engine.flower.registry": str(registry)})
    grid = LocalGrid(site_client(choose=lambda order, _: order.largest), population(5))
    train_on(grid, few, tmp_path / "run")
    assert events(tmp_path / "run", "round")[0]["trained"] == {"3": 5}


def test_only_capable_nodes_train_the_full_model(few: Settings, tmp_path: Path) -> None:
    """The one submodel is for the highest of five tiers, whether nodes or the operator say so."""
    few = with_settings(few, {"rounds": 1, "model.method": "fedavg-capable"})
    grid = LocalGrid(site_client(), population(5))
    for node in grid.nodes.values():
        node["tier"] = 5 - node["partition-id"] // 2  # 5, 5, 4, 4, 3
    train_on(grid, few, tmp_path / "run")
    assert events(tmp_path / "run", "round")[0]["clients"] == {"1": [0, 1]}
    registry = tmp_path / "nodes.toml"
    registry.write_text("[default]\ntier = 5\n")
    few = with_settings(few, {"engine.flower.registry": str(registry)})
    train_on(LocalGrid(site_client(), population(5)), few, tmp_path / "all")
    assert events(tmp_path / "all", "round")[0]["trained"] == {"1": 5}


def test_a_run_that_was_stopped_goes_on(
    few: Settings,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    whole = train_on(LocalGrid(site_client(), population(5)), few, tmp_path / "whole")
    grid = LocalGrid(site_client(), population(5))

    class Stop(Observer):
        def round_done(self, *_: object) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_on(grid, few, tmp_path / "run", Stop())
    # Nodes that reconnect have other numbers.
    other = LocalGrid(site_client(), population(5, first=90_000))
    # A run keeps its rounds, and progress counts towards them whatever a later start says.
    settings = {**_flat(few), "out": str(tmp_path / "run"), "resume": True, "rounds": 1}
    caplog.set_level(logging.INFO, "flwr")
    context = Context(1, 1, {}, RecordDict(), settings)
    assert sha(serve(cast("Grid", other), context)) == sha(whole)
    assert "round 2/2: " in caplog.text  # of the run's own rounds, whatever the app says now
    # A finished run is returned as it is, and a run that is there is not begun anew.
    assert sha(serve(cast("Grid", other), context)) == sha(whole)
    with pytest.raises(nefl.RunError, match="resume it"):
        serve(cast("Grid", other), replace_config(context, resume=False))


def replace_config(context: Context, **changes: Any) -> Context:
    return Context(1, 1, {}, RecordDict(), {**context.run_config, **changes})


def _flat(settings: Settings, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def test_too_few_nodes_end_the_run_with_a_reason(few: Settings, tmp_path: Path) -> None:
    grid = LocalGrid(site_client(), dict(list(population(5).items())[:1]))
    with pytest.raises(nefl.RunError, match="1 clients are there, a round needs 2"):
        train_on(grid, few, tmp_path / "run")


def test_a_node_that_goes_between_rounds_is_left_out(few: Settings, tmp_path: Path) -> None:
    grid = LocalGrid(site_client(), population(5))
    gone = next(n for n, c in grid.nodes.items() if c["partition-id"] == 0)

    class Leave(Observer):
        def round_done(self, *_: object) -> None:
            grid.nodes.pop(gone, None)

    train_on(grid, few, tmp_path / "run", Leave())
    assert [e["tasks"] for e in events(tmp_path / "run", "round")] == [5, 4]
    assert events(tmp_path / "run", "left")[0]["client"] == 0


def test_a_node_without_the_servers_data_says_so(few: Settings, tmp_path: Path) -> None:
    """The partition's checksum travels with every task."""
    config = config_from(few)
    with pytest.raises(nefl.DataError, match="dealt out otherwise"):
        _partition(config, load_task(config), tmp_path, "../../outside")


def test_own_data_of_a_node(few: Settings, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (30, 8, 8), dtype=np.uint8)
    labels = np.arange(30) % 10
    np.savez(tmp_path / "mine.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    grid = LocalGrid(site_client(), population(5))
    node = next(n for n, c in grid.nodes.items() if c["partition-id"] == 2)
    grid.nodes[node]["own-data"] = str(tmp_path / "mine.npz")
    few = with_settings(few, {"rounds": 1})
    result = train_on(grid, few, tmp_path / "run")
    assert not result.summary["failures"]
    without = train_on(LocalGrid(site_client(), population(5)), few, tmp_path / "without")
    assert sha(without) != sha(result)


def _folder_of(images: np.ndarray, names: list[str], root: Path) -> Path:
    """An image folder with one class folder for each name, the images dealt among them."""
    for part in ("train", "test"):
        for place, name in enumerate(names):
            folder = root / part / name
            folder.mkdir(parents=True)
            for row, pixels in enumerate(images[place :: len(names)]):
                Image.fromarray(pixels).save(folder / f"{row:03d}.png")
    return root


def _with_own_data(path: Path, few: Settings, out: Path) -> nefl.RunResult:
    grid = LocalGrid(site_client(), population(5))
    node = next(n for n, c in grid.nodes.items() if c["partition-id"] == 2)
    grid.nodes[node]["own-data"] = str(path)
    return train_on(grid, few, out)


def test_a_nodes_own_classes_go_by_name(few: Settings, tmp_path: Path) -> None:
    """Two folders of ten classes are those two classes, not the first two; arrays likewise."""
    few = with_settings(few, {"rounds": 1})
    images = np.random.default_rng(0).integers(0, 255, (20, 8, 8), dtype=np.uint8)
    dealt = np.concatenate([images[0::2], images[1::2]])  # as a folder lists them, class by class
    first = np.repeat([0, 1], 10)

    def arrays(name: str, labels: np.ndarray, **more: Any) -> Path:
        path = tmp_path / f"{name}.npz"
        np.savez(path, x_train=dealt, y_train=labels, x_test=dealt, y_test=labels, **more)
        return path

    given = {
        "folder": _folder_of(images, ["3", "7"], tmp_path / "mine"),
        "numbers": arrays("numbers", np.array([3, 7])[first]),
        "names": arrays("names", first, class_names=["3", "7"]),
    }
    sums = {name: sha(_with_own_data(p, few, tmp_path / f"r-{name}")) for name, p in given.items()}
    assert len(set(sums.values())) == 1, sums
    other = arrays("other", first)
    assert sha(_with_own_data(other, few, tmp_path / "r-other")) not in sums.values()


def test_a_nodes_own_class_that_the_run_does_not_have_is_refused(
    few: Settings, tmp_path: Path
) -> None:
    few = with_settings(few, {"rounds": 1})
    images = np.zeros((4, 8, 8), np.uint8)
    path = _folder_of(images, ["3", "cat"], tmp_path / "mine")
    result = _with_own_data(path, few, tmp_path / "run")
    [failure] = events(result.path, "round")[0]["failures"]
    assert failure["client"] == 2
    assert "there is no class 'cat'; rename or remove" in failure["reason"]
    assert "Classes are '0', '1'" in failure["reason"]


def test_a_node_with_other_classes_than_the_server_says_so(
    few: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dealt out without regard to labels, other data may have the same partition."""
    named = replace(load_task(config_from(few)), class_names=tuple("abcdefghij"))
    monkeypatch.setattr("nefl.engines.flower.node.site_client.load_task", lambda *_, **__: named)
    few = with_settings(few, {"rounds": 1, "server.attempts": 1, "data.test": 90})
    with pytest.raises(nefl.RunError, match="its classes here are not the server's"):
        train_on(LocalGrid(site_client(), population(5)), few, tmp_path / "run")


def test_a_reply_that_never_comes_in_whole_holds_nobody_up(
    few: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower waits for an announced reply's tensors; a dishonest node need not send them."""
    monkeypatch.setattr("nefl.engines.flower.server.exchange.SWEEP_SECONDS", 0.5)
    few = with_settings(few, {"rounds": 1, "engine.flower.deadline": 3.0})
    grid = LocalGrid(site_client(), population(5))
    stuck = next(n for n, c in grid.nodes.items() if c["partition-id"] == 4)
    released = threading.Event()

    def pull(numbers: Iterable[str]) -> list[Message]:
        wanted = list(numbers)
        message = grid.sent[int(wanted[0])]
        if message.metadata.dst_node_id == stuck and message.metadata.message_type == "train":
            released.wait(60)
        return LocalGrid.pull_messages(grid, wanted)

    monkeypatch.setattr(grid, "pull_messages", pull)
    started = time.monotonic()
    train_on(grid, few, tmp_path / "run")
    assert time.monotonic() - started < 40
    released.set()
    [done] = events(tmp_path / "run", "round")
    assert [f["client"] for f in done["failures"]] == [4]
    assert sum(done["trained"].values()) == 4
