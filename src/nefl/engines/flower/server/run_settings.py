"""From Flower's run config to nefl's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nefl.config import RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.errors import ConfigError
from nefl.recipes import recipe_values


@dataclass(frozen=True)
class RunSettings:
    """What a Flower app's run config asks for.

    Attributes:
        config: the run.
        name: what a numbered folder is called.
        out: its folder, on the server; a numbered one in `runs` if left out.
        resume: whether to go on with what is there.
        changed_code: whether to go on although the source of a function of one's own changed.
    """

    config: RunConfig
    name: str
    out: Path | None
    resume: bool
    changed_code: bool = False


def read_run_settings(run_config: Mapping[str, Any]) -> RunSettings:
    """Read the run config of a Flower app.

    Its keys are nefl's settings with dots, as in `local.epochs`, and five more: `recipe`, a name or
    a file; `out`, the run's folder; `resume`; `changed-code`; and `settings`, further settings in
    one text, as in `"local.momentum=0.9 server.keep=3"`. An empty text means that a setting is left
    out.

    Raises:
        ConfigError: naming the setting that cannot be.
    """
    given = {key: value for key, value in run_config.items() if value != ""}
    out, recipe = str(given.pop("out", "")), str(given.pop("recipe", ""))
    resume, more = bool(given.pop("resume", False)), str(given.pop("settings", ""))
    changed = bool(given.pop("changed-code", False))
    if resume and not out:
        raise ConfigError("run config: resume is true, but out does not say which run")
    given |= dict(parse_setting(text) for text in more.split())
    values = recipe_values(recipe) if recipe else {}
    config = config_from(with_settings(values, given), "run config")
    return RunSettings(config, recipe or "flower", Path(out) if out else None, resume, changed)
