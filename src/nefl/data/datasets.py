"""Loading a data set by name: find its source, decode it once, map it from the cache."""

import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from nefl.data.arrays import image_examples
from nefl.data.cache import (
    cache_folder,
    cache_prefix,
    newest_cached,
    open_cached,
    open_or_build,
)
from nefl.data.catalog import DATASETS
from nefl.data.columns import Dataset, Examples
from nefl.data.idx import DEBIAN_FASHION_MNIST
from nefl.data.readers import READERS, read_options
from nefl.data.sources import HUB, OWN, content_digest, files_state, find_source
from nefl.data.texts import text_files
from nefl.data.tokens import tokenizer_file
from nefl.errors import ConfigError, DataError
from nefl.files import default_cache

Presence = Literal["cached", "here", "absent"]

_WITHOUT_FILES = ("digits", "synthetic", *(n for n, reader in READERS.items() if not reader.wants))
_WITH_FILES = (*OWN, *(name for name, reader in READERS.items() if reader.wants))
_log = logging.getLogger(__name__)


def load_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    verify: bool = True,
    options: Mapping[str, object] | None = None,
    learn: str = "images",
) -> Dataset:
    """Load a data set, decoding it into the cache the first time.

    Args:
        name: one of `DATASETS`, or `images` (an image folder), `arrays` (a `.npz` file), or
            `package.module:function`.
        root: the folder or file it comes from; "hub" or None fetches a known set from the
            Hugging Face hub (Fashion-MNIST is first looked for where Debian installs it).
        cache: folder of decoded data sets; None means `$NEFL_CACHE` and its fallbacks.
        verify: compare the checksums of the cached arrays.
        options: what the data set offers (`docs/data.md`); keyword arguments of a function.
        learn: what is to be learned, where a data set serves several tasks.

    Raises:
        ConfigError: unknown name or option, or a root where none belongs.
        DataError: the source is missing, damaged or not the data set it should be.
    """
    chosen = dict(options or {})
    path = _root_path(name, root)
    base = Path(cache) if cache is not None else default_cache()
    prefix = _prefix(name, path, chosen, learn)
    if path is not None and not path.exists():
        kept = newest_cached(base, prefix)
        if kept is None:
            wanted = DATASETS[name].wanted if name in DATASETS else "your data"
            raise DataError(f"{path}: no such file or folder; expected {wanted} there")
        _log.warning("%s is gone; using what was decoded from it before, in %s", path, kept)
        return open_cached(kept, verify=verify)
    state, read = _source(name, path, chosen, learn)
    folder = cache_folder(base, prefix, state)
    return open_or_build(folder, name, state, read, verify=verify)


def cache_examples(
    name: str, examples: Examples, cache: str | Path | None, *, verify: bool
) -> Dataset:
    """Put examples that are in memory into the cache, and map them from there.

    Raises:
        DataError: the cache cannot be written.
    """
    base = Path(cache) if cache is not None else default_cache()
    state = {"content": content_digest(examples)}
    folder = cache_folder(base, cache_prefix(name, {}), state)
    return open_or_build(folder, name, state, lambda: examples, verify=verify)


def _source(
    name: str, path: Path | None, options: Mapping[str, object], learn: str
) -> tuple[Mapping[str, object], Callable[[], Examples]]:
    """Return what tells a source from a changed one, and what reads it."""
    if name not in READERS:
        source = find_source(name, path, options)
        return source.state, lambda: image_examples(source.read(), name)
    reader, chosen = READERS[name], read_options(name, options)
    if reader.wants and path is None:
        raise ConfigError(f"data set {name!r} needs a root: {reader.wants}")
    files = [Path(str(each)) for each in (path, getattr(chosen, "test_root", None)) if each]
    if Path(named := getattr(chosen, "tokenizer", "")).exists() and named:
        files.append(tokenizer_file(named))
    state: dict[str, object] = dict(files_state(files, text_files)) if files else {}
    if not reader.wants:
        state["python"] = sys.version  # scikit-learn's tables and the library's source
    return state, lambda: reader.read(path, chosen, learn)


def find_dataset(
    name: str,
    *,
    root: str | Path | None = None,
    cache: str | Path | None = None,
    options: Mapping[str, object] | None = None,
    learn: str = "images",
) -> Presence:
    """Tell how near a data set is, without reading or fetching it.

    Its arguments are those of `load_dataset`.

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
    if newest_cached(base, _prefix(name, path, chosen, learn)) is not None:
        return "cached"
    if path is None:
        if name not in DATASETS or DATASETS[name].hub is None:
            return "here"
        find_source(name, None, chosen)  # for its options
        return "absent"
    if not path.exists():
        return "absent"
    if name in READERS:
        read_options(name, chosen)
    else:
        find_source(name, path, chosen)
    return "here"


def _prefix(name: str, path: Path | None, options: Mapping[str, object], learn: str) -> str:
    identity = {"root": str(path.absolute()) if path else None, "options": options}
    # The same file is read otherwise for another task.
    return cache_prefix(name, identity | ({"learn": learn} if name in READERS else {}))


def _root_path(name: str, root: str | Path | None) -> Path | None:
    if root is not None and str(root) != HUB:
        if name in _WITHOUT_FILES or ":" in name:
            raise ConfigError(f"data set {name!r} reads no files: leave out the root {str(root)!r}")
        return Path(root).expanduser()
    if root is not None and (name in _WITHOUT_FILES or name in _WITH_FILES or ":" in name):
        raise ConfigError(f"data set {name!r} is not on the hub: root 'hub' does not fit")
    if root is None and name == "fashion-mnist" and DEBIAN_FASHION_MNIST.is_dir():
        return DEBIAN_FASHION_MNIST
    return None
