"""The wire of a run: what clients receive of a state, and what the server receives of an update.

The way down carries weights, encoded once a round for all clients: a submodel's message is the
corner of that encoding. The way up carries differences to what the client received, which the
server adds to its own weights; so what the way down rounds off never enters them. Where both ways
are float32, weights travel as they are and nothing is computed. Every engine passes tensors through
here: they are the same bits whether a network lies between or not.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from nefl.config import WireConfig, WireFormat
from nefl.errors import UpdateError
from nefl.nesting.corners import corner
from nefl.nesting.sets import extract_all, pack, travel_layout, unpack
from nefl.nesting.spec import Family, Layout
from nefl.seeds import Purpose, generator_for
from nefl.state import ClientUpdate, ServerState, Tensors, TrainTask
from nefl.wire.coding import Coded, check_codes, decode, encode
from nefl.wire.layouts import (
    SCALES,
    Place,
    encoded_layout,
    place_name,
    places,
    state_scales,
    submodel_scales,
    tied,
)


@dataclass(frozen=True)
class Wire:
    """How weights travel in a run.

    Attributes:
        family: whose weights they are.
        config: the formats of the two ways.
        seed: the run's seed, from which the rounding comes.
    """

    family: Family
    config: WireConfig
    seed: int

    @property
    def plain(self) -> bool:
        """Whether weights travel as they are, both ways."""
        return self.config == WireConfig()

    @cached_property
    def _tied(self) -> dict[str, str]:
        return tied(self.family)

    def send(self, state: ServerState) -> "Outgoing":
        """Encode the weights that a round starts from."""
        form = self.config.down
        if form == "float32":
            return Outgoing(self, state, {})
        scales = state_scales(self.family)
        numbers = {place: number for number, place in enumerate(scales)}
        coded = {}
        for (submodel, name), count in scales.items():
            tensor = state.per_submodel[submodel - 1][name] if submodel else state.shared[name]
            number = numbers.get((submodel, self._tied.get(name, name)), numbers[submodel, name])
            rng = generator_for(self.seed, Purpose.DOWN, state.round_number + 1, number)
            coded[submodel, name] = encode(tensor, form, count, rng)
        return Outgoing(self, state, coded)

    def down_layout(self, submodel: int, receives: Iterable[str]) -> Layout:
        """Return the tensors of a message to a client."""
        layout = travel_layout(self.family, submodel, receives)
        return encoded_layout(layout, submodel_scales(self.family, submodel), self.config.down)

    def whole_layout(self, layout: Layout) -> Layout:
        """Return the tensors of a message with a whole state, given those of the state."""
        return encoded_layout(layout, self._whole_scales(), self.config.down)

    def _whole_scales(self) -> dict[str, int]:
        return {place_name(place): n for place, n in state_scales(self.family).items()}

    def receive(self, tensors: Tensors, submodel: int) -> Tensors:
        """Return what a message's tensors are for a client.

        Raises:
            UpdateError: naming a tensor that was not encoded as it should be.
        """
        return _decoded(tensors, submodel_scales(self.family, submodel), self.config.down)

    def receive_whole(self, tensors: Tensors) -> Tensors:
        """Return what the tensors of a message with a whole state are for a client.

        Raises:
            UpdateError: naming a tensor that was not encoded as it should be.
        """
        return _decoded(tensors, self._whole_scales(), self.config.down)

    def up_layout(self, submodel: int, sends: Iterable[str]) -> Layout:
        """Return the tensors of a client's answer."""
        layout = travel_layout(self.family, submodel, sends)
        return encoded_layout(layout, submodel_scales(self.family, submodel), self.config.up)

    def answer(self, update: ClientUpdate, received: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a client's answer: differences, encoded.

        Args:
            update: what was trained.
            received: what training began with.

        Raises:
            UpdateError: naming a tensor that is not what the task asked for.
        """
        packed = pack(update.trained, update.sent)
        if self.plain:
            return packed
        task, form = update.task, self.config.up
        scales = submodel_scales(self.family, task.submodel)
        numbers = {name: number for number, name in enumerate(scales)}
        coded = {}
        for name, count in scales.items():
            *of, plain = name.rpartition("/")  # members within are tied as models of their own are
            first = "".join((*of, self._tied.get(plain, plain)))
            number = numbers.get(first, numbers[name])
            rng = generator_for(self.seed, Purpose.UP, task.round_number, task.client, number)
            difference = _difference(name, packed, received[name], task)
            coded[name] = encode(difference, form, count, rng)
        return _joined(packed, coded, form)

    def carry(self, update: ClientUpdate, received: Tensors, state: ServerState) -> ClientUpdate:
        """Return an update as the server has it after its way up.

        Raises:
            UpdateError: naming a tensor that is not what the task asked for.
        """
        if self.plain:
            return update
        trained, sent = unpack(
            self.take(self.answer(update, received), state, update.task.submodel)
        )
        return replace(update, trained=trained, sent=sent)

    def take(self, tensors: Tensors, state: ServerState, submodel: int) -> dict[str, Tensor]:
        """Return what a client trained, given its answer and the weights that the round began with.

        Raises:
            UpdateError: naming a tensor that was not encoded as it should be.
        """
        return self.added(self.differences(tensors, submodel), state, submodel)

    def differences(self, tensors: Tensors, submodel: int) -> dict[str, Tensor]:
        """Return a client's answer with the differences decoded.

        Raises:
            UpdateError: naming a tensor that was not encoded as it should be.
        """
        if self.plain:
            return dict(tensors)
        return _decoded(tensors, submodel_scales(self.family, submodel), self.config.up)

    def added(self, tensors: Tensors, state: ServerState, submodel: int) -> dict[str, Tensor]:
        """Return a client's answer with the differences added to the server's own weights."""
        result = dict(tensors)
        if not self.plain:
            began = extract_all(state, self.family, submodel, ())
            for name in places(self.family, submodel):
                result[name] = began[name] + result[name].to(began[name].device)
        return result


@dataclass(frozen=True)
class Outgoing:
    """A round's weights on their way to clients.

    Attributes:
        wire: the wire.
        state: the weights themselves.
        coded: those that are made smaller, by their places.
    """

    wire: Wire
    state: ServerState
    coded: Mapping[Place, Coded]

    def received(self) -> ServerState:
        """Return the weights as clients will have them."""
        if not self.coded:
            return self.state
        shared, own = dict(self.state.shared), [dict(o) for o in self.state.per_submodel]
        for (submodel, name), coded in self.coded.items():
            group = own[submodel - 1] if submodel else shared
            group[name] = decode(coded).to(group[name].device)
        return replace(self.state, shared=shared, per_submodel=tuple(own))

    def message(self, submodel: int, receives: Sequence[str]) -> dict[str, Tensor]:
        """Return the tensors of the message to a client with that submodel."""
        family, form = self.wire.family, self.wire.config.down
        tensors = extract_all(self.state, family, submodel, receives)
        if not self.coded:
            return tensors
        scales, found = submodel_scales(family, submodel), places(family, submodel)
        cut = {}
        for name, place in found.items():
            whole = self.coded[place]
            values = whole.values[corner(tensors[name].shape)]
            cut[name] = Coded(values, whole.scales[: scales[name]])
        return _joined(tensors, cut, form)

    def whole(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return the tensors of a message with all weights, given them by their names there."""
        coded = {place_name(place): each for place, each in self.coded.items()}
        return _joined(tensors, coded, self.wire.config.down)


def _difference(name: str, packed: Tensors, received: Tensor, task: TrainTask) -> Tensor:
    trained = packed.get(name)
    if trained is None or trained.shape != received.shape:
        found = "lacks it" if trained is None else f"has {tuple(trained.shape)}"
        raise UpdateError(
            f"client {task.client}: {name} went out with shape {tuple(received.shape)}, its update "
            f"{found}; train the model in place, whole"
        )
    return trained.detach() - received.to(trained.device)


def _joined(tensors: Tensors, coded: Mapping[str, Coded], form: WireFormat) -> dict[str, Tensor]:
    joined = dict(tensors) | {name: each.values for name, each in coded.items()}
    if form == "int8" and coded:
        joined[SCALES] = torch.cat([each.scales for each in coded.values()])
    return joined


def _decoded(tensors: Tensors, scales: Mapping[str, int], form: WireFormat) -> dict[str, Tensor]:
    decoded = {name: tensor for name, tensor in tensors.items() if name != SCALES}
    counts = list(scales.values()) if form == "int8" else [0] * len(scales)
    parts = torch.split(tensors.get(SCALES, torch.empty(0)), counts)
    for name, part in zip(scales, parts, strict=True):
        coded = Coded(tensors[name], part)
        check_codes(name, coded)
        decoded[name] = decode(coded)
    return decoded
