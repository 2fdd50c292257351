"""Malformed updates: a million of them against the checks, the averages and Flower's messages.

Every batch sends ten thousand mutants at two averages between the updates of honest clients.
Whether a mutant is malformed is said by an oracle of plain Python that shares no code with the
checks: what it calls malformed must be refused with `UpdateError` by all, what it calls well-formed
must pass. In the end both averages must be those of the honest clients alone, bit for bit.
"""

import json
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor, nn

from nefl.config import ServerConfig
from nefl.engines.flower.messages import Order, read_answer, update_content
from nefl.errors import UpdateError
from nefl.nesting.modules import StepSize
from nefl.nesting.spec import Family, SubmodelSpec, kept_channels
from nefl.server.check import check_update
from nefl.server.stepping import make_aggregate
from nefl.state import ClientUpdate, ServerState, TrainTask

MUTANTS = 10_000
BATCHES = 110
"""So many that a million mutants are malformed: some turn out to be well-formed."""

MESSAGES = 5
"""One in so many mutants is a message."""

BASES = 30
"""Honest updates that the mutants of a batch are made from."""

HONEST = 6
FULL = 3
FIRST_WRONG = 100
"""Mutants have clients' numbers from here on, unless that is what is wrong with them."""


class Tiny(nn.Module):
    """A linear layer, a batch norm and a step size."""

    def __init__(self, spec: SubmodelSpec) -> None:
        super().__init__()
        size = kept_channels(FULL, spec.stage_width(0))
        self.fc = nn.Linear(size, 2)
        self.norm = nn.BatchNorm1d(size)
        self.step = StepSize()


FAMILY = Family(Tiny, tuple(SubmodelSpec(((1.0,),), size / FULL) for size in (1, 2, 3)))


def expected(size: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return what a submodel of that size holds, written down by hand: the oracle's knowledge."""
    real, whole = torch.float32, torch.int64
    return {
        "fc.weight": ((2, size), real),
        "fc.bias": ((2,), real),
        "norm.weight": ((size,), real),
        "norm.bias": ((size,), real),
        "norm.running_mean": ((size,), real),
        "norm.running_var": ((size,), real),
        "norm.num_batches_tracked": ((), whole),
        "step.value": ((), real),
    }


@dataclass
class Draft:
    """An update that may still be changed; its fields hold anything."""

    round_number: Any
    client: Any
    submodel: Any
    trained: Any
    examples: Any

    def update(self) -> ClientUpdate:
        """Return it as it would be sent."""
        task = TrainTask(self.round_number, self.client, self.submodel)
        return ClientUpdate(task, self.trained, self.examples)


def is_well_formed(draft: Draft) -> bool:
    """Say whether an update is what its task asked for, value by value."""
    whole = (draft.round_number, draft.client, draft.submodel, draft.examples)
    if any(type(number) is not int for number in whole):
        return False
    if draft.round_number != 1 or draft.client < 0 or draft.submodel not in (1, 2, 3):
        return False
    if not 1 <= draft.examples <= 1_000_000_000 or type(draft.trained) is not dict:
        return False
    wanted = expected(draft.submodel)
    if set(draft.trained) != set(wanted):
        return False
    return all(_is_right(draft.trained[name], *right) for name, right in wanted.items())


def _is_right(tensor: Any, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    if type(tensor) is not Tensor or tensor.device.type != "cpu" or tensor.is_nested:
        return False
    if tensor.layout != torch.strided or tensor.dtype != dtype or tuple(tensor.shape) != shape:
        return False
    return all(map(math.isfinite, tensor.reshape(-1).tolist()))


def honest(client: int, submodel: int, rng: random.Random) -> Draft:
    """Return an update as an honest client sends it."""
    trained = {
        name: torch.tensor([rng.uniform(-1, 1) for _ in range(math.prod(shape))]).reshape(shape)
        if dtype.is_floating_point
        else torch.tensor(rng.randrange(100))
        for name, (shape, dtype) in expected(submodel).items()
    }
    return Draft(1, client, submodel, trained, rng.randrange(1, 100))


with warnings.catch_warnings(action="ignore"):  # torch calls these a prototype
    NESTED = torch.nested.nested_tensor([torch.zeros(2)])
    COMPRESSED = torch.zeros(2, 2).to_sparse_csr()

NO_NUMBERS: list[Any] = [None, "1", 1.0, True, math.nan, math.inf, [1], {}, 1 + 0j, np.int64(1)]
NO_TENSORS: list[Any] = [
    None,
    "weights",
    3,
    [0.0, 0.0],
    np.zeros(2, np.float32),
    torch.zeros(2).to_sparse(),
    COMPRESSED,
    torch.zeros(2, device="meta"),
    NESTED,
]
WRONG_VALUES = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0]
DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64]


def _names(draft: Draft, name: str, rng: random.Random) -> None:
    tensor = draft.trained.pop(name) if rng.random() < 0.7 else draft.trained[name]
    other = rng.choice(
        [name.upper(), name + " ", "", "../fc.bias", "fc.bias\0", 3, None, name[:-1]]
    )
    if rng.random() < 0.8:
        draft.trained[other] = tensor


