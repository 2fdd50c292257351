"""Limits on how far an update may move."""

from collections.abc import Iterator

import torch

from nefl import ClientUpdate, TrainTask, extract, make_family
from nefl.config import ServerConfig
from nefl.server.limits import movement, within_limits
from nefl.state import ClientFailure

FAMILY = make_family("resnet8", "nefl-wd", input_shape=(1, 8, 8))
STATE = FAMILY.initial_state(0)


def moved(client: int, submodel: int, by: float) -> ClientUpdate:
    start = extract(STATE, FAMILY, submodel)
    trained = {n: t + by if t.is_floating_point() else t.clone() for n, t in start.items()}
    return ClientUpdate(TrainTask(1, client, submodel), trained, 1)


def results(server: ServerConfig, *updates: ClientUpdate) -> list[ClientUpdate | ClientFailure]:
    given: Iterator[ClientUpdate | ClientFailure] = iter(updates)
    return list(within_limits(given, STATE, FAMILY, server))


def test_movement_does_not_grow_with_the_submodel() -> None:
    for submodel in (1, 5):
        update = moved(0, submodel, 0.25)
        assert abs(movement(update.trained, extract(STATE, FAMILY, submodel)) - 0.25) < 1e-6


def test_far_from_the_median_is_refused() -> None:
    server = ServerConfig(norm_limit=3.0)
    updates = [moved(0, 1, 0.1), moved(1, 3, -0.1), moved(2, 5, 0.25), moved(3, 2, 5.0)]
    found = results(server, *updates)
    assert [isinstance(r, ClientFailure) for r in found] == [False, False, False, True]
    assert isinstance(found[3], ClientFailure)
    assert "client 3: its update moves the weights by 5" in found[3].reason


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
    assert abs(movement(found.trained, start) - 0.1) < 1e-5
    [same] = results(ServerConfig(clip_update=0.5), moved(0, 3, 0.4))
    assert isinstance(same, ClientUpdate)
    torch.testing.assert_close(same.trained["fc.bias"], start["fc.bias"] + 0.4)
