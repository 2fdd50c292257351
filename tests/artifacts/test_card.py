"""Cards with figures that no model has are refused; those of older files are read."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from nefl.artifacts.card import Card, SubmodelCard, card_from_json, card_to_json
from nefl.asking.ways import way_of
from nefl.errors import RunError
from nefl.measured import MeasuredBy
from nefl.nesting.signature import Signature
from nefl.nesting.spec import SubmodelSpec

CARD = Card(
    "resnet8", "nefl-wd", "digits", 1, "image-classification", Signature((1, 8, 8), 2),
    (MeasuredBy("accuracy", "up", percent=True),),
    (SubmodelCard(1, SubmodelSpec(((1.0,),) * 3), 10, 10, 10, {"accuracy": 0.5}, 20),),
    ("0", "1"), {"image_shape": [1, 8, 8], "mean": [0.5], "std": [0.5]},
)  # fmt: skip


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    content = json.loads(card_to_json(CARD))
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda c: c.update(class_names=["0", "0"]), "a name of its own"),
        (lambda c: c.update(class_names=["0"]), "1 class_names for 2 outputs"),
        (lambda c: c.update(submodels=[]), "names its submodels"),
        (lambda c: c.update(metrics=[]), "what was measured"),
        (lambda c: c["signature"].update(input_shape=[9999, 9999, 9999]), "numbers each"),
        (lambda c: c["signature"].update(outputs=0), "outputs 0"),
        (lambda c: c["signature"].update(tokens=-3), "tokens -3"),
        (lambda c: c["signature"].update(padding=7), "padding 7"),
        (lambda c: c["submodels"][0].update(number=0), "numbered from 1"),
        (lambda c: c["submodels"][0].update(params=-1), "params -1"),
        (lambda c: c["submodels"][0].update(macs=-1), "macs -1"),
        (lambda c: c["submodels"][0].update(memory=-1), "memory -1"),
        (lambda c: c["submodels"][0]["values"].update(accuracy=1.5), "accuracy 1.5"),
        (lambda c: c["submodels"][0]["values"].update(accuracy=float("nan")), "accuracy nan"),
        (lambda c: c.update(facts=json.loads("[" * 70 + "]" * 70)), "nested"),
    ],
)
def test_impossible_figures_are_refused_by_name(
    change: Callable[[dict[str, Any]], object], named: str
) -> None:
    assert card_from_json(card_to_json(CARD), "a file") == CARD
    with pytest.raises(RunError, match=f"a file: .*{named}.*export it again"):
        card_from_json(changed(change), "a file")


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"std": [float("inf")]}, "finite deviations"),
        ({"std": [float("nan")]}, "finite deviations"),
        ({"std": [0.0]}, "finite deviations"),
        ({"mean": [0.1, 0.2]}, "1 fit"),
        ({"image_shape": [2, 8, 8]}, "grey or RGB"),
        ({"image_shape": [1, 0, 8]}, "1 to 4096"),
        ({"image_shape": [3, 8, 8], "mean": [0.1] * 3, "std": [1.0] * 3}, "inputs 1x8x8"),
        ({"image_shape": "large"}, "image_shape"),
    ],
)
def test_facts_that_fit_no_picture_are_refused(facts: dict[str, Any], named: str) -> None:
    card = replace(CARD, facts={**CARD.facts, **facts})
    with pytest.raises(RunError, match=f"image-classification is wrong .*{named}"):
        way_of(card)


def test_a_card_from_when_all_were_images_is_read() -> None:
    content = json.loads(card_to_json(CARD))
    facts, signature = content.pop("facts"), content.pop("signature")
    for key in ("kind", "metrics"):
        content.pop(key)
    for submodel in content["submodels"]:
        submodel["accuracy"] = submodel.pop("values")["accuracy"]
        submodel["images"] = submodel.pop("examples")
    old = {**content, **facts, "input_shape": signature["input_shape"]}
    assert card_from_json(json.dumps(old), "a file") == CARD
    for key in ("class_names", "submodels", "input_shape"):
        for wrong in (None, 3, "x"):
            with pytest.raises(RunError, match="a file: .*cannot be read"):
                card_from_json(json.dumps({**old, key: wrong}), "a file")
