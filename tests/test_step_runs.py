"""Runs with a server step: the same bits on every engine and after a stop; its source counts."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.artifacts.kept import checkpoints, read_kept
from nefl.artifacts.notes import read_log
from nefl.artifacts.tensorfile import read_tensors
from nefl.config import EngineConfig
from nefl.config.reading import config_from, with_settings
from nefl.errors import ConfigError, OwnCodeError, RunError
from nefl.nesting.sets import sets_of
from nefl.rounds import RoundReport, run_round
from nefl.running.assembly import assemble
from nefl.state import Evaluation, ServerState

OWN = """
import nefl

class Half(nefl.ServerStep):
    keeps = ("last",)
    def __init__(self, rate=0.5):
        self.rate = rate
    def step(self, cell):
        cell.memory["last"] = cell.change
        return cell.before + self.rate * cell.change

class Same(nefl.Aggregate):
    pass
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a step and an average of the user's own."""
    (tmp_path / "own_step.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_step", raising=False)
    return tmp_path


class StopAfter(nefl.Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_done(
        self, state: ServerState, report: RoundReport, evaluations: Sequence[Evaluation] | None
    ) -> None:
        if state.round_number == self.rounds:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("method", "step"),
    [
        ("nefl-wd", {"name": "momentum"}),
        ("fedrolex", {"name": "yogi", "rate": 0.05}),
        ("nefl-d-nl", {"name": "own_step:Half", "rate": 0.25}),
    ],
)
def test_a_kill_and_a_resume_on_another_engine_change_nothing(
    quick: dict[str, Any], here: Path, method: str, step: dict[str, Any]
) -> None:
    model = {"name": "resnet20_pooled" if method == "nefl-d-nl" else "resnet8", "method": method}
    settings = with_settings(quick, {"model": model, "server.step": step})
    straight = nefl.train(settings, here / "straight")
    with pytest.raises(KeyboardInterrupt):
        nefl.train(settings, here / "run", observers=[StopAfter(3)])
    newest, before = checkpoints(here / "run")[:2]
    newest.unlink()  # as if it had been killed while that was written
    assert before.name == "round-0000002.safetensors"
    resumed = nefl.resume(here / "run", engine=EngineConfig("workers", 2, ("cpu",)))
    assert resumed.summary["state_sha256"] == straight.summary["state_sha256"]
    kept = read_kept(here / "run", resumed.family)
    assert kept.memory.keys() == resumed.state.memory.keys()
    assert any((tensor != 0).any() for tensor in kept.memory.values())
    plain = nefl.train(with_settings(settings, {"server.step": {}}), here / "plain")
    assert plain.summary["state_sha256"] != straight.summary["state_sha256"]
    assert not plain.state.memory


def test_memory_is_not_exported_and_not_started_from(quick: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(quick, {"rounds": 1, "server.step.name": "adam"})
    run = nefl.train(settings, tmp_path / "run")
    assert sets_of(run.state.memory) == ("momentum", "variance")
    nefl.export_family(run.path, tmp_path / "family.safetensors", examples=20)
    _, tensors = read_tensors(tmp_path / "family.safetensors")
    assert not [name for name in tensors if name.startswith("memory/")]
    for start in (run.path, tmp_path / "family.safetensors"):
        given = with_settings(settings, {"model.start": str(start)})
        again = nefl.train(given, tmp_path / f"from-{start.name}")
        assert again.state.memory.keys() == run.state.memory.keys()


def test_the_source_of_step_and_average_is_part_of_a_run(quick: dict[str, Any], here: Path) -> None:
    for name, setting in (("step", "server.step.name"), ("average", "server.average")):
        value = "own_step:Half" if name == "step" else "own_step:Same"
        settings = with_settings(quick, {setting: value})
        with pytest.raises(KeyboardInterrupt):
            nefl.train(settings, here / name, observers=[StopAfter(1)])
        (here / "own_step.py").write_text(OWN + f"# {name}\n")
        with pytest.raises(RunError, match=r"the source of own_step changed .*--changed-code"):
            nefl.resume(here / name)
        assert nefl.resume(here / name, changed_code=True).summary["rounds"] == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"server.step.name": "own_step:Absent"}, "own_step:Absent: cannot be imported"),
        ({"server.step": {"name": "own_step:Half", "tau": 0.5}}, "called with tau"),
        ({"server.average": "own_step:Absent"}, "own_step:Absent: cannot be imported"),
        ({"server.average": "own_step:Half"}, "called with state, family, weighting"),
        ({"server.step.nam": "adam"}, "server.step.nam is not a setting; did you mean 'name'"),
    ],
)
def test_what_cannot_be_had_leaves_no_folder(
    quick: dict[str, Any], here: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        nefl.train(with_settings(quick, change), here / "run")
    assert not (here / "run").exists()


def test_a_step_that_fails_stops_the_run_by_name(quick: dict[str, Any], here: Path) -> None:
    (here / "own_step.py").write_text(OWN.replace("cell.change\n", "cell.chance\n", 1))
    settings = with_settings(quick, {"server.step.name": "own_step:Half"})
    with pytest.raises(OwnCodeError, match=r"server step Half .*own_step.py, line 4.*chance"):
        nefl.train(settings, here / "run")


def test_the_pages_examples_work(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "server-steps.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", page, re.DOTALL)
    for file, source in blocks:
        (tmp_path / file).write_text(source)
    assert [file for file, _ in blocks] == ["lion.py", "careful.py"]
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {
        "rounds": 2,
        "partition": {"kind": "dirichlet", "alpha": 0.5},
        "server.quorum": 0.1,
        "server.step": {"name": "lion:Lion", "rate": 0.003},
        "server.average": "careful:Careful",
    }
    run = nefl.train(with_settings(quick, own), tmp_path / "run")
    assert sets_of(run.state.memory) == ("momentum",)
    rounds = [event for event in read_log(run.path) if event["event"] == "round"]
    failures = [str(failure) for event in rounds for failure in event["failures"]]
    assert failures, "somebody has fewer than five"
    assert all(" examples" in failure for failure in failures)


def test_a_round_by_hand_begins_with_a_memory(quick: dict[str, Any]) -> None:
    setting = assemble(config_from(with_settings(quick, {"server.step.name": "momentum"})))
    first = setting.initial_state()
    seen: list[ServerState] = []

    class Looking:
        def train(self, state: ServerState, tasks: Any) -> Any:
            seen.append(state)
            return iter(())

    after, _ = run_round(first, setting.plan, Looking())  # type: ignore[arg-type]
    assert not first.memory
    assert sets_of(seen[0].memory) == ("momentum",), "clients may be sent what is in it"
    assert all(torch.equal(after.memory[n], t) for n, t in seen[0].memory.items())
