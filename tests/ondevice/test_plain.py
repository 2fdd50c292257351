"""What is spelt out in plain operations does what the layer does, backwards too."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from nefl.errors import ConfigError
from nefl.nesting.modules import StaticBatchNorm2d, StepSize
from nefl.ondevice.plain import PlainNorm, Trained, spelt_out

IMAGES, SERIES = torch.randn(4, 3, 9, 8), torch.randn(4, 3, 11)
LAYERS: list[tuple[nn.Module, Tensor]] = [
    (nn.Conv2d(3, 5, 3, padding=1, bias=False), IMAGES),
    (nn.Conv2d(3, 5, (3, 2), stride=(2, 1), padding=(0, 1)), IMAGES),
    (nn.Conv2d(3, 5, 1, stride=2, bias=False), IMAGES),
    (nn.Conv2d(3, 5, 7, stride=2, padding=3), IMAGES),
    (nn.Conv1d(3, 4, 5, stride=2, padding=2), SERIES),
    (nn.MaxPool2d(3, 2, 1), IMAGES),
    (nn.MaxPool2d(2), IMAGES.relu()),  # many values are equal
    (nn.MaxPool1d(3, 2, 1), SERIES),
    (nn.BatchNorm2d(3), IMAGES),
    (nn.BatchNorm1d(3, affine=False), SERIES),
    (StaticBatchNorm2d(3), IMAGES),
]


@pytest.mark.parametrize(("layer", "given"), LAYERS, ids=lambda part: type(part).__name__)
def test_plain_layers_do_what_layers_do(layer: nn.Module, given: Tensor) -> None:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    plain = spelt_out(layer)
    assert plain is not None
    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in layer.named_parameters()]
    results = []
    for module in (layer, plain):
        x = given.clone().requires_grad_()
        outputs = module(x)
        weighted = (outputs * torch.arange(outputs.numel()).reshape(outputs.shape).cos()).sum()
        results.append((outputs, *torch.autograd.grad(weighted, [x, *module.parameters()])))
    for wanted, found in zip(*results, strict=True):
        assert torch.allclose(found, wanted, atol=1e-4)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Linear(2, 2),
        nn.LayerNorm(3),
    ],
)
def test_what_is_not_known_stays(layer: nn.Module) -> None:
    assert spelt_out(layer) is None


def test_a_plain_step_is_the_residual_sum() -> None:
    step, stream = StepSize(0.7), torch.randn_like(IMAGES)
    plain = spelt_out(step)
    assert plain is not None
    results = []
    for module in (step, plain):
        x = IMAGES.clone().requires_grad_()
        outputs = module(stream, x)
        weighted = (outputs * torch.arange(outputs.numel()).reshape(outputs.shape).cos()).sum()
        results.append((outputs, *torch.autograd.grad(weighted, [x, *module.parameters()])))
    for wanted, found in zip(*results, strict=True):
        assert torch.allclose(found, wanted, atol=1e-4)
    assert spelt_out(StepSize(1.0, learned=False)) is None


class Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes along how many axes every sum and mean goes at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.axes: list[int] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Note it, and let it be."""
        if func in (torch.ops.aten.sum.dim_IntList, torch.ops.aten.mean.dim):
            self.axes.append(len(args[1]))
        return func(*args, **(kwargs or {}))


def test_sums_go_along_one_axis_after_another() -> None:
    """The runtime adds up one number after another: over a whole batch that costs digits."""
    layers = nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3), StepSize(0.5)
    norm, convolution, step = (spelt_out(layer) for layer in layers)
    assert norm is not None
    assert convolution is not None
    assert step is not None
    with Sums() as noted:
        x = convolution(norm(IMAGES))
        step(x, x).flatten().square().sum().backward()
    assert len(noted.axes) > 12
    assert set(noted.axes) == {1}


def test_batch_statistics_leave_beside_the_loss() -> None:
    norms = nn.BatchNorm2d(3), StaticBatchNorm2d(3), nn.BatchNorm2d(3, momentum=None)
    network = Trained(nn.Sequential(*norms), lambda outputs, target: (outputs - target).mean())
    assert [(n.name, n.values, n.momentum) for n in network.norms(IMAGES)] == [
        ("0", 72, 0.1), ("2", 72, None),
    ]  # fmt: skip
    loss, mean, variance, *second = network(IMAGES, torch.zeros(()))
    assert loss.shape == ()
    assert torch.allclose(mean, IMAGES.mean((0, 2, 3)), atol=1e-6)
    assert torch.allclose(variance, IMAGES.var((0, 2, 3), unbiased=False), atol=1e-5)
    assert [tensor.shape for tensor in second] == [(3,), (3,)]
    assert not mean.requires_grad
    assert isinstance(network.model.get_submodule("1"), PlainNorm)


class Counting(nn.Module):
    """Writes to a buffer whenever it is called."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Count."""
        self.calls += 1
        return x


def test_a_model_that_writes_to_buffers_is_refused() -> None:
    network = Trained(nn.Sequential(Counting()), nn.functional.mse_loss)
    with pytest.raises(ConfigError, match=r"writes to its buffers in training \(0\.calls\)"):
        network.norms(IMAGES)
