"""One comparison, many formats: the best is bold, and no name breaks a table."""

import csv
import io
import json

from nefl.report.reading.folders import read_runs
from nefl.report.tables.comparison import Comparison, compare
from nefl.report.tables.formats import to_csv, to_json_text, to_latex, to_markdown
from nefl.report.tables.grids import grids, wide_grid
from tests.report.conftest import MakeRun


def example(make_run: MakeRun, names: tuple[str, ...] = ("nefl-wd", "fjord")) -> Comparison:
    paths = [
        make_run(
            f"{n}{kind}{seed}",
            [[0.1, 0.2], [0.5 + n / 10 + seed / 100, 0.6]],
            settings={"seed": seed, "model.method": name, "partition.kind": kind},
        )
        for n, name in enumerate(names)
        for kind in ("iid", "dirichlet")
        for seed in (0, 1)
    ]
    return compare(read_runs(paths)[0], targets=[0.5], paper=True)


def test_the_best_is_bold_in_markdown_and_latex(make_run: MakeRun) -> None:
    comparison = example(make_run)
    text = to_markdown(comparison, grids(comparison))
    assert "| fjord | 2 | **60.50 ± 0.71** | **60.25 ± 0.35** |" in text
    assert "| nefl-wd | 2 | 50.50 ± 0.71 | 55.25 ± 0.35 |" in text
    assert "**dirichlet(0.5)**" in text
    latex = to_latex(comparison, grids(comparison))
    assert r"fjord & 2 & \textbf{60.50 $\pm$ 0.71}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 2


def test_a_wide_table_has_sections_side_by_side(make_run: MakeRun) -> None:
    comparison = example(make_run)
    grid = wide_grid(comparison)
    assert grid.groups == (("", 1), ("iid", 4), ("dirichlet(0.5)", 4))
    assert all(len(row) == len(grid.headings) == 9 for row in grid.rows)
    latex = to_latex(comparison, [grid])
    assert r"\multicolumn{4}{c}{iid} & \multicolumn{4}{c}{dirichlet(0.5)}" in latex


def test_programs_get_numbers_in_full(make_run: MakeRun) -> None:
    comparison = example(make_run)
    first = json.loads(to_json_text(comparison))["rows"][0]
    assert first["worst"]["values"] == [0.5, 0.51]
    assert first["rounds_to"]["0.5"]["values"] == [2.0, 2.0]
    lines = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    assert len(lines) == 4
    assert float(lines[0]["worst"]) == 0.505
    assert lines[0]["published_worst"] == ""


def test_names_cannot_break_a_table(make_run: MakeRun) -> None:
    comparison = example(make_run, ("=cmd|<b>_x_", r"50% & \end{tabular}"))
    markdown = to_markdown(comparison, grids(comparison))
    assert r"\=cmd" not in markdown
    assert r"=cmd\|\<b\>\_x\_" in markdown
    latex = to_latex(comparison, grids(comparison))
    assert r"50\% \& \textbackslash{}end\{tabular\}" in latex
    names = [line["method"] for line in csv.DictReader(io.StringIO(to_csv(comparison)))]
    assert names[0].startswith("'=")
