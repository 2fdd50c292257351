"""Seeds are gathered, sections found, and nothing unequal is set side by side in silence."""

import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nefl.report.reading.folders import read_runs
from nefl.report.tables.comparison import Comparison, Row, compare
from nefl.report.tables.formats import records, to_markdown
from nefl.report.tables.grids import grids
from tests.report.conftest import MakeRun, round_line


def rows_of(comparison: Comparison) -> dict[tuple[str, str], Row]:
    return {(s.title, row.name): row for s in comparison.sections for row in s.rows}


def test_runs_that_differ_by_seed_are_one_row(make_run: MakeRun) -> None:
    finals = [0.5, 0.6, 0.8]
    paths = [
        make_run(f"s{seed}", [[0.1, 0.2], [final, 0.9]], settings={"seed": seed})
        for seed, final in enumerate(finals)
    ]
    comparison = compare(read_runs(paths)[0])
    (row,) = rows_of(comparison).values()
    assert row.measures["worst"].mean == pytest.approx(statistics.mean(finals))
    assert row.measures["worst"].spread == pytest.approx(statistics.stdev(finals))
    assert row.measures["average"].values == pytest.approx([(f + 0.9) / 2 for f in finals])
    assert row.measures["best"].mean == pytest.approx(0.9)
    assert row.measures["bytes"].mean == 2 * 1900


def test_one_seed_has_no_spread(make_run: MakeRun) -> None:
    (row,) = rows_of(compare(read_runs([make_run("one", [[0.5]])])[0])).values()
    assert math.isnan(row.measures["worst"].spread)


def test_partitions_make_sections_and_methods_rows(make_run: MakeRun) -> None:
    paths = [
        make_run(
            f"{method}-{kind}-{seed}",
            [[0.1, 0.2]],
            settings={"seed": seed, "model.method": method, "partition.kind": kind},
        )
        for kind in ("iid", "dirichlet")
        for method in ("nefl-wd", "fjord")
        for seed in (0, 1)
    ]
    comparison = compare(read_runs(paths)[0])
    assert [section.title for section in comparison.sections] == ["iid", "dirichlet(0.5)"]
    for section in comparison.sections:
        assert [row.name for row in section.rows] == ["nefl-wd", "fjord"]
        assert all(len(row.runs) == 2 for row in section.rows)
    assert not comparison.notes


def test_a_setting_that_tells_rows_apart_is_in_their_names_and_noted(make_run: MakeRun) -> None:
    paths = [
        make_run("short", [[0.1]], settings={"local.epochs": 1}),
        make_run("long", [[0.1]], settings={"local.epochs": 5}),
        make_run("other", [[0.1]], settings={"local.epochs": 5, "model.method": "fjord"}),
    ]
    comparison = compare(read_runs(paths)[0])
    names = [row.name for section in comparison.sections for row in section.rows]
    assert names == ["nefl-wd local.epochs=1", "nefl-wd local.epochs=5", "fjord"]
    (note,) = comparison.notes
    assert note.startswith("local.epochs is not the same for all: 1 (nefl-wd local.epochs=1)")


def test_notes_name_the_section_where_rows_of_one_name_differ(make_run: MakeRun) -> None:
    paths = [
        make_run(
            f"{method}-{data}",
            [[0.1]],
            settings={"data.name": data, "model.method": method, "local.epochs": epochs},
        )
        for method, data, epochs in (
            ("nefl-wd", "digits", 1),
            ("nefl-wd", "synthetic", 5),
            ("fjord", "synthetic", 5),
        )
    ]
    (note,) = compare(read_runs(paths)[0]).notes
    assert note == ("local.epochs is not the same for all: 1 (nefl-wd on digits); 5 for the others")


def test_settings_without_effect_do_not_split_a_row(make_run: MakeRun) -> None:
    paths = [
        make_run("a", [[0.1]], settings={"seed": 0, "engine.name": "serial", "about": "one"}),
        make_run("b", [[0.1]], settings={"seed": 1, "partition.alpha": 0.1, "server.keep": 9}),
    ]
    assert len(rows_of(compare(read_runs(paths)[0]))) == 1


