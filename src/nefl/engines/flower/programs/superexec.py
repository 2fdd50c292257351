"""Flower's program that starts clients, as a node with a trainer has it: clients are forked.

Flower's own starts a program for every message, which imports Python and Flower anew. Here one
process has imported what a thin client needs, and is forked for every message: each client still
has a process of its own, and its app is loaded in it. The options are those of `flower-superexec`.
"""

import importlib
import multiprocessing
import os
from multiprocessing import forkserver

from flwr.supercore.cli.flower_superexec import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

PRELOADED = ["nefl.engines.flower.programs.superexec", "nefl.engines.flower.node.warm_client"]
"""What is imported before it is forked: Flower's side of a client and the thin client, no torch."""

LOOP = "flwr.supercore.superexec.run_superexec"
"""Where Flower asks for work and has it started."""


class ForkingExecutor(SubprocessExecutor):
    """Starts clients as forks of a process that has imported Flower, all else as Flower does."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process that a message is for."""
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        multiprocessing.active_children()  # those that have ended are taken off the list
        self._context.Process(target=run_client, args=(spec,)).start()
        return LaunchResult.accepted()


def run_client(spec: ExecutionSpec) -> None:
    """Be Flower's process of one client, here where its modules are imported already."""
    if spec.suppress_output:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
    run_clientapp(
        runtime_api_address=spec.runtime_api_address,
        token=spec.token,
        insecure=spec.insecure,
        certificates=validate_and_resolve_root_certificates(
            spec.root_certificates_path, spec.insecure
        ),
        parent_pid=spec.parent_pid,
    )


def main() -> None:
    """Start clients until the SuperNode ends."""
    executor = ForkingExecutor()

    def forking(*_given: object, **_settings: object) -> ForkingExecutor:
        return executor

    importlib.import_module(LOOP).__dict__["get_executor"] = forking
    flower_superexec()
