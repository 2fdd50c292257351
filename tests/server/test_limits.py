"""Limits on how far an update may move."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from nefl import ClientUpdate, TrainTask, extract, make_family
from nefl.config import ServerConfig
from nefl.server.limits import movements, within_limits
from nefl.state import ClientFailure

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
STATE = FAMILY.initial_state(0)


def moved(client: int, submodel: int, by: float, statistics: float | None = None) -> ClientUpdate:
    """An update whose every parameter moves by so much, and statistics by as much or otherwise."""
    start, roles = extract(STATE, FAMILY, submodel), FAMILY.roles(submodel)
    way = {"parameter": by, "statistic": by if statistics is None else statistics}
    trained = {
        n: t + way[roles[n]] if t.is_floating_point() else t.clone() for n, t in start.items()
    }
    return ClientUpdate(TrainTask(1, client, submodel), trained, 1)


def results(
    server: ServerConfig,
    *updates: ClientUpdate,
    dealt: Sequence[int] = (),
    note: Callable[[str], None] = lambda _: None,
) -> list[ClientUpdate | ClientFailure]:
    given: Iterator[ClientUpdate | ClientFailure] = iter(updates)
    return list(within_limits(given, STATE, FAMILY, server, dealt=dealt, note=note))


def distances(update: ClientUpdate) -> dict[str, float]:
    found = movements(update, STATE, FAMILY)
    return {role: round(distance, 4) for role, distance in found.items()}


def test_movement_does_not_grow_with_the_submodel() -> None:
    for submodel in (1, 5):
        assert distances(moved(0, submodel, 0.25)) == {"parameter": 0.25, "statistic": 0.25}


def test_parameters_and_statistics_are_measured_apart() -> None:
    assert distances(moved(0, 2, 0.01, statistics=1.0)) == {"parameter": 0.01, "statistic": 1.0}
    static = make_family("resnet8", "heterofl", input_shape=(1, 8, 8))
    state = static.initial_state(0)
    update = ClientUpdate(TrainTask(1, 0, 1), extract(state, static, 1), 1)
    assert movements(update, state, static) == {"parameter": 0.0}


def test_honest_statistics_hide_nobodys_weights() -> None:
    """Running means and variances of honest clients move much further than their weights."""
    honest = [moved(client, 1 + client, 0.01, statistics=1.0) for client in range(3)]
    thrown = moved(3, 4, 1.0, statistics=1.0)
    skewed = moved(4, 5, 0.01, statistics=50.0)
    found = results(ServerConfig(norm_limit=10.0), *honest, thrown, skewed)
    reasons = [r.reason if isinstance(r, ClientFailure) else "" for r in found]
    assert reasons[:3] == ["", "", ""]
    assert "client 3: its update moves the parameters by 1 (root mean square), 100.0 " in reasons[3]
    assert "client 4: its update moves the statistics by 50 (root mean square), 50.0" in reasons[4]


def test_far_from_the_median_is_refused() -> None:
    server = ServerConfig(norm_limit=3.0)
    updates = [moved(0, 1, 0.1), moved(1, 3, -0.1), moved(2, 5, 0.25), moved(3, 2, 5.0)]
    found = results(server, *updates)
    assert [isinstance(r, ClientFailure) for r in found] == [False, False, False, True]
    assert isinstance(found[3], ClientFailure)
    assert "client 3: its update moves the parameters by 5" in found[3].reason


def test_bad_updates_do_not_shift_the_median() -> None:
    broken = moved(1, 2, 0.1)
    broken = ClientUpdate(
        broken.task, {**broken.trained, "fc.bias": torch.full((10,), torch.nan)}, 1
    )
    found = results(ServerConfig(norm_limit=2.0), moved(0, 1, 0.1), broken, moved(2, 1, 0.1))
    assert [isinstance(r, ClientFailure) for r in found] == [False, True, False]


def test_what_waits_is_a_copy() -> None:
    """An engine may use an update's memory for the next one."""
    place = moved(0, 1, 0.1)

    def reused() -> Iterator[ClientUpdate | ClientFailure]:
        yield place
        for tensor in place.trained.values():
            tensor.zero_()
        yield moved(1, 1, 0.1)

    first, _ = within_limits(reused(), STATE, FAMILY, ServerConfig(norm_limit=5.0))
    assert isinstance(first, ClientUpdate)
    assert first.trained["fc.weight"].abs().sum() > 0


