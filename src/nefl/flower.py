"""What a Flower app imports: the server's whole run in one call, and the names of its parts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from nefl.artifacts.kept import oldest_round
from nefl.artifacts.notes import CONFIG, read_log
from nefl.artifacts.runfolder import RunFolder
from nefl.data.tokens import facts_to_send
from nefl.engines.flower.messages import arrays_to_state, state_to_arrays
from nefl.engines.flower.node.answering import nested_client
from nefl.engines.flower.node.site_client import partition_sha256, site_client
from nefl.engines.flower.server.counted import CountedRounds
from nefl.engines.flower.server.engine import FlowerEngine
from nefl.engines.flower.server.mailbox import Context, Grid, Mailbox
from nefl.engines.flower.server.registry import RegistryFile
from nefl.engines.flower.server.roster import NodeRoster
from nefl.engines.flower.server.run_log import LogObserver, say_result
from nefl.engines.flower.server.run_settings import read_run_settings
from nefl.engines.flower.server.standing import Terms
from nefl.engines.flower.server.strategy import NestedStrategy
from nefl.engines.flower.server.task_messages import Link
from nefl.engines.flower.source import node_source
from nefl.engines.serial import SerialEngine
from nefl.methods import method_of
from nefl.references import remember_code
from nefl.rounds import Engine
from nefl.running import lifecycle
from nefl.running.assembly import Setting
from nefl.server.closing import closing_rule

__all__ = [
    "NestedStrategy",
    "arrays_to_state",
    "nested_client",
    "serve",
    "site_client",
    "state_to_arrays",
]


def serve(grid: Grid, context: Context) -> lifecycle.RunResult:
    """Train the run that a Flower app's run config describes, over the nodes that are there.

    The run has a folder as any other: settings, log, checkpoints, summary. With `resume` it goes on
    with what is in that folder, if there is anything.

    Raises:
        NeflError: if the settings or the folder cannot be used, or too few clients take part.
    """
    settings = read_run_settings(context.run_config)
    observer = LogObserver()
    observers = [observer]
    reach = connect_to(grid)

    def connect(setting: Setting, folder: RunFolder) -> tuple[Setting, Engine]:
        observer.rounds = setting.config.rounds
        return reach(setting, folder)

    out = settings.out
    if settings.resume and out is not None and (out / CONFIG).exists():
        # The engine's settings may change between two starts: the nodes' file, the deadline.
        engine = settings.config.engine
        remember_code(settings.config)  # the run config is the user's own word
        result = lifecycle.resume(
            out,
            engine=engine,
            changed_code=settings.changed_code,
            observers=observers,
            connect=connect,
        )
    else:
        result = lifecycle.train(
            settings.config, out, name=settings.name, observers=observers, connect=connect
        )
    say_result(result.summary, result.path)
    return result


def connect_to(grid: Grid) -> Callable[[Setting, RunFolder], tuple[Setting, Engine]]:
    """Return what makes the Flower engine of a run, and its cohorts those of the nodes there."""

    def connect(setting: Setting, folder: RunFolder) -> tuple[Setting, Engine]:
        config, family = setting.config, setting.family
        flower = config.engine.flower
        profiles = setting.profiles()
        run = describe_run(setting)
        sizes = [int(size) for size in setting.partition.sizes]
        cohort = setting.plan.cohort
        levels = cohort.levels or len(family)
        alone = setting.alone().profiles() if family.within else ()
        terms = Terms(config, len(family), profiles, sizes, run, cohort.left_out, levels, alone)
        registry = RegistryFile(
            flower.registry,
            config.clients.count,
            len(family),
            tiers=levels,
            note=folder.log,
        )
        mailbox = Mailbox(grid)
        roster = NodeRoster(mailbox, registry, terms, folder.log)
        needs = [profile.train_memory_bytes for profile in profiles]
        plan = setting.plan
        keeps = method_of(config.model).objective.keeps
        if keeps and oldest_round(folder.path):
            folder.log(
                "memory",
                reason="clients keep their memory in their node's context, as long as a Flower "
                "run lasts; in another one they begin with none",
            )
        counted = CountedRounds()
        if keeps:
            counted = CountedRounds(read_log(folder.path), lambda: oldest_round(folder.path))
        link = Link(
            mailbox,
            roster,
            family,
            flower,
            folder.log,
            run,
            needs,
            plan.receives,
            plan.sends,
            counted=counted,
            closing=closing_rule(config),
            wire=config.wire,
            seed=config.seed,
        )
        cohort = replace(setting.plan.cohort, roster=roster)
        here = SerialEngine(setting.site(), family)
        return (
            replace(setting, plan=replace(plan, cohort=cohort)),
            FlowerEngine(link, here),
        )

    return connect


def describe_run(setting: Setting) -> dict[str, Any]:
    """Return what a client needs to train as the server's own machine would."""
    task = setting.task
    return {
        "config": setting.config.to_dict(),
        "class_names": list(task.class_names),
        "signature": task.signature.to_dict(),
        "arguments": task.model_arguments(),
        "facts": facts_to_send(task.facts),
        "partition": partition_sha256(setting.partition),
        "source": node_source(setting.config),
    }
