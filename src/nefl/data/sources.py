"""From a data set's name and root to its source: which files, in which format, read by what."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nefl.data import cifar, hub, idx, images, own, parquet, svhn
from nefl.data.arrays import Decoded, Split, image_examples, join
from nefl.data.builtin import SyntheticOptions, make_synthetic, read_digits
from nefl.data.catalog import DATASETS, DatasetInfo
from nefl.data.class_names import labels_by_name, numbered_classes
from nefl.data.columns import Examples
from nefl.data.readers import READERS
from nefl.errors import ConfigError, DataError

OWN = ("images", "arrays")  # names of a user's own files; a function is named by its reference
HUB = "hub"
_MOST_LISTED = 64  # source files recorded one by one; an image folder is recorded as a digest
_INCOMPLETE = "fetch it again, or set the option partial to use a part of it"

_Parts = dict[str, tuple[Path, ...]]
_Finder = Callable[[Path, DatasetInfo], _Parts | None]
_Reader = Callable[[Path, DatasetInfo], Split]
_FORMATS: dict[str, tuple[tuple[_Finder, _Reader], ...]] = {
    "cifar10": ((cifar.find_batches, cifar.read_batch),),
    "cifar100": ((cifar.find_batches, cifar.read_batch),),
    "svhn": ((svhn.find_mat, svhn.read_mat),),
    "cinic10": (),
    "fashion-mnist": ((idx.find_idx, idx.read_idx_pair),),
}


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        state: what tells this source from a changed one: sizes and times of files, or options.
        read: decodes it; may take minutes.
    """

    state: Mapping[str, object]
    read: Callable[[], Decoded]


def find_source(name: str, root: Path | None, options: Mapping[str, object]) -> Source:
    """Locate a data set without decoding it.

    Args:
        name: a known name, `images`, `arrays`, or `package.module:function`.
        root: its folder or file; None for sets without files and for the hub.
        options: see `docs/data.md`.

    Raises:
        ConfigError: unknown name or option.
        DataError: the folder does not hold the data set.
    """
    if ":" in name:
        # Only the arrays themselves tell whether they changed, so the function is called each time.
        decoded = own.call_function(name, options)
        return Source({"content": content_digest(image_examples(decoded, name))}, lambda: decoded)
    if name == "digits":
        _check_options(name, options, ())
        return Source({}, read_digits)
    if name == "synthetic":
        synthetic = _synthetic_options(options)
        return Source({}, lambda: make_synthetic(synthetic))
    if name in OWN:
        return _own_source(name, root, options)
    if name not in _FORMATS:
        raise ConfigError(
            f"unknown data set {name!r}; known are {', '.join((*DATASETS, *OWN, *READERS))}, "
            "or give your own function as package.module:function"
        )
    return _known_source(name, root, options)


def _known_source(name: str, root: Path | None, options: Mapping[str, object]) -> Source:
    info = DATASETS[name]
    _check_options(name, options, ("partial", "valid"))
    use_valid, partial = _use_valid(name, options), options.get("partial", False)
    if not isinstance(partial, bool):
        raise ConfigError(f"{name}: option partial is {partial!r}, expected true or false")
    if root is None:
        return Source(
            {"hub": info.hub},
            lambda: _read_layout(name, hub.fetch(name, info), info, use_valid, partial),
        )
    parts, _ = _find_layout(name, root, info, partial)
    files = [path for part in parts.values() for path in part]
    files += [idx.labels_beside(path) for path in files if "images-idx3" in path.name]
    return Source(files_state(files), lambda: _read_layout(name, root, info, use_valid, partial))


def _find_layout(name: str, root: Path, info: DatasetInfo, partial: bool) -> tuple[_Parts, _Reader]:
    for find, read in ((parquet.find_parquet, parquet.read_parquet), *_FORMATS[name]):
        parts = find(root, info)
        if parts is not None:
            return parts, read
    parts = find_image_folders(root)
    if parts is None:
        raise DataError(f"{root}: no {name} in it; expected {info.wanted}")
    class_names = _ordered_classes(parts["train"][0], info, partial)
    return parts, lambda path, _: images.read_image_folder(
        path, class_names, info.input_shape, partial=partial
    )


def find_image_folders(root: Path) -> _Parts | None:
    """The parts of an image folder: train, test and, if there, valid."""
    parts: _Parts = {
        part: (root / part,) for part in ("train", "test", "valid") if (root / part).is_dir()
    }
    return parts if "train" in parts and "test" in parts else None


def _ordered_classes(train: Path, info: DatasetInfo, partial: bool) -> tuple[str, ...]:
    """Class folders in label order: the data set's own order if they bear its class names."""
    found = images.class_folders(train)
    if len(found) == info.classes:
        return info.class_names if set(found) == set(info.class_names) else found
    if not partial or len(found) > info.classes:
        raise DataError(
            f"{train}: {len(found)} class folders, expected {info.classes}; {_INCOMPLETE}"
        )
    # Of a part only names tell which classes these are: the data set's, or their numbers.
    numbered = numbered_classes(info.classes)
    names = numbered if set(found) <= set(numbered) else info.class_names
    labels_by_name(found, names, str(train))
    return names


