"""Figures for papers: each is drawn, and shows what it says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nefl.artifacts.checkpoint import load_state
from nefl.errors import ConfigError
from nefl.methods import make_family
from nefl.nesting.corners import extract
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.report.figures.by_name import FIGURES
from nefl.report.figures.client_records import tier_records
from nefl.report.figures.drawn_run import DrawnRun, drawn_runs
from nefl.report.figures.family import family_figure
from nefl.report.figures.run_records import (
    coverage_records,
    evaluation_records,
    norm_records,
    step_records,
    submodel_records,
)
from nefl.report.figures.studies import by_architecture, by_clients, by_method
from nefl.report.figures.toy_ode import euler, improved_euler, optimised_times, toy_ode, truth
from nefl.report.figures.vega import draw
from nefl.report.page.run_texts import failures_of
from nefl.report.reading.folders import read_runs
from nefl.report.reading.runs import read_run
from nefl.running.lifecycle import train
from tests.report.conftest import MakeRun, round_line
from tests.report.picture import picture


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    train(
        {
            "rounds": 2,
            "data": {"name": "digits", "train": 100, "test": 50},
            "clients": {"count": 10, "per_round": 4},
            "local": {"epochs": 1},
            "server": {"evaluate_every": 1, "checkpoint_every": 1},
            "engine": {"name": "serial", "device": "cpu"},
        },
        folder,
    )
    return folder


def test_steps_and_norms_are_those_of_the_checkpoint(trained: Path) -> None:
    told = DrawnRun(read_run(trained))
    family = told.family_for("weights")
    assert family is not None
    state = load_state(trained / "checkpoints" / "round-0000002.safetensors", family)
    small = extract(state, family, 1)
    steps = {(r["submodel"], r["block"]): r["step size"] for r in step_records([told])}
    assert steps[1, "layer1.0"] == pytest.approx(float(small["layer1.0.step_size.value"]), abs=1e-6)
    norms = {(r["submodel"], r["layer"]): r["L1 norm"] for r in norm_records([told])}
    assert norms[1, "conv1"] == pytest.approx(float(small["conv1.weight"].abs().mean()), abs=1e-6)
    assert not any("bn" in layer for _, layer in norms)


def test_coverage_and_tiers_count_every_update(trained: Path) -> None:
    told = DrawnRun(read_run(trained))
    summary: dict[str, Any] = json.loads((trained / "summary.json").read_text())
    records = coverage_records([told])
    assert min(r["least"] for r in records) == summary["coverage"]["fewest_updates_of_an_element"]
    updates = sum(record["updates"] for record in tier_records([told]))
    assert updates == sum(summary["coverage"]["updates_by_submodel"].values()) == 8


UNUSUAL = ("simulated-time", "by-time", "discards", "failures", "searched")
"""Figures of what ordinary runs do not have."""


@pytest.mark.parametrize("name", [n for n in FIGURES if n not in UNUSUAL])
def test_every_figure_is_drawn(name: str, trained: Path) -> None:
    figure = FIGURES[name]([DrawnRun(read_run(trained))])
    assert figure.records
    assert draw(figure, Path("figure.svg")).startswith(b"<svg")


def test_who_was_discarded_and_what_time_buys(make_run: MakeRun) -> None:
    tiers = {
        "tier 1": {"asked": 4, "counted": 2, "discarded": 1},
        "tier 2": {"asked": 2, "counted": 2, "discarded": 0},
    }
    late = [{"client": 3, "submodel": 2, "reason": "late"}]
    log = [
        round_line(n, [score], simulated={"nested": 1800.0}, tiers=tiers, discarded=late)
        for n, score in ((1, 0.25), (2, 0.5))
    ]
    drawn = drawn_runs(read_runs([make_run("run", log=log)])[0])
    figure = FIGURES["discards"](drawn)
    told = {(r["tier"], r["became"]): r["clients"] for r in figure.records}
    assert told["tier 1", "counted"] == 4
    assert told["tier 1", "discarded"] == told["tier 1", "failed"] == 2
    assert told["tier 2", "discarded"] == told["tier 2", "failed"] == 0
    timed = FIGURES["by-time"](drawn)
    assert [(r["hours"], r["score"]) for r in timed.records] == [(0.5, 25), (1.0, 50)]
    for each in (figure, timed):
        assert draw(each, Path("figure.svg")).startswith(b"<svg")
    _, line = failures_of([each.run for each in drawn])
    assert "2 updates came too late and were discarded: 2 of submodel 2." in line


def test_several_runs_are_drawn_together(trained: Path, make_run: MakeRun) -> None:
    told = [DrawnRun(run) for run in read_runs([trained, make_run("other", [[0.1] * 5] * 2)])[0]]
    for name in ("curves", "extremes", "learning-curves", "step-sizes"):
        assert draw(FIGURES[name](told), Path("figure.svg")).startswith(b"<svg")


def test_files_are_what_their_names_say(tmp_path: Path) -> None:
    figure = toy_ode()
    assert draw(figure, tmp_path / "f.png").startswith(b"\x89PNG")
    assert draw(figure, tmp_path / "f.pdf").startswith(b"%PDF")
    assert json.loads(draw(figure, tmp_path / "f.json"))["data"]["values"]
    with pytest.raises(ConfigError, match="f.gif: give a name that ends with .svg"):
        draw(figure, tmp_path / "f.gif")


def test_better_steps_and_better_slopes_mend_few_steps() -> None:
    fine = np.linspace(0, 30, 301)

    def error(times: Any, values: Any) -> float:
        return float(np.mean((np.interp(fine, times, values) - truth(fine)) ** 2))

    even_2, even_3 = np.arange(0, 31, 2.0), np.arange(0, 31, 3.0)
    chosen = optimised_times()
    assert len(chosen) == len(even_3) == 11
    assert chosen[-1] == pytest.approx(30)
    assert error(even_2, euler(even_2)) < error(even_3, euler(even_3))
    assert error(chosen, euler(chosen)) < error(even_2, euler(even_2))
    assert error(even_3, improved_euler(even_3)) < error(even_2, euler(even_2))


def test_results_by_method(make_run: MakeRun) -> None:
    accuracies = {"nefl-wd": [[0.5, 0.7], [0.7, 0.9]], "fjord": [[0.8, 0.8], [0.8, 0.8]]}
    paths = [
        make_run(f"{method}-{seed}", [found], settings={"model.method": method, "seed": seed})
        for method, both in accuracies.items()
        for seed, found in enumerate(both)
    ]
    paths.append(make_run("fedavg", [[0.9]], settings={"model.method": "fedavg"}))
    figure = by_method(read_runs(paths)[0])
    averages = {r["method"]: (r["low"], r["average"]) for r in figure.records if "low" in r}
    assert averages == {"nefl-wd": (55.86, 70), "fjord": (80, 80), "fedavg": (90, 90)}
    dots = [(r["method"], r["submodel"], r["score"]) for r in figure.records if "submodel" in r]
    assert dots == [("nefl-wd", 1, 60), ("nefl-wd", 2, 80), ("fjord", 1, 80), ("fjord", 2, 80)]
    assert figure.spec["encoding"]["y"]["sort"] == ["fedavg", "fjord", "nefl-wd"]
    assert draw(figure, Path("a.svg")).startswith(b"<svg")


def test_members_alone_are_one_method_with_a_point_for_each(make_run: MakeRun) -> None:
    paths = [make_run("family", [[0.3, 0.5, 0.7]])]
    paths += [
        make_run(
            f"alone-{member}-{seed}",
            [[score + seed / 10]],
            settings={
                "seed": seed,
                "model.method": "exclusive",
                "model.method_options": {"member": member},
            },
        )
        for member, score in ((1, 0.6), (3, 0.8))
        for seed in (0, 1)
    ]
    figure = by_method(read_runs(paths)[0])
    own = [r for r in figure.records if r["method"] == "exclusive (nefl-d)"]
    assert [(r["submodel"], r["score"]) for r in own if "submodel" in r] == [(1, 65), (3, 85)]
    assert [(r["low"], r["average"]) for r in own if "low" in r] == [(67.93, 75)]
    assert figure.notes == ("exclusive (nefl-d): its average is over submodels 1, 3 alone",)
    lines = by_clients(read_runs(paths)[0]).records
    assert {r["method"] for r in lines} == {"nefl-wd", "exclusive (nefl-d)"}


def test_names_of_methods_are_not_cut_where_there_is_room(make_run: MakeRun) -> None:
    paths = [
        make_run(f"run{name}", [[0.3, 0.5]], settings={"server.step.name": name})
        for name in ("mean", "momentum")
    ]
    drawn = draw(by_method(read_runs(paths)[0]), Path("a.svg"))
    assert b">nefl-wd step=momentum step.momentum=0.6<" in drawn


def test_results_by_number_of_clients(make_run: MakeRun) -> None:
    paths = [
        make_run(f"{count}-{seed}", [[0.5, 0.7]], settings={"clients.count": count, "seed": seed})
        for count in (10, 50)
        for seed in (0, 1)
    ]
    figure = by_clients(read_runs(paths)[0])
    points = {(r["setting"], r["measure"]): r["score"] for r in figure.records}
    assert points == {
        (10, "average"): 60,
        (10, "worst"): 50,
        (50, "average"): 60,
        (50, "worst"): 50,
    }


def test_clients_of_other_partitions_are_other_lines(make_run: MakeRun) -> None:
    paths = [
        make_run(
            f"{count}-{alpha}",
            [[0.5, alpha]],
            settings={
                "clients.count": count,
                "partition.kind": "dirichlet",
                "partition.alpha": alpha,
            },
        )
        for count in (10, 50)
        for alpha in (0.1, 0.9)
    ]
    figure = by_clients(read_runs(paths)[0])
    lines = {record["method"] for record in figure.records}
    assert lines == {"nefl-wd, dirichlet(0.1)", "nefl-wd, dirichlet(0.9)"}
    points = [(r["method"], r["measure"], r["setting"]) for r in figure.records]
    assert len(set(points)) == len(points) == 8
    ticks = figure.spec["spec"]["encoding"]["x"]["axis"]["values"]
    assert ticks == [10, 50]  # not 10, 15, 20, of which no run has any


@pytest.mark.parametrize("make", [by_clients, by_architecture])
def test_one_value_of_a_setting_has_a_line_of_its_own_for_each_method(
    make: Any, make_run: MakeRun
) -> None:
    paths = [
        make_run(method, [[0.5, 0.6]], settings={"model.method": method})
        for method in ("fjord", "nefl-w", "nefl-wd")
    ]
    figure = make(read_runs(paths)[0])
    encoding = figure.spec["spec"]["encoding"]
    assert encoding["y"]["field"] == "method"
    assert "x" not in encoding
    assert not picture(figure).lines
    assert "All runs have the same" in figure.about


def test_architectures_are_not_joined_by_lines(make_run: MakeRun) -> None:
    paths = [make_run(name, [[0.5]], settings={"model.name": name}) for name in ("resnet8", "vit")]
    figure = by_architecture(read_runs(paths)[0])
    assert not picture(figure).lines
    assert figure.spec["spec"]["encoding"]["xOffset"]["field"] == "method"


@pytest.mark.parametrize("rounds", [1, 2, 3, 5, 60])
@pytest.mark.parametrize("name", ["curves", "extremes", "learning-curves", "loss", "failures"])
def test_rounds_and_counts_have_whole_ticks(name: str, rounds: int, make_run: MakeRun) -> None:
    failures = [{"client": 0, "submodel": 1, "reason": "it"}]
    log = [round_line(n, [0.1, 0.2], failures=failures) for n in range(1, rounds + 1)]
    paths = [make_run(k, log=log, settings={"model.method": k}) for k in ("fjord", "nefl-wd")]
    axes = picture(FIGURES[name](drawn_runs(read_runs(paths)[0]))).axes
    assert axes["round"]
    for tick in axes["round"] | axes.get("failures", set()):
        assert tick.isdecimal(), axes


def test_a_loss_is_not_set_against_zero_and_its_ticks_tell_the_truth(make_run: MakeRun) -> None:
    log = [round_line(n, [0.1], loss=2.5 - n / 100) for n in range(1, 9)]
    ticks = picture(FIGURES["loss"](drawn_runs(read_runs([make_run("run", log=log)])[0])))
    assert min(map(float, ticks.axes["training loss"])) > 2
    log = [round_line(1, [0.1], loss=2.4667)]
    once = picture(FIGURES["loss"](drawn_runs(read_runs([make_run("once", log=log)])[0])))
    assert once.axes["training loss"] == {"2.467"}


def test_coverage_of_five_runs_does_not_lie_upon_itself(make_run: MakeRun) -> None:
    methods = ("nefl-wd", "nefl-w", "fjord", "heterofl", "scalefl")
    log = [round_line(1, [0.1] * 5, trained={"1": 3, "5": 1})]
    paths = [make_run(m, log=log, settings={"model.method": m}) for m in methods]
    drawn = picture(FIGURES["coverage"](drawn_runs(read_runs(paths)[0])))
    assert drawn.panels == list(methods)
    assert drawn.width < 1200  # the page's
    for points in drawn.points_in_panels:
        assert len(points) == len(set(points)) > 0


def test_long_lines_are_thinned_and_keep_their_end(make_run: MakeRun) -> None:
    told = [DrawnRun(read_run(make_run("long", [[0.1] * 5] * 1001)))]
    records = submodel_records(told)
    assert len(records) <= 4000
    assert records[-1]["round"] == 1001
    assert len(evaluation_records(told)) == 1001


def test_a_family_shows_kept_and_skipped_blocks() -> None:
    family = make_family("resnet18", "nefl-d")
    figure = family_figure(
        family, profile_family(family, Signature((3, 32, 32), 10), 1), "resnet18"
    )
    smallest = [r for r in figure.records if r["submodel"].startswith("1:")]
    assert [r["kept"] for r in smallest] == [1, 1, 0, 0, 1, 1, 0, 0]
    assert draw(figure, Path("f.svg")).startswith(b"<svg")
