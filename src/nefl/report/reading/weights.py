"""What the weights of a run's newest checkpoint tell: step sizes by block, L1 norms by layer."""

from dataclasses import dataclass

from nefl.artifacts.kept import read_kept
from nefl.errors import RunError
from nefl.nesting.corners import extract
from nefl.nesting.modules import BatchNorm, StepSize
from nefl.nesting.spec import Family
from nefl.report.reading.runs import Run
from nefl.state import ServerState


@dataclass(frozen=True, slots=True)
class OfSubmodel:
    """A number of one submodel at one place of the model, such as a block or a layer."""

    submodel: int
    place: str
    value: float


def newest_state(run: Run, family: Family) -> tuple[ServerState | None, str]:
    """Return the weights of the newest checkpoint that is whole, or why there are none."""
    problem = "it has no checkpoint"
    for best in (False, True):
        try:
            return read_kept(run.path, family, best=best), ""
        except RunError as error:
            problem = str(error) if not best else problem
    return None, problem


def step_sizes(state: ServerState, family: Family) -> list[OfSubmodel]:
    """Return the step size of each residual block of each submodel, learned or constant."""
    found = []
    for submodel in range(1, len(family) + 1):
        tensors = extract(state, family, submodel)
        for name, child in family.meta_module(submodel).named_modules():
            if isinstance(child, StepSize):
                learned = tensors.get(f"{name}.value")
                value = child.initial if learned is None else float(learned)
                found.append(OfSubmodel(submodel, _block(name), value))
    return found


def _block(name: str) -> str:
    """Return the block that a step size belongs to; a ViT's has two, which stay apart."""
    parent, _, own = name.rpartition(".")
    kind = own.removesuffix("step_size").strip("_")
    return f"{parent} {kind}".strip()


def l1_norms(state: ServerState, family: Family) -> list[OfSubmodel]:
    """Return the mean absolute weight of each layer of each submodel.

    Layers are convolutions and linear maps: norm layers and step sizes stay out, and so do biases.
    """
    found = []
    for submodel in range(1, len(family) + 1):
        tensors = extract(state, family, submodel)
        for name, child in family.meta_module(submodel).named_modules():
            own = dict(child.named_parameters(recurse=False))
            if isinstance(child, BatchNorm | StepSize):
                continue
            for key, parameter in own.items():
                tensor = tensors.get(f"{name}.{key}".strip("."))  # none of what is frozen
                if parameter.ndim >= 2 and tensor is not None:
                    place = name if key == "weight" else f"{name}.{key}".strip(".")
                    found.append(OfSubmodel(submodel, place, float(tensor.abs().mean())))
    return found
