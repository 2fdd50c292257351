import importlib.util
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from nefl.errors import DataError
from nefl.methods import METHODS, make_family
from nefl.models import pretrained
from nefl.models.pretrained import fit_weights, read_weights, start_from, weights_checksum
from nefl.models.resnet import ResNetDesign
from nefl.models.table import MODELS
from nefl.nesting.corners import corner, extract
from nefl.nesting.spec import Family


def _beside(name: str) -> ModuleType:
    """Import a module that lies beside this one, which is in no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


style = _beside("torchvision_style")
LARGE = (3, 224, 224)


def saved(model: nn.Module, path: Path) -> Path:
    torch.save(model.state_dict(), path)
    return path


def full_model(family: Family, path: Path) -> nn.Module:
    """The full model of a family that starts from a file, ready for evaluation."""
    state = start_from(path, family, family.initial_state(3))
    model = family.build(family.specs[-1])
    model.load_state_dict(extract(state, family, len(family)))
    return model.eval()


def test_a_resnet_computes_what_torchvisions_does(tmp_path: Path) -> None:
    reference = style.scramble(style.resnet18())
    family = make_family("resnet18", "nefl-wd")
    model = full_model(family, saved(reference, tmp_path / "weights.pth"))
    # The paper's stem and classifier are new: with them in place, all between must be the same.
    reference.conv1, reference.fc = model.conv1, model.fc
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-4)


def test_a_wide_resnet_keeps_its_stem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        MODELS,
        "wide_small",
        ResNetDesign(((16, 2), (32, 1)), stem="large", bottleneck=True, expansion=2),
    )
    monkeypatch.setattr(pretrained, "TORCHVISION", ("wide_small",))
    reference = style.scramble(style.TorchvisionResNet(style.Wide, (32, 64), (2, 1), classes=50))
    family = make_family("wide_small", "nefl-w", ratios=(0.5, 1))
    model = full_model(family, saved(reference, tmp_path / "weights.pt"))
    reference.fc = model.fc
    images = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("names", [("0", "3"), ("linear_1", "linear_2")])
def test_a_vit_computes_what_torchvisions_does(tmp_path: Path, names: tuple[str, str]) -> None:
    reference = style.scramble(style.TorchvisionViT(32, 4, 6, 4, 64, 128, 10, names))
    family = make_family("vit_tiny", "nefl-wd")
    model = full_model(family, saved(reference, tmp_path / "weights.pth"))
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images), reference(images), rtol=1e-4, atol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shape", "anew"),
    [
        ("resnet18", (3, 32, 32), {"conv1.weight", "fc.weight", "fc.bias"}),
        ("resnet34", (3, 32, 32), {"conv1.weight", "fc.weight", "fc.bias"}),
        ("wide_resnet101_2", LARGE, {"fc.weight", "fc.bias"}),
        ("vit_b_16", LARGE, {"heads.head.weight", "heads.head.bias"}),
    ],
)
@pytest.mark.parametrize("method", ["nefl-d", "heterofl", "depthfl"])
def test_the_four_published_layouts_fit(
    name: str, shape: tuple[int, int, int], anew: set[str], method: str
) -> None:
    with torch.device("meta"):
        tensors = getattr(style, name)().state_dict()
    family = make_family(name, method, input_shape=shape)
    fitted = fit_weights(tensors, family, "a file")
    assert {line.split()[0] for line in fitted.anew} == anew
    full = family.layout(len(family))
    steps = {n for n in full if "step_size" in n}
    assert set(full) - steps - anew <= set(fitted.tensors)
    assert all(fitted.tensors[n].shape == full[n].shape for n in full if n in fitted.tensors)


def test_old_files_have_no_counts_of_batches() -> None:
    with torch.device("meta"):
        tensors = style.resnet18().state_dict()
    old = {n: t for n, t in tensors.items() if not n.endswith("num_batches_tracked")}
    assert "bn1.weight" in fit_weights(old, make_family("resnet18", "nefl-w"), "a file").tensors


def test_every_submodel_starts_from_corners_of_the_files_norms(tmp_path: Path) -> None:
    reference = style.scramble(style.resnet18()).state_dict()
    torch.save(reference, tmp_path / "w.pth")
    family = make_family("resnet18", "nefl-wd")
    fresh = family.initial_state(0)
    state = start_from(tmp_path / "w.pth", family, fresh)
    for k in range(1, len(family) + 1):
        own = state.per_submodel[k - 1]
        for kind in ("weight", "bias", "running_mean", "running_var"):
            name = f"layer4.0.downsample.1.{kind}"
            assert torch.equal(own[name], reference[name][corner(own[name].shape)])
        assert float(own["layer1.0.step_size.value"]) == 1
    assert len({len(own["bn1.weight"]) for own in state.per_submodel}) > 1
    conv = "layer3.1.conv2.weight"
    assert torch.equal(state.shared[conv], reference[conv])
    assert torch.equal(state.shared["conv1.weight"], fresh.shared["conv1.weight"])
    assert torch.equal(state.shared["fc.weight"], fresh.shared["fc.weight"])


def test_shared_and_static_norms(tmp_path: Path) -> None:
    reference = style.scramble(style.resnet18()).state_dict()
    torch.save(reference, tmp_path / "w.pth")
    for method in ("depthfl", "heterofl"):
        family = make_family("resnet18", method)
        state = start_from(tmp_path / "w.pth", family, family.initial_state(0))
        assert torch.equal(state.shared["bn1.weight"], reference["bn1.weight"])
        assert ("bn1.running_mean" in state.shared) == (METHODS[method].norm == "tracked")
    exits = [name for name in make_family("resnet18", "depthfl").global_layout if "exits" in name]
    assert exits  # they are not in the file, and start anew


def test_what_starts_anew_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(style.resnet18(), tmp_path / "w.pth")
    family = make_family("resnet18", "nefl-w")
    with caplog.at_level(logging.WARNING):
        start_from(path, family, family.initial_state(0))
    assert "conv1.weight (expected (64, 3, 3, 3), found (64, 3, 7, 7))" in caplog.text
    assert "fc.weight (expected (10, 512), found (1000, 512))" in caplog.text


@pytest.mark.parametrize(
    ("name", "suffix"),
    [("resnet8", ".safetensors"), ("vit_tiny", ".pth"), ("resnet18", ".safetensors")],
)
def test_a_full_model_of_nefls_own_is_taken_whole(tmp_path: Path, name: str, suffix: str) -> None:
    family = make_family(name, "nefl-w")
    trained = style.scramble(family.build(family.specs[-1]))
    path = tmp_path / f"own{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(trained.state_dict(), path)
    model = full_model(family, path)
    for key, tensor in trained.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor), key
    state = start_from(path, family, family.initial_state(0))
    steps = [own for own in state.per_submodel[0] if "step_size" in own]
    assert all(float(state.per_submodel[0][step]) == 1 for step in steps)


def test_a_wrapped_and_a_half_precision_file(tmp_path: Path) -> None:
    family = make_family("resnet8", "nefl-w")
    tensors = {n: t.half() for n, t in family.build(family.specs[-1]).state_dict().items()}
    counts = {n: torch.tensor(0) for n in tensors if n.endswith("num_batches_tracked")}
    torch.save({"model": tensors | counts, "epoch": 3}, tmp_path / "w.pth")
    state = start_from(tmp_path / "w.pth", family, family.initial_state(0))
    assert state.shared["fc.weight"].dtype == torch.float32
    assert torch.equal(state.shared["fc.weight"], tensors["fc.weight"].float())


def changed(change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    with torch.device("meta"):
        tensors: dict[str, Tensor] = dict(style.resnet18().state_dict())
    change(tensors)
    return tensors


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            lambda t: t.update({"layer1.0.conv1.weight": torch.empty(32, 64, 3, 3)}),
            r"1 of another shape: layer1.0.conv1.weight .*64, 64, 3, 3.*, found \(32, 64, 3, 3\)",
        ),
        (lambda t: t.pop("layer2.0.bn1.weight"), r"1 missing: layer2.0.bn1.weight \(128\)"),
        (
            lambda t: t.update({"layer5.0.conv1.weight": torch.empty(1)}),
            r"1 unknown: layer5.0.conv1.weight \(1\)",
        ),
        (
            lambda t: t.update({"bn1.weight": torch.zeros(64, dtype=torch.int64)}),
            r"bn1.weight \(expected \(64\), found int64 \(64\)\)",
        ),
    ],
)
def test_what_does_not_fit_is_named(change: Callable[[Any], object], told: str) -> None:
    with pytest.raises(DataError, match=told):
        fit_weights(changed(change), make_family("resnet18", "nefl-wd"), "w.pth")


def test_weights_of_another_model_are_refused() -> None:
    with torch.device("meta"):
        tensors = style.resnet34().state_dict()
    with pytest.raises(DataError, match="does not fit resnet18.*layer1.2.conv1.weight.*more"):
        fit_weights(tensors, make_family("resnet18", "nefl-wd"), "w.pth")
    with pytest.raises(DataError, match="does not fit resnet56.*no torchvision weights"):
        fit_weights(tensors, make_family("resnet56", "nefl-w"), "w.pth")


def test_positions_must_fit_the_image(tmp_path: Path) -> None:
    with torch.device("meta"):
        tensors = style.vit_b_16().state_dict()
    family = make_family("vit_b_16", "nefl-d", input_shape=(3, 160, 160))
    with pytest.raises(DataError, match=r"pos_embedding \(expected \(1, 101, 768\), found .*197"):
        fit_weights(tensors, family, "w.pth")


class _Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def test_code_in_a_pickle_is_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": _Harmful()}, "w.pth")
    with pytest.raises(DataError, match="w.pth: holds no tensors that can be read safely"):
        read_weights(Path("w.pth"))
    assert not Path("harmed").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("kept", [0, 1, 100, 5000])
def test_a_truncated_file(tmp_path: Path, suffix: str, kept: int) -> None:
    tensors = {"a": torch.zeros(3000)}
    path = tmp_path / f"w{suffix}"
    (save_file if suffix == ".safetensors" else torch.save)(tensors, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(DataError, match="holds no tensors"):
        read_weights(path)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone.pth: is absent.*model.weights"):
        read_weights(tmp_path / "gone.pth")
    with pytest.raises(DataError, match="is absent"):
        weights_checksum(tmp_path / "gone.pth")
    (tmp_path / "folder.pth").mkdir()
    with pytest.raises(DataError, match="is no file"):
        read_weights(tmp_path / "folder.pth")
    (tmp_path / "w.h5").write_bytes(b"1")
    with pytest.raises(DataError, match="ends with .safetensors, .pth, .pt"):
        read_weights(tmp_path / "w.h5")
    for number, content in enumerate(([1, 2], {"a": 1}, {1: torch.ones(1)}, torch.ones(2), {})):
        torch.save(content, tmp_path / f"{number}.pth")
        with pytest.raises(DataError, match="tensor"):
            read_weights(tmp_path / f"{number}.pth")
    torch.save({"a": torch.tensor([1.0, float("nan")])}, tmp_path / "nan.pth")
    with pytest.raises(DataError, match="a has values that are not finite"):
        read_weights(tmp_path / "nan.pth")
    torch.save({"a": torch.eye(3).to_sparse()}, tmp_path / "sparse.pth")
    with pytest.raises(DataError, match="a is no plain dense tensor"):
        read_weights(tmp_path / "sparse.pth")
