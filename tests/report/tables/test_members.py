"""A column for each submodel: members trained alone are one row, single models stand by size."""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nefl.artifacts.facts import Facts
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.signature import Signature
from nefl.report.reading.runs import Run, read_run
from nefl.report.tables.comparison import compare
from nefl.report.tables.formats import to_csv, to_json_text
from nefl.report.tables.grids import footnotes
from nefl.report.tables.members import member_grids
from tests.report.conftest import MakeRun

SIZES = (100, 200, 400)


def price(number: int, params: int) -> SubmodelProfile:
    return SubmodelProfile(number, 1, 1, 1, 1.0, (), ((1.0,),), params, 0, 1, 1, 1, 1, 1)


def run(
    make_run: MakeRun, name: str, scores: Sequence[float], sizes: Sequence[int], **settings: Any
) -> Run:
    found = read_run(make_run(name, [scores], settings=settings))
    prices = tuple(price(k, size) for k, size in enumerate(sizes, start=1))
    facts = Facts((), Signature((1, 8, 8), 10), "own", (), 100, 10, (), prices)
    return replace(found, facts=facts)


def test_members_alone_stand_beside_those_of_a_family(make_run: MakeRun) -> None:
    options = "model.method_options"
    runs = [
        run(make_run, f"family{s}", [0.1 + s, 0.2, 0.3], SIZES, seed=s) for s in (0, 1)
    ]  # the mean of the first is 0.6
    runs += [
        run(
            make_run,
            f"alone{member}",
            [0.1 * member + 0.05],
            SIZES[member - 1 : member],
            **{"model.method": "exclusive", options: {"member": member, "family": "nefl-wd"}},
        )
        for member in (1, 2, 3)
    ]
    runs.append(run(make_run, "small", [0.4], (90,), **{"model.method": "fedavg-small"}))
    runs.append(run(make_run, "full", [0.2], (400,), **{"model.method": "fedavg"}))
    [grid] = member_grids(compare(runs, members=True))
    assert grid.headings[2:] == ("submodel 1 ↑", "submodel 2 ↑", "submodel 3 ↑")
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in grid.rows}
    assert shown == {
        "nefl-wd": ["2", "60.00 ± 70.71", "20.00 ± 0.00", "30.00 ± 0.00"],
        "exclusive (nefl-wd)": ["1", "15.00", "25.00", "35.00"],
        "fedavg-small": ["1", "40.00", "", ""],
        "fedavg": ["1", "", "", "20.00"],
    }
    bold = {(row[0].text, k) for row in grid.rows for k, cell in enumerate(row[2:], 1) if cell.bold}
    assert bold == {("nefl-wd", 1), ("exclusive (nefl-wd)", 2), ("exclusive (nefl-wd)", 3)}


def test_what_is_not_finished_is_not_the_best_of_a_column(make_run: MakeRun) -> None:
    runs = [
        run(make_run, method, [0.2], (100,), **{"model.method": method, "rounds": rounds})
        for method, rounds in (("fedavg", 1), ("fjord", 1), ("nefl-wd", 2))
    ]
    [grid] = member_grids(compare(runs, members=True))
    bold = [row[0].text.split()[0] for row in grid.rows if row[2].bold]
    assert bold == ["fedavg", "fjord"]


