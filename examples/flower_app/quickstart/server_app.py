"""The server."""

import logging

from flwr.app import ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from nefl.artifacts.checkpoint import state_sha256  # nefl:
from nefl.config import ClientsConfig  # nefl:
from nefl.flower import NestedStrategy  # nefl:
from quickstart.task import make_family

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train over the nodes that are there."""
    nodes = int(context.run_config["nodes"])
    clients = ClientsConfig(count=nodes, per_round=nodes)  # nefl: FedAvg's fraction_train
    strategy = NestedStrategy(make_family(), clients, evaluate=True)  # nefl: was FedAvg(…)
    result = strategy.start(
        grid=grid,
        initial_arrays=strategy.initial_arrays(),  # nefl: was ArrayRecord(Net().state_dict())
        train_config=ConfigRecord({"lr": float(context.run_config["lr"])}),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    state = strategy.state_of(result.arrays)  # nefl: `nefl.extract` cuts any of the three out
    logging.getLogger("flwr").info("state_sha256 %s", state_sha256(state))
