"""Compiled submodels: which batches are compiled, and where the code lies."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nefl.engines.compiled import PLACE, compile_full_batches


def test_only_full_batches_of_training_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sizes: list[int] = []

    def stand_in(plain: Callable[[Tensor], Tensor], **_: Any) -> Callable[[Tensor], Tensor]:
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
    assert list(module.state_dict()) == names
    assert os.environ[PLACE] == str(tmp_path / "compiled")
    assert torch._dynamo.config.recompile_limit >= 40