def test_single_models_stand_by_size_without_a_family_too(make_run: MakeRun) -> None:
    full = run(make_run, "full", [0.2], (400,), **{"model.method": "fedavg"})
    small = run(make_run, "small", [0.4], (90,), **{"model.method": "fedavg-small"})
    second = run(
        make_run,
        "alone2",
        [0.3],
        (200,),
        **{"model.method": "exclusive", "model.method_options": {"member": 2}},
    )
    comparison = compare([full, small], members=True)
    [grid] = member_grids(comparison)
    assert any("single models stand by their size" in note for note in footnotes(comparison))
    assert [[cell.text for cell in row[2:]] for row in grid.rows] == [["", "20.00"], ["40.00", ""]]
    [grid] = member_grids(compare([full, second], members=True))
    assert grid.headings[2:] == ("submodel 2 ↑",), "the only size that is known"
    third = run(
        make_run,
        "alone3",
        [0.5],
        (400,),
        **{"model.method": "exclusive", "model.method_options": {"member": 3}},
    )
    [grid] = member_grids(compare([full, second, third], members=True))
    assert {row[0].text: [cell.text for cell in row[2:]] for row in grid.rows} == {
        "fedavg": ["", "20.00"],
        "exclusive (nefl-d)": ["30.00", "50.00"],
    }


def test_without_facts_a_single_model_is_the_first_column(make_run: MakeRun) -> None:
    family = read_run(make_run("a", [[0.1, 0.2]]))
    single = read_run(make_run("b", [[0.3]], settings={"model.method": "fedavg"}))
    [grid] = member_grids(compare([family, single], members=True))
    assert [cell.text for cell in grid.rows[1]][2:] == ["30.00", ""]


def test_members_alone_stand_by_their_number_whatever_their_size(make_run: MakeRun) -> None:
    options = {"model.method": "exclusive"}
    runs = [
        run(
            make_run,
            f"alone{member}",
            [0.1 * member],
            (size,),
            **options,
            **{"model.method_options": {"member": member}},
        )
        for member, size in ((1, 100), (2, 200), (3, 300))
    ]
    [alone] = member_grids(compare(runs, members=True))
    assert [cell.text for cell in alone.rows[0]][2:] == ["10.00", "20.00", "30.00"]
    family = run(make_run, "family", [0.1, 0.2, 0.3], (100, 250, 900))
    beside = member_grids(compare([family, *runs], members=True))[0]
    assert [cell.text for cell in beside.rows[1]][2:] == ["10.00", "20.00", "30.00"]


def alone(make_run: MakeRun, scores: Sequence[Sequence[float]], **settings: Any) -> list[Run]:
    """Return runs of members alone: scores by member, then by seed."""
    return [
        run(
            make_run,
            f"alone{member}-{seed}",
            [score],
            SIZES[member - 1 : member],
            seed=seed,
            **{"model.method": "exclusive", "model.method_options": {"member": member}},
            **settings,
        )
        for member, of_member in enumerate(scores, start=1)
        for seed, score in enumerate(of_member)
    ]


def test_members_alone_count_as_one_family(make_run: MakeRun) -> None:
    runs = alone(make_run, [(0.1, 0.2), (0.3, 0.4), (0.2, 0.9)])
    (row,) = compare(runs, members=True).sections[0].rows
    assert row.submodels == 3
    assert row.measures["worst"].values == (0.1, 0.2)
    assert row.measures["average"].values == pytest.approx((0.2, 0.5))
    assert row.measures["best"].values == (0.3, 0.9)
    each = [r for section in compare(runs).sections for r in section.rows]
    assert row.measures["bytes"].mean == sum(one.measures["bytes"].mean for one in each)


def test_a_family_of_unequal_seeds_is_of_its_members_means(make_run: MakeRun) -> None:
    comparison = compare(alone(make_run, [(0.1, 0.2, 0.6), (0.5,)]), members=True)
    (row,) = comparison.sections[0].rows
    assert row.measures["average"].values == pytest.approx([0.4])
    [grid] = member_grids(comparison)
    shown = [cell.text for cell in grid.rows[0]]
    assert shown == ["exclusive (nefl-d)", "1–3", "30.00 ± 26.46", "50.00"]
    assert footnotes(comparison)[0].startswith("mean ± standard deviation over seeds")


def test_one_seed_of_each_member_has_no_spread(make_run: MakeRun) -> None:
    comparison = compare(alone(make_run, [(0.1,), (0.5,)]), members=True)
    assert not footnotes(comparison)[0].startswith("mean")


