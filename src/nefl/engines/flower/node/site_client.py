"""The client that trains as nefl does on one machine: same code, same seeds, same bits.

A process is started for every message, so everything slow is done once and kept: decoded data in
nefl's cache, memory-mapped, and the partition in a file beside it.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from nefl.config import RunConfig
from nefl.config.reading import config_from
from nefl.data import Partition
from nefl.engines.devices import check_precision, pick_device
from nefl.engines.flower.capability import (
    DEVICE,
    capability_content,
    own_capability,
    read_query,
    training_device,
)
from nefl.engines.flower.messages import Order, read_order
from nefl.engines.flower.node.answering import Choose, answer
from nefl.engines.flower.node.context_memory import ContextMemory
from nefl.engines.flower.source import check_source
from nefl.engines.machine import time_submodels
from nefl.engines.site import Site
from nefl.engines.tuning import tune_for
from nefl.errors import ConfigError, DataError
from nefl.files import default_cache
from nefl.methods import family_of
from nefl.nesting.signature import Signature
from nefl.nesting.spec import Family
from nefl.state import ClientUpdate, Tensors
from nefl.tasks.dealing import deal_examples
from nefl.tasks.finding import load_task
from nefl.tasks.own_examples import own_examples
from nefl.tasks.task import Task

OWN_DATA, ROOT, CACHE, BASE = "own-data", "data-root", "data-cache", "model-base"
"""Keys of the node config: the node's own data, where the run's data lies here, the folder for
decoded data, and the folder of the base under a run's adapters."""

RUNTIME, PROGRAMS = "runtime", "programs"
"""Keys of the node config: what this node trains with, and a folder of exported programs."""


def site_client(*, choose: Choose | None = None) -> ClientApp:
    """Return the Flower client for nefl's own runs.

    The server sends the settings of the run with every task. Node config: `partition-id` is the
    client's number; `own-data` names a file or folder with the node's own
    examples, without which it takes its part of the run's data set; `tier`, `memory` (bytes),
    `data-root`, `data-cache`, `model-base` and `device` are optional. With `runtime`
    `executorch` the node trains in ExecuTorch, with the `programs` of a folder that
    `nefl export --trainable` wrote, or with those that it makes itself.

    Args:
        choose: which submodel this node takes, see `nested_client`.
    """
    app = ClientApp()

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        order = read_order(message.content)
        node = {str(key): value for key, value in context.node_config.items()}
        config, family = _checked_family(order.run, node)
        tune_for(_on_its_device(config, node))

        def carry_out(
            taken: Order, tensors: Tensors, context: Context, _config: ConfigRecord
        ) -> ClientUpdate:
            text = json.dumps(taken.run, sort_keys=True), json.dumps(node, sort_keys=True)
            task = taken.task
            keeper = ContextMemory(context.state, task.client, task.round_number, taken.counted)
            return _site(*text, task.client).train(task, tensors, keeper)

        return answer(message, context, order, family, carry_out, choose)

    @app.query("capability")
    def _capability(message: Message, context: Context) -> Message:
        run = read_query(message.content)
        device = training_device(context.node_config, run or {})
        known = own_capability(context.node_config, device)
        if run is not None:
            config, family = _checked_family(run, context.node_config)
            tune_for(_on_its_device(config, context.node_config))
            signature = Signature.from_dict(run["signature"])
            batch = config.local.batch_size
            timed = time_submodels(family, signature, batch, device or torch.device("cpu"))
            known = replace(known, step_seconds=timed)
        return Message(capability_content(known), reply_to=message)

    return app


def _checked_family(run: Mapping[str, Any], node: Mapping[str, object]) -> tuple[RunConfig, Family]:
    """Return the run's settings and family, if what they name is the server's code here too.

    Raises:
        NeflError: if it is not, or the family cannot be built.
    """
    config = config_from(run["config"], "the server's settings")
    check_source(config, run.get("source", {}), own_data=OWN_DATA in node)
    return _family(json.dumps(run, sort_keys=True), _base(node))


# A simulation's processes live on from message to message: what was set up is kept there.
@lru_cache(maxsize=2)
def _family(run: str, base: str) -> tuple[RunConfig, Family]:
    given = json.loads(run)
    config = config_from(given["config"], "the server's settings")
    if base:
        options = {**config.model.options, "base": base}
        config = replace(config, model=replace(config.model, options=options))
    signature = Signature.from_dict(given["signature"])
    return config, family_of(config.model, signature, given["arguments"])


