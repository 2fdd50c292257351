import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import nefl
from nefl.config import ModelConfig, RunConfig
from nefl.config.reading import config_from, with_settings
from nefl.data import partition_clients
from nefl.data.catalog import DATASETS
from nefl.errors import ConfigError, DataError, NeflError
from nefl.estimate import check_run, estimate_run, timing
from nefl.estimate.cost import cost_of, drawn_numbers
from nefl.estimate.timing import StepTime, measure_steps
from nefl.methods import family_of
from nefl.nesting.coverage import min_coverage
from nefl.nesting.profile import PASSES, profile_family
from nefl.nesting.sets import memory_layout
from nefl.nesting.signature import Signature
from nefl.recipes import load_recipe, recipe_names
from nefl.running.assembly import assemble

# Adapters need a base first; tests/models/test_lora.py has their recipe.
MODELS = sorted({load_recipe(name).model.name for name in recipe_names()} - {"lora"})


@pytest.fixture
def built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many recipes share a family and a partition; making each once keeps the test short."""
    families: dict[tuple[Any, ...], Any] = {}
    partitions: dict[tuple[Any, ...], Any] = {}

    def family(model: ModelConfig, signature: Signature, arguments: Any) -> Any:
        key = (model.name, model.method, model.ratios, model.init, signature)
        if key not in families:
            families[key] = family_of(replace(model, weights=None), signature, arguments)
        return families[key]

    def partition(labels: Any, *arguments: Any, owners: Any = None, **options: Any) -> Any:
        key = (None if labels is None else (len(labels), labels.max()), *arguments)
        key = (*key, *sorted(options.items()))
        if owners is not None or key not in partitions:
            partitions[key] = partition_clients(labels, *arguments, owners=owners, **options)
        return partitions[key]

    monkeypatch.setattr("nefl.running.assembly.family_of", family)
    monkeypatch.setattr("nefl.tasks.dealing.partition_clients", partition)


@pytest.mark.long
@pytest.mark.parametrize("model", MODELS)
def test_every_recipe_passes(
    model: str, built_once: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no file of weights lies
    for name in recipe_names():
        config = load_recipe(name)
        if config.model.name != model:
            continue
        setting, notes = check_run(config)
        assert min_coverage(setting.family) >= 1, name
        assert setting.partition.clients == config.clients.count, name
        absent = config.data.name in DATASETS and config.data.name != "digits"
        expected = {"data"} if absent else set()
        expected |= {"weights"} if config.model.weights else set()
        assert {note.split(":")[0] for note in notes} == expected, name


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "paper-cifar10-resnet18-nefl-wd-200-clients",
        "paper-cifar100-resnet34-depthfl",
        "paper-svhn-resnet18-heterofl",
        "paper-cifar10-wide_resnet101_2-nefl-d-pretrained-dirichlet",
        "small-cifar10-resnet20_pooled-scalefl",
    ],
)
def test_recipes_have_a_cost(name: str) -> None:
    cost = estimate_run(load_recipe(name), timed=False)
    assert cost.total_macs > 0
    assert cost.total_bytes > cost.round_bytes > 0
    assert cost.memory_here > cost.client_memory
    assert sum(each.share for each in cost.submodels) == pytest.approx(1)
    assert cost.seconds is None
    assert not any(note.startswith("coverage") for note in cost.notes)


def test_rounds_are_drawn_from_all_of_a_run(quick: dict[str, Any]) -> None:
    """Half of the run trains the smallest submodel alone, the other half all of them."""
    clients = quick["clients"] | {"small_first": [500, 501]}
    cost = estimate_run(config_from(quick | {"rounds": 1000, "clients": clients}), timed=False)
    usual = estimate_run(config_from(quick | {"rounds": 1000}), timed=False)
    for each, always in zip(cost.submodels[1:], usual.submodels[1:], strict=True):
        assert each.share == pytest.approx(always.share / 2, abs=0.05)
    assert not any(note.startswith("coverage") for note in cost.notes)
    assert drawn_numbers(4) == [1, 2, 3, 4]
    assert drawn_numbers(201)[::199] == [1, 201]


@pytest.fixture
def run(quick: dict[str, Any]) -> RunConfig:
    return config_from(quick)


def test_the_costs_are_those_of_the_run(quick: dict[str, Any], tmp_path: Path) -> None:
    cost = estimate_run(config_from(quick), timed=False)
    summary = nefl.train(quick, tmp_path / "run").summary
    assert cost.total_bytes == summary["bytes_down"] + summary["bytes_up"]
    assert cost.examples == (10, 10.0, 10)
    assert cost.tasks == 4
    each = {row.profile.index: row.profile for row in cost.submodels}
    setting, _ = check_run(config_from(quick))
    by_hand = sum(
        PASSES * each[task.submodel].macs_total * 10
        for number in range(1, 5)
        for task in _tasks(setting, number)
    )
    assert cost.total_macs == pytest.approx(by_hand)


def _tasks(setting: Any, number: int) -> Any:
    from nefl.server.cohort import assign_submodels, sample_cohort

    plan = setting.plan.cohort
    return assign_submodels(sample_cohort(plan, number), plan, number)


def test_time_follows_from_the_steps(run: RunConfig) -> None:
    setting, _ = check_run(run)
    profiles = profile_family(setting.family, setting.task.signature, 8)
    times = {k: StepTime(8.0, measured=True) for k in range(1, 6)}  # a second an example
    cost = cost_of(setting, profiles, (), times)
    training = 4 * 4 * 10  # rounds, clients, examples
    evaluation = 2 * 5 * 100 / PASSES  # evaluations, submodels, test examples
    assert cost.seconds == pytest.approx(training + evaluation)
    workers = replace(run.engine, name="workers", workers=2)
    two = cost_of(replace(setting, config=replace(run, engine=workers)), profiles, (), times)
    assert two.seconds == pytest.approx((training + evaluation) / 2)
    assert two.memory_here > cost.memory_here


def test_members_within_cost_by_their_work_in_training_alone(quick: dict[str, Any]) -> None:
    options = {"family": "nefl-w", "from_round": 3, "every": 2}
    model = {"name": "resnet8", "method": "within", "method_options": options}
    setting, _ = check_run(config_from(quick | {"model": model}))
    plain = profile_family(setting.family, setting.task.signature, 8)
    times = {k: StepTime(8.0, measured=True) for k in range(1, 6)}  # a second an example
    # In half of the rounds, half of the steps run the smallest too.
    each = {k: 1 + 0.25 * plain[0].train_macs / plain[k - 1].train_macs for k in range(2, 6)}
    each[1] = 1.0
    cost = cost_of(setting, setting.profiles(), (), times)
    training = sum(10 * each[task.submodel] for n in range(1, 5) for task in _tasks(setting, n))
    assert cost.seconds == pytest.approx(training + 2 * 5 * 100 / PASSES)
    for row in cost.submodels:
        assert row.step_seconds == pytest.approx(8 * each[row.profile.index])


def test_what_is_timed_is_the_submodel_alone(
    quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = {"name": "resnet8", "method": "within", "method_options": {"which": "all"}}
    timed: list[Any] = []

    def time_step(setting: Any, *_: Any) -> float:
        timed.append(setting.family.within)
        return 1.0

    monkeypatch.setattr(timing, "_time_step", time_step)
    estimate_run(config_from(quick | {"model": model}))
    assert timed
    assert not any(timed)


def test_static_norms_cost_a_pass_over_the_training_data(quick: dict[str, Any]) -> None:
    config = config_from(quick | {"model": {"name": "resnet8", "method": "heterofl"}})
    setting, _ = check_run(config)
    profiles = profile_family(setting.family, setting.task.signature, 8)
    times = {k: StepTime(8.0, measured=True) for k in range(1, 6)}
    seconds = cost_of(setting, profiles, (), times).seconds
    assert seconds == pytest.approx(4 * 4 * 10 + 2 * 5 * (100 + 200) / PASSES)


def test_steps_are_measured_or_follow_by_their_work(
    run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, _ = check_run(run)
    profiles = profile_family(setting.family, setting.task.signature, 8)
    threads = torch.get_num_threads()
    assert all(step.measured for step in measure_steps(setting, profiles, 60).values())
    assert torch.get_num_threads() == threads
    monkeypatch.setattr(timing, "_time_step", lambda *task: 2.0 * task[-1])
    steps = measure_steps(setting, profiles, seconds=0)
    assert [steps[k].measured for k in range(1, 6)] == [True, False, False, False, False]
    assert steps[1].seconds == pytest.approx(16.0)
    ratio = profiles[4].macs_total / profiles[0].macs_total
    assert steps[5].seconds == pytest.approx(16.0 * ratio)


@pytest.mark.parametrize("method", ["fedprox", "scaffold", "feddyn"])
def test_steps_of_methods_that_need_what_the_server_sends(
    quick: dict[str, Any], method: str
) -> None:
    setting, _ = check_run(config_from(quick | {"model": {"name": "resnet8", "method": method}}))
    steps = measure_steps(setting, setting.profiles(), seconds=0)
    assert steps[1].measured
    assert steps[1].seconds > 0


def test_measuring_leaves_the_global_generator_alone(run: RunConfig) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    estimate_run(run)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model": {"name": "resnet9"}}, "resnet9"),
        ({"model": {"method": "nefl-x"}}, "nefl-x"),
        ({"data": {"name": "cifar10", "train": 60_000}}, "60000"),
        ({"data": {"name": "cifar10", "augment": "blur"}}, "blur"),
        ({"data": {"name": "mnist"}}, "mnist"),
        ({"data": {"name": "cifar10", "options": {"partail": True}}}, "partail"),
        ({"engine": {"device": "tpu"}}, "tpu"),
        ({"data": {"name": "cifar10"}, "clients": {"count": 60_000}}, "60000"),
    ],
)
def test_a_run_that_could_never_start_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(NeflError, match=told):
        estimate_run(config_from(changes), timed=False)


def test_data_that_is_near_and_data_that_is_not(tmp_path: Path, cifar10: Path) -> None:
    def notes(**data: Any) -> str:
        return " ".join(check_run(config_from({"data": {"name": "cifar10"} | data}))[1])

    assert "is not here; it must come from the hub" in notes()
    assert f"it must come from {tmp_path / 'gone'}" in notes(root=str(tmp_path / "gone"))
    assert "not decoded yet" in notes(root=str(cifar10), cache=str(tmp_path / "cache"))
    with pytest.raises(DataError, match="no cifar10 in it"):
        notes(root=str(tmp_path))


def test_weights_that_are_there_are_looked_into(tmp_path: Path) -> None:
    def notes(content: object) -> tuple[str, ...]:
        torch.save(content, tmp_path / "w.pth")
        model = {"name": "resnet8", "weights": str(tmp_path / "w.pth")}
        return check_run(config_from({"model": model}))[1]

    family = nefl.make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
    assert notes(family.build(family.specs[-1]).state_dict()) == ()
    with pytest.raises(DataError, match="46 missing: bn1.weight"):
        notes({"conv1.weight": torch.zeros(16, 1, 3, 3)})


def test_what_nobody_trains_is_said(quick: dict[str, Any]) -> None:
    clients = {"count": 2, "per_round": 1, "capability": "fixed"}
    cost = estimate_run(config_from(quick | {"clients": clients}), timed=False)
    assert any(note.startswith("coverage: nobody trains") for note in cost.notes)


def test_a_machine_that_is_too_small(run: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda _: 1)
    cost = estimate_run(run, timed=False)
    assert any(note.startswith("memory: this machine has 0.0 GiB") for note in cost.notes)


def test_a_user_cannot_give_a_root_where_none_belongs() -> None:
    with pytest.raises(ConfigError, match="reads no files"):
        check_run(config_from({"data": {"name": "digits", "root": "x"}}))


def test_the_servers_memory_includes_its_steps(quick: dict[str, Any]) -> None:
    plain = estimate_run(config_from(quick), timed=False)
    for name, sets in (("momentum", 1), ("yogi", 2)):
        given = config_from(with_settings(quick, {"server.step.name": name}))
        cost = estimate_run(given, timed=False)
        layout = memory_layout(assemble(given).family, ["a set"])
        more = 2 * sets * sum(info.nbytes for info in layout.values())
        assert cost.server_memory == plain.server_memory + more
        assert cost.memory_here == plain.memory_here + more


def test_each_way_has_its_own_bytes(quick: dict[str, Any]) -> None:
    """All who are asked receive, those who count send; the formats differ."""
    changes = {
        "clients.capability": "devices",
        "clients.devices": [
            {"name": "one", "memory": 1e9, "macs_per_second": 1e9, "bandwidth": 1e6}
        ],
        "clients.over_select": 2.0,
        "wire.up": "int8",
    }
    setting = assemble(config_from(with_settings(quick, changes)))
    cost = cost_of(setting, setting.profiles())
    down, up = (
        [getattr(profile, f"{way}_bytes") for profile in setting.profiles()]
        for way in ("down", "up")
    )
    assert up[-1] < down[-1] / 2
    full = len(down) - 1  # every device takes the full model
    rounds, asked, wanted = quick["rounds"], 8, 4
    assert cost.total_bytes == rounds * (asked * down[full] + wanted * up[full])


def test_who_is_trained_within_whom_is_said(quick: dict[str, Any]) -> None:
    changes = {"model.method": "within", "model.method_options.family": "nefl-d"}
    setting = assemble(config_from(with_settings(quick, changes)))
    assert cost_of(setting, setting.profiles()).within == "1 in 2; none in 3; 3 in 4; 1 in 5"
    plain = assemble(config_from(quick))
    assert not cost_of(plain, plain.profiles()).within


@pytest.mark.parametrize(("begins", "said"), [(3, True), (2, False)])
def test_members_that_no_round_trains_are_told(
    quick: dict[str, Any], begins: int, said: bool
) -> None:
    options = {"model.method": "within", "model.method_options": {"from_round": begins}}
    _, notes = check_run(config_from(with_settings(quick, options | {"rounds": 2})))
    told = [note for note in notes if "no step of 2 rounds trains any" in note]
    assert bool(told) == said


def test_submodels_that_stay_locked_are_named(quick: dict[str, Any]) -> None:
    changes = {"clients.small_first": (2, 40)}
    setting = assemble(config_from(with_settings(quick, changes)))
    notes = cost_of(setting, setting.profiles()).notes
    [idle] = [note for note in notes if "nobody trains submodel" in note]
    assert "nobody trains submodel 2, 3, 4, 5 in all 4 rounds" in idle
