"""The base under adapters: a pre-trained model in a local folder, or what a function makes.

A process loads it once. All members of a family have modules of their own over the same tensors,
which a folder's files are mapped to: further processes of a machine share them too.
"""

import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from nefl.errors import ConfigError, DataError, NeflError
from nefl.extras import need
from nefl.files import default_cache, write_atomically
from nefl.nesting.frozen import alias, tensors_checksum
from nefl.own_code import call_own

EXTRA = "text"
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"
"""The files of a folder in Hugging Face's layout."""


@lru_cache(maxsize=4)
def need_text(module: str) -> Any:
    """Import a package of language models; what they import tells much of hardware and versions.

    Raises:
        ConfigError: if it is not installed, with the command that installs it.
    """
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            need("peft", EXTRA)  # which imports all that the others import later
            return need(module, EXTRA)
    finally:
        logging.disable(before)


@dataclass(frozen=True)
class FolderBase:
    """A causal language model of `transformers` in a local folder.

    Attributes:
        checksum: of its settings and its weights; two folders with the same are the same base.
        path: where it lies.
    """

    checksum: str
    path: str = field(compare=False)

    def skeleton(self) -> nn.Module:
        """Return the model without storage; nothing but its settings is read."""
        transformers = need_text("transformers")
        config = read_config(self.path)
        try:
            with torch.device("meta"):
                model: nn.Module = transformers.AutoModelForCausalLM.from_config(
                    config, dtype=_dtype(config)
                )
        except ValueError:  # it would list all that it knows
            raise DataError(
                f"{self.path}: is a model of type {config.model_type!r}, no causal language model; "
                "give one that foretells the next token"
            ) from None
        return model.requires_grad_(False)

    def module(self) -> nn.Module:
        """Return the model, over the tensors that this process has loaded once."""
        return _sharing(_loaded(self.path, self.checksum))


@dataclass(frozen=True)
class MadeBase:
    """A model of the user's own, as a function makes it: the same one whenever it is called.

    Attributes:
        make: the function; what it draws comes from a generator that starts anew for it.
        source: where it comes from, for messages.
        arguments: what it is called with.
    """

    make: Callable[..., nn.Module]
    source: str
    arguments: tuple[tuple[str, Any], ...] = ()

    def skeleton(self) -> nn.Module:
        """Return the model without storage."""
        with torch.device("meta"):
            return self._made()

    def module(self) -> nn.Module:
        """Return the model, over the tensors that this process has made once."""
        return _sharing(self._whole)

    @cached_property
    def _whole(self) -> nn.Module:
        return self._made()

    @cached_property
    def checksum(self) -> str:
        """A checksum of its tensors by name."""
        return tensors_checksum(self._whole.state_dict())

    def _made(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = call_own(self.source, self.make, dict(self.arguments))
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"{self.source}: returned {type(made).__name__}, expected the base; return an "
                "nn.Module with its weights in it"
            )
        return made


Base = FolderBase | MadeBase


def open_folder(path: str | Path) -> FolderBase:
    """Return the base in a folder.

    Raises:
        DataError: if there is none, naming the file that is missing.
    """
    folder = Path(path)
    digest = hashlib.sha256(_settings(folder))
    for file in weight_files(folder):
        digest.update(f"\n{file.name} {file_sum(file)}".encode())
    return FolderBase(digest.hexdigest(), str(folder))


def weight_files(folder: Path) -> list[Path]:
    """Return the files of weights of a folder in Hugging Face's layout.

    Raises:
        DataError: if one is missing.
    """
    names = [WEIGHTS]
    if (folder / INDEX).is_file():
        try:
            names = sorted(
                set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values())
            )
        except (ValueError, KeyError, AttributeError, OSError) as error:
            raise DataError(f"{folder / INDEX}: names no files of weights ({error})") from None
    for name in names:
        if not (folder / name).is_file() or Path(name).name != name:
            raise DataError(
                f"{folder}: has no {name}; expected weights as safetensors there, with "
                f"{CONFIG} beside them, as save_pretrained writes them"
            )
    return [folder / name for name in names]


