"""What is left out is what it comes to, as the methods and steps themselves say."""

import inspect
from typing import Any

import pytest

from nefl.methods import METHODS
from nefl.methods.table import MAKERS
from nefl.report.reading.meant import OPTIONS, OWN_STEPS, STEPS, as_meant, is_default, member_alone
from nefl.server.steps import STEPS as MADE
from nefl.server.steps import FedDyn, Momentum, Scaffold, ServerStep

NAMES = {Momentum: "momentum", Scaffold: "scaffold", FedDyn: "feddyn"}


def defaults_of(make: Any) -> dict[str, Any]:
    parameters = inspect.signature(make).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not None}


def test_options_are_those_that_the_methods_have() -> None:
    assert {name: defaults_of(make) for name, make in MAKERS.items()} == OPTIONS


def test_settings_of_steps_are_those_that_they_have() -> None:
    assert {name: defaults_of(make) for name, make in MADE.items()} == STEPS


def test_own_steps_are_those_that_the_methods_have() -> None:
    found = {name: method.step for name, method in METHODS.items() if method.step is not None}
    assert {name: NAMES[type(step)] for name, step in found.items()} == OWN_STEPS
    moved = [vars(step) for step in found.values() if isinstance(step, Momentum)]
    assert all(each == vars(Momentum()) for each in moved)
    assert moved
    assert all(isinstance(step, ServerStep) for step in found.values())


def step_of(**settings: Any) -> dict[str, Any]:
    given = {key.replace("__", "."): value for key, value in settings.items()}
    meant = as_meant({"model.method": "nefl-wd", "server.step.name": "mean"} | given)
    return {k.removeprefix("server.step."): v for k, v in meant.items() if "server.step." in k}


@pytest.mark.parametrize("said", ["auto", "mean"])
@pytest.mark.parametrize("method", METHODS)
def test_the_step_is_the_one_that_is_taken(method: str, said: str) -> None:
    own = METHODS[method].step
    found = step_of(model__method=method, server__step__name=said)
    assert found["name"] == ("mean" if own is None else NAMES[type(own)])
    assert found.get("momentum") == (0.6 if isinstance(own, Momentum) else None)


def test_a_method_over_a_family_takes_that_ones_step() -> None:
    family = {"model__method_options.family": "nefl-co-wd"}
    assert step_of(model__method="fedprox", **family)["name"] == "momentum"
    assert METHODS["fedprox"].step is None
    assert isinstance(MAKERS["fedprox"](family="nefl-co-wd").step, Momentum)


def test_steps_have_what_means_something_to_them() -> None:
    unset = {"server__step__momentum": None, "server__step__beta2": None}
    assert step_of(**unset) == {"name": "mean"}
    momentum = {"server__step__name": "momentum"}
    for same in ({}, {"momentum": 0.6}, {"rate": 0.7}, {"momentum": 0.6, "rate": 1.75 * 0.4}):
        given = {f"server__step__{key}": value for key, value in same.items()}
        assert step_of(**unset | momentum | given) == {"name": "momentum", "momentum": 0.6}
    assert step_of(**momentum, server__step__rate=1.0)["rate"] == 1
    own = step_of(server__step__name="mine:Step", server__step__rate=0.5, **unset)
    assert own == {"name": "mine:Step", "rate": 0.5}


def test_what_only_ones_own_code_tells_is_left_as_it_is() -> None:
    own = {"model__method": "mine:make", "model__method_options.which": "all"}
    assert step_of(**own, server__step__name="auto") == {"name": "auto"}
    meant = as_meant({"model.method": "mine:make", "model.method_options.which": "all"})
    assert meant["model.method_options.which"] == "all"
    assert not is_default(meant, "model.method_options.which")


def test_whole_numbers_are_alike_and_truth_is_none() -> None:
    meant = as_meant({"a": 1.0, "b": [2.0, {"c": 3.0}], "d": True, "e": 0.5})
    assert repr(meant) == repr({"a": 1, "b": [2, {"c": 3}], "d": True, "e": 0.5})


def test_a_member_alone_is_the_first_if_not_said() -> None:
    assert member_alone({"model.method": "exclusive"}) == 1
    assert member_alone({"model.method": "exclusive", "model.method_options.member": 3}) == 3
    assert member_alone({"model.method": "nefl-wd"}) is None
    strange = {"model.method": "exclusive", "model.method_options.member": "x"}  # a damaged folder
    assert member_alone(strange) == 1