def _shapes(draft: Draft, name: str, rng: random.Random) -> None:
    shape = list(draft.trained[name].shape)
    if shape and rng.random() < 0.5:
        shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2, 3, 4, 1000])
    else:
        shape.insert(rng.randrange(len(shape) + 1), rng.choice([0, 1, 2]))
    draft.trained[name] = torch.zeros(shape, dtype=draft.trained[name].dtype)


def _dtypes(draft: Draft, name: str, rng: random.Random) -> None:
    draft.trained[name] = draft.trained[name].to(rng.choice([*DTYPES, torch.float32]))


def _values(draft: Draft, name: str, rng: random.Random) -> None:
    tensor = draft.trained[name].clone()
    if tensor.is_floating_point():
        tensor.view(-1)[rng.randrange(tensor.numel())] = rng.choice(WRONG_VALUES)
    else:
        tensor.fill_(rng.choice([-1, 2**62, -(2**63)]))
    draft.trained[name] = tensor


def _kinds(draft: Draft, name: str, rng: random.Random) -> None:
    draft.trained[name] = rng.choice(NO_TENSORS)


def _examples(draft: Draft, _name: str, rng: random.Random) -> None:
    draft.examples = rng.choice([0, -1, 10**9, 10**9 + 1, 10**30, -(2**63), *NO_NUMBERS])


def _rounds(draft: Draft, _name: str, rng: random.Random) -> None:
    draft.round_number = rng.choice([0, 2, -1, 10**20, *NO_NUMBERS])


def _submodels(draft: Draft, _name: str, rng: random.Random) -> None:
    draft.submodel = rng.choice([0, 1, 2, 3, 4, -1, 10**20, *NO_NUMBERS])


def _clients(draft: Draft, _name: str, rng: random.Random) -> None:
    draft.client = rng.choice([-1, 10**30, -(2**63), *NO_NUMBERS])


def _duplicates(draft: Draft, _name: str, _rng: random.Random) -> None:
    draft.client = 0  # who has counted before the first mutant comes


def _wholes(draft: Draft, _name: str, rng: random.Random) -> None:
    pairs = list(draft.trained.items())
    draft.trained = rng.choice([None, [], {}, "weights", pairs, dict(pairs[1:]), torch.zeros(2)])


MUTATIONS: dict[str, Callable[[Draft, str, random.Random], None]] = {
    "names": _names,
    "shapes": _shapes,
    "dtypes": _dtypes,
    "values": _values,
    "no dense tensor": _kinds,
    "examples": _examples,
    "round": _rounds,
    "submodel": _submodels,
    "client": _clients,
    "duplicate": _duplicates,
    "no tensors at all": _wholes,
}


def mutant(base: Draft, number: int, rng: random.Random) -> tuple[str, Draft]:
    """Return an honest update with something changed, and what that is."""
    draft = replace(base, client=FIRST_WRONG + number, trained=dict(base.trained))
    kinds = [rng.choice(list(MUTATIONS))]
    if rng.random() < 0.2:
        # What leaves the tensors alone comes second: it finds them as the first one left them.
        kinds.append(rng.choice(["examples", "round", "submodel", "client", "duplicate"]))
    name = rng.choice(list(draft.trained))
    for kind in kinds:
        MUTATIONS[kind](draft, name, rng)
    return (kinds[0] if len(kinds) == 1 else "two of these"), draft


def spoilt_message(sent: RecordDict, rng: random.Random) -> tuple[RecordDict, Order]:
    """Return an honest client's message with something changed, and what it is an answer to."""
    task = TrainTask(**json.loads(str(sent.config_records["nefl-answer"]["task"])))
    order = Order(task, "", rng.choice(["server", "client"]), 3, (), {})
    content = RecordDict(dict(sent))
    kind = rng.randrange(5)
    if kind == 0:
        content["nefl-answer"] = ConfigRecord(_spoilt_answer(task, rng))
    elif kind == 1:
        metrics: dict[str, Any] = {"num-examples": rng.choice([0, -1, 2**62, 1.5, math.nan, [1]])}
        content["metrics"] = MetricRecord(metrics if rng.random() < 0.8 else {"loss": 1.0})
    elif kind == 2:
        del content[rng.choice(list(content))]
    else:
        data = _spoilt_bytes(content.array_records["arrays"]["weights"].data, rng)
        stype = rng.choice(["safetensors"] * 9 + ["numpy.ndarray"])
        packed = Array("uint8", (len(data),), stype, data)
        names = rng.choice([["weights"]] * 9 + [["weights", "more"]])
        content["arrays"] = ArrayRecord(dict.fromkeys(names, packed))
    return content, order


def _spoilt_answer(task: TrainTask, rng: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "round_number": task.round_number,
        "client": task.client,
        "submodel": task.submodel,
    }
    fields[rng.choice(list(fields))] = rng.choice([0, 5, -1, 10**30, 1.5, None, "x", [1], {}, True])
    text = json.dumps(fields)
    answer: dict[str, Any] = {
        "task": rng.choice([text, text[:-1], "", "null", "[" * 1000, text.encode(), 3])
    }
    if rng.random() < 0.3:
        answer["wants"] = rng.choice([0, 1, 2, 3, -1, "1", 1.5, [1]])
    return answer


