"""Members that a recipe lists, instead of ratios."""

from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config import MemberConfig, ModelConfig, RunConfig
from nefl.config.reading import config_from, parse_setting, with_settings
from nefl.errors import ConfigError, NestingError
from nefl.methods import METHODS, built_in_levels, capability_levels, family_of
from nefl.models.images import SMALL_IMAGES
from nefl.models.ranks import lora_family
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec
from nefl.parsing import parse_toml
from nefl.recipes.writing import to_toml
from nefl.running.assembly import assemble, settings_checksum
from nefl.running.tryout import check_members

LISTED = """
[model]
name = "resnet20"

[[model.members]]
width = 0.5
blocks = [1, 1, 2]

[[model.members]]
width = [0.5, 0.75, 1.0]
inner_width = [[0.5, 0.5, 0.25], [0.75, 0.75, 0.75], [1.0, 1.0, 0.5]]
blocks = [[1, 0, 2], 3, 3]

[[model.members]]
"""


def listed(**changes: Any) -> RunConfig:
    values = parse_toml(LISTED)
    values["model"] |= changes
    return config_from(values)


def model_with(*members: dict[str, Any], **changes: Any) -> ModelConfig:
    return config_from({"model": {"name": "resnet20", "members": [*members, {}], **changes}}).model


def test_every_way_to_say_a_member() -> None:
    family = family_of(listed().model, SMALL_IMAGES)
    inner = ((0.5, 0.5, 0.25), (0.75, 0.75, 0.75), (1.0, 1.0, 0.5))
    assert family.specs == (
        SubmodelSpec(((1, 0, 0), (1, 0, 0), (1, 1, 0)), 0.5),
        SubmodelSpec(((1, 0, 2), (1, 1, 1), (1, 1, 1)), (0.5, 0.75, 1.0), inner),
        SubmodelSpec(((1.0,) * 3,) * 3),
    )
    assert family.source == "model.members"
    assert [p.channels for p in profile_family(family, SMALL_IMAGES, 8)][1] == (8, 24, 64)
    check_members(listed().model, family, SMALL_IMAGES)


def test_a_recipe_with_members_is_written_and_set_and_counts() -> None:
    config = listed()
    assert config_from(parse_toml(to_toml(config))) == config
    assert config_from(config.to_dict()) == config
    text = "model.members=[{ width = 0.5, blocks = [1, 1, 2] }, {}]"
    changed = config_from(with_settings({}, dict([parse_setting(text)])))
    assert changed.model.members == (MemberConfig(0.5, blocks=(1, 1, 2)), MemberConfig())
    assert settings_checksum(config) != settings_checksum(
        listed(members=[{"width": 0.25, "blocks": [1, 1, 2]}, {}])
    )


@pytest.mark.parametrize(
    ("members", "method", "words"),
    [
        ([{"width": 0.5}], "nefl-wd", "number 1: is the last and not the full model"),
        ([{"blocks": [1, 1]}, {}], "nefl-wd", "number 1: blocks: 2 entries for 3 stages"),
        ([{"blocks": [1, 1, 4]}, {}], "nefl-wd", "4 for stage 3, which has 3"),
        ([{"blocks": [1, 1, [1, 0]]}, {}], "nefl-wd", "2 step sizes for the 3 blocks of stage 3"),
        ([{}, {"width": 1.5}, {}], "nefl-wd", "number 2: width 1.5"),
        ([{"width": [0.5, 0.5]}, {}], "nefl-wd", "number 1: width: 2 entries for 3 stages"),
        ([{"blocks": [1, 1, 1]}, {}], "nefl-w", "number 1: skips blocks, and nefl-w"),
        ([{"width": 0.5}, {}], "nefl-d", "number 1: has a width below 1, and nefl-d"),
        ([{"blocks": [[2, 0, 0], 3, 3]}, {}], "nefl-do", "number 1: gives step sizes, and nefl-do"),
        ([{"blocks": [1, 1, 1]}, {}], "depthfl", "number 1: skips blocks before others"),
        ([{"exits": [3]}, {}], "nefl-wd", "number 1: exits: follow from the method"),
        ([{"rank": 3}, {}], "nefl-wd", "number 1: rank: is for adapters"),
        ([{"width": 0.5}, {"width": 0.25}, {}], "nefl-wd", "order the specs by size"),
        ([{"width": 0.5}, {"width": 0.499}, {}], "nefl-w", "one and the same"),
    ],
)
def test_what_makes_no_family_is_refused_by_number(
    members: list[dict[str, Any]], method: str, words: str
) -> None:
    model = listed(members=members, method=method).model
    with pytest.raises((ConfigError, NestingError), match=words):
        family_of(model, SMALL_IMAGES)


