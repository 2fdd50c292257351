"""A column for each submodel: members trained alone are one row, single models stand by size."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nefl.artifacts.facts import Facts
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.signature import Signature
from nefl.report.reading.runs import Run, read_run
from nefl.report.tables.comparison import compare
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
    [grid] = member_grids(compare(runs))
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


def test_without_facts_a_single_model_is_the_first_column(make_run: MakeRun) -> None:
    family = read_run(make_run("a", [[0.1, 0.2]]))
    single = read_run(make_run("b", [[0.3]], settings={"model.method": "fedavg"}))
    [grid] = member_grids(compare([family, single]))
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
    [alone] = member_grids(compare(runs))
    assert [cell.text for cell in alone.rows[0]][2:] == ["10.00", "20.00", "30.00"]
    family = run(make_run, "family", [0.1, 0.2, 0.3], (100, 250, 900))
    beside = member_grids(compare([family, *runs]))[0]
    assert [cell.text for cell in beside.rows[1]][2:] == ["10.00", "20.00", "30.00"]