def test_unfinished_runs_are_left_out_or_marked(make_run: MakeRun) -> None:
    whole = make_run("whole", [[0.5], [0.6]], settings={"seed": 0})
    part = make_run("part", [[0.9]], settings={"seed": 1, "rounds": 2})
    alone = make_run("alone", [[0.99]], settings={"rounds": 2, "model.method": "fjord"})
    comparison = compare(read_runs([whole, part, alone])[0])
    rows = rows_of(comparison)
    assert rows["", "nefl-wd"].measures["worst"].values == (0.6,)
    assert not rows["", "fjord"].finished
    assert comparison.sections[0].best("worst") == 0.6  # what is not finished cannot be the best
    assert "part: left out of the means, unfinished, round 1 of 2" in comparison.notes


def test_the_same_seed_twice_counts_once(make_run: MakeRun) -> None:
    first = make_run("first", [[0.5]])
    again = make_run("again", [[0.7]])
    comparison = compare(read_runs([first, again])[0])
    (row,) = rows_of(comparison).values()
    assert [run.name for run in row.runs] == ["first"]
    assert "again: left out, first is the same run (seed 0)" in comparison.notes


def test_families_of_unequal_number_are_noted(make_run: MakeRun) -> None:
    five = make_run("five", [[0.1] * 5])
    one = make_run("one", [[0.4]], settings={"model.method": "fedavg"})
    comparison = compare(read_runs([five, one])[0])
    assert any("numbers of submodels differ" in note for note in comparison.notes)
    assert comparison.sections[0].best("worst") == 0.1  # one model alone is no family's worst


def test_rounds_to_a_target_count_the_runs_that_reach_it(make_run: MakeRun) -> None:
    paths = [
        make_run("fast", [[0.5], [0.6], [0.1]], settings={"seed": 0}),
        make_run("slow", [[0.1], [0.2], [0.6]], settings={"seed": 1}),
        make_run("never", [[0.1], [0.2], [0.3]], settings={"seed": 2}),
    ]
    comparison = compare(read_runs(paths)[0], targets=[0.55])
    (row,) = rows_of(comparison).values()
    assert row.to_target[0.55].values == (2, 3)
    assert math.isnan(comparison.sections[0].fastest(0.55))


def test_macs_are_three_forward_passes_for_each_example_and_epoch(make_run: MakeRun) -> None:
    from nefl.report.reading.costs import costs_of

    log = [round_line(1, [0.1] * 5, trained={"1": 2, "5": 1}, clients={"1": [0, 1], "5": [3]})]
    path = make_run("one", log=log, settings={"local.epochs": 2})
    runs, _ = read_runs([path])
    price = [profile.macs_total for profile in costs_of(runs[0]).profiles]
    (row,) = rows_of(compare(runs)).values()
    # clients 0, 1 and 3 have 10, 20 and 40 examples
    assert row.measures["macs"].mean == 3 * 2 * (price[0] * 30 + price[4] * 40)


def test_published_figures_stand_beside_runs_like_them(make_run: MakeRun) -> None:
    own = make_run("own", [[0.5, 0.6]], settings={"published.worst": 86.86})
    like = make_run(
        "like",
        [[0.5, 0.6]],
        settings={"model.name": "resnet18", "data.name": "cifar10", "clients.count": 100},
    )
    rows = [row for s in compare(read_runs([own, like])[0], paper=True).sections for row in s.rows]
    assert [row.published.worst if row.published else None for row in rows] == pytest.approx(
        [0.8686, 0.8686]
    )
    bare = compare(read_runs([make_run("bare", [[0.5]])])[0], paper=True)
    assert bare.notes == ("no published figures are known for these settings",)


def test_a_run_that_is_not_as_published_says_in_what(make_run: MakeRun) -> None:
    like = {"model.name": "resnet18", "data.name": "cifar10"}
    short = make_run("short", [[0.5] * 5], settings={"clients.count": 100, **like})
    comparison = compare(read_runs([short])[0], paper=True)
    (row,) = rows_of(comparison).values()
    assert row.published
    assert row.published.worst == pytest.approx(0.8686)
    (note,) = [note for note in comparison.notes if "not as published" in note]
    assert "rounds=1 instead of 500" in note
    assert "seed" not in note
    assert "engine" not in note


