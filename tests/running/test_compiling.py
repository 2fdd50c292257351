"""`local.compile = "auto"`: by hand, with times that are given."""

from typing import Any

import pytest

from nefl.config.reading import config_from, with_settings
from nefl.running import compiling
from nefl.running.assembly import Setting, assemble
from nefl.running.compiling import Measured, settled, steps_to_come


def setting_of(quick: dict[str, Any], **more: Any) -> Setting:
    settings = {"engine.name": "workers", "engine.workers": 2, "local.compile": "auto", **more}
    return assemble(config_from(with_settings(quick, settings)))


@pytest.mark.parametrize(("compiling_takes", "pays"), [(1.0, True), (1e9, False)])
def test_savings_are_weighed_against_compiling(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch, compiling_takes: float, pays: bool
) -> None:
    setting = setting_of(quick)
    steps = steps_to_come(setting)
    a_step = 2 * compiling.WORTH_TRYING / steps
    monkeypatch.setattr(compiling, "_times", lambda *_, **__: [9.0, a_step])
    measured = Measured(eager=2.0, compiled=1.5, compiling=compiling_takes)
    monkeypatch.setattr(compiling, "_measured", lambda *_: measured)
    found, reason = settled(setting)
    assert found.config.local.compile is pays
    assert found.plan.config is found.config
    spent = 2 * len(setting.family) * compiling_takes
    assert f"0.75 of an eager one, which saves {steps / 2:.0f} s" in reason
    assert f"at most {spent:.0f} s" in reason


def test_short_runs_compile_nothing(quick: dict[str, Any]) -> None:
    """A step is timed, and nothing is compiled to learn more."""
    found, reason = settled(setting_of(quick))
    assert found.config.local.compile is False
    assert "is tried from 600 s on" in reason
    plain = assemble(config_from(quick))
    assert settled(plain) == (plain, "")
