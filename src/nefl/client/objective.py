"""What a client follows in local training: the task's loss, and what a method adds to it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Protocol

from torch import Tensor, nn
from torch.func import functional_call

from nefl.client.member import Member, Members
from nefl.config import LocalConfig
from nefl.errors import NestingError
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.state import Tensors, TrainTask

Sets = dict[str, dict[str, Tensor]]
"""Sets by name, each with a tensor for every parameter of a submodel, by the parameter's name."""


class Learned(Protocol):
    """What is learned, as far as an objective needs to know; a `Task` is it."""

    @property
    def signature(self) -> Signature:
        """What models take and give."""

    @property
    def gives_logits(self) -> bool:
        """Whether outputs are logits of classes or tokens, not numbers to foretell."""

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        """Return the mean loss of a batch."""


@dataclass(eq=False)
class Local:
    """One client's local training, as an objective sees it.

    Attributes:
        model: the submodel that is trained in place.
        learned: the task: `learned.loss_of(outputs, target)` is its mean loss of a batch.
        task: whose work it is, in which round, of which submodel.
        steps: how many local steps there are in all.
        rounds: how many rounds the run has.
        received: what the server's memory holds of the sets that the objective `receives`.
        memory: the sets that it `keeps`, as this client left them; zeros for what it never
            trained. What stands here in the end is there in the client's next round.
        sent: the sets that it `sends`; to be filled in `after`.
        learning_rate: the rate of the step at hand.
        rate_sum: the sum of the rates of all steps so far, this one included.
        given: the weights that came, by name; ask for `began` instead.
        within: the members inside the model, by number; ask for `member(number)` instead.
        step: the local step at hand, from 0.
        scratch: for the objective, to remember what it likes until this training ends.
    """

    model: nn.Module
    learned: Learned
    task: TrainTask
    steps: int
    given: Tensors
    received: Sets = field(default_factory=dict)
    memory: Sets = field(default_factory=dict)
    sent: Sets = field(default_factory=dict)
    learning_rate: float = 0.0
    rate_sum: float = 0.0
    within: Members = field(default_factory=dict)
    rounds: int = 1
    step: int = 0
    scratch: dict[str, Any] = field(default_factory=dict)

    @property
    def round_number(self) -> int:
        """The round, from 1."""
        return self.task.round_number

    @property
    def client(self) -> int:
        """The client's number in the population."""
        return self.task.client

    @property
    def submodel(self) -> int:
        """The number of the submodel, from 1."""
        return self.task.submodel

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the members that are trained inside the submodel."""
        return tuple(self.within)

    def member(
        self, number: int, *, corners_given: bool = False, leaves: int = 0, share: float = 1.0
    ) -> Callable[[Tensor], Tensor]:
        """Return a function that runs a member on inputs; the client's own submodel is one too.

        It runs with the leading corners of the model's tensors, no copies, and with what the member
        has for itself: its norms with their statistics, its step sizes. Gradients reach both, or
        with `corners_given` only what it has for itself.

        Args:
            number: the member.
            corners_given: whether its corners are taken as given.
            leaves: a member inside, whose corners it leaves alone; 0 for none.
            share: the share of the gradient that is kept from these.

        Raises:
            NestingError: if one of them is not trained inside the submodel, or the corners of the
                client's own submodel are to be taken as given.
        """
        if corners_given and number == self.submodel:
            raise NestingError(
                f"member {number}: is the client's own submodel, whose weights are trained; leave "
                "out corners_given, or run it under torch.no_grad()"
            )
        instead = self._inside(leaves).left_alone(self.model, share) if leaves else {}
        if number == self.submodel:
            return lambda inputs: functional_call(self.model, instead, (inputs,), tie_weights=False)
        found = self._inside(number)
        return lambda inputs: found.run(
            self.model, inputs, corners_given=corners_given, instead=instead
        )

    def _inside(self, number: int) -> Member:
        found = self.within.get(number)
        if found is None:
            named = ", ".join(map(str, self.within)) or "none"
            raise NestingError(
                f"member {number}: trained inside submodel {self.submodel} are {named}; let "
                "Objective.members return it"
            )
        return found

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name; tied parameters stand once.

        What members within have for themselves stands there as `member/number/name`.
        """
        named = dict(self.model.named_parameters())
        for member in self.within.values():
            named |= member.parameters()
        return {name: p for name, p in named.items() if p.requires_grad}

    @cached_property
    def began(self) -> dict[str, Tensor]:
        """The parameters as they were before the first step, by name."""
        return {name: self.given[name].to(p.device) for name, p in self.parameters.items()}


class Objective:
    """What local training follows; this one the task's loss and nothing else.

    Derive from it, write the methods that are needed and give an instance to a `Method`. One
    instance serves all clients of a process, so it holds settings and nothing of a client: what
    has to last belongs into `local.memory`, what the server is to average into `local.sent`.

    A set is a tensor for every parameter, of the parameter's shape. A submodel's is the leading
    corner of the global one, as its weights are.

    Attributes:
        keeps: names of the sets that a client remembers from one of its rounds to the next.
        receives: names of the sets of the server step's memory that come with the weights.
        sends: names of the sets that go back with the weights.
    """

    keeps: ClassVar[tuple[str, ...]] = ()
    receives: ClassVar[tuple[str, ...]] = ()
    sends: ClassVar[tuple[str, ...]] = ()

    @property
    def needs_exits(self) -> bool:
        """Whether a model must have `forward_exits`."""
        return False

    @property
    def follows_rounds(self) -> bool:
        """Whether it depends on how many rounds a run has: such a run is not given more."""
        return False

    @property
    def needs_members(self) -> bool:
        """Whether it is nothing without members inside others."""
        return False

    @property
    def needs_own(self) -> bool:
        """Whether members have to have parameters for themselves, to train those alone."""
        return False

    def check(self, local: LocalConfig) -> None:
        """Raise a `ConfigError` where settings of local training do not go with it."""

    def members(self, family: Family, submodel: int) -> tuple[int, ...]:  # noqa: ARG002
        """Return the smaller members that an update of a submodel trains inside it, by number.

        `nefl.members_inside(family, submodel)` are those that can be.
        """
        return ()

    def work(self, members: Sequence[int], submodel: int, round_number: int) -> Mapping[int, float]:  # noqa: ARG002
        """Return how often a step runs each member on average, by number: what training costs.

        Args:
            members: those that are trained inside the submodel.
            submodel: the client's own.
            round_number: the round, from 1.
        """
        return dict.fromkeys((submodel, *members), 1.0)

    def at_once(self, members: Sequence[int], submodel: int) -> Sequence[Sequence[int]]:
        """Return whose activations are in memory together, by number, for each kind of step."""
        return [(submodel, *members)]

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return what is minimised in a step: a scalar."""
        return local.learned.loss_of(local.model(inputs), target)

    def before_step(self, local: Local) -> None:
        """Change the gradients, which are there now, clipped where the run clips them."""

    def after(self, local: Local) -> None:
        """Take note that the last step is done: renew `local.memory`, fill `local.sent`."""
