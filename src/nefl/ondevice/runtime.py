"""All that nefl knows of how ExecuTorch trains: the one file to change when its API moves.

That API is marked experimental. It was tried with the versions in `KNOWN` and no others are taken.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor, nn

from nefl.errors import ConfigError, RunError
from nefl.extras import need, quiet
from nefl.ondevice.quicker import quicken

EXTRA = "executorch"
KNOWN = ("1.5",)
"""Releases of ExecuTorch whose training API is known here, as major.minor."""

METHOD = "forward"
PREFIX = "model."
"""What the program calls a parameter, before the parameter's own name."""


def executorch_version() -> str:
    """Return the version of ExecuTorch that is installed.

    Raises:
        ConfigError: if there is none, or one that is not known.
    """
    try:
        found = version("executorch")
    except PackageNotFoundError:
        raise ConfigError(
            f"executorch is not installed; install it with: pip install 'nefl[{EXTRA}]'"
        ) from None
    if release(found) not in KNOWN:
        raise ConfigError(
            f"executorch {found} is installed, and its training API may be another than that of "
            f"{', '.join(KNOWN)}, which nefl knows; install it with: pip install "
            f"'executorch=={KNOWN[-1]}.*'"
        )
    return found


def release(full: str) -> str:
    """Return major.minor of a version."""
    return ".".join(full.split(".")[:2])


Graph = Any
"""A network that torch.export has read (torch.export.ExportedProgram)."""


def read_graph(network: nn.Module, inputs: Tensor, target: Tensor) -> Graph:
    """Return a network as a graph that takes batches up to the size of this one.

    Raises:
        ConfigError: if torch cannot read it.
    """
    batch = torch.export.Dim("batch", min=2, max=len(inputs))
    try:
        with quiet():
            return torch.export.export(
                network, (inputs, target), dynamic_shapes=({0: batch}, {0: batch})
            )
    except Exception as error:  # it raises many kinds
        raise ConfigError(
            f"the model cannot be read as a graph by torch.export, which ExecuTorch needs "
            f"({_first_line(error)}); train it with torch"
        ) from error


def lower(graph: Graph) -> bytes:
    """Return a graph with its backward pass as a program.

    Raises:
        ConfigError: if ExecuTorch is not installed, or cannot take an operation of it.
    """
    executorch_version()
    # Here and not above: it loads torch's compiler, which takes longer than all of torch itself.
    from torch.export.experimental import _export_forward_backward

    with quiet():
        exir = need("executorch.exir", EXTRA)
        library = need("executorch.extension.pybindings.portable_lib", EXTRA)
    try:
        with quiet():
            both = _export_forward_backward(graph)
            quicken(both.graph)
            edge = exir.to_edge(
                both, compile_config=exir.EdgeCompileConfig(_check_ir_validity=False)
            )
            made = edge.to_executorch()
    except Exception as error:  # every pass raises its own kinds
        raise ConfigError(
            f"ExecuTorch cannot train the model ({_first_line(error)}); train it with torch"
        ) from error
    plans = made.executorch_program.execution_plan
    called = {f"{o.name}.{o.overload}".rstrip(".") for plan in plans for o in plan.operators}
    missing = called - set(library._get_operator_names())  # noqa: SLF001
    if missing:
        raise ConfigError(
            f"ExecuTorch cannot train the model: its runtime has no kernel for "
            f"{', '.join(sorted(missing))}; take other layers, or train it with torch"
        )
    return bytes(made.buffer)


class Session:
    """A program in ExecuTorch's runtime, with memory of its own for the parameters.

    Args:
        program: the program.
        inputs: some inputs, any of its shape: the runtime shows parameters after a first pass.
        target: some target.
        threads: threads of the runtime, for the whole process.

    Attributes:
        parameters: the parameters by name, where the program reads them: write to change them.
    """

    def __init__(self, program: bytes, inputs: Tensor, target: Tensor, threads: int = 1) -> None:
        executorch_version()
        with quiet():
            training = need("executorch.extension.training", EXTRA)
            library = need("executorch.extension.pybindings.portable_lib", EXTRA)
        if library._threadpool_get_thread_count() != threads:  # noqa: SLF001
            library._unsafe_reset_threadpool(threads)  # noqa: SLF001
        self._training = training
        self._program = program  # the runtime reads it in place and does not keep it alive
        try:
            load = training._load_for_executorch_for_training_from_buffer  # noqa: SLF001
            with quiet():  # it warns that it is experimental, each time
                self._module = load(program)
        except Exception as error:  # the runtime raises its own kinds, of no common base
            raise RunError(f"ExecuTorch does not take the program ({error})") from None
        self.run(inputs, target)
        named: Mapping[str, Tensor] = self._module.named_parameters()
        self.parameters = {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}

    def run(self, inputs: Tensor, target: Tensor) -> list[Tensor]:
        """Go forward and backward; return the loss and what was measured.

        Raises:
            RunError: if the runtime fails.
        """
        try:
            outputs: list[Tensor] = self._module.forward_backward(
                METHOD, (inputs.contiguous(), target.contiguous())
            )
        except Exception as error:  # as above
            raise RunError(
                f"ExecuTorch cannot train on a batch of {tuple(inputs.shape)} ({error})"
            ) from None
        return outputs

    @property
    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the last batch, by the parameters' names."""
        named = self._module.named_gradients()
        return {name.removeprefix(PREFIX): tensor for name, tensor in named.items()}

    def descent(self, learning_rate: float, momentum: float, weight_decay: float) -> "Descent":
        """Return the runtime's optimiser over the parameters, fresh."""
        return Descent(
            self._training, self._module, self.parameters, learning_rate, momentum, weight_decay
        )


class Descent:
    """The runtime's SGD, as torch's: velocity ← momentum · velocity + gradient + decay · weight.

    It knows one rate. Where a schedule wants another within a round, a part of its step is taken
    back, or added: the velocity stays what it is.
    """

    def __init__(
        self,
        training: Any,
        module: Any,
        parameters: Mapping[str, Tensor],
        learning_rate: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        self._module = module
        self._parameters = parameters
        self._rate = learning_rate
        dampening, nesterov = 0.0, False
        self._optimiser = training.get_sgd_optimizer(
            module.named_parameters(), learning_rate, momentum, dampening, weight_decay, nesterov
        )

    def step(self, learning_rate: float) -> None:
        """Move against the gradients of the last batch."""
        if learning_rate == self._rate:
            self._optimiser.step(self._module.named_gradients())
            return
        before = {name: tensor.clone() for name, tensor in self._parameters.items()}
        self._optimiser.step(self._module.named_gradients())
        share = learning_rate / self._rate
        for name, tensor in self._parameters.items():
            tensor.sub_(before[name]).mul_(share).add_(before[name])


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
