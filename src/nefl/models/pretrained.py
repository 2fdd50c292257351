"""A global model that starts from a file of weights, such as torchvision's for ImageNet.

The file holds one full model. Every submodel starts from leading corners of it, as it always does;
what a submodel keeps for itself (batch norms, as a rule) gets the corner of the file's too.
"""

import hashlib
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nefl.errors import DataError
from nefl.models.base import CONFIG, open_folder, weight_files
from nefl.models.decoder import FromHeads, ToHeads
from nefl.models.resnet import ResNetDesign
from nefl.models.table import MODELS, ModelBuilder
from nefl.models.vit import HeadsToStream, SelfAttention
from nefl.nesting.corners import corner
from nefl.nesting.modules import BatchNorm, Exit, StepSize
from nefl.nesting.spec import Family, SubmodelSpec, build_on_meta
from nefl.state import ServerState, Tensors

TORCHVISION = ("resnet18", "resnet34", "wide_resnet101_2", "vit_b_16")
"""Models that torchvision has weights for: their classifier, and a stem of another size, may start
anew. Of all other models the file must fit every tensor."""

SUFFIXES = (".safetensors", ".pth", ".pt")

TIED = "lm_head.weight", "model.embed_tokens.weight"
"""The tensors of a language model that may be one and the same."""

_LISTED = 8
"""Names that an error message lists of each kind."""

_WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts keep the weights beside optimisers and the like."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FittedWeights:
    """What a file gives to a family.

    Attributes:
        tensors: tensors of the full model under nefl's names, in their global shapes.
        anew: what the file cannot give to this model, each with the reason, for people to read.
    """

    tensors: Tensors
    anew: tuple[str, ...]


def start_from(path: Path, family: Family, state: ServerState) -> ServerState:
    """Return the state with all that a file of weights can give to it.

    Args:
        path: a `.safetensors` file, a `.pth` or `.pt` file of tensors, or a folder in Hugging
            Face's layout.
        family: the family.
        state: its fresh state, which the rest stays from.

    Raises:
        DataError: if the file cannot be read or does not fit; the message names the tensors.
    """
    fitted = fit_weights(read_weights(path), family, str(path))
    if fitted.anew:
        _log.warning("%s: all is taken over but %s", path, "; ".join(fitted.anew))
    steps = _names_in(family.meta_module(len(family)), StepSize)
    own = []
    for spec, tensors in zip(family.specs, state.per_submodel, strict=True):
        # Step sizes mean the same only where no block is skipped and no channel is missing.
        kept = set() if spec.is_full else steps
        given = {name: t for name, t in fitted.tensors.items() if name not in kept}
        own.append(_with_corners(tensors, given))
    return replace(
        state, shared=_with_corners(state.shared, fitted.tensors), per_submodel=tuple(own)
    )


def _with_corners(tensors: Tensors, given: Tensors) -> dict[str, Tensor]:
    return {
        name: given[name][corner(old.shape)].to(old.dtype, copy=True).contiguous()
        if name in given
        else old
        for name, old in tensors.items()
    }


