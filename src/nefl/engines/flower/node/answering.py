"""The client's side of a message, for any function that trains a model."""

import inspect
from collections.abc import Callable, Mapping

from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from nefl.engines.flower.capability import (
    Capability,
    capability_content,
    free_memory,
    largest_in_memory,
    own_capability,
    training_device,
)
from nefl.engines.flower.messages import (
    ARRAYS,
    EXAMPLES,
    METRICS,
    ROUND_CONFIG,
    Order,
    from_arrays,
    read_order,
    state_from,
    state_layout,
    update_content,
    wish_content,
)
from nefl.errors import ConfigError, RunError, UpdateError
from nefl.nesting.frozen import learned_state, load_learned
from nefl.nesting.sets import extract_all
from nefl.nesting.spec import Family
from nefl.state import ClientUpdate, Tensors, TrainTask

Measured = tuple[int, Mapping[str, float]]
Train = (
    Callable[[nn.Module, TrainTask, Context, ConfigRecord], Measured]
    | Callable[[nn.Module, TrainTask, Context], Measured]
)
"""Trains a model in place; returns how many examples it has, and what it measured. One with a
fourth parameter also gets the round's configuration."""

_ARGUMENTS = ("model", "task", "context", "config")

Choose = Callable[[Order, Context], int]
"""Returns the submodel that this node takes, given what it is offered."""


def nested_client(
    family: Family | Callable[[], Family],
    train: Train,
    *,
    evaluate: Train | None = None,
    choose: Choose | None = None,
) -> ClientApp:
    """Return a Flower client that trains nested submodels with a function of yours.

    Args:
        family: the family, or a function that makes it when it is first needed.
        train: gets the submodel with the server's weights in it, the task, Flower's context and,
            if it has a fourth parameter, the round's configuration: the `train_config` that the
            server gave `strategy.start`, and `server-round`. It trains the model in place and
            returns the number of examples and some metrics.
        evaluate: the same for evaluation, with `evaluate_config`; it must not change the model.
        choose: which submodel this node takes, at most the one it is offered (or, where the server
            lets clients choose, at most `order.largest`); by default the one that is offered, or
            the largest smaller one that the free memory allows.

    Raises:
        ConfigError: if a function takes neither three nor four arguments.
    """
    run_train = with_config(train)
    made: list[Family] = [family] if isinstance(family, Family) else []

    def the_family() -> Family:
        if not made:
            made.append(family() if callable(family) else family)
        return made[0]

    def carry_out(
        order: Order, tensors: Tensors, context: Context, config: ConfigRecord
    ) -> ClientUpdate:
        model = load_submodel(the_family(), order.task.submodel, tensors)
        examples, metrics = run_train(model, order.task, context, config)
        return ClientUpdate(order.task, learned_state(model), examples, metrics)

    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        order = read_order(message.content)
        return answer(message, context, order, the_family(), carry_out, choose)

    @app.query("capability")
    def _capability(message: Message, context: Context) -> Message:
        known: Capability = own_capability(context.node_config)
        return Message(capability_content(known), reply_to=message)

    if evaluate is not None:
        measure = with_config(evaluate)

        @app.evaluate()
        def _evaluate(message: Message, context: Context) -> Message:
            order = read_order(message.content)
            check_family(the_family(), order)
            tensors = take_weights(message.content, order, the_family(), order.task.submodel)
            model = load_submodel(the_family(), order.task.submodel, tensors)
            config = round_config(message.content, order)
            examples, metrics = measure(model, order.task, context, config)
            numbers = {name: float(value) for name, value in metrics.items()}
            record = MetricRecord({EXAMPLES: examples, **numbers})
            return Message(RecordDict({METRICS: record}), reply_to=message)

    return app


