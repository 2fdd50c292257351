"""Federated learning across unequal devices, with nested submodels of one global model.

Names are imported when they are first used: `import nefl` alone loads no torch.
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from nefl.methods import METHODS, Method, make_family
    from nefl.nesting.corners import extract, scatter
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
    from nefl.state import ClientUpdate, Evaluation, ServerState, TrainTask
    from nefl.tasks.metrics import Metric
    from nefl.tasks.task import Task

__version__ = version("nefl")

__all__ = [
    "METHODS",
    "Aggregate",
    "Budget",
    "Cell",
    "ClientUpdate",
    "ConfigError",
    "DataError",
    "ElasticModel",
    "Evaluation",
    "Exit",
    "Family",
    "Local",
    "Method",
    "Metric",
    "NeflError",
    "NestingError",
    "Objective",
    "Observer",
    "OwnCodeError",
    "RoundReport",
    "Run",
    "RunConfig",
    "RunError",
    "RunResult",
    "ServerState",
    "ServerStep",
    "Signature",
    "StepSize",
    "SubmodelSpec",
    "Task",
    "TrainTask",
    "TrainedFamily",
    "UpdateError",
    "check_family",
    "cut",
    "evaluate",
    "export_family",
    "export_submodel",
    "extract",
    "load",
    "load_recipe",
    "make_family",
    "members_inside",
    "open_model",
    "parse_budget",
    "read_run",
    "recipe_names",
    "recipe_values",
    "resume",
    "scatter",
    "train",
]

_HOMES = {
    "Signature": "nefl.nesting.signature",
    "Metric": "nefl.tasks.metrics",
    "Task": "nefl.tasks.task",
    "Aggregate": "nefl.server.aggregate",
    "Budget": "nefl.elastic.budget",
    "Cell": "nefl.server.steps",
    "ClientUpdate": "nefl.state",
    "ConfigError": "nefl.errors",
    "DataError": "nefl.errors",
    "ElasticModel": "nefl.elastic.model",
    "Evaluation": "nefl.state",
    "Exit": "nefl.nesting.modules",
    "Family": "nefl.nesting.spec",
    "Local": "nefl.client.objective",
    "METHODS": "nefl.methods",
    "Method": "nefl.methods",
    "NeflError": "nefl.errors",
    "NestingError": "nefl.errors",
    "Objective": "nefl.client.objective",
    "Observer": "nefl.rounds",
    "OwnCodeError": "nefl.errors",
    "RoundReport": "nefl.rounds",
    "Run": "nefl.report.reading.runs",
    "RunConfig": "nefl.config",
    "RunError": "nefl.errors",
    "RunResult": "nefl.running.lifecycle",
    "ServerState": "nefl.state",
    "ServerStep": "nefl.server.steps",
    "StepSize": "nefl.nesting.modules",
    "SubmodelSpec": "nefl.nesting.spec",
    "TrainTask": "nefl.state",
    "TrainedFamily": "nefl.elastic.file",
    "UpdateError": "nefl.errors",
    "check_family": "nefl.nesting.zero_extension",
    "cut": "nefl.elastic.adopt",
    "evaluate": "nefl.running.lifecycle",
    "export_family": "nefl.export.export",
    "export_submodel": "nefl.export.export",
    "extract": "nefl.nesting.corners",
    "load": "nefl.elastic.file",
    "load_recipe": "nefl.recipes",
    "make_family": "nefl.methods",
    "members_inside": "nefl.nesting.inside",
    "open_model": "nefl.export.formats",
    "parse_budget": "nefl.elastic.budget",
    "read_run": "nefl.report.reading.runs",
    "recipe_names": "nefl.recipes",
    "recipe_values": "nefl.recipes",
    "resume": "nefl.running.lifecycle",
    "scatter": "nefl.nesting.corners",
    "train": "nefl.running.lifecycle",
}
"""The module that each public name lives in."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'nefl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
