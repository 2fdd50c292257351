"""Folders of older versions, put into today's words as they are read; nothing else knows of them.

Before there were tasks, every run told images apart and was measured by its accuracy.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from nefl.measured import MeasuredBy

ACCURACY = MeasuredBy("accuracy", "up", percent=True)
"""What every run was measured by."""


def event_as_now(event: dict[str, Any]) -> dict[str, Any]:
    """Return a line of a log with its measurements by the metric's name."""
    if ACCURACY.name not in event or "metrics" in event:
        return event
    rest = {key: value for key, value in event.items() if key != ACCURACY.name}
    return rest | {"metrics": {ACCURACY.name: event[ACCURACY.name]}}


def settings_as_now(settings: dict[str, Any]) -> dict[str, Any]:
    """Return a run's settings where the server's step is left to the method.

    `mean` stood for that too; a method with a step of its own refuses it now.
    """
    server = settings.get("server")
    step = server.get("step") if isinstance(server, Mapping) else None
    if not isinstance(server, Mapping) or not isinstance(step, Mapping):
        return settings
    if step.get("name") != "mean":
        return settings
    return settings | {"server": {**server, "step": {**step, "name": "auto"}}}


def facts_as_now(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the facts of a run with a signature, the kind of its task and its metrics."""
    if "input_shape" not in facts or "signature" in facts:
        return facts
    rest = {key: value for key, value in facts.items() if key != "input_shape"}
    classes = facts.get("class_names")
    outputs = len(classes) if isinstance(classes, list) else 0
    return rest | {
        "signature": {"input_shape": facts["input_shape"], "outputs": outputs},
        "kind": "image-classification",
        "metrics": [asdict(ACCURACY)],
    }