def _spoilt_bytes(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        way, place = rng.randrange(4), rng.randrange(len(changed) or 1)
        if way == 0:
            changed[place:place] = rng.randbytes(rng.randrange(1, 9))
        elif way == 1:
            del changed[place:]
        elif changed:
            changed[place] = rng.randrange(256)
    return bytes(changed)


class Trial:
    """Two averages under fire, and the same two without it."""

    def __init__(self, rng: random.Random) -> None:
        self.state = state = FAMILY.initial_state(0)
        servers = (ServerConfig(weighting="examples"), ServerConfig(average="median"))
        self.averages = [make_aggregate(state, FAMILY, server) for server in servers]
        self._calm = [make_aggregate(state, FAMILY, server) for server in servers]
        self._honest = [honest(c, 1 + c % 3, rng).update() for c in range(HONEST)]

    def add_honest(self, client: int) -> None:
        """Let an honest client count."""
        for average in (*self.averages, *self._calm):
            average.add(self._honest[client])

    def attack(self, draft: Draft, *, counted_already: bool) -> bool:
        """Send a mutant at both averages; return whether it was refused.

        Raises:
            AssertionError: if it was not, and is malformed; or if it is not, and was.
        """
        update = draft.update()
        if is_well_formed(draft) and not counted_already:
            check_update(update, FAMILY, 1)
            return False
        for average in self.averages:
            try:
                average.add(update)
            except UpdateError:
                continue
            raise AssertionError(f"{type(average).__name__} counted {draft}")
        return True

    def check_sums(self) -> None:
        """Raise unless both averages are those of the honest clients."""
        for attacked, calm in zip(self.averages, self._calm, strict=True):
            assert same(attacked.finish(), calm.finish()), "the sums were touched"


def same(one: ServerState, other: ServerState) -> bool:
    """Whether two states are equal bit for bit."""
    pairs = zip((one.shared, *one.per_submodel), (other.shared, *other.per_submodel), strict=True)
    return all(
        mine.keys() == theirs.keys() and all(torch.equal(mine[n], theirs[n]) for n in mine)
        for mine, theirs in pairs
    )


def run_mutants(number: int, mutants: int) -> dict[str, Any]:
    """Do a batch of any size; what is wrong with a mutant is told with its number."""
    torch.set_num_threads(1)
    rng = random.Random(number)  # noqa: S311 - nothing here is a secret
    trial = Trial(rng)
    trial.add_honest(0)
    bases = [honest(FIRST_WRONG, 1 + k % 3, rng) for k in range(BASES)]
    messages = [update_content(base.update()) for base in bases]
    refused, passed = Counter[str](), Counter[str]()
    for place in range(mutants):
        if place and place % (mutants // HONEST + 1) == 0:
            trial.add_honest(place // (mutants // HONEST + 1))
        kind = "?"
        try:
            if place % MESSAGES:
                kind, draft = mutant(rng.choice(bases), place, rng)
                wrong = trial.attack(draft, counted_already=draft.client == 0)
            else:
                kind = "message"
                wrong = _attack_by_message(trial, *spoilt_message(rng.choice(messages), rng))
        except Exception as error:
            raise AssertionError(f"batch {number}, mutant {place} ({kind}): {error!r}") from error
        (refused if wrong else passed)[kind] += 1
    trial.check_sums()
    return {"refused": dict(refused), "well_formed": dict(passed)}


def _attack_by_message(trial: Trial, content: RecordDict, order: Order) -> bool:
    try:
        answer = read_answer(content, order, FAMILY, trial.state)
    except UpdateError:
        return True
    if isinstance(answer, int):  # a wish for a smaller submodel brings no update
        assert 1 <= answer < order.task.submodel
        return False
    task = answer.task
    draft = Draft(
        task.round_number, task.client, task.submodel, dict(answer.trained), answer.examples
    )
    return trial.attack(draft, counted_already=False)


def run_batch(number: int) -> dict[str, Any]:
    """Send ten thousand mutants."""
    return run_mutants(number, MUTANTS)


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Return how many mutants of each kind were refused and how many were well-formed after all."""
    refused, passed = Counter[str](), Counter[str]()
    for entry in entries:
        refused.update(entry["refused"])
        passed.update(entry["well_formed"])
    lines = [
        "| what is wrong | mutants | refused | well-formed after all |",
        "|---|---|---|---|",
    ]
    for kind in (*MUTATIONS, "two of these", "message"):
        all_of_it = refused[kind] + passed[kind]
        lines.append(f"| {kind} | {all_of_it:,} | {refused[kind]:,} | {passed[kind]:,} |")
    total, wrong = refused.total() + passed.total(), refused.total()
    lines.append(f"| together | {total:,} | {wrong:,} | {passed.total():,} |")
    return "\n".join(lines)