def _settings(folder: Path) -> bytes:
    if not folder.is_dir():
        raise DataError(f"{folder}: is no folder; give one in Hugging Face's layout, with {CONFIG}")
    try:
        known = json.loads((folder / CONFIG).read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder}: has no {CONFIG}; give a folder that save_pretrained wrote"
        ) from None
    except (ValueError, OSError) as error:
        raise DataError(f"{folder / CONFIG}: cannot be read ({error})") from None
    # Which version wrote it changes nothing of the model.
    return json.dumps(
        {k: v for k, v in known.items() if k != "transformers_version"}, sort_keys=True
    ).encode()


def read_config(path: str | Path) -> Any:
    """Return the settings of the model in a folder, as `transformers` reads them.

    Raises:
        DataError: if it does not know such a model.
    """
    transformers = need_text("transformers")
    try:
        # Left out, transformers would ask at the terminal whether a folder's own code may run.
        return transformers.AutoConfig.from_pretrained(
            str(path), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: transformers cannot read its {CONFIG} ({_first(error)})"
        ) from None


def _dtype(config: Any) -> torch.dtype:
    return getattr(config, "dtype", None) or torch.float32


def file_sum(path: Path) -> str:
    """Return a file's checksum; large ones are read once and remembered until they change."""
    stat = path.stat()
    about = f"{path.absolute()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
    note = default_cache() / "bases" / hashlib.sha256(about.encode()).hexdigest()
    with suppress(OSError, ValueError):
        if len(known := note.read_text("ascii")) == hashlib.sha256().digest_size * 2:
            return known
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    with suppress(OSError, NeflError):  # a cache that cannot be written costs time, nothing else
        note.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(note, lambda beside: _write(beside, found))
    return found


def _write(path: Path, text: str) -> None:
    path.write_text(text, "ascii")


@lru_cache(maxsize=2)
def _loaded(path: str, _checksum: str) -> nn.Module:
    """Load a folder's model, its tensors mapped to the files where they stand there as they are."""
    transformers, safetensors = need_text("transformers"), need("safetensors.torch")
    transformers.utils.logging.disable_progress_bar()
    dtype = _dtype(read_config(path))
    try:
        model: nn.Module
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError, SafetensorError) as error:
        raise DataError(f"{path}: transformers cannot load it ({_first(error)})") from None
    if missing := sorted(found["missing_keys"]):  # transformers would draw them at random
        raise DataError(
            f"{path}: its weights lack {missing[0]} ({len(missing)} tensors in all); give a whole "
            "model, as save_pretrained writes it"
        )
    named = dict(model.named_parameters())
    for file in weight_files(Path(path)):
        for name, tensor in safetensors.load_file(file).items():
            mine = named.get(name)
            if mine is not None and mine.dtype == tensor.dtype and torch.equal(mine, tensor):
                mine.data = tensor
    _check_causal(model.requires_grad_(False).eval(), path)
    return model


def _check_causal(model: nn.Module, path: str) -> None:
    """Refuse a model whose answers change with what comes later: it is shown what it is asked.

    `transformers` opens BERT and its like as a causal language model too.

    Raises:
        DataError: naming the folder and the kind of model.
    """
    with torch.no_grad():
        first, second = (
            model(input_ids=torch.tensor([[0, 0, 0, last]]), use_cache=False).logits[:, :-1]
            for last in (0, 1)
        )
    # Experts share out their tokens, so that a causal model too may round otherwise.
    rounding = 8 * torch.finfo(first.dtype).eps * float(first.abs().max())
    if float((first - second).abs().max()) > rounding:
        kind = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
        raise DataError(
            f"{path}: a model of type {kind!r} that looks at the tokens to come, so it cannot "
            "foretell them; give a causal one, or this one for another task as "
            "package.module:function"
        )


def _sharing(whole: nn.Module) -> nn.Module:
    """Return a copy of a module over the same memory, with parameters of its own that name it."""
    memo: dict[int, Tensor] = {id(t): alias(t) for t in (*whole.parameters(), *whole.buffers())}
    return copy.deepcopy(whole, memo)


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
