"""From a name or a reference to a method: of the table, of a package, or one's own."""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from numbers import Real
from typing import Any

from nefl.config import ModelConfig
from nefl.errors import ConfigError, RunError, unknown_name
from nefl.methods.method import Method
from nefl.methods.table import ENTRY_POINTS, MAKERS, METHODS
from nefl.own_code import call_own
from nefl.references import import_thing, is_reference
from nefl.server.steps import ServerStep, check_set_names


def method_of(model: ModelConfig) -> Method:
    """Return the method that a configuration asks for, with its options.

    Raises:
        NeflError: if there is no such method, it takes no such option, or its code fails.
    """
    return find_method(model.method, model.method_options)


def find_method(name: str, options: Mapping[str, Any] | None = None) -> Method:
    """Return a method by name or reference.

    Args:
        name: a name of the table, an entry point's, or `package.module:thing`: a `Method`, or a
            function that returns one.
        options: what such a function is called with.

    Raises:
        NeflError: if there is no such method, it takes no such option, or its code fails.
    """
    given = dict(options or {})
    reference = method_reference(name)
    if reference is not None:
        return _own(reference, given)
    if name not in METHODS:
        raise unknown_name("method", name, [*METHODS, *_registered()])
    if name not in MAKERS:
        return _without_options(name, METHODS[name], given)
    _check_options(name, MAKERS[name], given)
    _check_numbers(MAKERS[name], given)
    try:
        return MAKERS[name](**given)
    except ConfigError as error:
        raise ConfigError(f"model.method {name}: {error}") from None


def method_reference(name: str) -> str | None:
    """Return the `package.module:thing` that a method's name stands for; None for nefl's own."""
    if is_reference(name):
        return name
    return None if name in METHODS else _registered().get(name)


def check_sets(method: Method, step: ServerStep | None, name: str) -> None:
    """Raise unless a method's objective names its sets well and receives what the server has.

    Raises:
        ConfigError: naming the set.
    """
    objective = method.objective
    check_set_names(objective, ("keeps", "receives", "sends"), f"{name}: its objective")
    there = () if step is None else step.keeps
    missing = [each for each in objective.receives if each not in there]
    if missing:
        raise ConfigError(
            f"{name}: its objective receives {', '.join(missing)}, and the server's step keeps "
            f"{', '.join(there) or 'nothing'}; give the method a step that keeps it"
        )


def networks_like(method: Method) -> str:
    """Return the name of a method of the table that builds the same networks; "" if none does."""

    def networks(row: Method) -> tuple[object, ...]:
        return row.norm, row.learned_steps, row.per_submodel

    return next((name for name in METHODS if networks(METHODS[name]) == networks(method)), "")


def networks_of(name: str) -> Method:
    """Return the method of the table whose networks a file has.

    Raises:
        RunError: if it is none of the table: a file may not name code to run.
    """
    if name not in METHODS:
        raise RunError(
            f"method {name!r} is none of nefl's own, and a file may not name code to run; open it "
            "with its family or builder"
        )
    return METHODS[name]


def _registered() -> dict[str, str]:
    """Return what packages register, by name."""
    return {each.name: f"{each.module}:{each.attr}" for each in entry_points(group=ENTRY_POINTS)}


def _own(reference: str, options: dict[str, Any]) -> Method:
    thing = import_thing(reference)
    if isinstance(thing, Method):
        return _without_options(reference, thing, options)
    if not callable(thing):
        raise ConfigError(
            f"{reference}: is {type(thing).__name__}; give a nefl.Method, or a function that "
            "returns one"
        )
    _check_options(reference, thing, options)
    made = call_own(reference, thing, options)
    if not isinstance(made, Method):
        raise ConfigError(f"{reference}: returned {type(made).__name__}, expected a nefl.Method")
    return made


def _without_options(name: str, method: Method, options: Mapping[str, Any]) -> Method:
    if options:
        raise ConfigError(f"model.method_options.{next(iter(options))}: {name} takes no options")
    return method


def _check_numbers(make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse what is no number, by name, where one of nefl's own methods takes one."""
    for each in inspect.signature(make).parameters.values():
        value = options.get(each.name, each.default)
        kind, wanted = {
            int: (int, "whole number, as in 2"),
            float: (Real, "number, as in 0.5"),
        }.get(each.annotation, (object, ""))
        if not isinstance(value, kind) or (wanted and isinstance(value, bool)):
            raise ConfigError(f"model.method_options.{each.name} is {value!r}: give a {wanted}")


def _check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that a function does not take, by name."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # one that is written in C does not tell
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    known = [each.name for each in parameters]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"model.method_options.{option}: {name} takes "
                f"{', '.join(known) or 'no options'}; mend the name, or leave it out"
            )
