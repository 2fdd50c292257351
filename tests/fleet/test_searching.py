"""Search: within budgets, seeded, resumable, and what it finds exports."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nefl
from nefl.artifacts.searched import SEARCHED, read_searched
from nefl.config.reading import parse_member
from nefl.elastic.adopt import cut
from nefl.elastic.budget import Budget
from nefl.elastic.file import TrainedFamily
from nefl.errors import ConfigError
from nefl.export.cutting import calibration_batches, cut_source
from nefl.export.source import open_run
from nefl.fleet.laboratory import Scored
from nefl.fleet.searching import Found, search_run
from nefl.fleet.space import STEPS, Space
from nefl.models.members import spec_of
from nefl.nesting.profile import count_params
from nefl.nesting.spec import SubmodelSpec
from nefl.report.figures.search_figures import BEST, search_records

BUDGET = Budget(params=30_000)


def search(run: Path, seed: int = 0) -> Found:
    return search_run(run, BUDGET, population=3, generations=2, examples=60, seed=seed)


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


def test_a_search_keeps_to_its_budget_and_goes_on_where_it_stopped(run: Path) -> None:
    found = search(run)
    assert all(each.cost.params <= 30_000 for each in found.scored)
    assert found.best.score == max(each.score for each in found.scored)
    lines = (run / SEARCHED).read_text().splitlines()
    (run / SEARCHED).write_text("\n".join(lines[:3]) + '\n{"member": "cut off')
    asked: list[Scored | None] = []

    def note(_done: int, _total: int, best: Scored | None) -> None:
        asked.append(best)

    again = search_run(run, BUDGET, population=3, generations=2, examples=60, progress=note)
    assert again == found
    assert asked[-1] == found.best
    assert len(read_searched(run)) >= len(lines) - 1
    exported = nefl.export_submodel(
        run, run / "m.safetensors", member=parse_member(found.best.member), measure=False
    )
    assert exported.card.submodels[0].params == found.best.cost.params
    both = (found.best.score + found.checked) / 2
    whole = nefl.export_submodel(
        run,
        run / "n.onnx",
        member=parse_member(found.best.member),
        measure=False,
        examples=60,
    )
    assert whole.comparison.value == pytest.approx(both), "the accuracy that was promised"


def test_what_was_trained_is_searched_as_it_was_trained(run: Path) -> None:
    family = open_run(run).setting.family
    params = [count_params(family.meta_module(k)) for k in range(1, len(family) + 1)]
    assert family.specs[0].stage_width(0) * STEPS % 1, "no width of the space"
    found = search_run(run, Budget(params=params[1]), population=3, generations=1, examples=20)
    by_number = {each.trained: each for each in found.scored if each.trained}
    assert by_number.keys() == {1, 2}
    for number, each in by_number.items():
        member = spec_of(parse_member(each.member), family.specs[-1].blocks)
        assert member == each.spec == family.specs[number - 1]
        assert each.cost.params == params[number - 1]


def test_norms_that_are_shared_are_measured_for_the_member_that_is_exported(
    quick: dict[str, Any], tmp_path: Path
) -> None:
    quick |= {"rounds": 1, "model": {"name": "resnet8", "method": "nefl-wd-shared"}}
    source = open_run(nefl.train(quick, tmp_path / "run").path)
    spec = SubmodelSpec(((1.0,),) * 3, 0.5)
    trained = TrainedFamily(source.card((1,)), source.setting.family, source.state)
    inputs, _ = source.test_batch(20)
    scored = cut(trained, spec, calibration_batches(source))(inputs)
    exported = cut_source(source, spec).submodel(1)(inputs)
    assert torch.allclose(exported, scored, atol=1e-5)


def test_scores_of_other_examples_are_not_taken(run: Path) -> None:
    search_run(run, BUDGET, population=2, generations=1, examples=20)
    before = (run / SEARCHED).read_text().splitlines()[0]
    search_run(run, BUDGET, population=2, generations=1, examples=30)
    assert json.loads(before)["examples"] == 10
    assert read_searched(run)[0]["examples"] == 15


def test_what_cannot_be_searched(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"no member fits: the smallest \(width = 0.0625"):
        search_run(run, Budget(params=10), examples=20)
    with pytest.raises(ConfigError, match=r"no member fits: .*, latency [0-9.]+ ms; allow more"):
        search_run(run, Budget(latency=1e-9), examples=20)
    with pytest.raises(ConfigError, match="population 1"):
        search_run(run, BUDGET, population=1)
    assert not (run / SEARCHED).exists() or len(read_searched(run)) <= 2


def test_the_space_of_members() -> None:
    space = Space(((1.0,) * 3,) * 2)
    assert space.least == (1, 1, 1, 1)
    assert space.spec(space.most).is_full
    assert space.near(SubmodelSpec(((1, 0, 1), (1, 1, 1)), (0.5, 0.71))) == (2, 3, 8, 12)
    rng = np.random.default_rng(0)
    for _ in range(200):
        one, other = space.drawn(rng), space.drawn(rng)
        for genes in (one, space.crossed(one, other, rng), space.smaller(one, rng)):
            bounds = zip(space.least, genes, space.most, strict=True)
            assert all(low <= now <= high for low, now, high in bounds)
        assert sum(space.smaller(one, rng)) < sum(one) or one == space.least
    assert Space(space.full, deep=False).least == (3, 3, 1, 1)
    assert Space(space.full, wide=False).least == (1, 1, STEPS, STEPS)
    member = parse_member(space.text(space.spec((1, 3, 8, 16))))
    assert (member.width, member.blocks) == ((0.5, 1.0), (1, 3))
    inner = ((0.3, 0.4, 1.0), (1.0,) * 3)
    off = SubmodelSpec(((1.0, 0.0, 2.0), (1.0, 1.0, 0.0)), 0.447, inner)
    assert spec_of(parse_member(space.text(off)), space.full) == off


def test_the_members_that_none_is_better_than() -> None:
    head = {"format": "nefl-search-1", "metric": "accuracy", "better": "up"}
    scores = [(1, 0.5), (2, 0.4), (3, 0.7), (3, 0.6), (4, 0.7)]
    lines = [
        {"member": str(i), "macs": m, "params": m, "score": s, "trained": 0}
        for i, (m, s) in enumerate(scores)
    ]
    states = {r["member"]: r["state"] == BEST for r in search_records([head, *lines])}
    brute = {
        str(i): not any((m <= mine and s > score) or (m < mine and s == score) for m, s in scores)
        for i, (mine, score) in enumerate(scores)
    }
    assert states == brute
