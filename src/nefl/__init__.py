"""Federated learning across unequal devices, with nested submodels of one global model.

The public names stand in `__all__` by what they are for; whatever is not there is private. They are
imported when they are first used: `import nefl` alone loads no torch.
"""

from importlib.metadata import version
from typing import TYPE_CHECKING

from nefl.lazy import lazy_names

if TYPE_CHECKING:
    from nefl.artifacts.sums import load_sums, save_sums
    from nefl.client.objective import Local, Objective
    from nefl.config import RunConfig
    from nefl.elastic.adopt import cut
    from nefl.elastic.budget import Budget, parse_budget
    from nefl.elastic.file import TrainedFamily, load
    from nefl.elastic.model import ElasticModel
    from nefl.errors import (
        ConfigError,
        DataError,
        NeflError,
        NestingError,
        OwnCodeError,
        RunError,
        UpdateError,
    )
    from nefl.export.export import export_family, export_submodel
    from nefl.export.formats import open_model
    from nefl.export.trainable import export_trainable
    from nefl.methods import METHODS, Method, make_family
    from nefl.models.ranks import lora_family
    from nefl.nesting.corners import extract, scatter
    from nefl.nesting.frozen import Frozen
    from nefl.nesting.inside import members_inside
    from nefl.nesting.modules import Exit, StepSize
    from nefl.nesting.signature import Signature
    from nefl.nesting.spec import Family, SubmodelSpec
    from nefl.nesting.zero_extension import check_family
    from nefl.recipes import load_recipe, recipe_names, recipe_values
    from nefl.report.reading.runs import Run, read_run
    from nefl.rounds import Observer, RoundReport
    from nefl.running.lifecycle import RunResult, evaluate, resume, train
    from nefl.server.aggregate import Aggregate
    from nefl.server.steps import Cell, ServerStep
    from nefl.state import ClientUpdate, Evaluation, ServerState, Sums, TrainTask
    from nefl.tasks.metrics import Metric
    from nefl.tasks.task import Task

__version__ = version("nefl")

__all__ = [  # noqa: RUF022 -- a table of contents
    # a run, from its settings to its end
    "train",
    "resume",
    "evaluate",
    "RunConfig",
    "RunResult",
    "load_recipe",
    "recipe_names",
    "recipe_values",
    "Observer",
    "RoundReport",
    "Evaluation",
    # what is learned
    "Task",
    "Metric",
    "Signature",
    # a model as a family of nested submodels
    "Family",
    "SubmodelSpec",
    "StepSize",
    "Exit",
    "Frozen",
    "make_family",
    "lora_family",
    "check_family",
    "members_inside",
    "extract",
    "scatter",
    # how it is trained
    "METHODS",
    "Method",
    "Objective",
    "Local",
    "ServerStep",
    "Cell",
    "Aggregate",
    # what travels and what is kept
    "ServerState",
    "TrainTask",
    "ClientUpdate",
    "Sums",
    "save_sums",
    "load_sums",
    # what came out
    "Run",
    "read_run",
    # trained families in use
    "export_family",
    "export_submodel",
    "export_trainable",
    "open_model",
    "load",
    "TrainedFamily",
    "ElasticModel",
    "Budget",
    "parse_budget",
    "cut",
    # what is raised
    "NeflError",
    "ConfigError",
    "DataError",
    "NestingError",
    "OwnCodeError",
    "RunError",
    "UpdateError",
]

_HOMES = {
    "train": "nefl.running.lifecycle",
    "resume": "nefl.running.lifecycle",
    "evaluate": "nefl.running.lifecycle",
    "RunConfig": "nefl.config",
    "RunResult": "nefl.running.lifecycle",
    "load_recipe": "nefl.recipes",
    "recipe_names": "nefl.recipes",
    "recipe_values": "nefl.recipes",
    "Observer": "nefl.rounds",
    "RoundReport": "nefl.rounds",
    "Evaluation": "nefl.state",
    "Task": "nefl.tasks.task",
    "Metric": "nefl.tasks.metrics",
    "Signature": "nefl.nesting.signature",
    "Family": "nefl.nesting.spec",
    "SubmodelSpec": "nefl.nesting.spec",
    "StepSize": "nefl.nesting.modules",
    "Exit": "nefl.nesting.modules",
    "Frozen": "nefl.nesting.frozen",
    "make_family": "nefl.methods",
    "lora_family": "nefl.models.ranks",
    "check_family": "nefl.nesting.zero_extension",
    "members_inside": "nefl.nesting.inside",
    "extract": "nefl.nesting.corners",
    "scatter": "nefl.nesting.corners",
    "METHODS": "nefl.methods",
    "Method": "nefl.methods",
    "Objective": "nefl.client.objective",
    "Local": "nefl.client.objective",
    "ServerStep": "nefl.server.steps",
    "Cell": "nefl.server.steps",
    "Aggregate": "nefl.server.aggregate",
    "ServerState": "nefl.state",
    "TrainTask": "nefl.state",
    "ClientUpdate": "nefl.state",
    "Sums": "nefl.state",
    "save_sums": "nefl.artifacts.sums",
    "load_sums": "nefl.artifacts.sums",
    "Run": "nefl.report.reading.runs",
    "read_run": "nefl.report.reading.runs",
    "export_family": "nefl.export.export",
    "export_submodel": "nefl.export.export",
    "export_trainable": "nefl.export.trainable",
    "open_model": "nefl.export.formats",
    "load": "nefl.elastic.file",
    "TrainedFamily": "nefl.elastic.file",
    "ElasticModel": "nefl.elastic.model",
    "Budget": "nefl.elastic.budget",
    "parse_budget": "nefl.elastic.budget",
    "cut": "nefl.elastic.adopt",
    "NeflError": "nefl.errors",
    "ConfigError": "nefl.errors",
    "DataError": "nefl.errors",
    "NestingError": "nefl.errors",
    "OwnCodeError": "nefl.errors",
    "RunError": "nefl.errors",
    "UpdateError": "nefl.errors",
}
"""The module that each public name lives in."""

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
