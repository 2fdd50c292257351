"""The plain loop: one task after another in this process. It defines what is correct."""

from collections.abc import Collection, Iterator, Sequence

from nefl.client.memory import Keeper
from nefl.client.together import groups_of
from nefl.engines.memory_files import MemoryFiles
from nefl.engines.site import Site
from nefl.nesting.corners import extract
from nefl.nesting.sets import extract_all
from nefl.nesting.spec import Family
from nefl.own_code import describe
from nefl.server.evaluate import combine, make_chunks
from nefl.state import (
    ClientFailure,
    ClientUpdate,
    Evaluation,
    ServerState,
    Tensors,
    TrainTask,
)


class SerialEngine:
    """Trains and evaluates in this process.

    Args:
        site: where.
        family: the family.
        memories: where clients' memory lies; without it they have none.
        together: how many clients of one submodel are trained at once.
    """

    def __init__(
        self,
        site: Site,
        family: Family,
        memories: MemoryFiles | None = None,
        together: int = 1,
    ) -> None:
        self._together = together
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
        for group in groups_of(tasks, self._site.sizes, self._together):
            receives = self._site.objective.receives
            tensors = extract_all(sent, self._family, group[0].submodel, receives)
            keeper = None
            if memories is not None:
                keeper = memories.keeper(group[0].client, group[0].round_number)
            try:
                updates = [
                    wire.carry(u, tensors, state) for u in self._train(group, tensors, keeper)
                ]
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever a client's code may raise
                for task in group:
                    yield ClientFailure(task, describe(error))
            else:
                yield from updates

    def _train(
        self, group: Sequence[TrainTask], tensors: Tensors, keeper: Keeper | None
    ) -> list[ClientUpdate]:
        if len(group) == 1:
            return [self._site.train(group[0], tensors, keeper)]
        return self._site.train_together(group, tensors)

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