def test_a_clip_goes_part_of_the_way() -> None:
    [found] = results(ServerConfig(clip_update=0.1), moved(0, 3, 0.4))
    assert isinstance(found, ClientUpdate)
    start = extract(STATE, FAMILY, 3)
    torch.testing.assert_close(found.trained["fc.bias"], start["fc.bias"] + 0.1)
    assert distances(found) == {"parameter": 0.1, "statistic": 0.4}
    [same] = results(ServerConfig(clip_update=0.5), moved(0, 3, 0.4))
    assert isinstance(same, ClientUpdate)
    torch.testing.assert_close(same.trained["fc.bias"], start["fc.bias"] + 0.4)


def test_statistics_have_a_clip_of_their_own() -> None:
    far = moved(0, 3, 0.01, statistics=2.0)
    [found] = results(ServerConfig(clip_statistics=0.5), far)
    assert isinstance(found, ClientUpdate)
    assert distances(found) == {"parameter": 0.01, "statistic": 0.5}
    assert torch.equal(found.trained["fc.bias"], far.trained["fc.bias"])
    [found] = results(ServerConfig(clip_statistics=0.5, clip_update=0.005), far)
    assert isinstance(found, ClientUpdate)
    assert distances(found) == {"parameter": 0.005, "statistic": 0.5}


def claims(examples: Sequence[int]) -> list[ClientUpdate]:
    return [replace(moved(c, 1, 0.1), examples=n) for c, n in enumerate(examples)]


def weighed(found: list[ClientUpdate | ClientFailure]) -> list[int]:
    return [r.examples for r in found if isinstance(r, ClientUpdate)]


def test_a_claim_weighs_at_most_so_many_times_the_median() -> None:
    by_examples = ServerConfig(weighting="examples", examples_limit=3.0)
    notes: list[str] = []
    found = results(by_examples, *claims([10, 20, 10**9, 30, 40]), note=notes.append)
    assert weighed(found) == [10, 20, 90, 30, 40]
    [note] = notes
    assert note == (
        "client 2: claims 1000000000 examples, which count as 90: 3 times the cohort's median "
        "(server.examples_limit)"
    )
    assert weighed(results(ServerConfig(), *claims([1, 10**9, 1]))) == [1, 10**9, 1]


def test_what_the_server_dealt_out_itself_counts_in_full() -> None:
    """So that a skewed partition gives the same sums wherever its clients train."""
    by_examples = ServerConfig(weighting="examples", examples_limit=1.0)
    dealt = [10, 5000, 20, 10]
    notes: list[str] = []
    assert weighed(results(by_examples, *claims(dealt), dealt=dealt, note=notes.append)) == dealt
    assert not notes
    found = results(by_examples, *claims([10, 10**6, 20, 10]), dealt=dealt, note=notes.append)
    assert weighed(found) == [10, 5000, 20, 10]
    assert "client 1: claims 1000000 examples, which count as 5000" in notes[0]


def test_honest_claims_are_not_held_back() -> None:
    taken: list[int] = []

    def arriving() -> Iterator[ClientUpdate | ClientFailure]:
        for update in claims([10, 5000, 20]):
            taken.append(update.task.client)
            yield update

    server = ServerConfig(weighting="examples")
    passed = within_limits(arriving(), STATE, FAMILY, server, dealt=[10, 5000, 20])
    next(passed)
    next(passed)
    assert taken == [0, 1]
