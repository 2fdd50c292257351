"""Local training: a client gets a submodel, its examples and a seed, and returns an update."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from nefl.client.member import Members
from nefl.client.objective import Learned, Local, Objective, Sets
from nefl.client.optimiser import make_optimiser
from nefl.client.precision import make_scaler
from nefl.client.schedule import learning_rate
from nefl.config import LocalConfig, ScheduleConfig
from nefl.errors import RunError
from nefl.moving import CUDA, fetched, sent
from nefl.nesting.frozen import frozen_names, learned_state
from nefl.seeds import Purpose, number_for
from nefl.state import ClientUpdate, Tensors, TrainTask
from nefl.tasks.task import Rows, Task, arranged


@dataclass(frozen=True)
class LocalTraining:
    """What all clients of a run have in common.

    Attributes:
        local: epochs, batches and optimiser.
        schedule: how the learning rate changes over the run.
        rounds: rounds of the whole run.
        seed: the run's seed.
        clip_norm: largest gradient norm, if it is clipped.
        learned: what is learned: makes batches of rows, and knows their loss.
        memory_format: how a batch of inputs lies in memory.
        objective: what is minimised, and what the method does besides.
        device: where models are; examples may be there or in main memory.
    """

    local: LocalConfig
    schedule: ScheduleConfig
    rounds: int
    seed: int
    clip_norm: float | None
    learned: Task
    memory_format: torch.memory_format = torch.contiguous_format
    objective: Objective = field(default_factory=Objective)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True, eq=False)
class Given:
    """What a client has besides its model and its examples.

    Attributes:
        weights: the tensors that the model starts from, by name, its members' own among them; they
            stay as they are.
        received: sets of the server's memory, cut to the submodel.
        memory: the sets that the client kept, cut to the submodel.
        within: the members that are trained inside the model, with their own tensors in place.
    """

    weights: Tensors
    received: Mapping[str, Tensors] = field(default_factory=dict)
    memory: Mapping[str, Tensors] = field(default_factory=dict)
    within: Members = field(default_factory=dict)


def train(
    task: TrainTask, model: nn.Module, rows: Rows, how: LocalTraining, given: Given | None = None
) -> tuple[ClientUpdate, Sets]:
    """Train a submodel in place on a client's examples.

    Args:
        task: whose work this is; with the run's seed it fixes everything random.
        model: the submodel, with the weights to start from.
        rows: its examples, on the model's device or in main memory.
        how: what all clients have in common.
        given: what else the client has; without it, the model's weights and nothing else.

    Returns:
        The update, and the sets that the client keeps for its next round. The update's tensors are
        the model's own: use them before the model is used again.

    Raises:
        RunError: if the objective does not send or keep what it says it does.
    """
    if given is None:
        given = Given({name: tensor.clone() for name, tensor in learned_state(model).items()})
    with own_generator(task, how) as generator:
        return _train(task, model, rows, how, given, generator)


@contextmanager
def own_generator(task: TrainTask, how: LocalTraining) -> Iterator[torch.Generator]:
    """Give a task the random numbers that are its own, whoever trains it."""
    place = (task.round_number, task.client)
    devices = [how.device] if how.device.type == CUDA else []
    # Dropout and an objective's draws come from torch's global generator: it too is the client's
    # own, and not the batches', or who is drawn would follow from the order of the examples.
    with torch.random.fork_rng(devices):
        torch.manual_seed(number_for(how.seed, Purpose.DRAWS, *place))
        yield torch.Generator().manual_seed(number_for(how.seed, Purpose.TRAINING, *place))


def _train(
    task: TrainTask,
    model: nn.Module,
    rows: Rows,
    how: LocalTraining,
    given: Given,
    generator: torch.Generator,
) -> tuple[ClientUpdate, Sets]:
    examples = count_examples(rows)
    steps = count_steps(examples, how.local)
    local = begin(task, model, how.learned, steps, given, how.rounds)
    inner = [p for member in given.within.values() for p in member.parameters().values()]
    optimiser = make_optimiser(model, how.local, inner)
    scaler = make_scaler(how.local.precision, how.device)
    total_loss = torch.zeros((), device=how.device)
    model.train()
    for number, step in enumerate(local_steps(task, rows, how, generator)):
        local.step = number
        local.learning_rate = step.learning_rate
        local.rate_sum += local.learning_rate
        for group in optimiser.param_groups:
            group["lr"] = local.learning_rate
        loss = how.objective.loss(local, step.inputs, step.target)
        optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimiser)
        if how.clip_norm:
            nn.utils.clip_grad_norm_([*model.parameters(), *inner], how.clip_norm)
        with torch.no_grad():
            how.objective.before_step(local)
        scale = scaler.get_scale()
        scaler.step(optimiser)
        scaler.update()
        if scaler.get_scale() < scale:  # gradients overflowed, and no step was made
            local.rate_sum -= local.learning_rate
        total_loss += loss.detach()
    metrics = {"loss": float(total_loss) / steps}
    going, memory = end(local, how.objective)
    trained = learned_state(model)
    for member in given.within.values():
        trained |= member.own_tensors()
    return ClientUpdate(task, trained, examples, metrics, going), memory


@dataclass(frozen=True, eq=False)
class LocalStep:
    """What a client's step is made on.

    Attributes:
        learning_rate: its rate.
        inputs: the batch.
        target: what is to be learned of it.
    """

    learning_rate: float
    inputs: Tensor
    target: Tensor


def count_steps(examples: int, local: LocalConfig) -> int:
    """Return how many steps a client with so many examples takes in a round."""
    return local.epochs * batches_per_epoch(examples, local.batch_size)


def local_steps(
    task: TrainTask, rows: Rows, how: LocalTraining, generator: torch.Generator
) -> Iterator[LocalStep]:
    """Yield a client's steps in a round: who trains them, and by what means, is another matter."""
    steps = count_steps(count_examples(rows), how.local)
    for step, some in enumerate(_batches(rows, how, generator)):
        rate = learning_rate(
            how.schedule,
            how.local.learning_rate,
            how.rounds,
            task.round_number - 1 + step / steps,
            steps,
        )
        inputs = arranged(how.learned.make_inputs(some, generator), how.memory_format)
        yield LocalStep(rate, inputs, how.learned.make_target(some))