def weights_checksum(path: Path) -> str:
    """Return the SHA-256 sum of a file of weights.

    Raises:
        DataError: if it cannot be read.
    """
    if (path / CONFIG).is_file():
        return open_folder(path).checksum
    _check_file(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_file(path: Path) -> None:
    if path.is_file() and os.access(path, os.R_OK):
        return
    reason = "may not be read" if path.is_file() else "is no file" if path.exists() else "is absent"
    raise DataError(
        f"{path}: {reason}; expected weights there: put the file there, or name another with "
        "model.weights"
    )


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read named tensors without executing anything that a file may hold.

    Raises:
        DataError: if there is no such file, or it holds anything but sound tensors by name.
    """
    files = weight_files(path) if (path / CONFIG).is_file() else [path]
    for file in files:
        _check_file(file)
        if file.suffix not in SUFFIXES:
            raise DataError(f"{file}: expected a name that ends with {', '.join(SUFFIXES)}")
    try:
        found = {name: tensor for file in files for name, tensor in _read(file).items()}
    # A damaged pickle fails in any of a dozen ways; whatever it is, the file is at fault.
    except Exception as error:
        raise DataError(
            f"{path}: holds no tensors that can be read safely ({_first_line(error)}); fetch it "
            "again, or save a plain state dict with torch.save or safetensors"
        ) from error
    for name, tensor in found.items():
        _check_tensor(path, name, tensor)
    return {name: tensor.detach() for name, tensor in found.items()}


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        return load_file(path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for key in _WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not loaded:
        raise TypeError(f"expected tensors by name, found {type(loaded).__name__}")
    return loaded


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _check_tensor(path: Path, name: object, tensor: object) -> None:
    if not isinstance(name, str) or not isinstance(tensor, Tensor):
        raise DataError(
            f"{path}: {name!r} is a {type(tensor).__name__}, expected a tensor; save the state "
            "dict alone"
        )
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise DataError(f"{path}: {name} is no plain dense tensor; save it dense, in float32")
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise DataError(f"{path}: {name} has values that are not finite; take another file")


def fit_weights(found: Tensors, family: Family, source: str) -> FittedWeights:
    """Bring a full model's tensors to a family's names and shapes.

    Args:
        found: the tensors, under torchvision's names or nefl's, which differ only within a ViT.
        family: the family.
        source: where they come from, for the error message.

    Raises:
        DataError: if a tensor is missing, unknown or of another shape; the message names it.
    """
    full = _full_module(family)
    given = {_current_name(name): tensor for name, tensor in found.items()}
    if TIED[1] in given:  # a folder leaves out what is tied
        given.setdefault(TIED[0], given[TIED[1]])
    fused = _fused_shapes(full)
    free = _may_start_anew(family.build, full)
    optional = _names_in(full, StepSize) | _names_in(full, Exit) | _batch_counts(full)
    held = {name for k in range(1, len(family) + 1) for name in family.layout(k)}
    tensors: dict[str, Tensor] = {}
    anew: list[str] = []
    missing: list[str] = []
    wrong: list[str] = []
    for name, wanted in full.state_dict().items():
        tensor = given.pop(name, None)
        if tensor is None:
            if name in free:
                anew.append(f"{name} (not in the file)")
            elif name in held and name not in optional:
                missing.append(f"{name} {_shown(wanted)}")
        elif _fits(tensor, wanted, fused.get(name)):
            tensors[name] = tensor.reshape(wanted.shape)
        else:
            line = f"{name} (expected {_shown(wanted)}, found {_shown(tensor)})"
            (anew if name in free else wrong).append(line)
    unknown = [f"{name} {_shown(tensor)}" for name, tensor in given.items()]
    if missing or wrong or unknown:
        raise DataError(_misfit(source, family.build, missing, wrong, unknown))
    return FittedWeights(tensors, tuple(anew))


def _fits(tensor: Tensor, wanted: Tensor, fused: torch.Size | None) -> bool:
    same_kind = tensor.is_floating_point() == wanted.is_floating_point()
    return same_kind and tensor.shape in (wanted.shape, fused)


def _full_module(family: Family) -> nn.Module:
    """Return the full model with all that a file may hold for it, without storage."""
    build = family.build
    if not isinstance(build, ModelBuilder):
        return family.meta_module(len(family))
    # Static norms keep no statistics and constant steps no values, but files do hold them.
    complete = replace(build, norm="tracked", learned_steps=True)
    return build_on_meta(complete, SubmodelSpec(build.full_blocks))


def _may_start_anew(build: object, full: nn.Module) -> set[str]:
    """Name what the paper replaces: the classifier, and the stem where ours is smaller."""
    if not isinstance(build, ModelBuilder) or build.name not in TORCHVISION:
        return set()
    design = MODELS[build.name]
    if not isinstance(design, ResNetDesign):
        return {f"heads.{name}" for name in full.get_submodule("heads").state_dict()}
    stem = {"conv1.weight"} if design.stem == "small" else set()
    return stem | {f"fc.{name}" for name in full.get_submodule("fc").state_dict()}


def _names_in(module: nn.Module, kind: type[nn.Module]) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, child in module.named_modules()
        if isinstance(child, kind)
        for name in child.state_dict()
    }


def _batch_counts(module: nn.Module) -> set[str]:
    """Name the counts of batches, which old files lack and training does not need."""
    return {
        f"{prefix}.num_batches_tracked"
        for prefix, child in module.named_modules()
        if isinstance(child, BatchNorm)
    }


def _fused_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """Return the shapes that attention weights have elsewhere, where heads have no axis."""
    shapes = {}
    for prefix, child in module.named_modules():
        if isinstance(child, SelfAttention):
            shapes[f"{prefix}.in_proj_weight"] = child.in_proj_weight.flatten(0, 2).shape
            shapes[f"{prefix}.in_proj_bias"] = child.in_proj_bias.flatten().shape
        elif isinstance(child, HeadsToStream | FromHeads):
            shapes[f"{prefix}.weight"] = child.weight.flatten(1).shape
        elif isinstance(child, ToHeads):
            shapes[f"{prefix}.weight"] = child.weight.flatten(0, 1).shape
    return shapes


def _current_name(name: str) -> str:
    """Return torchvision's present name for one that its files of ViT weights still have."""
    return name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3.")


def _shown(tensor: Tensor) -> str:
    kind = "" if tensor.dtype.is_floating_point else f"{str(tensor.dtype).removeprefix('torch.')} "
    return f"{kind}({', '.join(map(str, tensor.shape))})"


def _misfit(
    source: str, build: object, missing: list[str], wrong: list[str], unknown: list[str]
) -> str:
    model = build.name if isinstance(build, ModelBuilder) else "the model"
    kinds = (("of another shape", wrong), ("missing", missing), ("unknown", unknown))
    found = "; ".join(f"{len(names)} {what}: {_some(names)}" for what, names in kinds if names)
    takes = (
        "torchvision's weights for it, or a full model of nefl's own"
        if model in TORCHVISION
        else "the state dict of the full model, under its names, or a Llama's folder of its size"
        if model.startswith("decoder")
        else "the state dict of the full model, under its names; there are no torchvision weights"
    )
    return f"{source}: does not fit {model}, which takes {takes}. Tensors {found}"


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return ", ".join(listed[:_LISTED]) + more
