"""The client."""

from typing import cast

from flwr.app import ConfigRecord, Context
from torch import nn

from nefl import TrainTask  # nefl:
from nefl.flower import nested_client  # nefl:
from quickstart import task as work


def train(
    model: nn.Module, _task: TrainTask, context: Context, config: ConfigRecord
) -> tuple[int, dict[str, float]]:
    """Train the model that came with the message. nefl: it is loaded already, and not sent back."""
    loader, _ = load(context)
    epochs, rate = context.run_config["local-epochs"], cast("float", config["lr"])
    loss = work.train(model, loader, int(epochs), rate)
    return work.count(loader), {"train_loss": loss}


def evaluate(model: nn.Module, _task: TrainTask, context: Context) -> tuple[int, dict[str, float]]:
    """Measure it on the node's own test examples."""
    _, loader = load(context)
    return work.count(loader), {"accuracy": work.test(model, loader)}


def load(context: Context) -> work.Loaders:
    """Return this node's data."""
    node = context.node_config
    return work.load_data(int(node["partition-id"]), int(node["num-partitions"]))


app = nested_client(work.make_family, train, evaluate=evaluate)  # nefl: was ClientApp()
