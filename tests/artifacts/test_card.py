"""Cards with figures that no model has are refused."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from nefl.artifacts.card import Card, SubmodelCard, card_from_json, card_to_json
from nefl.errors import RunError
from nefl.nesting.spec import SubmodelSpec

CARD = Card(
    "resnet8", "nefl-wd", "digits", 1, ("0", "1"), (1, 8, 8), (1, 8, 8), (0.5,), (0.5,),
    (SubmodelCard(1, SubmodelSpec(((1.0,),) * 3), 10, 10, 10, 0.5, 20),),
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(std=[float("inf")]), "finite deviations"),
        (lambda c: c.update(std=[float("nan")]), "finite deviations"),
        (lambda c: c.update(class_names=["0", "0"]), "a name of its own"),
        (lambda c: c["submodels"][0].update(number=0), "numbered from 1"),
        (lambda c: c["submodels"][0].update(params=-1), "params -1"),
        (lambda c: c["submodels"][0].update(macs=-1), "macs -1"),
        (lambda c: c["submodels"][0].update(memory=-1), "memory -1"),
        (lambda c: c["submodels"][0].update(accuracy=1.5), "accuracy 1.5"),
        (lambda c: c["submodels"][0].update(accuracy=float("nan")), "accuracy nan"),
    ],
)
def test_impossible_figures_are_refused_by_name(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    assert card_from_json(card_to_json(CARD), "a file") == CARD
    content = json.loads(card_to_json(CARD))
    change(content)
    with pytest.raises(RunError, match=f"a file: .*{named}.*export it again"):
        card_from_json(json.dumps(content), "a file")
