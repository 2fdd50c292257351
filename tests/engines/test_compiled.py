"""Compiled submodels: which batches are compiled, and where the code lies."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nefl.artifacts.checkpoint import state_sha256
from nefl.engines.compiled import PLACE, compile_full_batches
from nefl.running.lifecycle import train


def test_only_full_batches_of_training_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []
    layouts: list[bool] = []

    def stand_in(plain: Callable[[Tensor], Tensor], **how: Any) -> Callable[[Tensor], Tensor]:
        layouts.append(how["options"]["layout_optimization"])

        def compiled(inputs: Tensor) -> Tensor:
            sizes.append(len(inputs))
            return plain(inputs)

        return compiled

    monkeypatch.setattr(torch, "compile", stand_in)
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path))
    monkeypatch.setenv(PLACE, "")
    monkeypatch.delenv(PLACE)
    module = nn.Linear(3, 2)
    names = list(module.state_dict())
    compile_full_batches(module, batch_size=4, family_size=20)
    for size in (4, 3, 5, 4):
        module.train()(torch.zeros(size, 3))
        module.eval()(torch.zeros(4, 3))
    assert sizes == [4, 4]
    compile_full_batches(nn.Linear(3, 2), 4, 20, torch.contiguous_format)
    assert layouts == [True, False], "the compiler keeps the layout that a run has"
    assert list(module.state_dict()) == names
    assert os.environ[PLACE] == str(tmp_path / "compiled")
    assert torch._dynamo.config.recompile_limit >= 40


ENGINES = {
    "serial": {"name": "serial", "device": "cpu"},
    "workers": {"name": "workers", "workers": 2, "device": "cpu"},
}


@pytest.mark.long
@pytest.mark.parametrize("model", ["resnet8", "vit_tiny"])
def test_compiled_runs_are_the_same_on_both_engines(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    """And close to eager ones: the same numbers, added up in another order."""
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path))
    monkeypatch.setenv(PLACE, str(tmp_path / "compiled"))
    method = {"name": model, "method": "nefl-w"}
    settings = quick | {"rounds": 1, "model": quick["model"] | method}
    runs = {}
    for compiled, engine in ((True, "serial"), (True, "workers"), (False, "serial")):
        local = quick["local"] | {"compile": compiled, "learning_rate": 0.01}
        more = {"local": local, "engine": ENGINES[engine]}
        runs[compiled, engine] = train(settings | more, tmp_path / f"{compiled}-{engine}").state
    assert state_sha256(runs[True, "serial"]) == state_sha256(runs[True, "workers"])
    assert state_sha256(runs[True, "serial"]) != state_sha256(runs[False, "serial"])
    eager = runs[False, "serial"].shared
    for name, tensor in runs[True, "serial"].shared.items():
        torch.testing.assert_close(tensor, eager[name], rtol=1e-3, atol=1e-4)
