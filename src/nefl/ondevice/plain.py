"""A submodel with its loss, from operations that ExecuTorch can run backwards, and run fast.

A batch norm in training has no kernel there, and its running statistics would be written inside
the program, which spoils how the runtime finds parameters. So a norm is spelt out, and a batch's
mean and variance leave the program beside the loss: running statistics are the client's affair.

Convolutions have kernels, but plain loops: spelt out as one product of matrices they train about
ten times as fast. The kernel of a max pool's backward pass gives wrong numbers (ExecuTorch 1.5.1),
so pools are spelt out too.

The runtime adds numbers up one after another in float32. Sums over a batch and all its pixels
would lose digits by that, and are made axis by axis: the mean of a channel, and what a value that
is used all over a tensor gets back as its gradient.
"""

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor, nn

from nefl.artifacts.trainable import NormCard
from nefl.errors import ConfigError
from nefl.nesting.modules import BatchNorm, StepSize

TaskLoss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and targets to the mean loss of a batch."""


class PlainNorm(nn.Module):
    """A batch norm in training: every batch by its own mean and variance.

    Args:
        norm: the norm whose weights it takes over; it may have none.
    """

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.seen: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise, and keep what was measured until it is asked for."""
        mean = channel_means(x)
        centred = x - spread(mean, x)
        variance = channel_means(centred * centred)
        self.seen = mean.detach(), variance.detach()
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is None:
            return centred * spread(scale, x)
        return centred * spread(scale * self.weight, x) + spread(self.bias, x)


class PlainStep(nn.Module):
    """A residual sum with a learned step size.

    Args:
        step: the sum whose step size it takes over.
    """

    def __init__(self, step: StepSize) -> None:
        super().__init__()
        self.value = step.value

    def forward(self, stream: Tensor, branch: Tensor) -> Tensor:
        """Return `stream + s * branch`."""
        assert self.value is not None  # noqa: S101 -- a constant step stays as it is
        return stream + branch * spread(self.value, branch, range(branch.ndim))