def test_what_contradicts_members_in_the_settings() -> None:
    with pytest.raises(ConfigError, match=r"model\.ratios and model\.members"):
        listed(ratios=[0.5, 1])
    with pytest.raises(ConfigError, match=r"members\.0\.widths is not a setting.*'width'"):
        listed(members=[{"widths": 0.5}, {}])
    with pytest.raises(ConfigError, match=r"members\.0\.blocks"):
        listed(members=[{"blocks": "all"}, {}])


def test_methods_train_listed_members_as_those_of_their_rule() -> None:
    narrow, shallow = {"width": 0.5}, {"blocks": [3, 1, 0]}
    for method, row in METHODS.items():
        if row.scaling == "rank":
            continue
        wide_only = row.scaling == "width"
        model = model_with(narrow if wide_only else shallow, method=method)
        family = family_of(model, SMALL_IMAGES)
        assert len(family) == (2 if row.members == "scaled" else 1), method
        check_members(model, family, SMALL_IMAGES)
        if row.exits != "none":
            assert [spec.exits for spec in family.specs] == [
                (4,),
                (4,) if row.exits == "all" else (),
            ]
    compensated = family_of(model_with({"blocks": [1, 3, 3]}, method="nefl-do"), SMALL_IMAGES)
    assert compensated.specs[0].blocks[0] == (3, 0, 0)
    within = family_of(model_with(shallow, method="within"), SMALL_IMAGES)
    assert within.within == ((), (1,))


def test_levels_of_capability_are_as_many_as_members() -> None:
    model = model_with({"width": 0.5}, {"width": 0.75}, method="fedavg-capable")
    assert built_in_levels(model) == capability_levels(model, SMALL_IMAGES) == (3, 2)


def test_ones_own_builder_makes_listed_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "members_net.py").write_text(
        "from nefl import Family, SubmodelSpec\n"
        "from nefl.models.table import ModelBuilder\n"
        "from nefl.nesting.signature import Signature\n"
        "def family(classes, input_shape):\n"
        "    build = ModelBuilder('resnet8', Signature(input_shape, classes))\n"
        "    return Family(build, (SubmodelSpec(build.full_blocks),))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    model = model_with({"width": 0.5}, name="members_net:family", method="nefl-d")
    family = family_of(model, Signature((1, 8, 8), 10))
    assert [spec.width for spec in family.specs] == [0.5, 1.0]
    capable = model_with({"width": 0.5}, name="members_net:family", method="fedavg-capable")
    assert capability_levels(capable, Signature((1, 8, 8), 10)) == (2, 1)


def test_ranks_of_listed_adapters(llama: Path, lora_settings: dict[str, Any]) -> None:
    changes: dict[str, Any] = {
        "model.members": [{"rank": 1, "blocks": [2]}, {"rank": 4, "blocks": [3]}],
        "model.options": {"base": str(llama), "targets": ["q_proj"]},
    }
    config = config_from(with_settings(lora_settings, changes))
    family = assemble(config).family
    by_options = lora_family(str(llama), targets=["q_proj"], ranks=[1, 4], depths=[2, 3])
    assert family.specs == by_options.specs
    for wrong, words in (
        ([{"rank": 1}, {}], "number 2: give its rank"),
        ([{"rank": 1, "width": 0.5}, {"rank": 2}], "number 1: an adapter has a rank"),
        ([{"rank": 1, "blocks": [2]}, {"rank": 2}], "number 2: give its blocks too"),
        ([{"rank": 1, "blocks": [[1, 0]]}, {"rank": 2}], "number 1: give how many leading"),
    ):
        with pytest.raises(ConfigError, match=words):
            assemble(config_from(with_settings(lora_settings, changes | {"model.members": wrong})))
    both = changes | {"model.options": {"base": str(llama), "ranks": [1, 2]}}
    with pytest.raises(ConfigError, match=r"model\.options\.ranks and model\.members"):
        assemble(config_from(with_settings(lora_settings, both)))


def test_listed_members_train_and_resume_to_the_same(quick: dict[str, Any], tmp_path: Path) -> None:
    changes = {"model.members": [{"width": 0.5, "blocks": [1, 1, 0]}, {}], "rounds": 2}
    settings = with_settings(quick, changes | {"schedule.name": "constant"})
    whole = nefl.train(settings, tmp_path / "whole").summary
    part = nefl.train(settings | {"rounds": 1}, tmp_path / "part")
    again = nefl.resume(part.path, rounds=2).summary
    assert len(again["metrics"]["accuracy"]) == 2
    assert again["state_sha256"] == whole["state_sha256"]
