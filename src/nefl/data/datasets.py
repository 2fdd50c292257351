"""Loading a data set by name: find its source, decode it once, map it from the cache."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from nefl.data.arrays import ImageDataset
from nefl.data.cache import (
    cache_folder,
    cache_prefix,
    newest_cached,
    open_cached,
    open_or_build,
)
from nefl.data.catalog import DATASETS
from nefl.data.idx import DEBIAN_FASHION_MNIST
from nefl.data.sources import HUB, OWN, find_source
from nefl.errors import ConfigError, DataError
from nefl.files import default_cache

Presence = Literal["cached", "here", "absent"]

_WITHOUT_FILES = ("digits", "synthetic")
_log = logging.getLogger(__name__)


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    verify: bool = True,
    options: Mapping[str, object] | None = None,
) -> ImageDataset:
    """Load a data set, decoding it into the cache the first time.

    Args:
        name: one of `DATASETS`, or `images` (an image folder), `arrays` (a `.npz` file), or
            `package.module:function`.
        root: the folder or file it comes from; "hub" or None fetches a known set from the
            Hugging Face hub (Fashion-MNIST is first looked for where Debian installs it).
        cache: folder of decoded data sets; None means `$NEFL_CACHE` and its fallbacks.
        verify: compare the checksums of the cached arrays.
        options: what the data set offers (`docs/data.md`); keyword arguments of a function.

    Raises:
        ConfigError: unknown name or option, or a root where none belongs.
        DataError: the source is missing, damaged or not the data set it should be.
    """
    chosen = dict(options or {})
    path = _root_path(name, root)
    base = Path(cache) if cache is not None else default_cache()
    prefix = _prefix(name, path, chosen)
    if path is not None and not path.exists():
        kept = newest_cached(base, prefix)
        if kept is None:
            wanted = DATASETS[name].wanted if name in DATASETS else "your data"
            raise DataError(f"{path}: no such file or folder; expected {wanted} there")
        _log.warning("%s is gone; using what was decoded from it before, in %s", path, kept)
        return open_cached(kept, verify=verify)
    source = find_source(name, path, chosen)
    folder = cache_folder(base, prefix, source.state)
    return open_or_build(folder, name, source.state, source.read, verify=verify)


def find_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    options: Mapping[str, object] | None = None,
) -> Presence:
    """Tell how near a data set is, without reading or fetching it.

    Returns:
        `cached`, decoded before; `here`, to be read from where it lies; `absent`, to be fetched
        from the hub or put in its place.

    Raises:
        ConfigError: unknown option, or a root where none belongs.
        DataError: the root holds something else.
    """
    chosen = dict(options or {})
    path = _root_path(name, root)
    base = Path(cache) if cache is not None else default_cache()
    if newest_cached(base, _prefix(name, path, chosen)) is not None:
        return "cached"
    if path is None:
        if name not in DATASETS or DATASETS[name].hub is None:
            return "here"
        find_source(name, None, chosen)  # for its options
        return "absent"
    if not path.exists():
        return "absent"
    find_source(name, path, chosen)
    return "here"


def _prefix(name: str, path: Path | None, options: Mapping[str, object]) -> str:
    identity = {"root": str(path.absolute()) if path else None, "options": options}
    return cache_prefix(name, identity)


def _root_path(name: str, root: str | Path | None) -> Path | None:
    if root is not None and str(root) != HUB:
        if name in _WITHOUT_FILES or ":" in name:
            raise ConfigError(f"data set {name!r} reads no files: leave out the root {str(root)!r}")
        return Path(root).expanduser()
    if root is not None and (name in _WITHOUT_FILES or name in OWN or ":" in name):
        raise ConfigError(f"data set {name!r} is not on the hub: root 'hub' does not fit")
    if root is None and name == "fashion-mnist" and DEBIAN_FASHION_MNIST.is_dir():
        return DEBIAN_FASHION_MNIST
    return None