def test_the_same_step_by_another_name_is_as_published(make_run: MakeRun) -> None:
    like = {"model.name": "resnet18", "data.name": "cifar10", "clients.count": 100}
    (run,) = read_runs([make_run("like", [[0.5] * 5], settings=like)])[0]
    other = {"server.step.name": "auto", "server.recalibrate": True}
    comparison = compare([replace(run, settings={**run.settings, **other})], paper=True)
    (note,) = [note for note in comparison.notes if "not as published" in note]
    assert "server.recalibrate=True instead of False" in note
    assert "server.step" not in note


def test_other_data_of_ones_own_is_another_row(make_run: MakeRun) -> None:
    own = {"data.name": "arrays"}
    paths = [
        make_run("a", [[0.5]], settings={"seed": 0, "data.root": "/x/a.npz", **own}),
        make_run("b", [[0.9]], settings={"seed": 1, "data.root": "/x/b.npz", **own}),
    ]
    comparison = compare(read_runs(paths)[0])
    assert len(rows_of(comparison)) == 2
    assert any(note.startswith("data.root is not the same for all") for note in comparison.notes)
    known = [
        make_run("c", [[0.5]], settings={"seed": 0, "data.root": "/here"}),
        make_run("d", [[0.9]], settings={"seed": 1, "data.root": "/there"}),
    ]
    assert len(rows_of(compare(read_runs(known)[0]))) == 1


def test_unequal_steps_between_evaluations_are_noted_beside_targets(make_run: MakeRun) -> None:
    paths = [
        make_run("a", [[0.5]], settings={"seed": 0, "server.evaluate_every": 1}),
        make_run("b", [[0.5]], settings={"seed": 1, "server.evaluate_every": 20}),
    ]
    runs = read_runs(paths)[0]
    (note,) = compare(runs, targets=[0.4]).notes
    assert "every 1, 20 rounds" in note
    assert not compare(runs).notes


