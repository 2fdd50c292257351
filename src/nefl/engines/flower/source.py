"""The source of a user's own code: a node has to run the server's."""

from collections.abc import Mapping

from nefl.config import RunConfig
from nefl.config.run import GIVEN
from nefl.errors import RunError
from nefl.methods import method_reference
from nefl.references import is_reference, source_of

Source = dict[str, dict[str, str]]
"""By reference, checksums of the modules that it rests on."""


def node_source(config: RunConfig, *, own_data: bool = False) -> Source:
    """Return the source of what a node runs of a configuration: model, method, task and data.

    Args:
        config: the run.
        own_data: whether the node has examples of its own, and does not read the run's.
    """
    names = [config.model.name, method_reference(config.model.method) or ""]
    if config.task != GIVEN:
        names += [config.task] if own_data else [config.task, config.data.name]
    return {name: source_of(name) for name in filter(is_reference, names)}


def check_source(
    config: RunConfig, server: Mapping[str, Mapping[str, str]], *, own_data: bool
) -> None:
    """Refuse to run other code than the server's.

    A module that only one side knows is not compared: what is installed there does not count.

    Args:
        config: the run, as the server sent it.
        server: the source on the server.
        own_data: as for `node_source`.

    Raises:
        RunError: naming the function and the module at fault. Nothing of it was imported.
    """
    for name, here in node_source(config, own_data=own_data).items():
        there, remedy = server.get(name, {}), "give this node the files that the server has"
        module = name.partition(":")[0]
        if module not in here or module not in there:
            where = "here" if module in there else "on the server"
            raise RunError(f"{name}: its module {module} is not {where}; {remedy}")
        for other in sorted(here.keys() & there.keys()):
            if here[other] != there[other]:
                raise RunError(f"{name}: the source of {other} here is not the server's; {remedy}")