class PlainConvolution(nn.Module):
    """A convolution as a product of matrices, its weight and the patches it looks at.

    Where a patch has fewer values than there are places to look at, every image has a product of
    its own; elsewhere the whole batch has one.

    Args:
        convolution: the convolution whose weights it takes over.
    """

    def __init__(self, convolution: nn.Conv1d | nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = convolution.weight, convolution.bias
        self._kernel, self._stride = convolution.kernel_size, convolution.stride
        self._padding = tuple(int(size) for size in convolution.padding)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the convolution does. [N, C, ...] → [N, O, ...]."""
        axes, batch = len(self._kernel), x.shape[0]
        places = [
            (size + 2 * padding - kernel) // stride + 1
            for size, kernel, stride, padding in zip(
                x.shape[2:], self._kernel, self._stride, self._padding, strict=True
            )
        ]
        # Taps of a later axis come before those of an earlier one.
        turned = self.weight.permute(0, 1, *range(axes + 1, 1, -1))
        weight = turned.reshape(turned.shape[0], -1)  # [O, C × kernel]
        if weight.shape[1] <= prod(places):
            # A product for each image: the weight is copied for each, but activations, which are
            # larger, need not be turned around before and after.
            columns = self._patches(x, 2).reshape(batch, -1, prod(places))
            product = weight.unsqueeze(0).expand(batch, -1, -1).bmm(columns)
            outputs = product.view(batch, -1, *places)
        else:
            columns = self._patches(x.transpose(0, 1), 1).reshape(-1, batch * prod(places))
            outputs = (weight @ columns).view(-1, batch, *places).transpose(0, 1)
        if self.bias is None:
            return outputs
        return outputs + spread(self.bias, outputs)

    def _patches(self, x: Tensor, behind: int) -> Tensor:
        """Take the taps along all axes: each has an axis of its own, behind channels."""
        axes = len(self._kernel)
        for number in range(axes):
            at = x.ndim - axes + number
            kernel, stride = self._kernel[number], self._stride[number]
            found = taps(x, at, kernel, stride, self._padding[number])
            x = torch.stack(found, behind) if kernel > 1 else found[0]
        return x


class PlainMaxPool(nn.Module):
    """A max pool as a chain of comparisons; of equal values the first one gets the gradient.

    Args:
        pool: the pool that it stands for.
    """

    def __init__(self, pool: nn.MaxPool1d | nn.MaxPool2d) -> None:
        super().__init__()
        axes = 1 if isinstance(pool, nn.MaxPool1d) else 2
        self._kernel, self._stride, self._padding = (
            (size,) * axes if isinstance(size, int) else tuple(size)
            for size in (pool.kernel_size, pool.stride, pool.padding)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return what the pool does."""
        axes = len(self._kernel)
        for number in reversed(range(axes)):  # rows last: so the first of equals is torch's
            at = x.ndim - axes + number
            kernel, stride = self._kernel[number], self._stride[number]
            first, *others = taps(x, at, kernel, stride, self._padding[number], -torch.inf)
            for other in others:
                first = torch.where(other > first, other, first)
            x = first
        return x


def channel_means(x: Tensor) -> Tensor:
    """Return the mean of each channel, over one axis after another. [N, C, ...] → [C]."""
    for axis in reversed(_others(x)):
        x = x.mean(axis)
    return x


def spread(values: Tensor, x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Return values that can be multiplied with a tensor, spread along one axis after another.

    So their gradient is summed up along one axis after another too. The last axis is left to the
    operation itself.

    Args:
        values: [C], or a single one.
        x: what they are for, [N, C, ...].
        axes: along which they are the same; all but the channels' if left out.
    """
    along = _others(x) if axes is None else axes
    shape = [1 if axis in along else size for axis, size in enumerate(x.shape)]
    found = values.view(shape)
    for axis in along[:-1]:
        shape[axis] = x.shape[axis]
        found = found.expand(shape)
    return found


def _others(x: Tensor) -> list[int]:
    return [axis for axis in range(x.ndim) if axis != 1]


def taps(
    x: Tensor, at: int, kernel: int, stride: int, padding: int, fill: float = 0.0
) -> list[Tensor]:
    """Return what each tap of a kernel sees along one axis, one tensor for each tap."""
    places = (x.shape[at] + 2 * padding - kernel) // stride + 1
    if padding:  # the kernel that pads cannot be run backwards
        edge = x.new_full([*x.shape[:at], padding, *x.shape[at + 1 :]], fill)
        x = torch.cat([edge, x, edge], at)
    if kernel == 1 and stride == 1:
        return [x]
    before, last = (slice(None),) * at, (places - 1) * stride + 1
    return [x[(*before, slice(tap, tap + last, stride))] for tap in range(kernel)]


def spelt_out(child: nn.Module) -> nn.Module | None:
    """Return what stands for a module in a program; None where it stays as it is."""
    if isinstance(child, BatchNorm):
        return PlainNorm(child)
    if isinstance(child, nn.Conv1d | nn.Conv2d):
        plain = child.groups == 1 and set(child.dilation) == {1} and child.padding_mode == "zeros"
        return PlainConvolution(child) if plain and not isinstance(child.padding, str) else None
    if isinstance(child, StepSize):
        return None if child.value is None else PlainStep(child)
    if isinstance(child, nn.MaxPool1d | nn.MaxPool2d):
        plain = child.dilation in (1, (1, 1)) and not (child.ceil_mode or child.return_indices)
        return PlainMaxPool(child) if plain else None
    return None


class Trained(nn.Module):
    """A submodel with its loss, in plain operations.

    Args:
        model: the submodel; its norms, convolutions and so on are replaced in place.
        loss: the task's loss.

    Attributes:
        model: the submodel, so that a parameter is called `model.` and its name.
        norms: its norms with running statistics, by name, in order.
    """

    def __init__(self, model: nn.Module, loss: TaskLoss) -> None:
        super().__init__()
        tracked = []
        for name, child in list(model.named_modules()):
            plain = spelt_out(child)
            if plain is not None:
                model.set_submodule(name, plain)
            if isinstance(child, BatchNorm) and child.track_running_stats:
                tracked.append((name, child.momentum))
        self.model = model
        self._loss = loss
        self._tracked = tracked

    def forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        """Return the mean loss, then mean and variance of each norm with running statistics."""
        loss = self._loss(self.model(inputs), target)
        measured: list[Tensor] = []
        for name, _ in self._tracked:
            measured += self._norm(name).seen or ()
        return loss, *measured

    def norms(self, inputs: Tensor) -> tuple[NormCard, ...]:
        """Return the norms with running statistics, as a batch of inputs shows them.

        Raises:
            ConfigError: if the model writes to a buffer meanwhile. The runtime would take the wrong
                tensors for parameters, and say nothing.
        """
        before = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        counts: dict[str, int] = {}

        def count(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def note(_module: nn.Module, given: tuple[Tensor, ...]) -> None:
                counts[name] = given[0].numel() // given[0].shape[1] // len(inputs)

            return note

        hooks = [
            self._norm(name).register_forward_pre_hook(count(name)) for name, _ in self._tracked
        ]
        with torch.no_grad():
            self.model(inputs)
        for hook in hooks:
            hook.remove()
        written = [n for n, b in self.model.named_buffers() if not b.equal(before[n])]
        if written:
            raise ConfigError(
                f"the model writes to its buffers in training ({', '.join(written)[:300]}), which "
                "a program cannot; train it with torch"
            )
        return tuple(NormCard(name, counts[name], momentum) for name, momentum in self._tracked)

    def _norm(self, name: str) -> PlainNorm:
        norm = self.model.get_submodule(name)
        assert isinstance(norm, PlainNorm)  # noqa: S101 -- it was put there
        return norm
