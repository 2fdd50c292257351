"""What settings come to: options that are left out, the step that is the method's own.

Tables are made without torch, so what methods and steps say of themselves stands here once more;
tests compare it with them.
"""

import math
from collections.abc import Mapping
from typing import Any

from nefl.config.federation import STEP_OPTIONS

OPTION = "model.method_options."
STEP = "server.step."
STEP_NAME = f"{STEP}name"

OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "fedprox": {"mu": 0.01, "family": "nefl-wd"},
    "scaffold": {"family": "nefl-wd"},
    "feddyn": {"alpha": 0.1, "family": "nefl-wd"},
    "depthfl-full": {"alpha": 0.1, "slow_start": 300},
    "within": {
        "family": "nefl-d",
        "which": "smallest",
        "weight": 1.0,
        "fade": 1.0,
        "every": 1,
        "from_round": 1,
        "teacher": "none",
        "teaching": 0.5,
        "temperature": 1.0,
        "trains": "all",
        "leave": 0.0,
    },
    "exclusive": {"member": 1, "family": "nefl-d"},
}
"""The options of methods that take some, with what they are if left out."""

OWN_STEPS = {
    "nefl-co-d": "momentum",
    "nefl-co-wd": "momentum",
    "scaffold": "scaffold",
    "feddyn": "feddyn",
    "depthfl-full": "feddyn",
}
"""The methods that have a server step of their own."""
STEPS: Mapping[str, Mapping[str, float]] = {
    "momentum": {"momentum": 0.6},
    "adam": {"rate": 0.01, "momentum": 0.9, "beta2": 0.99, "tau": 1e-3},
    "yogi": {"rate": 0.01, "momentum": 0.9, "beta2": 0.99, "tau": 1e-3},
}
"""The settings of server steps, with what they are if left out; the rate of `momentum` follows from
its momentum."""

ALONE = "exclusive"
"""The method that trains one member of a family alone."""
MEMBER, FAMILY = f"{OPTION}member", f"{OPTION}family"


def as_meant(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by what they come to, so that those that do the same are equal.

    Options have their defaults where they are left out. The step is the one that is taken, and has
    those settings that mean something to it. Whole numbers are integers.
    """
    meant = {key: _plain(value) for key, value in settings.items()}
    meant.pop(OPTION[:-1], None)  # no options
    method = str(meant.get("model.method"))
    for name, default in OPTIONS.get(method, {}).items():
        meant.setdefault(f"{OPTION}{name}", _plain(default))
    family = str(meant.get(FAMILY)) if method in OPTIONS else ""
    return _with_step(meant, OWN_STEPS.get(method) or OWN_STEPS.get(family))


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
    return int(value) if whole else value


def _with_step(settings: dict[str, Any], own: str | None) -> dict[str, Any]:
    """Return settings with the step that is taken; `own` is that of the method."""
    name = settings.get(STEP_NAME)
    if ":" in str(settings.get("model.method")) and name == "auto":
        return settings  # only its code tells
    if name in ("auto", "mean"):  # folders of before `auto` have `mean` in its place
        name = settings[STEP_NAME] = own or "mean"
    given = {k: v for k, v in settings.items() if k.startswith(STEP) and v is not None}
    if ":" not in str(name):
        known = {f"{STEP}{option}" for option in ("name", *STEP_OPTIONS.get(str(name), ()))}
        given = {k: v for k, v in given.items() if k in known}
    given = {f"{STEP}{k}": v for k, v in STEPS.get(str(name), {}).items()} | given
    if name == "momentum" and f"{STEP}rate" in given:
        usual = 1.75 * (1 - given[f"{STEP}momentum"])
        if math.isclose(given[f"{STEP}rate"], usual):
            del given[f"{STEP}rate"]
    return {k: v for k, v in settings.items() if not k.startswith(STEP)} | given


def is_default(settings: Mapping[str, Any], key: str) -> bool:
    """Whether a setting is an option of the method that is as if it were left out."""
    known = OPTIONS.get(str(settings.get("model.method")), {})
    name = key.removeprefix(OPTION)
    return key.startswith(OPTION) and name in known and settings.get(key) == known[name]


def member_alone(settings: Mapping[str, Any]) -> int | None:
    """Return the number of the member that a run trained alone; None where it trained no such."""
    if settings.get("model.method") != ALONE:
        return None
    first: int = OPTIONS[ALONE]["member"]
    member = _plain(settings.get(MEMBER, first))
    return member if isinstance(member, int) else first