def begin(
    task: TrainTask, model: nn.Module, learned: Learned, steps: int, given: Given, rounds: int = 1
) -> Local:
    """Return what an objective sees of a training that is about to begin."""
    device = next(model.parameters()).device

    def here(sets: Mapping[str, Tensors]) -> Sets:
        return {each: {n: sent(t, device) for n, t in sets[each].items()} for each in sets}

    received, memory = here(given.received), here(given.memory)
    return Local(
        model,
        learned,
        task,
        steps,
        given.weights,
        received,
        memory,
        within=given.within,
        rounds=rounds,
    )


@torch.no_grad()
def end(local: Local, objective: Objective) -> tuple[Sets, Sets]:
    """Let an objective finish; return what is sent and what is kept, whole.

    Raises:
        RunError: naming the set and the parameter that is missing or has another shape.
    """
    objective.after(local)
    who = type(objective).__name__
    sent = {name: _whole(local, name, local.sent, f"{who}.sends") for name in objective.sends}
    kept = {name: _whole(local, name, local.memory, f"{who}.keeps") for name in objective.keeps}
    return sent, kept


def _whole(local: Local, name: str, sets: Sets, where: str) -> dict[str, Tensor]:
    """Return a set with a tensor for every parameter, tied ones under each of their names."""
    found = sets.get(name, {})
    by_identity = {id(local.parameters[n]): t for n, t in found.items() if n in local.parameters}
    whole: dict[str, Tensor] = {}
    frozen = frozen_names(local.model)
    for each, parameter in local.model.named_parameters(remove_duplicate=False):
        if each in frozen:
            continue
        tensor = by_identity.get(id(parameter), found.get(each))
        if tensor is None and not parameter.requires_grad:
            tensor = parameter.new_zeros(parameter.shape)
        if tensor is None or tensor.shape != parameter.shape:
            shape = None if tensor is None else tuple(tensor.shape)
            raise RunError(
                f"{where}: set {name!r} has {'no tensor' if shape is None else shape} for {each}, "
                f"expected {tuple(parameter.shape)}; give every parameter one of its own shape"
            )
        whole[each] = tensor.detach().to(parameter.dtype)
    return whole


def batches_per_epoch(examples: int, batch_size: int) -> int:
    """Return the steps of an epoch. A last batch of one example is left out where others are:
    batch norms cannot take statistics of a single value.
    """
    full, rest = divmod(examples, batch_size)
    return full + (rest > 1 or full == 0)


def count_examples(rows: Rows) -> int:
    """Return how many rows there are."""
    return len(next(iter(rows.values())))


def _batches(rows: Rows, how: LocalTraining, generator: torch.Generator) -> Iterator[Rows]:
    """Yield batches of rows, where models are."""
    column = next(iter(rows.values()))
    count = batches_per_epoch(len(column), how.local.batch_size)
    for _ in range(how.local.epochs):
        order = torch.randperm(len(column), generator=generator)
        chosen = torch.split(order, how.local.batch_size)[:count]
        # Ahead within an epoch only: the next one's order is drawn after this one's augmentation.
        yield from fetched(_chosen(rows, chosen, column.device), how.device)


def _chosen(rows: Rows, chosen: Iterable[Tensor], where: torch.device) -> Iterator[Rows]:
    for some in chosen:
        here = some.to(where)
        yield {name: values[here] for name, values in rows.items()}