def _read_layout(
    name: str, root: Path, info: DatasetInfo, use_valid: bool, partial: bool
) -> Decoded:
    parts, read = _find_layout(name, root, info, partial)
    train = _train_files(root, parts, use_valid)
    decoded = Decoded(
        join([read(path, info) for path in train]),
        join([read(path, info) for path in parts["test"]]),
        info.class_names,
    )
    if not partial:
        _check_complete(name, root, decoded, info, use_valid)
    return decoded


def _train_files(root: Path, parts: _Parts, use_valid: bool) -> tuple[Path, ...]:
    if use_valid and "valid" not in parts:
        raise DataError(f"{root}: option valid='train' was given, but there is no valid part")
    return parts["train"] + (parts["valid"] if use_valid else ())


def _check_complete(
    name: str, root: Path, decoded: Decoded, info: DatasetInfo, use_valid: bool
) -> None:
    if info.rows is not None and not use_valid:
        found = (len(decoded.train), len(decoded.test))
        if found != info.rows:
            raise DataError(
                f"{root}: {found[0]} training and {found[1]} test images, but {name} has "
                f"{info.rows[0]} and {info.rows[1]}; {_INCOMPLETE}"
            )
    present = len(set(decoded.train.labels.tolist()))
    if present != info.classes:
        raise DataError(f"{root}: {present} classes, but {name} has {info.classes}; {_INCOMPLETE}")


def _own_source(name: str, root: Path | None, options: Mapping[str, object]) -> Source:
    if root is None:
        what = "a folder with train/ and test/" if name == "images" else "a .npz file"
        raise ConfigError(f"data set {name!r} needs a root: {what}")
    if name == "arrays":
        _check_options(name, options, ())
        return Source(files_state([root]), lambda: own.read_npz(root))
    _check_options(name, options, ("channels", "valid"))
    channels = options.get("channels")
    if channels is not None and (not isinstance(channels, int) or channels not in (1, 3)):
        raise ConfigError(f"images: option channels is {channels!r}, expected 1 or 3")
    parts = find_image_folders(root)
    if parts is None:
        raise DataError(f"{root}: expected folders train/<class>/ and test/<class>/ with images")
    train, test = _train_files(root, parts, _use_valid(name, options)), parts["test"]
    return Source(files_state([*train, *test]), lambda: _read_own_images(train, test, channels))


def _read_own_images(
    train: tuple[Path, ...], test: tuple[Path, ...], channels: int | None
) -> Decoded:
    names = images.class_folders(train[0])
    first = images.read_image_folder(train[0], names, None, channels)
    channel_count, height, width = first.images.shape[1:]  # the first image sets the measure
    shape = (channel_count, height, width)
    others = [images.read_image_folder(path, names, shape) for path in (*train[1:], *test)]
    return Decoded(join([first, *others[:-1]]), others[-1], names)


def _use_valid(name: str, options: Mapping[str, object]) -> bool:
    choice = options.get("valid", "ignore")
    if choice not in ("ignore", "train"):
        raise ConfigError(f"{name}: option valid is {choice!r}, expected 'ignore' or 'train'")
    return choice == "train"


def _check_options(name: str, options: Mapping[str, object], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        expected = ", ".join(known) or "none"
        raise ConfigError(f"{name}: unknown option {unknown[0]!r}; expected {expected}")


def _synthetic_options(options: Mapping[str, object]) -> SyntheticOptions:
    fields = {field.name: field for field in dataclasses.fields(SyntheticOptions)}
    _check_options("synthetic", options, tuple(fields))
    values: dict[str, object] = dict(options)
    for name, value in values.items():
        if name == "shape":
            if not isinstance(value, list | tuple) or not all(type(n) is int for n in value):
                raise ConfigError(f"synthetic: shape {value!r}, expected [C, H, W]")
            values[name] = tuple(value)
        elif type(value) is not int and not (name == "noise" and type(value) is float):
            raise ConfigError(f"synthetic: option {name} is {value!r}, expected a number")
    return SyntheticOptions(**values)  # type: ignore[arg-type]  # checked above


def _in_class_folders(path: Path) -> list[Path]:
    return sorted(path.glob("*/*")) if path.is_dir() else [path]


def files_state(
    paths: list[Path], files_of: Callable[[Path], list[Path]] = _in_class_folders
) -> dict[str, object]:
    """Size and time of every source file, or one digest of them where they are many.

    Args:
        paths: files and folders.
        files_of: the files that are read of one of them.

    Raises:
        DataError: a file is missing.
    """
    listed: list[tuple[str, int, int]] = []
    for path in paths:
        for file in files_of(path):
            try:
                found = file.stat()
            except OSError as error:
                raise DataError(f"{file}: cannot be read ({error.strerror})") from error
            listed.append((str(file.absolute()), found.st_size, found.st_mtime_ns))
    if len(listed) <= _MOST_LISTED:
        return {"files": listed}
    digest = hashlib.sha256(repr(listed).encode()).hexdigest()
    return {"folders": [str(path) for path in paths], "count": len(listed), "sha256": digest}


def content_digest(examples: Examples) -> str:
    """Return a checksum of examples in memory and of what is known of them."""
    digest = hashlib.sha256(repr(sorted(examples.facts.items())).encode())
    for columns in (examples.train, examples.test):
        for name, column in sorted(columns.items()):
            digest.update(f"{name} {column.dtype} {column.shape}".encode())
            digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()
