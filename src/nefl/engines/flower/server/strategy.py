"""NeFedAvg as a Flower strategy, for people who have a ServerApp of their own."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, Metadata, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from nefl.config import (
    ClientsConfig,
    EngineConfig,
    FlowerConfig,
    LocalConfig,
    RunConfig,
    ServerConfig,
    WireConfig,
)
from nefl.engines.flower.messages import (
    EXAMPLES,
    METRICS,
    REASON_LENGTH,
    ROUND_CONFIG,
    Order,
    arrays_to_state,
    state_to_arrays,
)
from nefl.engines.flower.server.mailbox import Mailbox
from nefl.engines.flower.server.registry import RegistryFile
from nefl.engines.flower.server.roster import NodeRoster
from nefl.engines.flower.server.standing import Terms
from nefl.engines.flower.server.task_messages import Link, Weights
from nefl.errors import ConfigError, UpdateError
from nefl.nesting.price import SubmodelProfile
from nefl.nesting.rolling import roll
from nefl.nesting.spec import Family
from nefl.server.averages import check_average
from nefl.server.check import not_finite_in
from nefl.server.cohort import CohortPlan, assign_submodels, sample_cohort
from nefl.server.devices import Fleet
from nefl.server.limits import within_limits
from nefl.server.stepping import make_aggregate, remembering
from nefl.server.steps import find_step
from nefl.state import ClientFailure, ClientUpdate, ServerState, TrainTask

_log = logging.getLogger("flwr")


class NestedStrategy(Strategy):
    """Sends every node the submodel it can train, and averages what overlaps.

    Start it with `strategy.start(grid, strategy.initial_arrays(), num_rounds=...)`; the arrays it
    carries are the whole server state, `state_of` reads them. It has Flower's own round loop: no
    checkpoints, no repeated rounds. `nefl.flower.serve` has those.

    Args:
        family: the family.
        clients: the population, who takes part in a round, and how submodels are given out.
        server: weighting, quorum, average, step and limits; what it says of checkpoints has no
            meaning.
        flower: waiting for nodes, who chooses the submodel, the operator's file of nodes.
        seed: where cohorts and the first weights come from.
        evaluate: whether nodes also evaluate after each round, all that are there.
        memory: bytes that training each submodel takes, smallest first, for clients that check;
            those of the profiles if left out.
        local: epochs and batch size of your train function, where times are worked out.
        profiles: what each submodel costs (`nefl.nesting.profile.profile_family`), for simulated
            devices and for device profiles in the operator's file.
        examples: how many examples each client has, for the same.
        rolling: whether each round shifts which channels come first, as FedRolex does.
        wire: how weights travel to nodes and back.

    Raises:
        ConfigError: if something is asked for that rests on what was not given.
        NestingError: if rolling is asked for and submodels keep tensors of their own.
    """

    def __init__(
        self,
        family: Family,
        clients: ClientsConfig,
        *,
        server: ServerConfig | None = None,
        flower: FlowerConfig | None = None,
        seed: int = 0,
        evaluate: bool = False,
        memory: Sequence[int] = (),
        local: LocalConfig | None = None,
        profiles: Sequence[SubmodelProfile] = (),
        examples: Sequence[int] = (),
        rolling: bool = False,
        wire: WireConfig | None = None,
    ) -> None:
        self._family = family
        self._config = RunConfig(
            seed=seed,
            clients=clients,
            local=local or LocalConfig(),
            server=server or ServerConfig(),
            wire=wire or WireConfig(),
            engine=EngineConfig(flower=flower or FlowerConfig()),
        )
        self._evaluate = evaluate
        self._profiles, self._examples = tuple(profiles), tuple(examples)
        self._memory = tuple(memory) or tuple(p.train_memory_bytes for p in self._profiles)
        self._rolling = rolling
        self._step = find_step(self._config.server)
        check_average(self._config.server, self._family, self._step)
        self._check()
        self._fleet = self._simulated_devices()
        self._link: Link | None = None
        self._state: ServerState | None = None
        self._weights: Weights | None = None
        # Flower numbers a message when it is sent, and writes the number into its metadata.
        self._sent: list[tuple[Metadata, Order]] = []
        self._wished: dict[int, int] = {}

    def initial_arrays(self) -> ArrayRecord:
        """Return the first weights, as `start` wants them."""
        first = self._family.initial_state(self._config.seed)
        return state_to_arrays(remembering(first, self._family, self._step))

    def state_of(self, arrays: ArrayRecord, round_number: int = 0) -> ServerState:
        """Return the server state in the arrays of a result; `nefl.extract` cuts submodels out."""
        keeps = () if self._step is None else self._step.keeps
        return arrays_to_state(arrays, self._family, round_number, keeps)

    def summary(self) -> None:
        """Say what the strategy does."""
        clients, server = self._config.clients, self._config.server
        _log.info(
            "\t├──> %d submodels, %d of %d clients a round (%s), average: %s, step: %s, "
            "quorum %.2f",
            len(self._family),
            clients.per_round,
            clients.count,
            clients.capability,
            server.average,
            server.step.name,
            server.quorum,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Draw a cohort and give each client its submodel."""
        link = self._linked(grid)
        self._state = self.state_of(arrays, server_round - 1)
        if self._rolling:
            self._state = roll(self._state, self._family)
        plan = CohortPlan(
            self._config.clients, len(self._family), self._config.seed, self._fleet, link.roster
        )
        cohort = sample_cohort(plan, server_round)
        tasks = [self._lowered(task) for task in assign_submodels(cohort, plan, server_round)]
        return self._messages(tasks, MessageType.TRAIN, config, link)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies in the order of their tasks; too few, and the weights stay."""
        assert self._state is not None  # noqa: S101 - Flower configures before it aggregates
        total = make_aggregate(
            self._state,
            self._family,
            self._config.server,
            step=self._step,
            population=self._config.clients.count,
        )
        by_number = {reply.metadata.reply_to_message_id: reply for reply in replies}
        results = (self._result(sent, order, by_number) for sent, order in self._sent)
        losses: list[float] = []
        counted = failed = 0
        server = self._config.server
        passed = within_limits(
            results, self._state, self._family, server, dealt=self._examples, note=_log.warning
        )
        for result in passed:
            try:
                if isinstance(result, ClientFailure):
                    raise UpdateError(result.reason)  # noqa: TRY301 - one place counts failures
                total.add(result)
            except UpdateError as error:
                failed += 1
                _log.warning("round %d, %s", server_round, error)
                continue
            counted += 1
            losses += [value for name, value in result.metrics.items() if name.endswith("loss")][:1]
        metrics = MetricRecord({"updates": counted, "failures": failed})
        if losses:
            metrics["loss"] = sum(losses) / len(losses)
        if not counted or counted < self._config.server.quorum * len(self._sent):
            _log.warning("round %d does not count: %d updates", server_round, counted)
            return None, metrics
        after = total.finish()
        culprit = not_finite_in(after)
        if culprit is not None:
            _log.warning(
                "round %d does not count: %s is not finite after averaging", server_round, culprit
            )
            return None, metrics
        return state_to_arrays(after), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let every node that is there evaluate the largest submodel it may have."""
        if not self._evaluate:
            return []
        link = self._linked(grid)
        self._state = self.state_of(arrays, server_round)
        tasks = [
            TrainTask(server_round, client, link.roster.largest(client))
            for client in link.roster.present()
        ]
        return self._messages(tasks, MessageType.EVALUATE, config, link)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the means of all metrics over the nodes, weighted by their examples."""
        sums: dict[str, float] = {}
        examples = 0
        for reply in replies:
            if reply.has_error():
                _log.warning("round %d, evaluation: %s", server_round, reply.error.reason)
                continue
            record = reply.content.metric_records.get(METRICS, MetricRecord())
            count = record.get(EXAMPLES, 0)
            if not isinstance(count, int) or count < 1:
                continue
            examples += count
            for name, value in record.items():
                if name != EXAMPLES and isinstance(value, int | float):
                    sums[name] = sums.get(name, 0.0) + count * value
        return MetricRecord({n: s / examples for n, s in sums.items()}) if examples else None

    def _linked(self, grid: Grid) -> Link:
        if self._link is None:
            flower, clients = self._config.engine.flower, self._config.clients
            registry = RegistryFile(flower.registry, clients.count, len(self._family), note=_note)
            mailbox = Mailbox(grid)
            if not self._profiles and registry().has_device_profiles:
                raise ConfigError(
                    f"{flower.registry}: memory, macs_per_second and bandwidth of a node say "
                    "nothing without the submodels' costs; give NestedStrategy profiles=, or tiers"
                )
            terms = Terms(self._config, len(self._family), self._profiles, self._examples)
            roster = NodeRoster(mailbox, registry, terms, _note)
            self._link = Link(
                mailbox,
                roster,
                self._family,
                flower,
                _note,
                memory=self._memory,
                wire=self._config.wire,
                seed=self._config.seed,
            )
        return self._link

    def _check(self) -> None:
        """Raise where something is asked for that this strategy cannot do."""
        if self._config.engine.flower.measure:
            raise ConfigError(
                "engine.flower.measure: nodes with a train function of your own do not time the "
                "submodels; leave it out, and list devices in the operator's file"
            )
        if self._profiles and len(self._profiles) != len(self._family):
            raise ConfigError(
                f"{len(self._profiles)} profiles for {len(self._family)} submodels; give one each"
            )
        if self._family.within:
            raise ConfigError(
                "family: its submodels train others inside them, which a train function of your "
                "own does not; give the family without, or run nefl.flower.serve"
            )
        if self._config.clients.unlocks is not None:
            raise ConfigError(
                "clients.small_first: Flower's loop counts rounds that fail too, by which nothing "
                "can be unlocked; leave it out, or run nefl.flower.serve"
            )
        clients = self._config.clients
        if clients.closes_early or clients.keeps_ledger:
            raise ConfigError(
                "clients.over_select, close_after, pause and prefer: Flower's loop collects all "
                "replies before it hands them over, and keeps nothing of its clients; leave them "
                "out, or run nefl.flower.serve"
            )
        if self._rolling:
            roll(self._family.initial_state(self._config.seed), self._family)

    def _simulated_devices(self) -> Fleet | None:
        clients = self._config.clients
        if clients.capability != "devices":
            return None
        if not self._profiles or len(self._examples) != clients.count:
            raise ConfigError(
                "clients.capability 'devices': what fits a device follows from the submodels' "
                "costs and each client's examples; give NestedStrategy "
                f"profiles=profile_family(…) and examples= with {clients.count} numbers"
            )
        counts = np.array(self._examples, np.int64)
        epochs = self._config.local.epochs
        return Fleet(clients, self._profiles, epochs, counts, self._config.seed)

    def _messages(
        self, tasks: Iterable[TrainTask], kind: str, config: ConfigRecord, link: Link
    ) -> list[Message]:
        assert self._state is not None  # noqa: S101 - set by both callers
        weights = self._weights = Weights(self._state, link)
        self._sent = []
        messages = []
        for task in tasks:
            order, node = link.order(task), link.roster.node(task.client)
            if node is None:
                continue
            content = weights.content(order)
            content[ROUND_CONFIG] = ConfigRecord({**config, "server-round": task.round_number})
            message = Message(content, node, kind, group_id=str(task.round_number))
            messages.append(message)
            self._sent.append((message.metadata, order))
        return messages

    def _lowered(self, task: TrainTask) -> TrainTask:
        """Offer a client that wanted a smaller submodel the last time no more than that."""
        wished = self._wished.pop(task.client, task.submodel)
        return replace(task, submodel=min(task.submodel, wished))

    def _result(
        self, sent: Metadata, order: Order, replies: dict[str, Message]
    ) -> ClientUpdate | ClientFailure:
        assert self._link is not None  # noqa: S101 - there are no messages without one
        assert self._weights is not None  # noqa: S101 - nor without weights
        who = self._link.roster.who(order.task.client)
        reply = replies.get(sent.message_id)
        try:
            if reply is None:
                raise UpdateError("no reply in time")  # noqa: TRY301
            if reply.has_error():
                raise UpdateError(reply.error.reason)  # noqa: TRY301
            if reply.metadata.src_node_id != sent.dst_node_id:
                raise UpdateError("its reply comes from another node")  # noqa: TRY301
            answer = self._weights.read(reply.content, order)
        except UpdateError as error:
            return ClientFailure(order.task, f"{who}: {error}"[:REASON_LENGTH])
        if isinstance(answer, ClientUpdate):
            return answer
        self._wished[order.task.client] = answer
        return ClientFailure(order.task, f"{who}: wants submodel {answer}, gets it next time")


def _note(event: str, **content: object) -> None:
    _log.info("%s %s", event, content)
