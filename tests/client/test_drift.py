"""FedProx, SCAFFOLD and FedDyn, each against its local problem written out as a loss."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nefl.client.drift import ControlVariates, Dynamic, Proximal
from nefl.client.exits import Mutual
from nefl.client.objective import Objective
from nefl.client.training import Given, LocalTraining, train
from nefl.config import LocalConfig, ScheduleConfig
from nefl.errors import ConfigError
from nefl.state import TrainTask

from .test_training import TASK, Net, examples, plain

LOCAL = LocalConfig(epochs=5, batch_size=6, learning_rate=0.3)
ROWS = examples(6)
Regulariser = Callable[[dict[str, Tensor], dict[str, Tensor]], Tensor]


def some(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {n: torch.randn(t.shape, generator=generator) for n, t in Net().state_dict().items()}


def trained(
    objective: Objective, memory: dict[str, Tensor], received: dict[str, Tensor] | None = None
) -> tuple[nn.Module, dict[str, dict[str, Tensor]], dict[str, dict[str, Tensor]]]:
    model = Net()
    how = LocalTraining(LOCAL, ScheduleConfig("constant"), 10, 0, None, TASK, objective=objective)
    given = Given(
        Net().state_dict(),
        dict.fromkeys(objective.receives, received or {}),
        dict.fromkeys(objective.keeps, memory),
    )
    update, kept = train(TrainTask(1, 0, 1), model, ROWS, how, given)
    return model, kept, {name: dict(tensors) for name, tensors in update.sent.items()}


def descended(regulariser: Regulariser) -> dict[str, Tensor]:
    """Minimise the loss and a regulariser of the weights by plain gradient descent."""
    model, start = Net(), Net().state_dict()
    for _ in range(LOCAL.epochs):  # a batch is all examples, so their order plays no part
        weights: dict[str, Tensor] = dict(model.named_parameters())
        loss = nn.functional.cross_entropy(model(plain(ROWS, None)), ROWS["labels"])
        gradients = torch.autograd.grad(loss + regulariser(weights, start), list(weights.values()))
        with torch.no_grad():
            for weight, gradient in zip(weights.values(), gradients, strict=True):
                weight.sub_(LOCAL.learning_rate * gradient)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def distance(weights: dict[str, Tensor], start: dict[str, Tensor]) -> Tensor:
    return torch.stack([(w - start[n]).square().sum() for n, w in weights.items()]).sum()


def product(weights: dict[str, Tensor], other: dict[str, Tensor]) -> Tensor:
    return torch.stack([(w * other[n]).sum() for n, w in weights.items()]).sum()


def test_fedprox_minimises_its_local_problem() -> None:
    model, _, _ = trained(Proximal(0.7), {})
    wanted = descended(lambda w, start: 0.7 / 2 * distance(w, start))
    torch.testing.assert_close(dict(model.named_parameters()), wanted)
    free, _, _ = trained(Proximal(0.0), {})
    held = distance(dict(model.named_parameters()), Net().state_dict())
    assert held < 0.8 * distance(dict(free.named_parameters()), Net().state_dict())


def test_scaffold_is_its_algorithm() -> None:
    own, common = some(1), some(2)
    model, kept, sent = trained(ControlVariates(), own, common)
    # The gradient of <c - c_i, w> is the correction of every step.
    wanted = descended(lambda w, _: product(w, common) - product(w, own))
    torch.testing.assert_close(dict(model.named_parameters()), wanted)
    start, steps = Net().state_dict(), LOCAL.epochs
    for name, weight in wanted.items():
        renewed = own[name] - common[name] + (start[name] - weight) / (steps * 0.3)
        torch.testing.assert_close(kept["control"][name], renewed)
        torch.testing.assert_close(sent["control"][name], renewed - own[name])


def test_scaffolds_control_variate_becomes_the_mean_gradient() -> None:
    """Whatever it was before: then g - c_i + c is unbiased."""
    model, kept, _ = trained(ControlVariates(), some(3), some(3))
    for name, weight in model.named_parameters():
        mean = (Net().state_dict()[name] - weight.detach()) / (LOCAL.epochs * 0.3)
        torch.testing.assert_close(kept["control"][name], mean)


def test_feddyn_minimises_its_local_problem_and_renews_its_gradient() -> None:
    own, alpha = some(4), 0.4
    model, kept, sent = trained(Dynamic(alpha), own)
    wanted = descended(lambda w, start: alpha / 2 * distance(w, start) - product(w, own))
    torch.testing.assert_close(dict(model.named_parameters()), wanted)
    start = Net().state_dict()
    for name, weight in wanted.items():
        renewed = own[name] - alpha * (weight - start[name])
        torch.testing.assert_close(kept["gradient"][name], renewed)
    assert not sent


def test_the_loss_is_that_of_another_objective() -> None:
    assert not Proximal().needs_exits
    assert Dynamic(of=Mutual()).needs_exits
    with pytest.raises(ConfigError, match="one correction"):
        Proximal(of=Dynamic())


@pytest.mark.parametrize("local", [LocalConfig(momentum=0.9), LocalConfig(optimizer="adam")])
def test_scaffold_refuses_steps_that_are_no_gradients(local: LocalConfig) -> None:
    with pytest.raises(ConfigError, match=r"needs 'sgd' with local.momentum 0"):
        ControlVariates().check(local)


@pytest.mark.parametrize("make", [lambda: Proximal(-1.0), lambda: Dynamic(0.0)])
def test_forces_that_push_away_are_refused(make: Callable[[], Objective]) -> None:
    with pytest.raises(ConfigError, match="give"):
        make()
