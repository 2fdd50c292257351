"""A model of the user's own is tried out before a run has a folder."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nefl
from nefl.config import ModelConfig
from nefl.config.reading import config_from
from nefl.nesting.signature import Signature
from nefl.nesting.spec import kept_channels
from nefl.running.assembly import assemble
from nefl.running.tryout import try_out
from nefl.tasks.losses import cross_entropy

CLASSES, SHAPE = 3, (1, 6, 6)


class Net(nn.Module):
    """Pools, then two linear layers; what it returns is for a derived class to spoil."""

    def __init__(self, spec: nefl.SubmodelSpec, classes: int = CLASSES) -> None:
        super().__init__()
        channels = kept_channels(8, spec.stage_width(0))
        self.stem = nn.Linear(SHAPE[0], channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.relu(self.stem(x.mean((2, 3)))))


class FewLogits(Net):
    def __init__(self, spec: nefl.SubmodelSpec) -> None:
        super().__init__(spec, CLASSES - 1)


class ManyLogits(Net):
    def __init__(self, spec: nefl.SubmodelSpec) -> None:
        super().__init__(spec, CLASSES + 1)


class FewInTheFullModel(Net):
    def __init__(self, spec: nefl.SubmodelSpec) -> None:
        super().__init__(spec)
        if spec.is_full:
            self.narrow = nn.Linear(CLASSES, 1)

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return self.narrow(logits) if hasattr(self, "narrow") else logits


class Pair(Net):
    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return (logits, logits) if self.training else logits


class Silent(Net):
    def forward(self, x: Tensor) -> Any:
        super().forward(x)


class Decided(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).round().long()


class Detached(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x).detach()


class Infinite(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) / 0


class Raising(Net):
    def forward(self, x: Tensor) -> Any:
        return self.head(x)


class Reading(Net):
    def forward(self, x: Tensor) -> Any:
        return super().forward(x) * (1 if float(x.sum()) > 0 else 2)


class WithExits(Net):
    def forward_exits(self, x: Tensor) -> Any:
        return [self.forward(x), self.forward(x)]


class ShortExit(Net):
    def forward_exits(self, x: Tensor) -> Any:
        return [self.forward(x)[:, :-1], self.forward(x)]


class NoExits(Net):
    def forward_exits(self, x: Tensor) -> Any:
        return self.forward(x)


class Classes:
    signature = Signature(SHAPE, CLASSES)
    gives_logits = True

    def loss_of(self, outputs: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(outputs, target)


def attempt(build: type[Net], method: str = "fjord") -> None:
    specs = nefl.SubmodelSpec(((1.0,),), width=0.5), nefl.SubmodelSpec(((1.0,),))
    family = nefl.Family(build, specs)
    batch = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(1))
    model = ModelConfig("mine:make", method)
    try_out(model, family, Classes(), batch, torch.tensor([0, CLASSES - 1]))


@pytest.mark.parametrize("method", ["fjord", "fedavg", "depthfl-sd", "scalefl-sd"])
def test_a_model_that_can_be_trained_passes(method: str) -> None:
    attempt(WithExits, method)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (FewLogits, r"returned \[2, 2\] .* expected \[2, 3\] \(the last layer is head\); build"),
        (ManyLogits, r"returned \[2, 4\] for 2 examples of 3 classes"),
        (FewInTheFullModel, r"submodel 2, FewInTheFullModel .*the last layer is narrow"),
        (Pair, "forward in training returned a tuple of 2; return a tensor of logits"),
        (Silent, "forward in evaluation returned None; return"),
        (Decided, "returned logits of torch.int64, expected floating-point"),
        (Detached, "depend on no parameter that is trained"),
        (Infinite, "the loss of its first weights on the first examples is"),
        (Raising, r"forward of a batch \[2, 1, 6, 6\] failed: RuntimeError: .* in forward\)"),
        (Reading, "costs cannot be counted, as forward fails on torch's meta device"),
        (ShortExit, r"exit 1 of forward_exits returned \[2, 2\]"),
        (NoExits, "forward_exits returned Tensor; return a list"),
    ],
)
def test_one_that_cannot_is_refused_by_submodel_and_class(build: type[Net], words: str) -> None:
    with pytest.raises(nefl.ConfigError, match=f"^mine:make: .*{words}") as caught:
        attempt(build)
    if build is not Reading:
        assert f"{build.__name__} (" in str(caught.value)
        assert "test_tryout.py, line" in str(caught.value)


def test_methods_that_train_all_exits_need_them() -> None:
    with pytest.raises(nefl.ConfigError, match="depthfl-sd: trains all exits together, and mine"):
        attempt(Net, "depthfl-sd")


def test_trying_out_draws_from_no_generator_of_the_callers() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    attempt(Net)
    assert torch.equal(torch.rand(1), expected)


OWN = """
import torch
from torch import nn
from nefl import Family, SubmodelSpec

class Net(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.head = nn.Linear(64, outputs)

    def forward(self, x):
        return self.head(x.VIEW(len(x), -1))

def few(classes, input_shape):
    return Family(lambda spec: Net(classes - 1), (SubmodelSpec(((1.0,),)),))
"""


def test_fewer_logits_than_classes_leave_no_folder(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "few_logits.py").write_text(OWN.replace("VIEW", "reshape"), encoding="utf-8")
    with pytest.raises(nefl.ConfigError, match=r"few_logits:few: .* returned \[2, 9\]"):
        nefl.train(quick | {"model": {"name": "few_logits:few"}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_view_is_tried_as_the_images_lie_in_training(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    own = OWN.replace("VIEW", "view").replace("classes - 1", "classes")
    own = own.replace("Linear(64", "Linear(192")
    (tmp_path / "own_view.py").write_text(own, encoding="utf-8")
    data = {"name": "synthetic", "options": {"shape": [3, 8, 8], "train": 200, "test": 50}}
    config = quick | {"model": {"name": "own_view:few"}, "data": data}
    assemble(config_from(config))
    channels_last = config | {"local": {"memory_format": "channels_last"}}
    with pytest.raises(nefl.OwnCodeError, match="view size is not compatible"):
        assemble(config_from(channels_last))
