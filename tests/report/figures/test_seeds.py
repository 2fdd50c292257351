"""Runs that differ by the seed alone are one line of a figure, by the rule of comparisons."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.report.figures.by_name import FIGURES
from nefl.report.figures.drawn_run import drawn_runs
from nefl.report.figures.run_records import evaluation_records
from nefl.report.page.make import make_page
from nefl.report.reading.folders import read_runs
from nefl.report.tables.comparison import compare
from tests.report.conftest import MakeRun, round_line
from tests.report.picture import Picture, picture

FINALS = {"nefl-wd": (0.5, 0.6, 0.8), "fjord": (0.3, 0.3, 0.6)}


@pytest.fixture
def study(make_run: MakeRun) -> list[Path]:
    return [
        make_run(
            f"{method}-{seed}",
            [[0.1, 0.1], [final, final]],
            settings={"model.method": method, "seed": seed},
        )
        for method, finals in FINALS.items()
        for seed, final in enumerate(finals)
    ]


def drawn(name: str, paths: list[Path], **how: Any) -> Picture:
    return picture(FIGURES[name](drawn_runs(read_runs(paths)[0], **how)))


def test_curves_are_means_with_a_band_of_a_deviation(study: list[Path]) -> None:
    seen = drawn("curves", study)
    assert seen.legend == ["nefl-wd, 3 seeds", "fjord, 3 seeds"]
    assert len(seen.lines) == len(seen.bands) == 2
    ends = {p["drawn"]: p for p in seen.points if p["round"] == "2"}
    for method, finals in FINALS.items():
        end = ends[f"{method}, 3 seeds"]
        assert float(end["accuracy"]) == pytest.approx(100 * statistics.mean(finals), abs=0.01)
        spread = float(end["± over seeds"])
        assert spread == pytest.approx(100 * statistics.stdev(finals), abs=0.05)


@pytest.mark.parametrize("name", ["extremes", "learning-curves", "loss", "seconds", "traffic"])
def test_other_lines_are_averaged_too(name: str, study: list[Path]) -> None:
    seen = drawn(name, study)
    assert {line["drawn"] for line in seen.lines} == {"nefl-wd, 3 seeds", "fjord, 3 seeds"}
    assert len(seen.bands) == len(seen.lines)


def test_every_run_is_drawn_on_request(study: list[Path]) -> None:
    seen = drawn("curves", study, every_run=True)
    assert seen.legend == [path.name for path in study]
    assert len(seen.lines) == 6
    assert not seen.bands


def test_seeds_of_one_method_are_its_submodels(study: list[Path]) -> None:
    seen = drawn("curves", study[:3])
    assert seen.legend == ["1", "2"]
    assert len(seen.lines) == len(seen.bands) == 2


def test_the_rule_is_that_of_comparisons(make_run: MakeRun) -> None:
    paths = [
        make_run(f"{epochs}-{seed}", [[0.5]], settings={"seed": seed, "local.epochs": epochs})
        for epochs in (1, 5)
        for seed in (0, 1)
    ]
    runs = read_runs(paths)[0]
    (section,) = compare(runs).sections
    lines = [f"{row.name}, 2 seeds" for row in section.rows]
    assert drawn("curves", paths).legend == lines
    gathered = {record["run"]: record["line"] for record in evaluation_records(drawn_runs(runs))}
    for row, line in zip(section.rows, lines, strict=True):
        assert {gathered[run.name] for run in row.runs} == {line}


def test_single_runs_keep_their_names(make_run: MakeRun) -> None:
    paths = [make_run(m, [[0.5]], settings={"model.method": m}) for m in ("fjord", "nefl-wd")]
    assert drawn("curves", paths).legend == ["fjord", "nefl-wd"]


def test_what_does_not_count_in_a_mean_is_drawn_alone(study: list[Path], make_run: MakeRun) -> None:
    part = make_run("part", [[0.9, 0.9]], settings={"seed": 7, "rounds": 2})
    again = make_run("again", [[0.1, 0.1]] * 2, settings={"seed": 0})
    lines = drawn("curves", [*study, part, again]).legend
    assert lines == ["nefl-wd, 3 seeds", "fjord, 3 seeds", "part alone", "again alone"]


def test_a_mean_stands_only_where_all_its_runs_do(make_run: MakeRun) -> None:
    going = {"rounds": 9}
    ahead = make_run("ahead", [[0.1], [0.2], [0.3]], settings={"seed": 0} | going)
    behind = make_run("behind", [[0.3], [0.4]], settings={"seed": 1} | going)
    points = drawn("curves", [ahead, behind]).points
    assert {(p["round"], float(p["accuracy"])) for p in points} == {("1", 20.0), ("2", 30.0)}


def test_thinned_seeds_keep_the_same_rounds(make_run: MakeRun) -> None:
    paths = [
        make_run(f"s{seed}", [[0.1]] * count, settings={"seed": seed, "rounds": 3000})
        for seed, count in enumerate((2999, 2500))
    ]
    records = evaluation_records(drawn_runs(read_runs(paths)[0]))
    rounds = [{r["round"] for r in records if r["run"] == run} for run in ("s0", "s1")]
    assert rounds[1] <= rounds[0]
    assert max(rounds[0]) == 2999
    assert max(rounds[1]) == 2500


def test_one_point_is_seen(make_run: MakeRun) -> None:
    seen = drawn("curves", [make_run("run", [[0.5, 0.6]])])
    assert [point["round"] for point in seen.points] == ["1", "1"]
    spec = FIGURES["curves"](drawn_runs(read_runs([make_run("other", [[0.5]])])[0])).spec
    tests = [c.get("test") for c in spec["layer"][-1]["encoding"]["opacity"]["condition"]]
    assert "datum.points == 1" in tests


def plot(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["plot", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stderr


def test_runs_that_are_not_in_a_figure_are_named(make_run: MakeRun, tmp_path: Path) -> None:
    first, second = make_run("first", [[0.5]]), make_run("second", [[0.5]])
    elsewhere = make_run("elsewhere", [[0.5]], settings={"data.name": "cifar10"})
    empty = make_run("empty", log=["{}"], settings={"rounds": 5})
    paths = [first, second, elsewhere, empty]
    said = plot(*paths, "--figure", "labels", "-o", tmp_path / "l.svg")
    assert "second, empty: the partition of first, drawn once" in said
    assert "elsewhere: not in labels: the folder does not note them" in said
    said = plot(*paths, "--figure", "curves", "-o", tmp_path / "c.svg")
    assert "empty: not in evaluations: nothing was measured yet" in said
    page = make_page(read_runs(paths)[0])
    for note in (
        "second, empty: the partition of first, drawn once",
        "elsewhere: not in labels",
        "empty: not in evaluations",
    ):
        assert note in page


def test_clients_that_are_not_drawn_are_counted(
    make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nefl.report.figures.client_records.MAX_CLIENTS_DRAWN", 3)
    monkeypatch.setattr("nefl.report.figures.client_figures.MAX_CLIENTS_DRAWN", 3)
    figure = FIGURES["labels"](drawn_runs(read_runs([make_run("run", [[0.5]])])[0]))
    assert {record["client"] for record in figure.records} == {0, 1, 2}
    assert figure.notes == ("run: the first 3 of 4 clients",)


def test_tiers_count_clients_that_never_trained(make_run: MakeRun) -> None:
    log = [round_line(1, [0.1] * 5, trained={"1": 1}, clients={"1": [0]})]
    paths = [make_run(f"s{s}", log=log, settings={"seed": s}) for s in (0, 1)]
    records = FIGURES["tiers"](drawn_runs(read_runs(paths)[0])).records
    tiers = [{r["tier"] for r in records if r["run"] == run} for run in ("s0", "s1")]
    assert tiers[0] == tiers[1]
    assert len(tiers[0]) > 1


@pytest.mark.parametrize(("name", "columns"), [("curves", 2), ("by-macs", 1)])
def test_long_names_do_not_push_a_legend_out_of_its_figure(
    name: str, columns: int, make_run: MakeRun
) -> None:
    names = [f"{method} with quite a long name" for method in ("fjord", "nefl-wd")]
    paths = [
        make_run(each, [[0.5] * 5], settings={"model.method": each.split()[0]}) for each in names
    ]
    figure = FIGURES[name](drawn_runs(read_runs(paths)[0]))
    channels = [figure.spec["encoding"], *(each["encoding"] for each in figure.spec["layer"])]
    (colour,) = [channel["color"] for channel in channels if "color" in channel]
    assert colour["legend"]["columns"] == columns
    assert picture(figure).legend == names  # once, although dashes have a legend too