def test_a_long_setting_does_not_fill_the_table(make_run: MakeRun) -> None:
    about = {"memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6}
    devices = [{"name": f"phone {n}", **about} for n in range(20)]
    paths = [
        make_run(
            name,
            [[0.1]],
            settings={"clients.capability": "devices", "clients.devices": devices[:count]},
        )
        for name, count in (("a", 20), ("b", 19))
    ]
    names = [row.name for row in rows_of(compare(read_runs(paths)[0])).values()]
    assert max(map(len, names)) < 70
    assert len(set(names)) == 2


def test_simulated_time_to_a_target_with_and_without_over_selection(make_run: MakeRun) -> None:
    def timed(name: str, scores: list[float], seconds: list[float], **settings: float) -> Path:
        log = [
            round_line(n, [score], simulated={"nested": took})
            for n, (score, took) in enumerate(zip(scores, seconds, strict=True), start=1)
        ]
        return make_run(name, log=log, settings={"rounds": len(log), **settings})

    paths = [
        timed("waits", [0.2, 0.6, 0.7], [60.0, 90.0, 30.0]),
        timed("asks-more", [0.2, 0.4, 0.6], [20.0, 20.0, 20.0], **{"clients.over_select": 1.5}),
    ]
    comparison = compare(read_runs(paths)[0], targets=[0.5])
    rows = [row for section in comparison.sections for row in section.rows]
    assert [row.to_target[0.5].values for row in rows] == [(2,), (3,)]
    assert [row.time_to_target[0.5].values for row in rows] == [(150.0,), (60.0,)]
    text = to_markdown(comparison, grids(comparison))
    assert "rounds to 50 % | simulated time to 50 %" in text
    assert "2 min 30 s" in text
    assert [r["simulated_seconds_to"]["0.5"]["mean"] for r in records(comparison)] == [150, 60]
    # Without clocks there is no such column.
    plain = compare(read_runs([make_run("plain", [[0.6]])])[0], targets=[0.5])
    assert "simulated" not in to_markdown(plain, grids(plain))


OPTIONS = "model.method_options"


def names_of(comparison: Comparison) -> list[str]:
    return [row.name for section in comparison.sections for row in section.rows]


def test_options_at_their_default_make_no_other_row(make_run: MakeRun) -> None:
    given: list[dict[str, Any]] = [
        {},
        {"family": "nefl-d"},
        {"which": "smallest"},
        {"weight": 1},
        {"weight": 1.0},
    ]
    paths = [
        make_run(
            f"s{seed}",
            [[0.1, 0.2]],
            settings={"seed": seed, "model.method": "within", OPTIONS: options},
        )
        for seed, options in enumerate(given)
    ]
    comparison = compare(read_runs(paths)[0])
    (row,) = rows_of(comparison).values()
    assert row.name == "within"
    assert len(row.runs) == 5
    assert not comparison.notes


def test_options_tell_rows_of_a_method_apart_by_short_names(make_run: MakeRun) -> None:
    family = {"family": "nefl-wd"}
    paths = [make_run("plain", [[0.1, 0.2]])]
    paths += [
        make_run(
            f"within{leave}", [[0.1, 0.2]], settings={"model.method": "within", OPTIONS: given}
        )
        for leave, given in ((0, {"fade": 0.5}), (1, {"fade": 0.5, "leave": 1.0}))
    ]
    paths += [
        make_run(
            f"alone{member}",
            [[0.1]],
            settings={"model.method": "exclusive", OPTIONS: {"member": member} | family},
        )
        for member in (1, 3)
    ]
    comparison = compare(read_runs(paths)[0])
    within, alone = "within leave={}", "exclusive member={}"
    inside, apart = [within.format(k) for k in (0, 1)], [alone.format(k) for k in (1, 3)]
    assert names_of(comparison) == ["nefl-wd", *inside, *apart]
    # Nothing of rows that a setting means nothing to, nor of what names say or is as always.
    assert {note for note in comparison.notes if OPTIONS in note} == {
        f"{OPTIONS}.fade is 0.5 ({', '.join(inside)})",
        (
            f"{OPTIONS}.family is not the same for all: nefl-d ({', '.join(inside)}); "
            f"nefl-wd ({', '.join(apart)})"
        ),
    }


def test_an_option_that_is_called_as_a_setting_keeps_its_full_name(make_run: MakeRun) -> None:
    def own(name: str, **options: int) -> Path:
        return make_run(name, [[0.1]], settings={"model.method": "mine:make", OPTIONS: options})

    paths = [own("a", rounds=1, other=1), own("b", rounds=2, other=1), own("c")]
    assert names_of(compare(read_runs(paths)[0])) == [
        f"mine:make {OPTIONS}.rounds=1 other=1",
        f"mine:make {OPTIONS}.rounds=2 other=1",
        "mine:make",
    ]


def test_steps_are_named_shortly_and_say_what_was_done(make_run: MakeRun) -> None:
    step = "server.step"
    paths = [
        make_run("mean", [[0.1]], settings={f"{step}.name": "mean"}),
        make_run("usual", [[0.1]], settings={f"{step}.name": "momentum", "seed": 1}),
        make_run("given", [[0.1]], settings={f"{step}.name": "momentum", f"{step}.momentum": 0.6}),
        make_run("more", [[0.1]], settings={f"{step}.name": "momentum", f"{step}.momentum": 0.9}),
        make_run("own", [[0.1]], settings={"model.method": "nefl-co-wd"}),
    ]
    comparison = compare(read_runs(paths)[0])
    assert names_of(comparison) == [
        "nefl-wd step=mean",
        "nefl-wd step=momentum step.momentum=0.6",
        "nefl-wd step=momentum step.momentum=0.9",
        "nefl-co-wd",
    ]
    assert len(comparison.sections[0].rows[1].runs) == 2
    usual, more = [f"nefl-wd step=momentum step.momentum={beta}" for beta in (0.6, 0.9)]
    names, moments = comparison.notes
    told = "is not the same for all"
    assert names == f"{step}.name {told}: mean (nefl-wd step=mean); momentum for the others"
    assert moments == f"{step}.momentum {told}: 0.6 ({usual}, nefl-co-wd); 0.9 ({more})"


def test_programs_get_what_tells_rows_apart_as_it_is_set(make_run: MakeRun) -> None:
    paths = [
        make_run("a", [[0.1]], settings={"model.method": "within", OPTIONS: {"leave": 1}}),
        make_run("b", [[0.1]], settings={"server.step.name": "momentum", "engine.name": "serial"}),
        make_run("c", [[0.1]], settings={"model.method": "nefl-co-d"}),  # its step is its own
    ]
    told = [record["settings"] for record in records(compare(read_runs(paths)[0]))]
    assert told == [
        {"model.method": "within", f"{OPTIONS}.leave": 1},
        {"model.method": "nefl-wd", "server.step.name": "momentum"},
        {"model.method": "nefl-co-d"},
    ]
