"""Runs that are measured by perplexity, where low is good; and beside others by accuracy."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.cli.watch import table_of
from nefl.errors import ConfigError
from nefl.measured import MeasuredBy
from nefl.report.figures.by_name import FIGURES
from nefl.report.figures.client_records import labels_of
from nefl.report.figures.drawn_run import drawn_runs, left_out
from nefl.report.figures.run_records import evaluation_records
from nefl.report.figures.studies import by_clients, by_method
from nefl.report.page.make import make_page
from nefl.report.reading.costs import costs_of
from nefl.report.reading.folders import read_runs
from nefl.report.reading.runs import Run, read_run
from nefl.report.tables.comparison import compare
from nefl.report.tables.formats import to_csv, to_json_text, to_latex, to_markdown
from nefl.report.tables.grids import footnotes, grids
from tests.report.conftest import PERPLEXITY, MakeRun, facts_of, round_line
from tests.report.picture import picture

FINALS = {"nefl-w": (30.0, 20.0), "heterofl": (24.0, 18.0), "fjord": (40.0, 36.0)}


@pytest.fixture
def study(make_run: MakeRun) -> list[Path]:
    """Three methods that foretell tokens; the second is the best."""
    return [
        make_run(
            method,
            [[60.0, 50.0], list(final)],
            settings={"model.method": method},
            metric=PERPLEXITY,
        )
        for method, final in FINALS.items()
    ]


def runs_of(paths: list[Path]) -> list[Run]:
    return read_runs(paths)[0]


def test_a_run_knows_its_primary_metric_and_all_that_was_measured(make_run: MakeRun) -> None:
    both = {"perplexity": [9.0, 7.0], "accuracy": [0.3, 0.4]}
    run = read_run(make_run("run", log=[round_line(1, metrics=both)], metric=PERPLEXITY))
    assert run.metric == PERPLEXITY
    assert run.scores == (9, 7)
    assert [(p["perplexity"], p["accuracy"]) for p in run.curves] == [(9, 0.3), (7, 0.4)]


def test_without_facts_the_log_tells_the_metric(make_run: MakeRun) -> None:
    run = read_run(make_run("known", log=[round_line(1, [9.0], "perplexity")]))
    assert (run.metric, run.problems) == (PERPLEXITY, ())
    own = read_run(make_run("own", log=[round_line(1, [9.0], "weirdness")]))
    assert own.metric == MeasuredBy("weirdness", "up")
    assert own.problems == (
        "facts.json: does not say whether weirdness is good high or low; high is taken",
    )


def test_a_folder_of_an_older_version_has_accuracies(make_run: MakeRun) -> None:
    log = [{"event": "round", "round": 1, "accuracy": [0.5, 0.6]}]
    folder = make_run("older", log=log)
    facts = facts_of(PERPLEXITY) | {"input_shape": [1, 8, 8], "class_names": list("0123456789")}
    older = {k: v for k, v in facts.items() if k not in ("signature", "kind", "metrics")}
    (folder / "facts.json").write_text(json.dumps(older))
    run = read_run(folder)
    assert (run.metric.name, run.metric.better, run.metric.percent) == ("accuracy", "up", True)
    assert run.scores == (0.5, 0.6)
    assert len(costs_of(run).profiles) == 5


def test_the_best_is_the_lowest_and_stands_first(study: list[Path]) -> None:
    comparison = compare(runs_of(study), sort="average", targets=[30])
    (section,) = comparison.sections
    assert [row.name for row in section.rows] == ["heterofl", "nefl-w", "fjord"]
    assert section.best("worst") == 24
    assert section.best("best") == 18
    assert [row.to_target[30].values for row in section.rows] == [(2,), (2,), ()]
    text = to_markdown(comparison, grids(comparison))
    assert "| method | seeds | worst ↓ | average ↓ | best ↓ | rounds to 30 |" in text
    assert "| heterofl | 1 | **24.00** | **21.00** | **18.00** | **2** |" in text
    assert "| fjord | 1 | 40.00 | 38.00 | 36.00 | never |" in text
    assert footnotes(comparison)[0] == "perplexity, lower is better"
    assert r"worst $\downarrow$" in to_latex(comparison, grids(comparison))


def test_programs_are_told_the_metric(study: list[Path]) -> None:
    comparison = compare(runs_of(study))
    first = json.loads(to_json_text(comparison))["rows"][0]
    assert first["metric"] == {"name": "perplexity", "better": "down", "percent": False}
    assert first["worst"]["values"] == [30.0]
    line = next(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert (line["metric"], float(line["worst"])) == ("perplexity", 30)


def test_targets_fit_the_metric(study: list[Path], make_run: MakeRun) -> None:
    image = make_run("image", [[0.5, 0.6]])
    with pytest.raises(ConfigError, match="target 30: give accuracy between 0 and 1, as in 0.8"):
        compare(runs_of([image]), targets=[30])
    with pytest.raises(ConfigError, match="measured by perplexity ↓, accuracy ↑; compare them ap"):
        compare(runs_of([*study, image]), targets=[0.5])
    with pytest.raises(ConfigError, match="target nan: give a number"):
        compare(runs_of(study), targets=[float("nan")])


def test_other_metrics_have_tables_of_their_own(study: list[Path], make_run: MakeRun) -> None:
    same = {"data.name": "stdlib", "model.name": "decoder_tiny", "model.method": "nefl-w"}
    image = make_run("right", [[0.5, 0.6]] * 2, settings=same)
    comparison = compare(runs_of([*study, image]))
    assert [section.title for section in comparison.sections] == ["perplexity ↓", "accuracy ↑"]
    assert [len(section.rows) for section in comparison.sections] == [3, 1]
    assert (
        "not measured by the same, so in tables of their own (perplexity ↓: nefl-w, heterofl, "
        "fjord; accuracy ↑: nefl-w)"
    ) in comparison.notes
    told = "perplexity, lower is better; accuracy in percent, higher is better"
    assert footnotes(comparison)[0] == told


def test_what_else_is_measured_does_not_tell_runs_apart(make_run: MakeRun) -> None:
    paths = [
        make_run("a", [[9.0]], metric=PERPLEXITY, settings={"seed": 0}),
        make_run(
            "b", [[8.0]], metric=PERPLEXITY, settings={"seed": 1, "metrics": ["perplexity", "f1"]}
        ),
    ]
    (section,) = compare(runs_of(paths)).sections
    assert len(section.rows) == 1


def test_published_accuracies_stand_only_beside_accuracies(make_run: MakeRun) -> None:
    path = make_run("own", [[9.0]], metric=PERPLEXITY, settings={"published.worst": 86.86})
    comparison = compare(runs_of([path]), paper=True)
    assert comparison.sections[0].rows[0].published is None
    assert "published figures are of accuracy; none stand beside nefl-w" in comparison.notes


@pytest.mark.parametrize("name", ["curves", "extremes", "learning-curves", "by-macs"])
@pytest.mark.parametrize("several", [False, True])
def test_axes_and_captions_name_the_metric(name: str, several: bool, study: list[Path]) -> None:
    figure = FIGURES[name](drawn_runs(runs_of(study if several else study[:1])))
    assert "perplexity" in figure.about
    assert "Lower is better." in figure.about
    assert "accuracy" not in figure.about + figure.title + json.dumps(figure.spec)
    axes = picture(figure).axes
    assert max(map(float, axes["test perplexity"])) >= 30  # not in percent


def test_the_best_curve_is_the_lowest(study: list[Path]) -> None:
    records = evaluation_records(drawn_runs(runs_of(study[:1])))
    assert [(r["worst"], r["average"], r["best"]) for r in records] == [(60, 55, 50), (30, 25, 20)]


def test_other_metrics_are_left_out_of_a_figure_and_named(
    study: list[Path], make_run: MakeRun
) -> None:
    told = drawn_runs(runs_of([make_run("right", [[0.5, 0.6]] * 2), *study]))
    for name in ("curves", "extremes", "learning-curves", "by-parameters"):
        assert {record["run"] for record in FIGURES[name](told).records} == set(FINALS)
    assert picture(FIGURES["curves"](told)).legend == list(FINALS)
    assert left_out(told, "evaluations") == [
        "right: not in evaluations: it is measured by accuracy ↑, the figures are of perplexity ↓"
    ]


def test_figures_of_studies_are_of_one_metric(study: list[Path], make_run: MakeRun) -> None:
    runs = runs_of([make_run("right", [[0.5, 0.6]]), *study])
    figure = by_method(runs)
    assert figure.spec["encoding"]["y"]["sort"] == ["heterofl", "nefl-w", "fjord"]
    assert figure.notes == ("right: left out, the figure is of perplexity ↓",)
    assert "test perplexity" in picture(figure).axes
    figure = by_clients(runs)
    assert figure.spec["spec"]["encoding"]["y"]["sort"] == ["heterofl", "nefl-w", "fjord"]
    assert figure.notes
    assert "lower is better" in figure.about


def test_a_page_says_perplexity_and_nothing_of_accuracy(study: list[Path]) -> None:
    page = make_page(runs_of(study)).partition('id="content"')[0]
    assert "Test perplexity by round" in page
    assert "perplexity, lower is better" in page
    assert "perplexity ↓" in page
    assert "accura" not in page.lower()


def test_examples_without_classes_have_no_labels(study: list[Path]) -> None:
    told = drawn_runs(runs_of(study[:1]))
    assert labels_of(told) == []
    assert told[0].missing["labels"] == "its examples have no classes"


def test_commands_say_the_metric(study: list[Path], make_run: MakeRun, tmp_path: Path) -> None:
    def invoke(*arguments: Any) -> str:
        result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    told = invoke("compare", *study, "--target", "30", "--sort", "best")
    assert "worst ↓" in told
    assert told.index("heterofl") < told.index("fjord")
    image = make_run("right", [[0.5, 0.6]])
    told = invoke("plot", *study, image, "--figure", "by-method", "-o", tmp_path / "m.svg")
    assert "note: right: left out, the figure is of perplexity ↓" in told
    columns = {str(c.header): list(c.cells) for c in table_of(runs_of([study[0], image])).columns}
    assert list(map(str, columns["metric"])) == ["perplexity ↓", "accuracy ↑"]
    assert columns["best"] == ["20.00", "60.00"]
    alone = table_of(runs_of(study))
    assert str(alone.title) == "perplexity ↓"
    assert "metric" not in [column.header for column in alone.columns]
