"""The objective that trains smaller members inside a client's own submodel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Literal, get_args

import torch
from torch import Tensor

from nefl.client.objective import Local, Objective
from nefl.client.teaching import divergence
from nefl.config.checks import require
from nefl.nesting.inside import members_inside
from nefl.nesting.spec import Family

Which = Literal["own", "one", "drawn", "smallest", "smallest+drawn", "all"]
Teacher = Literal["none", "largest", "best", "mutual"]
Trains = Literal["all", "own"]

DEFAULTS = {"teaching": 0.5, "temperature": 1.0}
"""What teaching has where nothing is said."""

CORNERS_GIVEN = 2 / 3
"""Work of a member whose corners are given: of three passes, the one for their gradients is not."""

REMEMBERED = 0.9
"""How much of a running loss stays in each step, where the best member teaches."""


@dataclass(frozen=True)
class Within(Objective):
    """Trains members inside a client's own submodel, on the corners of one set of weights.

    A step's loss is the own submodel's, and `weight` times the mean over the members of the step.

    Attributes:
        which: which members a step trains besides the client's own: none (`own`), the `smallest`
            inside, one `drawn` from those inside, `smallest+drawn`, or `all` of them. With `one`
            it trains a single one, drawn from the own and those inside (FjORD's ordered dropout).
        weight: what the members' loss counts, the own one's being 1.
        fade: the share of that weight which is left in the last round; it changes evenly.
        every: members are trained in every so many-th step, counted over the rounds as if the
            client made as many steps in each of those before.
        from_round: the first round in which they are.
        teacher: who teaches: nobody (`none`), the client's own submodel the smaller ones
            (`largest`), the one with the lowest running loss all others (`best`), or everyone
            everyone (`mutual`).
        teaching: the share of a taught one's loss that comes from its teacher's outputs.
        temperature: what both are divided by before they are compared.
        trains: whether members train their corners and what they have for themselves (`all`), or
            only the latter (`own`): norms and step sizes, say.
        leave: the share of the others' gradients that is kept from the corners of the smallest
            member of the step. With 1 these are trained by its loss alone.
    """

    which: Which = "smallest"
    weight: float = 1.0
    fade: float = 1.0
    every: int = 1
    from_round: int = 1
    teacher: Teacher = "none"
    teaching: float = DEFAULTS["teaching"]
    temperature: float = DEFAULTS["temperature"]
    trains: Trains = "all"
    leave: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no step could follow."""
        for key, kind in (("which", Which), ("teacher", Teacher), ("trains", Trains)):
            value, known = getattr(self, key), get_args(kind)
            require(value in known, f"{key} is {value!r}: give one of {', '.join(known)}")
        for key in ("weight", "fade"):
            value = getattr(self, key)
            require(0 <= value < 1e6, f"{key} is {value}: give 0 or more, below 1e6")
        for key in ("every", "from_round"):
            value = getattr(self, key)
            whole = isinstance(value, int) and not isinstance(value, bool)
            require(whole and value >= 1, f"{key} is {value!r}: give a whole number from 1")
        require(
            self.weight > 0 or self.fade == 1,
            f"fade is {self.fade} and weight 0: nothing is there to fade; leave fade out",
        )
        for key in ("teaching", "leave"):
            value = getattr(self, key)
            require(0 <= value <= 1, f"{key} is {value}: give a share from 0 to 1")
        require(
            0 < self.temperature < 1e6,
            f"temperature is {self.temperature}: give a number above 0, below 1e6",
        )
        unused = [key for key in ("teaching", "temperature") if getattr(self, key) != DEFAULTS[key]]
        require(
            self.teacher != "none" or not unused,
            f"{' and '.join(unused)} without a teacher: nobody learns from another; set teacher "
            "or leave it out",
        )
        require(
            self.which != "one" or self.teacher == "none",
            f"teacher is {self.teacher!r} and which is 'one': a step with a single member has "
            "nobody to learn from; set teacher to 'none', or which to 'drawn'",
        )

        plain = self.every == self.weight == self.fade == 1
        require(
            self.which != "one" or plain,
            "every, weight and fade: with which 'one' a step trains a single member, which counts "
            "in full; leave them out",
        )
        given = [f.name for f in fields(Within) if getattr(self, f.name) != f.default]
        require(
            self.which != "own" or given == ["which"],
            f"which is 'own': nothing is trained inside, so {', '.join(given[1:])} would have no "
            "effect; leave it out, or set which to 'smallest', say",
        )
        inside_trains = self.which not in ("own", "one") and self.trains == "all"
        require(
            self.leave == 0 or inside_trains,
            f"leave is {self.leave}, which is {self.which!r} and trains is {self.trains!r}: the "
            "corners would be left to a member that does not train them; set which to 'smallest', "
            "say, and trains to 'all'",
        )

    @property
    def follows_rounds(self) -> bool:
        """Whether its weight fades."""
        return self.fade != 1

    @property
    def needs_members(self) -> bool:
        """Whether members are asked for."""
        return self.which != "own"

    @property
    def needs_own(self) -> bool:
        """Whether members train nothing but what they have for themselves."""
        return self.trains == "own"

    def members(self, family: Family, submodel: int) -> tuple[int, ...]:
        """Return all that a step may train inside."""
        if self.which == "own":
            return ()
        inside = members_inside(family, submodel)
        return inside[:1] if self.which == "smallest" else inside

    def work(self, members: Sequence[int], submodel: int, round_number: int) -> Mapping[int, float]:
        """Return how often a step runs each member on average; less where corners are given."""
        if round_number < self.from_round or not members:
            return {submodel: 1.0}
        whole = CORNERS_GIVEN if self.trains == "own" else 1.0
        if self.which == "one":
            share = 1 / (len(members) + 1)
            return dict.fromkeys(members, whole * share) | {submodel: share}
        smallest, *others = members
        among = {
            "drawn": dict.fromkeys(members, 1 / len(members)),
            "smallest+drawn": {smallest: 1.0} | {m: 1 / len(others) for m in others},
        }.get(self.which, dict.fromkeys(members, 1.0))
        part = whole / self.every
        return {submodel: 1.0} | {number: part * often for number, often in among.items()}

    def at_once(self, members: Sequence[int], submodel: int) -> Sequence[Sequence[int]]:
        """Return whose activations are in memory together, for each kind of step."""
        smallest, *others = members
        if self.which == "one":
            return [(number,) for number in (*members, submodel)]
        if self.which == "drawn":
            return [(submodel, number) for number in members]
        if self.which == "smallest+drawn":
            return [(submodel, smallest, number) for number in others] or [(submodel, smallest)]
        return [(submodel, *members)]

    def loss(self, local: Local, inputs: Tensor, target: Tensor) -> Tensor:
        """Return the own loss, and that of the members of this step."""
        chosen = self._chosen(local)
        if self.which == "one":
            [number] = chosen
            return local.learned.loss_of(self._outputs(local, number, inputs), target)
        numbers = (local.submodel, *chosen)
        alone = min(chosen) if chosen and self.leave else 0
        outputs = {number: self._outputs(local, number, inputs, alone) for number in numbers}
        losses = {k: local.learned.loss_of(out, target) for k, out in outputs.items()}
        taught = self._taught(local, outputs, losses)
        if not chosen:
            return taught[local.submodel]
        inside = torch.stack([taught[number] for number in chosen]).mean()
        return taught[local.submodel] + self._weight(local) * inside

    def _chosen(self, local: Local) -> tuple[int, ...]:
        """Return the members of this step; draws are the client's own."""
        members = local.members if local.round_number >= self.from_round else ()
        if self.which == "one":
            return (_drawn((*members, local.submodel)),)
        steps_before = (local.round_number - 1) * local.steps
        if not members or (steps_before + local.step) % self.every:
            return ()
        smallest, *others = members
        if self.which == "drawn":
            return (_drawn(members),)
        if self.which == "smallest+drawn":
            return (smallest, _drawn(others)) if others else (smallest,)
        return members

    def _outputs(self, local: Local, number: int, inputs: Tensor, alone: int = 0) -> Tensor:
        """Return a member's outputs, or the own submodel's; `alone` is whose corners are left."""
        leaves = alone if number != alone else 0
        if number == local.submodel and not leaves:
            own: Tensor = local.model(inputs)
            return own
        given = self.trains == "own"
        return local.member(number, corners_given=given, leaves=leaves, share=self.leave)(inputs)

    def _taught(
        self, local: Local, outputs: Mapping[int, Tensor], losses: Mapping[int, Tensor]
    ) -> dict[int, Tensor]:
        """Return everyone's loss, with what teachers make of it."""
        teachers = self._teachers(local, losses)
        taught = dict(losses)
        for student, masters in teachers.items():
            apart = [
                divergence(outputs[student], outputs[m], local.learned, self.temperature)
                for m in masters
            ]
            if apart:
                far = torch.stack(apart).mean()
                taught[student] = (1 - self.teaching) * losses[student] + self.teaching * far
        return taught

    def _teachers(self, local: Local, losses: Mapping[int, Tensor]) -> dict[int, list[int]]:
        """Return who teaches whom."""
        numbers = list(losses)
        if self.teacher == "none" or len(numbers) == 1:
            return {}
        if self.teacher == "mutual":
            return {k: [other for other in numbers if other != k] for k in numbers}
        leader = local.submodel if self.teacher == "largest" else _leader(local, losses)
        return {k: [leader] for k in numbers if k != leader}

    def _weight(self, local: Local) -> float:
        progress = (local.round_number - 1) / max(1, local.rounds - 1)
        return self.weight * (1 + (self.fade - 1) * progress)


def _drawn(numbers: Sequence[int]) -> int:
    """Draw one, from torch's generator: in local training it is seeded for client and round."""
    return numbers[int(torch.randint(len(numbers), ()))]


def _leader(local: Local, losses: Mapping[int, Tensor]) -> int:
    """Return who has the lowest running loss of those that are trained in this step."""
    running: dict[int, float] = local.scratch.setdefault("running", {})
    for number, loss in losses.items():
        now = float(loss.detach())
        running[number] = REMEMBERED * running.get(number, now) + (1 - REMEMBERED) * now
    return min(losses, key=running.__getitem__)