def answer(
    message: Message,
    context: Context,
    order: Order,
    family: Family,
    carry_out: Callable[[Order, Tensors, Context, ConfigRecord], ClientUpdate],
    choose: Choose | None,
) -> Message:
    """Carry out an order, or ask for a smaller submodel, and return the reply.

    Raises:
        NeflError: if this node cannot do it; Flower tells the server.
    """
    check_family(family, order)
    submodel = (choose or smaller_if_short_of_memory)(order, context)
    limit = order.largest if order.choice == "client" else order.task.submodel
    if not 1 <= submodel <= limit:
        raise RunError(f"chose submodel {submodel}, may take 1 to {limit}")
    if order.choice == "server" and submodel < order.task.submodel:
        return Message(wish_content(order.task, submodel), reply_to=message)
    tensors = take_weights(message.content, order, family, submodel)
    taken = order.with_submodel(submodel)
    update = carry_out(taken, tensors, context, round_config(message.content, order))
    back = order.wire_of(family).answer(update, tensors)
    return Message(update_content(update, back), reply_to=message)


def with_config(
    function: Train,
) -> Callable[[nn.Module, TrainTask, Context, ConfigRecord], Measured]:
    """Return a user's function as one that is given the round's configuration too.

    Raises:
        ConfigError: if it takes neither three nor four arguments.
    """
    signature, name = inspect.signature(function), getattr(function, "__name__", str(function))
    for given in (_ARGUMENTS, _ARGUMENTS[:-1]):
        try:
            signature.bind(*given)
        except TypeError:
            continue
        count = len(given)
        return lambda *arguments: function(*arguments[:count])
    raise ConfigError(
        f"{name}{signature}: cannot be called with {', '.join(_ARGUMENTS)}, nor without the last; "
        f"write it as {name}({', '.join(_ARGUMENTS)})"
    )


def round_config(content: RecordDict, order: Order) -> ConfigRecord:
    """Return the configuration of a message's round."""
    given = content.config_records.get(ROUND_CONFIG, ConfigRecord())
    return ConfigRecord({**given, "server-round": order.task.round_number})


def check_family(family: Family, order: Order) -> None:
    """Raise unless the server has built the same family."""
    if family.fingerprint != order.fingerprint:
        raise RunError(
            "the model was built otherwise here than on the server; give both the same code, "
            "settings and versions"
        )
    if family.base_checksum != order.base:
        raise RunError(
            f"the base under the adapters is another here ({family.base_checksum[:12]}) than on "
            f"the server ({order.base[:12]}); copy the server's folder to this node, and name it "
            "with model-base in the node config where it lies elsewhere"
        )


def take_weights(content: RecordDict, order: Order, family: Family, submodel: int) -> Tensors:
    """Return the tensors of a submodel, and the sets that come with it, out of a message."""
    record = content.array_records.get(ARRAYS)
    if record is None:
        raise UpdateError(f"a message without {ARRAYS!r}")
    wire, receives = order.wire_of(family), order.receives
    if order.choice == "client":
        packed = from_arrays(record, wire.whole_layout(state_layout(family, receives)))
        began = order.task.round_number - 1
        state = state_from(wire.receive_whole(packed), family, began, receives)
        return extract_all(state, family, submodel, receives)
    return wire.receive(from_arrays(record, wire.down_layout(submodel, receives)), submodel)


def load_submodel(family: Family, submodel: int, tensors: Tensors) -> nn.Module:
    """Build a submodel with these weights."""
    model = family.build(family.specs[family.index(submodel)])
    load_learned(model, tensors)
    return model


def smaller_if_short_of_memory(order: Order, context: Context) -> int:
    """Return the offered submodel, or the largest smaller one that fits the memory free now.

    Raises:
        RunError: if none fits.
    """
    offered = order.task.submodel
    if not order.memory:
        return offered
    free = free_memory(context.node_config, training_device(context.node_config, order.run))
    fitting = largest_in_memory(free, order.memory[:offered])
    if not fitting:
        raise RunError(
            f"{free} bytes are free, and training the smallest submodel takes {order.memory[0]}; "
            "free some memory, or raise `memory` in the node config"
        )
    return fitting
