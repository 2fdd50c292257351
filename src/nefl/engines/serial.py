"""The plain loop: one task after another in this process. It defines what is correct."""

from collections.abc import Iterator, Sequence

from nefl.engines.site import Site
from nefl.nesting.corners import extract
from nefl.nesting.spec import Family
from nefl.own_code import describe
from nefl.server.evaluate import combine, make_chunks
from nefl.state import ClientFailure, ClientUpdate, Evaluation, ServerState, TrainTask


class SerialEngine:
    """Trains and evaluates in this process."""

    def __init__(self, site: Site, family: Family) -> None:
        self._site = site
        self._family = family

    def train(
        self, state: ServerState, tasks: Sequence[TrainTask]
    ) -> Iterator[ClientUpdate | ClientFailure]:
        """Yield each task's update. A client that raises costs its update, not the round."""
        for task in tasks:
            tensors = extract(state, self._family, task.submodel)
            try:
                result: ClientUpdate | ClientFailure = self._site.train(task, tensors)
            except Exception as error:
                result = ClientFailure(task, describe(error))
            yield result

    def evaluate(self, state: ServerState, submodels: Sequence[int]) -> list[Evaluation]:
        """Measure submodels on the test set."""
        chunks = make_chunks(submodels, self._site.test_examples, whole=self._site.measures_norms)
        tensors = {k: extract(state, self._family, k) for k in submodels}
        scores = [self._site.score(chunk, tensors[chunk.submodel]) for chunk in chunks]
        return combine(chunks, scores, self._site.metrics)

    def close(self) -> None:
        """Nothing to let go of."""
