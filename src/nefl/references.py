"""A user's own functions, named in a configuration as `package.module:function`.

Importing one runs its code, and a stranger's run may name any: also an installed function that
does harm with the options given to it. So what a stored run names is only imported if the user has
named that very function on this machine before, or says that it is trusted. The same holds
for the modules that it imports: in a stranger's folder they may be the stranger's.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any

from nefl.config.learning import LORA, ModelConfig
from nefl.config.run import GIVEN, RunConfig
from nefl.errors import ConfigError, OwnCodeError, RunError
from nefl.files import default_cache
from nefl.own_code import own_code
from nefl.own_source import code_checksums, code_files, find_module

NAMED = "named-code.jsonl"
"""In the user's cache: the functions that were named here, the files they are in, and those of the
modules they import. Lines of earlier versions lack the last, and are asked about once more."""


def is_reference(name: str) -> bool:
    """Whether a name means a function of the user's."""
    return ":" in name


def own_model(model: ModelConfig) -> str:
    """Return the user's own function that a model, or the base under adapters, is made by."""
    made_by = str(model.options.get("base", "")) if model.name == LORA else model.name
    return made_by if is_reference(made_by) else ""


def named_code(config: RunConfig) -> tuple[str, ...]:
    """Return the functions and classes that a configuration names."""
    model, server = config.model, config.server
    names = (
        own_model(model),
        model.method,
        *(() if config.task == GIVEN else (config.data.name, config.task)),
        *config.metrics,
        server.average,
        server.step.name,
    )
    return tuple(filter(is_reference, names))


def import_function(reference: str) -> Callable[..., Any]:
    """Import `package.module:function`, also from the current folder, where nothing else has it.

    Raises:
        ConfigError: if there is no such function, or its module fails while it is imported.
    """
    function = import_thing(reference)
    if not callable(function):
        raise ConfigError(f"{reference}: is {type(function).__name__}, not a function")
    return function  # type: ignore[no-any-return]


def import_thing(reference: str) -> Any:
    """Import `package.module:thing`, whatever it is.

    Raises:
        ConfigError: if there is no such thing, or its module fails while it is imported.
    """
    module, _, name = reference.partition(":")
    _look_here_too()
    try:
        with own_code(f"{reference}: importing {module}"):
            found = importlib.import_module(module)
        return attrgetter(name)(found)
    except (OwnCodeError, AttributeError) as error:
        if isinstance(error, OwnCodeError) and not _is_absent(module, error.__cause__):
            raise
        raise ConfigError(
            f"{reference}: cannot be imported ({error.__cause__ or error}); give "
            "package.module:function, and see that the package is installed or in the current "
            "folder"
        ) from error


def _is_absent(module: str, error: BaseException | None) -> bool:
    """Whether a module is not there, rather than there and failing."""
    if isinstance(error, ModuleNotFoundError):
        return f"{module}.".startswith(f"{error.name}.")  # and not one that it needs
    return not module or module.startswith(".")  # which cannot be imported anyhow


def source_of(reference: str) -> dict[str, str]:
    """Return checksums of the source that a reference rests on, by module; nothing is run."""
    with _looking_here_too():
        return code_checksums([reference])


def remember_code(config: RunConfig) -> None:
    """Note that the user has named the functions of a configuration, here and now."""
    with suppress(OSError):  # without a cache the next command asks again
        known = _known()
        new = [entry for entry in map(_entry, named_code(config)) if entry not in known]
        if new:
            path = default_cache() / NAMED
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in new)


def check_code(config: RunConfig, run: Path, *, trusted: bool) -> None:
    """Refuse what a stored run names, unless it was named on this machine before.

    Args:
        config: of the run.
        run: its folder, for messages.
        trusted: whether the user says that it may be imported; that is remembered.

    Raises:
        RunError: naming the function and its file. Nothing of it was imported.
    """
    if trusted:
        remember_code(config)
        return
    known = _known()
    for entry in map(_entry, named_code(config)):
        if entry not in known:
            reference, file, imports = entry
            noted = [old[2] for old in known if old[:2] == entry[:2] and isinstance(old[-1], dict)]
            others = sorted(imports.items() - noted[-1].items()) if noted else []
            where = file or "which is not here"
            if others:
                where += ", which imports " + ", ".join(other for _, other in others)
            raise RunError(
                f"{run}: names code, {reference} ({where}), that you have "
                "not named on this machine yourself; read it, and if you trust it give "
                "--trust-code (in Python trust_code=True)"
            )


def _entry(reference: str) -> list[Any]:
    """Return a function, and the files that importing it would run; nothing is run."""
    with _looking_here_too():
        return [reference, _file_of(reference.partition(":")[0]), code_files([reference])]


def _known() -> list[Any]:
    try:
        lines = (default_cache() / NAMED).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    known = []
    for line in lines:
        with suppress(ValueError):  # cut off by a kill
            entry = json.loads(line)
            if isinstance(entry, list):
                known.append(entry)
    return known


def _file_of(module: str) -> str:
    """Return the file of a module, found as an import would find it, or nothing."""
    if module in sys.modules:
        return _absolute(getattr(sys.modules[module], "__file__", None))
    spec = find_module(module)
    return _absolute(None if spec is None else spec.origin)


def _absolute(file: str | None) -> str:
    return str(Path(file).absolute()) if file else ""


@contextmanager
def _looking_here_too() -> Iterator[None]:
    """Search the current folder for a while: looking is not trusting."""
    before = sys.path[:]
    _look_here_too()
    try:
        yield
    finally:
        sys.path[:] = before


def _look_here_too() -> None:
    # An installed command, unlike `python -m`, does not look in the current folder. Last, so that
    # a folder of somebody else's takes the place of nothing that is installed.
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