def test_only_submodels_that_any_row_has_are_columns(make_run: MakeRun) -> None:
    settings = {"model.method": "exclusive", "model.method_options": {"member": 10**9}}
    comparison = compare([run(make_run, "far", [0.5], (100,), **settings)], members=True)
    assert member_grids(comparison)[0].headings[2:] == ("submodel 1000000000 ↑",)
    assert to_csv(comparison).count("submodel_") == 2


def test_rows_are_sorted_by_the_average_over_their_members(make_run: MakeRun) -> None:
    runs = alone(make_run, [(0.1,), (0.9,)])
    runs.append(run(make_run, "family", [0.6, 0.6], SIZES[:2]))
    comparison = compare(runs, members=True, sort="average")
    [grid] = member_grids(comparison)
    assert [row[0].text for row in grid.rows] == ["nefl-wd", "exclusive (nefl-d)"]


def test_notes_name_rows_that_are_there(make_run: MakeRun) -> None:
    runs = alone(make_run, [(0.1,), (0.9,)], **{"local.epochs": 3})
    runs.append(run(make_run, "family", [0.6, 0.6], SIZES[:2]))
    runs.append(run(make_run, "single", [0.6], SIZES[:1], **{"model.method": "fedavg"}))
    (note,) = compare(runs, members=True).notes
    assert note.startswith("local.epochs is not the same for all: 3 (exclusive (nefl-d));")
    told = compare(runs, members=True, sort="worst").notes[-1]
    assert told == (
        "numbers of submodels differ, so worst and average are not over the same "
        "(1: fedavg; 2: exclusive (nefl-d), nefl-wd)"
    )
    assert compare(runs).notes[-1].endswith("; the best is marked among the largest families")


def test_what_tells_members_apart_is_in_their_rows_name(make_run: MakeRun) -> None:
    runs = alone(make_run, [(0.1,), (0.9,)])
    more = []
    for member in (1, 2):
        settings = {
            "model.method": "exclusive",
            "model.method_options": {"member": member},
            "local.epochs": 3,
        }
        more.append(run(make_run, f"more{member}", [0.5], SIZES[member - 1 : member], **settings))
    [grid] = member_grids(compare([*runs, *more], members=True))
    epochs = runs[0].settings["local.epochs"]
    names = [f"exclusive (nefl-d) local.epochs={count}" for count in (epochs, 3)]
    assert [row[0].text for row in grid.rows] == names


def test_programs_get_a_column_for_each_submodel(make_run: MakeRun) -> None:
    runs = alone(make_run, [(0.1, 0.3), (0.5,)])
    runs.append(run(make_run, "family", [0.2, 0.3, 0.4], SIZES))
    runs.append(run(make_run, "full", [0.7], SIZES[2:], **{"model.method": "fedavg"}))
    comparison = compare(runs, members=True)
    lines = list(csv.DictReader(io.StringIO(to_csv(comparison))))
    shown = [[line[f"submodel_{k}"] for k in (1, 2, 3)] for line in lines]
    assert shown == [["0.2", "0.5", ""], ["0.2", "0.3", "0.4"], ["", "", "0.7"]]
    assert [line["seeds"] for line in lines] == ["1–2", "1", "1"]
    assert float(lines[0]["submodel_1_spread"]) == pytest.approx(statistics.stdev((0.1, 0.3)))
    assert lines[0]["submodel_2_spread"] == ""
    assert all(float(line["bytes"]) > 0 for line in lines)
    first, _, full = json.loads(to_json_text(comparison))["rows"]
    assert first["method"] == "exclusive (nefl-d)"
    assert first["submodels"]["1"]["values"] == [0.1, 0.3]
    assert first["submodels"]["2"]["mean"] == 0.5
    assert (first["alone"], first["seeds"]) == ([1, 1, 2], [0, 1, 0])
    assert first["settings"] == {"model.method": "exclusive"}
    assert list(full["submodels"]) == ["3"]
