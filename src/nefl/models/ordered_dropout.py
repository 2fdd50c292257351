"""FjORD's ordered dropout: in each local step a client trains a narrower net within its own.

A submodel holds the norms of all narrower ones beside its own; their other weights are corners of
its weights. Which of them a step trains is drawn like a dropout mask, and only in training.
"""

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nefl.nesting.modules import BatchNorm
from nefl.nesting.spec import Builder, Family, SubmodelSpec
from nefl.state import ServerState

SERVING_PER_SUBMODEL = (BatchNorm,)
"""What submodels have for themselves once training is over."""


class OrderedDropout(nn.Module):
    """A net that trains at one of several widths, drawn for every batch, and serves at the widest.

    Its tensors are those of the widest net without norms, under `net`, and the norms of each width
    under `norms.<number>`: so a width's norms have one name in all submodels that are wide enough.

    Args:
        widest: the net at its own width.
        narrower: the narrower nets, smallest first; only their norms' weights are used.
    """

    def __init__(self, widest: nn.Module, narrower: tuple[nn.Module, ...]) -> None:
        super().__init__()
        self.stage_channels = getattr(widest, "stage_channels", ())
        self.norms = nn.ModuleDict(
            {
                str(number): nn.ModuleDict({_key(name): norm for name, norm in _norms(net)})
                for number, net in enumerate((*narrower, widest), start=1)
            }
        )
        # In a list, so that their tensors, which have no values, are nobody's.
        self._bodies = [_body(net) for net in (*narrower, widest)]
        for name, _ in _norms(widest):
            widest.set_submodule(name, nn.Identity())
        self.net = widest

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits at a width drawn for this batch, or at the widest when not training."""
        number = len(self._bodies)
        # Costs are counted on tensors without values: they are those of the widest net.
        if self.training and not x.is_meta:
            number = 1 + int(torch.randint(number, ()))
        body = self._bodies[number - 1].train(self.training)
        for name, norm in _norms(body):  # whoever measures norms does so with ours
            own = self.norms[str(number)].get_submodule(_key(name))
            norm.momentum = own.momentum
            norm.train(own.training)
        return functional_call(body, self._tensors(number), (x,))  # type: ignore[no-any-return]

    def drawn_nets(self) -> list[nn.Module]:
        """Return the nets that a training step draws from, without values."""
        return list(self._bodies)

    def _tensors(self, number: int) -> dict[str, Tensor]:
        """Return the tensors of the net of a width: its own norms, and corners of the rest."""
        norms = self.norms[str(number)].state_dict(keep_vars=True)
        tensors = {}
        for name, like in self._bodies[number - 1].state_dict().items():
            path, _, leaf = name.rpartition(".")
            own = norms.get(f"{_key(path)}.{leaf}")
            tensors[name] = self._corner(name, like) if own is None else own
        return tensors

    def _corner(self, name: str, like: Tensor) -> Tensor:
        return self.net.get_parameter(name)[tuple(slice(size) for size in like.shape)]


def _body(net: nn.Module) -> nn.Module:
    """Return a copy of a net without values, to be called with tensors from elsewhere."""
    return deepcopy(net).to("meta")


def _norms(net: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, child) for name, child in net.named_modules() if isinstance(child, BatchNorm)]


def _key(name: str) -> str:
    return name.replace(".", "_")  # names of modules hold no dots


@dataclass(frozen=True)
class OrderedDropoutBuilder:
    """Builds a spec with ordered dropout over it and the narrower specs of its family.

    Attributes:
        build: makes the plain module of a spec.
        specs: the submodels of the family, which differ in width alone.
    """

    build: Builder
    specs: tuple[SubmodelSpec, ...]

    def __call__(self, spec: SubmodelSpec) -> OrderedDropout:
        """Build the module of a spec."""
        narrower = [each for each in self.specs if each.stage_width(0) < spec.stage_width(0)]
        return OrderedDropout(self.build(spec), tuple(self.build(each) for each in narrower))


def serving(family: Family, state: ServerState) -> tuple[Family, ServerState]:
    """Return a family and its weights as they serve, after training.

    What ordered dropout leaves is a plain family in which each submodel has norms of its own. Any
    other family stays as it is.
    """
    builder = family.build
    if not isinstance(builder, OrderedDropoutBuilder):
        return family, state
    plain = Family(builder.build, family.specs, SERVING_PER_SUBMODEL, family.source)
    own = []
    for number in range(1, len(plain) + 1):
        norms = {}
        for name in plain.own_names(number):
            path, _, leaf = name.rpartition(".")
            norms[name] = state.shared[f"norms.{number}.{_key(path)}.{leaf}"]
        own.append(norms)
    shared = {name: state.shared[f"net.{name}"] for name in plain.global_layout}
    return plain, ServerState(state.round_number, shared, tuple(own))
