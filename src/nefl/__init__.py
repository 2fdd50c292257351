"""Federated learning across unequal devices, with nested submodels of one global model."""

from importlib.metadata import version

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
from nefl.methods import METHODS, make_family
from nefl.nesting.corners import extract, scatter
from nefl.nesting.modules import Exit, StepSize
from nefl.nesting.spec import Family, SubmodelSpec
from nefl.nesting.zero_extension import check_family
from nefl.recipes import load_recipe, recipe_names, recipe_values
from nefl.report.runs import Run, read_run
from nefl.rounds import Observer, RoundReport
from nefl.server.aggregate import Aggregate
from nefl.state import ClientUpdate, Evaluation, ServerState, TrainTask
from nefl.training import RunResult, evaluate, resume, train

__version__ = version("nefl")

__all__ = [
    "METHODS",
    "Aggregate",
    "Budget",
    "ClientUpdate",
    "ConfigError",
    "DataError",
    "ElasticModel",
    "Evaluation",
    "Exit",
    "Family",
    "NeflError",
    "NestingError",
    "Observer",
    "OwnCodeError",
    "RoundReport",
    "Run",
    "RunConfig",
    "RunError",
    "RunResult",
    "ServerState",
    "StepSize",
    "SubmodelSpec",
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
    "open_model",
    "parse_budget",
    "read_run",
    "recipe_names",
    "recipe_values",
    "resume",
    "scatter",
    "train",
]
