"""Members within a step: which ones, who teaches whom, and how often each is run."""

from collections import Counter
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from nefl.client.objective import Local
from nefl.client.within import Within
from nefl.errors import ConfigError
from nefl.methods import find_method, make_family
from nefl.nesting.inside import members_inside
from nefl.state import TrainTask

LABELS = torch.tensor([0, 2])
LOGITS = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(3))


class Classes:
    gives_logits = True

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, target)


class Said(nn.Module):
    """A model, or a member, that always says the same, and counts how often it is asked."""

    def __init__(self, number: int, asked: Counter[int]) -> None:
        super().__init__()
        self.number, self.asked = number, asked
        self.logits = nn.Parameter(LOGITS[number - 1].clone())

    def forward(self, _: Tensor) -> Tensor:
        self.asked[self.number] += 1
        return self.logits

    def run(
        self, _: nn.Module, inputs: Tensor, *, corners_given: bool = False, instead: object
    ) -> Tensor:
        assert not instead
        outputs: Tensor = self(inputs)
        return outputs.detach() if corners_given else outputs


def local(round_number: int = 1, rounds: int = 5, own: int = 4) -> tuple[Local, Counter[int]]:
    asked: Counter[int] = Counter()
    inside = {k: Said(k, asked) for k in range(1, own)}
    task = TrainTask(round_number, 0, own)
    found = Local(Said(own, asked), cast("Any", Classes()), task, 9, {}, within=cast("Any", inside))
    found.rounds = rounds
    return found, asked


def ask(objective: Within, where: Local) -> Tensor:
    return objective.loss(where, torch.zeros(2, 1), LABELS)


def hard(number: int) -> Tensor:
    return nn.functional.cross_entropy(LOGITS[number - 1], LABELS)


def apart(student: int, teacher: int) -> Tensor:
    p, q = LOGITS[teacher - 1].softmax(1), LOGITS[student - 1].softmax(1)
    return (p * (p / q).log()).sum(1).mean()


@pytest.mark.parametrize("which", ["own", "one", "drawn", "smallest", "smallest+drawn", "all"])
@pytest.mark.parametrize("every", [1, 2])
def test_members_are_run_as_often_as_is_charged(which: str, every: int) -> None:
    objective = Within(cast("Any", which), every=1 if which in ("one", "own") else every)
    where, asked = local()
    where.within = {m: where.within[m] for m in inside_of(objective, where)}
    steps = 600
    torch.manual_seed(0)
    for step in range(steps):
        where.step = step
        ask(objective, where)
    charged = objective.work(where.members, where.submodel, 1)
    assert asked.keys() == charged.keys()
    for number, often in charged.items():
        assert asked[number] / steps == pytest.approx(often, abs=0.07), number


def test_every_so_many_steps_holds_where_rounds_have_few() -> None:
    ran = []
    for number in range(1, 9):
        where, asked = local(round_number=number, rounds=8)
        where.steps = 2
        for where.step in range(2):
            ask(Within("smallest", every=4), where)
        ran.append(asked[1])
    assert ran == [1, 0, 1, 0, 1, 0, 1, 0]


def inside_of(objective: Within, where: Local) -> tuple[int, ...]:
    return {"own": (), "smallest": (1,)}.get(objective.which, where.members)


def test_the_loss_is_the_own_one_and_the_weighted_mean_of_the_others() -> None:
    where, _ = local(round_number=2)
    wanted = hard(4) + 0.6 * (hard(1) + hard(2) + hard(3)) / 3
    torch.testing.assert_close(ask(Within("all", weight=0.6), where), wanted)
    fading = Within("all", weight=0.6, fade=0.5)  # in the second of five rounds 0.6 (1 - 1/8)
    faded = hard(4) + 0.525 * (hard(1) + hard(2) + hard(3)) / 3
    torch.testing.assert_close(ask(fading, where), faded)
    torch.testing.assert_close(ask(Within("all", from_round=3), where), hard(4))


def test_the_largest_teaches_the_others() -> None:
    where, _ = local()
    taught = [0.7 * hard(k) + 0.3 * apart(k, 4) for k in (1, 2, 3)]
    objective = Within("all", teacher="largest", teaching=0.3)
    torch.testing.assert_close(ask(objective, where), hard(4) + torch.stack(taught).mean())


