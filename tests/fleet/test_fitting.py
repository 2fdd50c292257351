"""A family for a fleet: budgets are kept as counted anew, and impossible fleets say why."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from nefl.config import MemberConfig, ModelConfig, RunConfig, WireConfig
from nefl.config.reading import config_from, with_settings
from nefl.errors import ConfigError
from nefl.fleet.candidates import list_candidates
from nefl.fleet.costs import Training, cost_of_spec
from nefl.fleet.fitting import FittedFamily, fit_family
from nefl.fleet.kinds import LATENCY, MEMORY, RUN_MEMORY, TIME, FleetFile, Kind, read_fleet
from nefl.methods import family_of
from nefl.models.table import MODELS, find_design
from nefl.nesting.inference import inference_memory
from nefl.nesting.inside import members_inside
from nefl.nesting.price import SubmodelProfile
from nefl.parsing import parse_toml
from nefl.recipes.writing import to_toml
from nefl.running.assembly import assemble

STRONG = Kind("server", 1e12, 1e12, 1e9)
QUARTERS = (0.25, 0.5, 0.75, 1.0)


@pytest.fixture(autouse=True)
def _few_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nefl.fleet.fitting.WIDTHS", QUARTERS)


def small_run(**changes: Any) -> RunConfig:
    values = {
        "rounds": 2,
        "model": {"name": "resnet8", "method": "nefl-w"},
        "data": {"name": "digits", "train": 100, "test": 20},
        "clients": {"count": 4, "per_round": 2},
        "local": {"epochs": 2, "batch_size": 16},
        "engine": {"name": "serial", "device": "cpu"},
    }
    return config_from(with_settings(values, {k.replace("__", "."): v for k, v in changes.items()}))


@cache
def prices() -> tuple[SubmodelProfile, ...]:
    """Return what the network costs at each width."""
    members = [{"width": width} for width in QUARTERS]
    return assemble(small_run(model__members=members)).profiles()


def middling(place: int = 2) -> Kind:
    """Return a kind that has room for one of the widths and for no larger one."""
    memory = [price.train_memory_bytes for price in prices()]
    return Kind("phone", (memory[place] + memory[place + 1]) / 2, 1e9, 1e6)


def check_kept(found: FittedFamily, fleet: FleetFile) -> None:
    """See by hand, from the family itself, that every device keeps to its budgets."""
    setting = assemble(found.config)
    examples = int(setting.partition.sizes.max())
    for kind, placed in zip(fleet.devices, found.placements, strict=True):
        price = setting.profiles()[placed.member - 1]
        macs = price.train_macs * (kind.examples or examples) * found.config.local.epochs
        seconds = macs / kind.macs_per_second + 2 * price.payload_bytes / kind.bandwidth
        module = setting.family.meta_module(placed.member)
        run_memory = inference_memory(module, setting.task.signature)
        speed = kind.inference_macs_per_second or kind.macs_per_second
        assert placed.uses.get(TIME, seconds) == pytest.approx(seconds)
        assert price.train_memory_bytes <= kind.memory
        assert placed.uses[MEMORY] == price.train_memory_bytes
        assert seconds <= (fleet.deadline or seconds)
        assert run_memory <= (kind.inference_memory or run_memory)
        assert price.macs_total / speed <= (kind.latency or 1e9)


def test_every_kind_gets_the_widest_that_fits() -> None:
    fleet = FleetFile((middling(), STRONG), deadline=60.0)
    found = fit_family(small_run(), fleet)
    assert [spec.width for spec in found.family.specs] == [0.75, 1.0]
    assert [each.member for each in found.placements] == [1, 2]
    assert "width 1, blocks 1 1 1 would take" in found.placements[0].why
    assert MEMORY in found.placements[0].why
    assert found.placements[1].why == "it can train and run the full model"
    assert found.coverage == pytest.approx(0.5)
    check_kept(found, fleet)
    again = config_from(parse_toml(to_toml(found.config)))
    assert again == found.config
    assert again.clients.capability == "devices"


def test_each_budget_limits_by_itself() -> None:
    wide, full = replace(STRONG), prices()[-1]
    work = full.train_macs * 25 * 2  # examples of a client, epochs
    kinds = {
        "slow": (replace(wide, macs_per_second=0.9 * work), TIME),
        "busy": (replace(wide, examples=10**6, macs_per_second=0.9 * work * 4e4), TIME),
        "far": (replace(wide, bandwidth=1.8 * full.payload_bytes), TIME),
        "full": (replace(wide, inference_memory=full.params * 3.0), RUN_MEMORY),
        "urgent": (replace(wide, latency=0.9, inference_macs_per_second=full.macs_total), LATENCY),
    }
    devices = tuple(replace(kind, name=name) for name, (kind, _) in kinds.items())
    fleet = FleetFile((*devices, STRONG), deadline=1.0)
    found = fit_family(small_run(), fleet)
    assert found.notes == ()
    few = fit_family(small_run(), FleetFile((replace(STRONG, examples=24),), deadline=1.0))
    assert few.notes[0].startswith("device 'server' has 24 examples, and clients of this run up to")
    for placed, (_, budget) in zip(found.placements, kinds.values(), strict=False):
        assert placed.member < len(found.family), budget
        assert budget in placed.why
    check_kept(found, fleet)


def test_costs_of_the_method_count() -> None:
    work = prices()[2].train_macs * 25 * 2
    small = replace(middling(0), name="small")
    fleet = FleetFile((small, Kind("phone", 1e12, 1.1 * work, 1e12), STRONG), deadline=1.0)
    assert fit_family(small_run(), fleet).family.specs[1].width == 0.75
    within = small_run(model__method="within", model__method_options={"family": "nefl-w"})
    found = fit_family(within, fleet)
    check_kept(found, fleet)
    assert found.family.specs[1].width == 0.5, "the member inside takes time too"
    assert found.family.within == ((), (1,), (1,))
    assert found.placements[1].why.startswith("with what the method adds width 0.75")


def test_what_travels_encoded_takes_less_time() -> None:
    sent = prices()[-1].payload_bytes
    fleet = FleetFile((replace(STRONG, bandwidth=float(sent)),), deadline=1.0)
    with pytest.raises(ConfigError, match="has 1 s time and it takes 2 s"):
        fit_family(small_run(), fleet)
    found = fit_family(small_run(wire={"down": "int8", "up": "int8"}), fleet)
    assert found.placements[0].member == len(found.family) == 1
    check_kept(found, fleet)


def test_members_nest_and_are_no_more_than_asked_for() -> None:
    least = prices()[0].train_memory_bytes
    devices = tuple(Kind(f"kind{i}", least * (1 + 0.4 * i), 1e8 / (i + 1), 1e6) for i in range(4))
    fleet = FleetFile((*devices, STRONG), deadline=30.0)
    found = fit_family(small_run(model__method="nefl-wd"), fleet, members=3)
    last = len(found.family)
    assert last == 3
    assert members_inside(found.family, 3) == (1, 2)
    assert members_inside(found.family, 2) == (1,)
    assert any(each.why.startswith("shared with") for each in found.placements)
    check_kept(found, fleet)


def test_a_device_that_nothing_fits_is_named_with_its_budget() -> None:
    tiny = replace(STRONG, name="sensor", memory=1000.0)
    slow = replace(STRONG, name="slow", macs_per_second=1e3)
    late = replace(STRONG, name="late", latency=1e-6, inference_macs_per_second=1e6)
    with pytest.raises(ConfigError) as raised:
        fit_family(small_run(), FleetFile((tiny, STRONG, slow, late), deadline=10.0))
    for words in (
        "device 'sensor' has 1000 B training memory, and the least that a member takes is",
        "device 'slow' has 10 s time, and the least",
        "device 'late' has 0.001 ms latency, and the least",
        "(width 0.25, blocks 1 1 1)",
        "a smaller local.batch_size",
        "a later deadline",
    ):
        assert words in str(raised.value)
    assert "server" not in str(raised.value)


def test_a_model_that_too_few_can_train_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no device can train.*'phone' \(100%\).*width 0.75"):
        fit_family(small_run(), FleetFile((middling(),)))
    with pytest.raises(ConfigError, match="at least 100% must.*, or more --members$"):
        fit_family(small_run(), FleetFile((middling(), STRONG)), members=1)
    work = prices()[-1].train_macs * 25 * 2
    just = Kind("phone", 1e12, 1.05 * work, 1e12)
    within = small_run(model__method="within", model__method_options={"family": "nefl-w"})
    with pytest.raises(ConfigError, match="has 1 s time and with what the method adds it takes"):
        fit_family(within, FleetFile((middling(0), replace(just, name="a")), deadline=1.0))
    few = FleetFile((replace(middling(), share=99), STRONG))
    with pytest.raises(ConfigError, match="only 1% of the population.*lower --coverage"):
        fit_family(small_run(), few)
    assert fit_family(small_run(), few, coverage=0.01).coverage == pytest.approx(0.01)


def test_devices_that_waver_get_room() -> None:
    found = fit_family(small_run(), FleetFile((middling(), STRONG), fluctuation=0.5))
    assert found.family.specs[0].width == 0.5
    assert found.config.clients.fluctuation == 0.5


@pytest.mark.parametrize(
    ("method", "words"), [("fedavg", "trains one submodel alone"), ("depthfl", "early classifiers")]
)
def test_methods_without_such_a_family(method: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        fit_family(small_run(model__method=method), FleetFile((STRONG,)))


def test_ranks_for_a_fleet(lora_settings: dict[str, Any]) -> None:
    config = config_from(lora_settings)
    sent = assemble(config).profiles()
    far = replace(STRONG, name="far", bandwidth=1.9 * sent[1].payload_bytes)
    found = fit_family(config, FleetFile((far, STRONG), deadline=1.1))
    assert [member.rank for member in found.config.model.members] == [2, 4]
    assert found.described == ("rank 2", "rank 4")


@pytest.mark.parametrize("model", ["resnet8", "resnet20", "conv1d"])
def test_costs_of_candidates_add_up(model: str) -> None:
    signature = find_design(model).usual
    family = family_of(ModelConfig(model, members=(MemberConfig(),)), signature)
    how = Training(4, copies=1, wire=WireConfig(down="int8", up="bfloat16"))
    settings: dict[str, Any] = {"widths": (0.5,), "deep": True, "training": how}
    found = list_candidates(family, signature, alike=model in MODELS, **settings)
    for index in (len(found) // 3, len(found) - 1):
        exact, _ = cost_of_spec(family, found.spec(index), signature, how)
        assert found.costs.table[index] == pytest.approx(exact), found.describe(index)


def test_a_fleet_is_read_with_units(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    good = (
        'deadline = "2s"\n[[devices]]\nname = "a"\nmemory = "2MB"\nmacs_per_second = "3M"\n'
        'bandwidth = 5\nlatency = "20ms"\nshare = 3\n[[devices]]\nname = "b"\nmemory = 1\n'
        "macs_per_second = 1\nbandwidth = 1\n"
    )
    path.write_text(good)
    fleet = read_fleet(path)
    assert fleet.deadline == 2.0
    first = Kind("a", 2e6, 3e6, 5.0, 3.0, latency=0.02)
    assert fleet.devices[0] == first
    assert fleet.share(first) == 0.75
    for old, new, words in (
        ('"2MB"', '"2 apples"', "device 1: memory is '2 apples': give a number, or one with B"),
        ('"2MB"', "true", "memory is true"),
        ('"2MB"', "0", "device 'a': memory must be above 0"),
        ('name = "b"', 'name = "a"', "there are two of that name"),
        ("share", "shares", "devices.0.shares is not a setting"),
        ("bandwidth = 5\n", "", "devices.0.bandwidth is missing"),
        (good, "deadline = 1\n", "devices is missing"),
        (good, "devices = []\n", "give at least one"),
        ('memory = "2MB"', "memroy = 1", r"devices\.0\.memroy is not a setting; known are name"),
        ("share = 3", "deadline = 3", r"deadline is of the whole fleet; write it above the first"),
        (good, "[devices]\nname = 'a'\n", r"write \[\[devices\]\] above each kind"),
    ):
        path.write_text(good.replace(old, new))
        with pytest.raises(ConfigError, match=words):
            read_fleet(path)
