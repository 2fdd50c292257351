"""The source of a user's own functions and of what they import, as checksums.

Found by reading imports, not by running them: what a module imports only when it is called counts
too, and two processes come to the same answer whatever they have imported before.
"""

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path

_INSTALLED = ("site-packages", "dist-packages")


def code_checksums(references: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each module that `package.module:function` references rest on."""
    found = _modules(references)
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()}


def code_files(references: Iterable[str]) -> dict[str, str]:
    """Return the file of each module that `package.module:function` references rest on."""
    return {name: str(path.absolute()) for name, path in _modules(references).items()}


def _modules(references: Iterable[str]) -> dict[str, Path]:
    """Return modules and their files, by name in order.

    These are the modules they name, and all that those import, directly or not, except what is
    installed: the standard library, nefl itself, and other packages.
    """
    named = [reference.partition(":")[0] for reference in references]
    roots = {name.partition(".")[0] for name in named}
    found: dict[str, Path] = {}
    seen: set[str] = set()
    waiting = list(named)
    while waiting:
        for name in _with_parents(waiting.pop()):
            if name in seen or name.partition(".")[0] == "nefl":
                continue
            seen.add(name)
            spec = find_module(name)
            path = Path(spec.origin) if spec is not None and spec.origin else None
            if path is None or not path.is_file():  # built in, a folder without code, or no module
                continue
            if name.partition(".")[0] not in roots and _is_installed(path):
                continue
            found[name] = path
            is_package = spec is not None and spec.submodule_search_locations is not None
            waiting += _imports(_source(path), name if is_package else name.rpartition(".")[0])
    return dict(sorted(found.items()))


def _with_parents(name: str) -> Iterator[str]:
    """Yield a package, then what is in it: importing the last runs them all."""
    pieces = name.split(".")
    for count in range(1, len(pieces) + 1):
        yield ".".join(pieces[:count])


def find_module(name: str) -> ModuleSpec | None:
    """Find a module as an import would, without importing its packages."""
    path: list[str] | None = None
    spec: ModuleSpec | None = None
    for each in _with_parents(name):
        spec = _spec(each, path)
        if spec is None or (each != name and spec.submodule_search_locations is None):
            return None
        path = list(spec.submodule_search_locations or ())
    return spec


def _spec(name: str, path: list[str] | None) -> ModuleSpec | None:
    finders = (finder for finder in sys.meta_path if hasattr(finder, "find_spec"))
    try:
        return next(filter(None, (finder.find_spec(name, path) for finder in finders)), None)
    except KeyError:  # a folder without `__init__.py` in another: Python wants that one imported
        folders = [Path(place) / name.rpartition(".")[2] for place in path or ()]
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(each) for each in folders if each.is_dir()]
        return spec if spec.submodule_search_locations else None


def _is_installed(path: Path) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    return any(part in path.parts for part in _INSTALLED) or path.is_relative_to(library)


def _source(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # then its import says so
        return b""


def _imports(source: bytes, package: str) -> Iterator[str]:
    """Yield the names of modules that a source may import."""
    try:
        tree = ast.parse(source)
    # Compiled, or broken, or nested too deeply: then its import says so.
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, node.module or ""]).strip(".") if node.level else node.module
            if base:
                # Each name may be a module of its own, or something within.
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
