"""Methods by name, by entry point and by reference: the same on every engine and after a kill."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config.reading import config_from, with_settings
from nefl.elastic.file import load
from nefl.errors import ConfigError, NeflError, OwnCodeError, RunError
from nefl.methods import METHODS, find_method, make_family, method_of, networks_like
from nefl.references import named_code
from nefl.rounds import Observer
from nefl.running.assembly import assemble

OWN = """
from dataclasses import dataclass, replace
from nefl import METHODS, Method, Objective

@dataclass(frozen=True)
class Pull(Objective):
    mu: float

    def loss(self, local, inputs, target):
        away = sum((p - local.began[n]).square().sum() for n, p in local.parameters.items())
        return super().loss(local, inputs, target) + self.mu / 2 * away

def pull(mu=0.3):
    return Method("both", learned_steps=True, objective=Pull(mu))

held = Method("width", objective=Pull(0.1))
number = 5
def wrong():
    return 3
def fails():
    return 1 / 0

class Broken(Objective):
    def after(self, local):
        return local.memory["nothing"]
broken = Method("both", objective=Broken())

class Asking(Objective):
    receives = ("control",)
asking = Method("both", objective=Asking())

class Odd(Objective):
    keeps = ("Some/thing",)
odd = Method("both", objective=Odd())
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with methods of the user's own, also registered by a package."""
    place = tmp_path / "code"
    (place / "pulling-1.0.dist-info").mkdir(parents=True)
    (place / "pulling-1.0.dist-info" / "METADATA").write_text("Name: pulling\nVersion: 1.0\n")
    (place / "pulling-1.0.dist-info" / "entry_points.txt").write_text(
        "[nefl.methods]\npulled = own_pull:pull\n"
    )
    (place / "own_pull.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "own_pull", raising=False)
    return place


def settings(quick: dict[str, Any], method: str, **more: Any) -> dict[str, Any]:
    small = {"data.train": 60, "data.test": 50, "clients": {"count": 5, "per_round": 2}}
    return with_settings(quick, {"model.method": method, "rounds": 3, **small, **more})


def sha(result: nefl.RunResult) -> str:
    return str(result.summary["state_sha256"])


class Killed(Observer):
    """Ends a run in its second round, as a kill between two updates would."""

    def task_done(self, done: int, tasks: int) -> None:
        self.seen = getattr(self, "seen", 0) + 1
        if self.seen == tasks + 2:
            raise KeyboardInterrupt


WORKERS = {"engine.name": "workers", "engine.workers": 1}
NAMES = {
    "by reference": ("own_pull:pull", {"mu": 0.3}),
    "by entry point": ("pulled", {}),
    "of nefl": ("fedprox", {"mu": 0.3}),
}


@pytest.mark.long
@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(("method", "options"), NAMES.values(), ids=NAMES)
def test_a_method_runs_alike_in_workers_and_after_a_kill(
    quick: dict[str, Any], tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    quick = settings(quick, method, **{"model.method_options": options})
    serial = nefl.train(quick, tmp_path / "serial")
    assert serial.summary["failures"] == 0
    plain = settings(quick, "nefl-wd", **{"model.method_options": {}})
    assert sha(serial) != sha(nefl.train(plain, tmp_path / "plain"))
    assert sha(nefl.train(with_settings(quick, WORKERS), tmp_path / "workers")) == sha(serial)
    with pytest.raises(KeyboardInterrupt):
        nefl.train(quick, tmp_path / "killed", observers=[Killed()])
    assert sha(nefl.resume(tmp_path / "killed")) == sha(serial)


@pytest.mark.usefixtures("own")
def test_fedprox_is_the_same_as_one_writes_it_oneself(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    quick = with_settings(quick, {"model.method_options.mu": 0.3, "rounds": 1})
    quick["local"]["learning_rate"] = 0.01
    mine = nefl.train(with_settings(quick, {"model.method": "own_pull:pull"}), tmp_path / "a")
    theirs = nefl.train(with_settings(quick, {"model.method": "fedprox"}), tmp_path / "b")
    for name, tensor in mine.state.shared.items():
        assert tensor.allclose(theirs.state.shared[name], atol=1e-4), name


@pytest.mark.parametrize("method", ["own_pull:pull", "pulled"])
def test_the_source_of_a_method_is_part_of_a_run(
    quick: dict[str, Any], tmp_path: Path, own: Path, method: str
) -> None:
    run = nefl.train(settings(quick, method, rounds=1), tmp_path / "run").path
    assert "own_pull" in json.loads((run / "identity.json").read_text())["code"]
    (own / "own_pull.py").write_text(OWN + "\n# another\n")
    with pytest.raises(RunError, match="source of own_pull changed"):
        nefl.resume(run)
    nefl.resume(run, changed_code=True)


@pytest.mark.usefixtures("own")
def test_a_strangers_method_is_not_run_unasked(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = nefl.train(settings(quick, "own_pull:held", rounds=1), tmp_path / "run").path
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path / "another"))
    with pytest.raises(RunError, match=r"names code, own_pull:held .*--trust-code"):
        nefl.evaluate(run)


def test_all_code_that_a_run_names_is_asked_about() -> None:
    values = {"task": "a:b", "metrics": ["c:d"], "model": {"name": "e:f", "method": "g:h"}}
    assert set(named_code(config_from(values))) == {"a:b", "c:d", "e:f", "g:h"}


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("method", "options", "error", "told"),
    [
        ("magic", {}, ConfigError, "method 'magic' is unknown.*pulled"),
        ("pullled", {}, ConfigError, "did you mean 'pulled'"),
        ("own_pull:none", {}, ConfigError, "own_pull:none: cannot be imported"),
        ("own_pull:number", {}, ConfigError, "own_pull:number: is int; give a nefl.Method"),
        ("own_pull:wrong", {}, ConfigError, "own_pull:wrong: returned int"),
        ("own_pull:fails", {}, OwnCodeError, "own_pull:fails .*ZeroDivisionError"),
        ("own_pull:pull", {"nu": 1}, ConfigError, r"method_options.nu: own_pull:pull takes mu"),
        ("own_pull:held", {"mu": 1}, ConfigError, r"method_options.mu: own_pull:held takes no"),
        ("nefl-wd", {"mu": 1}, ConfigError, r"method_options.mu: nefl-wd takes no options"),
        ("fedprox", {"nu": 1}, ConfigError, r"method_options.nu: fedprox takes mu, family"),
        ("fedprox", {"mu": -1}, ConfigError, "mu is -1: give 0 or more"),
        ("fedprox", {"mu": "much"}, ConfigError, "options.mu is 'much': give a number, as in"),
        ("fedprox", {"family": "fedaverage"}, ConfigError, "did you mean 'fedavg'"),
    ],
)
def test_what_is_no_method_is_refused_by_name(
    method: str, options: dict[str, Any], error: type[NeflError], told: str
) -> None:
    values = {"model": {"method": method, "method_options": options}}
    with pytest.raises(error, match=told):
        method_of(config_from(values).model)


@pytest.mark.usefixtures("own")
def test_a_method_is_tried_out_before_a_run(quick: dict[str, Any]) -> None:
    with pytest.raises(OwnCodeError, match=r"own_pull:broken: a step of submodel 1 .*KeyError"):
        assemble(config_from(settings(quick, "own_pull:broken")))


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("asking", "receives control, and the server's step keeps nothing"),
        ("odd", r"its objective: keeps is \('Some/thing',\)"),
    ],
)
def test_sets_that_cannot_be_are_refused_before_a_run(
    quick: dict[str, Any], method: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        assemble(config_from(settings(quick, f"own_pull:{method}")))


def test_the_table_is_for_reading() -> None:
    with pytest.raises(ConfigError, match=r"METHODS\['mine'\].*package.module:thing"):
        METHODS["mine"] = METHODS["fedavg"]


def test_a_family_is_another_methods() -> None:
    assert find_method("fedprox", {"family": "fedavg"}).members == "full"
    one = make_family("resnet8", find_method("fedprox", {"family": "heterofl"}))
    assert one.fingerprint == make_family("resnet8", "heterofl").fingerprint


@pytest.mark.usefixtures("own")
def test_a_file_of_ones_own_method_opens_without_its_code(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    run = nefl.train(settings(quick, "own_pull:held", rounds=1), tmp_path / "run").path
    path = nefl.export_family(run, tmp_path / "file.safetensors").path
    sys.modules.pop("own_pull")
    found = load(path)
    assert found.card.method == "own_pull:held"
    assert networks_like(METHODS[found.card.networks]) == "nefl-wd-nl"
    assert "own_pull" not in sys.modules
