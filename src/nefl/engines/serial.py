"""The plain loop: one task after another in this process. It defines what is correct."""

from collections.abc import Collection, Iterator, Sequence

from nefl.engines.memory_files import MemoryFiles
from nefl.engines.site import Site
from nefl.nesting.corners import extract
from nefl.nesting.sets import extract_all
from nefl.nesting.spec import Family
from nefl.own_code import describe
from nefl.server.evaluate import combine, make_chunks
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask


class SerialEngine:
    """Trains and evaluates in this process.

    Args:
        site: where.
        family: the family.
        memories: where clients' memory lies; without it they have none.
    """

    def __init__(self, site: Site, family: Family, memories: MemoryFiles | None = None) -> None:
        self._site = site
        self._family = family
        self._memories = memories if site.objective.keeps else None

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield each task's update. A client that raises costs its update, not the round."""
        memories = self._memories
        if memories is not None:
            memories.begin(state.round_number)
        wire = self._site.wire
        sent = wire.send(state).received()
        for task in tasks:
            receives = self._site.objective.receives
            tensors = extract_all(sent, self._family, task.submodel, receives)
            keeper = None
            if memories is not None:
                keeper = memories.keeper(task.client, task.round_number)
            try:
                update = self._site.train(task, tensors, keeper)
                result: ClientUpdate | ClientFailure = wire.carry(update, tensors, state)
            except Exception as error:
                result = ClientFailure(task, describe(error))
            yield result

    def settle(self, round_number: int, counted: Collection[int]) -> None:
        """Let only clients whose updates counted keep what they learned of a round."""
        if self._memories is not None:
            self._memories.settle(round_number, counted)

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        """Measure submodels on the test set."""
        chunks = make_chunks(submodels, self._site.test_examples, whole=self._site.measures_norms)
        tensors = {k: extract(state, self._family, k) for k in submodels}
        scores = [self._site.score(chunk, tensors[chunk.submodel]) for chunk in chunks]
        return combine(chunks, scores, self._site.metrics)

    def close(self) -> None:
        """Nothing to let go of."""
