"""A design by evidence: a warm-up of members at random, scores of what is cut out of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from nefl.artifacts.notes import read_log
from nefl.artifacts.searched import read_searched
from nefl.config import RunConfig
from nefl.errors import ConfigError
from nefl.fleet import evidence
from nefl.fleet.candidates import Candidates
from nefl.fleet.chain import Group
from nefl.fleet.evidence import TrainedScore, spread, warm_up_config
from nefl.fleet.fitting import _candidates, _with_full_alone, fit_family
from nefl.fleet.kinds import FleetFile
from nefl.fleet.laboratory import WORST
from nefl.running.assembly import assemble
from nefl.server.cohort import assign_submodels, sample_cohort
from nefl.server.devices import Numbers

from .test_fitting import STRONG, middling, small_run

FLEET = FleetFile((middling(), STRONG))


@pytest.fixture(autouse=True)
def _few_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.fleet.fitting.WIDTHS", tuple(part / 16 for part in range(2, 17, 2)))
    monkeypatch.setattr(evidence, "DRAWN", 3)


def listed(config: RunConfig) -> Candidates:
    return _candidates(assemble(_with_full_alone(config)))


def test_a_device_gets_what_scores_best_not_what_is_largest() -> None:
    def narrow(candidates: Candidates, _: object) -> Numbers:
        return np.asarray(1 / (1 + np.abs(candidates.widths - 0.5)))

    found = fit_family(small_run(), FLEET, score=narrow)
    assert found.described[0].startswith("width 0.5")
    assert found.placements[0].why == "a larger one that fits scores no more"
    by_size = fit_family(small_run(), FLEET)
    assert by_size.profiles[0].params > found.profiles[0].params


def test_a_warm_up_is_trained_once_and_what_was_scored_is_kept(tmp_path: Path) -> None:
    config, asked = small_run(), []
    score = TrainedScore(
        config, tmp_path / "w", 1, 5, examples=20, progress=lambda *told: asked.append(told)
    )
    candidates = listed(config)
    groups = [Group((0,), 1.0, candidates.widths < 0.6)]
    found = score(candidates, groups)
    assert found.shape == (len(candidates),)
    assert (found > 0).all()
    assert asked == [(n, 5) for n in range(1, 6)]
    noted = read_searched(tmp_path / "w")[1:]
    assert len(noted) == 5
    # After those that are spread over all sizes, only what fits some device is looked at.
    assert all(line["params"] <= candidates.costs.params[groups[0].fits].max()
               for line in noted[3:])  # fmt: skip
    assert np.array_equal(score(candidates, groups), found)
    assert [event["event"] for event in read_log(tmp_path / "w")].count("round") == 1
    assert read_searched(tmp_path / "w")[1:] == noted
    asked.clear()
    narrow = [Group((0,), 1.0, candidates.widths < 0.3)]
    replace(score, tries=8)(candidates, narrow)
    assert asked[-1][0] < 8, "what fits is scored once, and nothing else is left to try"
    for other in (replace(score, rounds=2), replace(score, config=small_run(data__train=90))):
        with pytest.raises(ConfigError, match=r"w: holds another run than the warm-up of this"):
            other(candidates, groups)


def test_in_a_warm_up_every_client_holds_all_members() -> None:
    config = small_run(model__method="nefl-wd")
    candidates = listed(config)
    setting = assemble(warm_up_config(config, candidates, 3))
    assert len(setting.family) == 3
    assert setting.family.members_within(3) == (1, 2)
    plan = setting.plan.cohort
    tasks = assign_submodels(sample_cohort(plan, 1), plan, 1)
    assert {task.submodel for task in tasks} == {3}
    with pytest.raises(ConfigError, match="rounds of the warm-up are 0"):
        warm_up_config(config, candidates, 0)


def test_what_is_drawn_is_spread_over_all_sizes() -> None:
    candidates = listed(small_run(model__method="nefl-wd"))
    found = spread(candidates, 6, seed=3)
    assert found == spread(candidates, 6, seed=3)
    assert len(set(found)) == 6
    sizes = candidates.costs.params[found] * candidates.costs.macs[found]
    assert list(sizes) == sorted(sizes)
    assert found[-1] == len(candidates) - 1


def test_the_others_are_told_from_those_that_were_scored() -> None:
    candidates = listed(small_run(model__method="nefl-wd"))
    rng = np.random.default_rng(0)
    truth = np.sqrt(candidates.widths) + 0.3 * candidates.counts.sum(axis=1)
    places = spread(candidates, 12, seed=0)
    values = truth[places] + rng.normal(0, 0.01, len(places))
    expected, unsure = evidence._expected(candidates, (places, list(values)))
    others = np.setdiff1d(np.arange(len(candidates)), places)
    assert spearmanr(expected[others], truth[others]).statistic > 0.9
    assert unsure[others].mean() > unsure[places].mean()


def test_a_metric_of_which_less_is_better_is_never_expected_to_be_below_none() -> None:
    candidates = listed(small_run(model__method="nefl-wd"))
    loss = 3 * (candidates.costs.params / candidates.costs.params[0]) ** -1.5
    places = spread(candidates, 12, seed=0)[:8]  # the larger ones are not scored
    known = (places, [evidence._worth(float(loss[place]), "down") for place in places])
    expected, _ = evidence._expected(candidates, known)
    assert spearmanr(expected, -loss).statistic > 0.9
    assert np.exp(expected).max() < 10 / loss.min(), "no metric near 0 out of nothing"


def test_a_metric_that_is_no_number_spoils_no_other() -> None:
    candidates = listed(small_run(model__method="nefl-wd"))
    places = spread(candidates, 12, seed=0)
    values = [evidence._worth(float(np.sqrt(candidates.widths[place])), "up") for place in places]
    values[3] = evidence._worth(-WORST, "up")
    expected, _ = evidence._expected(candidates, (places, values))
    assert np.isfinite(expected).all()
    others = np.delete(places, 3)
    assert spearmanr(expected[others], candidates.widths[others]).statistic > 0.8
