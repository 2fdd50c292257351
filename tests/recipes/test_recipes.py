import tomllib
from pathlib import Path
from typing import Any

import pytest

from nefl.config.reading import config_from
from nefl.errors import ConfigError
from nefl.methods import METHODS
from nefl.recipes import load_recipe, recipe_names, recipe_values
from nefl.recipes.expansion import expand_table
from nefl.recipes.writing import to_toml


def test_every_recipe_is_a_config_and_can_be_written_as_toml() -> None:
    for name in recipe_names():
        config = load_recipe(name)
        assert config.about, name
        assert config_from(tomllib.loads(to_toml(config))) == config, name


def test_a_recipe_is_a_name_or_a_file(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text("rounds = 3")
    assert recipe_values(str(own)) == {"rounds": 3}
    with pytest.raises(ConfigError, match="neither a file nor listed.*did you mean digits"):
        recipe_values("digitz")


def test_a_recipe_can_be_changed_without_changing_it_for_others() -> None:
    values = recipe_values("paper-cifar10-resnet18-nefl-wd")
    values["model"]["name"] = "resnet8"
    assert load_recipe("paper-cifar10-resnet18-nefl-wd").model.name == "resnet18"


def test_names_say_what_a_recipe_is() -> None:
    for name in recipe_names():
        if not name.startswith(("paper-", "small-")):
            continue
        config = load_recipe(name)
        expected = [name.split("-")[0], config.data.name, config.model.name, config.model.method]
        expected += ["pretrained"] * (config.model.weights is not None)
        expected += ["dirichlet"] * (config.partition.kind == "dirichlet")
        expected += ["severe"] * (config.model.ratios is not None)
        usual = config.clients.count in (100, 10 if "224" in config.about else 100)
        if name.startswith("paper-") and not usual:
            expected += [str(config.clients.count), "clients"]
        assert name == "-".join(expected)


def test_small_twins_cover_every_method_of_the_papers_comparison() -> None:
    small = {load_recipe(n).model.method for n in recipe_names() if n.startswith("small-digits")}
    paper = {load_recipe(n).model.method for n in recipe_names() if n.startswith("paper-")}
    assert paper <= small <= METHODS.keys()


TABLE: dict[str, Any] = {
    "columns": ["model.method", "published.worst"],
    "settings": {"rounds": 5, "data": {"name": "digits", "train": 100}},
    "parts": [
        {
            "name": "a-{model.method}-{rounds}",
            "about": "{model.method} on {data.name}",
            "settings": {"data": {"train": 200}},
            "rows": [["fjord", 1.5], ["nefl-w", ""]],
        },
        {"name": "b-{model.method}", "about": "b", "rows": [["fjord", 2.5]]},
    ],
}


def test_a_table_becomes_recipes() -> None:
    recipes = expand_table(TABLE, "t.toml")
    assert list(recipes) == ["a-fjord-5", "a-nefl-w-5", "b-fjord"]
    assert recipes["a-fjord-5"] == {
        "about": "fjord on digits",
        "rounds": 5,
        "data": {"name": "digits", "train": 200},
        "model": {"method": "fjord"},
        "published": {"worst": 1.5},
    }
    assert "published" not in recipes["a-nefl-w-5"]
    assert recipes["b-fjord"]["data"]["train"] == 100


@pytest.mark.parametrize(
    ("part", "told"),
    [
        ({"rows": [["fjord"]]}, r"row \['fjord'\] has not one value for each"),
        ({"rows": [["fjord", 1], ["fjord", 2]]}, "two rows are called x-fjord"),
        ({"rows": [["", 1]]}, "needs model.method, which a row leaves out"),
    ],
)
def test_a_table_that_does_not_add_up(part: dict[str, Any], told: str) -> None:
    bad = TABLE | {"parts": [{"name": "x-{model.method}", "about": "x"} | part]}
    with pytest.raises(ConfigError, match="t.toml.*" + told):
        expand_table(bad, "t.toml")


def test_toml_of_unusual_settings() -> None:
    config = config_from(
        {
            "about": 'quotes ", back\\slash, line\nbreak, \x7f and γ',
            "data": {"name": "synthetic", "options": {"classes": 3, "odd key": [1, 2]}},
            "clients": {
                "capability": "devices",
                "devices": [
                    {"name": "phone", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6},
                    {"name": "hub", "memory": 1e9, "macs_per_second": 5e-7, "bandwidth": 1e6},
                ],
            },
        }
    )
    assert config_from(tomllib.loads(to_toml(config))) == config


def test_the_page_on_recipes_lists_the_papers_rows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    for name in recipe_names():
        if not name.startswith("paper-") or name.endswith("-clients"):
            continue
        published = load_recipe(name).published
        shown = "" if published.worst is None else f"{published.worst:.2f}"
        assert f"| `{name}` | {shown} |" in page, name