def test_everyone_teaches_everyone() -> None:
    where, _ = local(own=3)
    each = {
        k: 0.5 * hard(k) + 0.5 * sum(apart(k, j) for j in (1, 2, 3) if j != k) / 2
        for k in (1, 2, 3)
    }
    found = ask(Within("all", teacher="mutual"), where)
    torch.testing.assert_close(found, each[3] + (each[1] + each[2]) / 2)


def test_the_one_with_the_lowest_running_loss_teaches() -> None:
    where, _ = local(own=3)
    best = min((1, 2, 3), key=lambda k: float(hard(k)))
    each = {k: hard(k) if k == best else 0.5 * hard(k) + 0.5 * apart(k, best) for k in (1, 2, 3)}
    wanted = each[3] + (each[1] + each[2]) / 2
    objective = Within("all", teacher="best")
    torch.testing.assert_close(ask(objective, where), wanted)
    # One bad step does not change who leads: the mean of many does.
    where.scratch["running"][best] = 1e6
    leader = min({1, 2, 3} - {best}, key=lambda k: float(hard(k)))
    each = {
        k: hard(k) if k == leader else 0.5 * hard(k) + 0.5 * apart(k, leader) for k in (1, 2, 3)
    }
    torch.testing.assert_close(ask(objective, where), each[3] + (each[1] + each[2]) / 2)


def test_a_client_with_nothing_inside_trains_as_ever() -> None:
    where, asked = local(own=1)
    for which in ("one", "drawn", "smallest", "smallest+drawn", "all"):
        objective = Within(cast("Any", which))
        torch.testing.assert_close(ask(objective, where), hard(1))
        assert objective.work((), 1, 1) == {1: 1.0}
    assert asked == {1: 5}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"which": "largest"},
            "model.method within: which is 'largest': give one of own, one, drawn, smallest",
        ),
        ({"teacher": "me"}, "teacher is 'me': give one of none, largest"),
        ({"trains": "corners"}, "trains is 'corners': give one of all, own"),
        ({"weight": -1}, "weight is -1: give 0 or more"),
        ({"weight": float("nan")}, "weight is nan"),
        ({"every": 0}, "every is 0: give a whole number from 1"),
        ({"from_round": 1.5}, "model.method_options.from_round is 1.5: give a whole number, as"),
        ({"weight": "hello"}, "model.method_options.weight is 'hello': give a number, as in 0.5"),
        ({"leave": True}, "model.method_options.leave is True: give a number"),
        ({"teaching": None}, "model.method_options.teaching is None: give a number"),
        ({"teaching": 1.1}, "teaching is 1.1: give a share from 0 to 1"),
        ({"leave": 2}, "leave is 2: give a share from 0 to 1"),
        (
            {"leave": 1.0, "which": "own"},
            "which is 'own': nothing is trained inside, so leave would",
        ),
        (
            {"every": 2, "fade": 0.5, "which": "own"},
            "so fade, every would have no effect",
        ),
        ({"leave": 1.0, "which": "one"}, "left to a member that does not train them; set which"),
        ({"leave": 1.0, "trains": "own"}, "which is 'smallest' and trains is 'own'"),
        ({"weight": 0, "fade": 0.5}, "nothing is there to fade; leave fade out"),
        ({"temperature": 2.0}, "temperature without a teacher"),
        ({"temperature": 0}, "temperature is 0: give a number above 0"),
        ({"which": "one", "teacher": "none", "weight": 2.0}, "every, weight and fade: with which"),
        ({"which": "one", "teacher": "largest"}, "nobody to learn from; set teacher to 'none'"),
        ({"family": "fedavg"}, "family 'fedavg': has one submodel alone"),
        ({"family": "depthfl-sd"}, "or an objective of its own; take one of nefl-wd"),
        ({"family": "exclusive"}, "family 'exclusive': has options of its own, and no place"),
        ({"weights": 1}, "within takes family, which"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        find_method("within", options)


def test_what_is_inside_is_found_not_assumed() -> None:
    """Of two depths one may have a block that the other skips."""
    family = make_family("resnet20", "nefl-d")
    found = [members_inside(family, k) for k in range(1, len(family) + 1)]
    assert found[-1] == (1, 2, 3, 4), "all are inside the full one"
    for k in range(1, 6):
        assert Within("all").members(family, k) == found[k - 1]
        assert Within("smallest").members(family, k) == found[k - 1][:1]
        assert Within("own").members(family, k) == ()