@lru_cache(maxsize=2)
def _common(run: str, node: str) -> tuple[RunConfig, Task, Partition | None]:
    """Return what all clients of a process share: settings, data and, unless own, its partition."""
    given, local = json.loads(run), json.loads(node)
    config, _ = _family(run, _base(local))
    cache = local.get(CACHE) or default_cache()
    own = local.get(OWN_DATA)
    if own is not None:
        task = own_examples(config, Path(str(own)), cache, given["facts"], given["class_names"])
        return _with_all_data(config), task, None
    data = replace(config.data, root=local.get(ROOT, config.data.root), cache=str(cache))
    task = load_task(replace(config, data=data), verify=False)
    if list(task.class_names) != given["class_names"]:
        raise DataError(
            f"{data.name}: its classes here are not the server's; use the same data on all "
            "machines, or give the node its own-data"
        )
    return config, task, _partition(config, task, Path(cache), given["partition"])


@lru_cache(maxsize=8)
def _site(run: str, node: str, client: int) -> Site:
    config, learned, partition = _common(run, _without_number(node))
    _, family = _family(run, _base(json.loads(node)))
    config = _on_its_device(config, json.loads(node))
    device = pick_device(config.engine.devices[0])
    check_precision(config.local.precision, [device])
    if partition is None:
        partition = _all_for_one(learned.train_examples, client, config.clients.count)
    return Site(_as_the_node_trains(config, json.loads(node)), family, learned, partition, device)


def _on_its_device(config: RunConfig, node: Mapping[str, object]) -> RunConfig:
    """Return the run with the device that this node's operator names, if he does."""
    name = node.get(DEVICE)
    if name is None:
        return config
    return replace(config, engine=replace(config.engine, devices=(str(name),)))


def _as_the_node_trains(config: RunConfig, node: Mapping[str, object]) -> RunConfig:
    """Return the run with what this node's operator says of how it trains here.

    Raises:
        ConfigError: if that is no way to train.
    """
    runtime, programs = node.get(RUNTIME), node.get(PROGRAMS)
    if runtime not in (None, "torch", "executorch"):
        raise ConfigError(
            f"runtime {runtime!r} in the node config: give 'torch' or 'executorch', or leave it "
            "out to train as the run says"
        )
    data, engine = config.data, config.engine
    if node.get(CACHE):
        data = replace(data, cache=str(node[CACHE]))
    given = None if programs is None else str(programs)
    if runtime == "torch":
        engine = replace(engine, client="torch", client_share=1.0, programs=None)
    elif runtime == "executorch":
        engine = replace(engine, client="executorch", client_share=1.0, programs=given)
    else:  # a folder that the server names is a path of its own machine
        engine = replace(engine, programs=given if engine.client == "executorch" else None)
    return replace(config, data=data, engine=engine)


def _base(node: Mapping[str, object]) -> str:
    """Return where the base of the run's adapters lies on this node, if not as on the server."""
    return str(node.get(BASE, ""))


def _without_number(node: str) -> str:
    settings = {k: v for k, v in json.loads(node).items() if k in (OWN_DATA, ROOT, CACHE, BASE)}
    return json.dumps(settings, sort_keys=True)


def _with_all_data(config: RunConfig) -> RunConfig:
    return replace(config, data=replace(config.data, train=None, test=None))


def _all_for_one(examples: int, client: int, clients: int) -> Partition:
    offsets = np.zeros(clients + 1, np.int64)
    offsets[client + 1 :] = examples
    return Partition(np.arange(examples, dtype=np.int64), offsets)


def _partition(config: RunConfig, task: Task, cache: Path, expected: str) -> Partition:
    """Return the run's partition, from a file if this machine has worked it out before.

    Raises:
        DataError: if it is not the server's: then the data here is not the same.
    """
    path = cache / "partitions" / f"{hashlib.sha256(expected.encode()).hexdigest()}.safetensors"
    if path.exists():
        try:
            kept = Partition.load(path)
            if partition_sha256(kept) == expected:
                return kept
        except DataError:
            pass  # damaged: it is worked out again
    partition, _ = deal_examples(config, task)
    if partition_sha256(partition) != expected:
        raise DataError(
            f"{config.data.name}: the examples here are dealt out otherwise than on the server; "
            "use the same data and versions on all machines, or give the node its own-data"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partition.save(path)
    return partition


def partition_sha256(partition: Partition) -> str:
    """Return a checksum of a partition."""
    digest = hashlib.sha256(partition.indices.tobytes())
    digest.update(partition.offsets.tobytes())
    return digest.hexdigest()
