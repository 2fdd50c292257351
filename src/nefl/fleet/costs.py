"""What submodels cost, many of them at once, as far as budgets ask."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np

from nefl.config import RunConfig, WireConfig
from nefl.methods import method_of
from nefl.nesting.inference import held_bytes, inference_memory
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.profile import profile_family
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.running.costs import kept_copies
from nefl.server.devices import Numbers
from nefl.wire.layouts import travel_bytes


@dataclass(frozen=True)
class Costs:
    """The costs of submodels, an array with one entry for each of them.

    Attributes:
        params: parameters.
        macs: multiply-accumulates to predict one example.
        train_macs: those of a training step for one example.
        train_memory: bytes that training takes.
        payload: bytes sent to a client, and again what it sends back.
        inference_memory: bytes that predicting one example takes.
    """

    params: Numbers
    macs: Numbers
    train_macs: Numbers
    train_memory: Numbers
    payload: Numbers
    inference_memory: Numbers

    def __getitem__(self, index: object) -> "Costs":
        """Return the costs of some of them."""
        return Costs(*(getattr(self, each.name)[index] for each in fields(self)))

    @property
    def table(self) -> Numbers:
        """All of it, a row for each submodel."""
        return np.stack([getattr(self, each.name) for each in fields(self)], axis=1)

    @classmethod
    def of_table(cls, table: Numbers) -> "Costs":
        """Return the costs whose `table` this is."""
        return cls(*np.asarray(table, dtype=np.float64).T)


COLUMNS = tuple(each.name for each in fields(Costs))
"""What the columns of a table of costs are."""


def costs_of(family: Family, profiles: Sequence[SubmodelProfile], signature: Signature) -> Costs:
    """Return the costs of a family's submodels, whose profiles are known."""
    rows = [
        [
            profile.params,
            profile.macs_total,
            profile.train_macs,
            profile.train_memory_bytes,
            profile.payload_bytes,
            inference_memory(family.meta_module(profile.index), signature),
        ]
        for profile in profiles
    ]
    return Costs.of_table(np.array(rows))


@dataclass(frozen=True)
class Training:
    """What of a run the costs of a submodel depend on.

    Attributes:
        batch_size: the batch that the training memory is for.
        copies: numbers that are kept for each weight, besides itself and its gradient.
        receives: the sets that travel to a client beside the weights.
        sends: those that it sends back.
        wire: how weights travel.
    """

    batch_size: int
    copies: int = 0
    receives: tuple[str, ...] = ()
    sends: tuple[str, ...] = ()
    wire: WireConfig = field(default_factory=WireConfig)

    @classmethod
    def of_run(cls, config: RunConfig) -> "Training":
        """Return that of a run."""
        objective = method_of(config.model).objective
        return cls(
            config.local.batch_size,
            kept_copies(config.model, config.local),
            tuple(objective.receives),
            tuple(objective.sends),
            config.wire,
        )


def cost_of_spec(
    family: Family, spec: SubmodelSpec, signature: Signature, training: Training
) -> tuple[Numbers, int]:
    """Return the row of costs of one member that a family's builder makes, and its weights' bytes.

    Members that are trained within it are not counted.

    Args:
        family: the family.
        spec: any that its builder takes.
        signature: what it takes and gives.
        training: how it is trained.
    """
    alone = Family(family.build, (spec,), family.per_submodel)
    profiles = profile_family(alone, signature, training.batch_size, training.copies)
    row: Numbers = costs_of(alone, profiles, signature).table[0]
    sent = travel_bytes(alone, 1, training.receives, training.wire.down)
    back = travel_bytes(alone, 1, training.sends, training.wire.up)
    row[COLUMNS.index("payload")] = (sent + back) // 2
    return row, held_bytes(alone.meta_module(1))
