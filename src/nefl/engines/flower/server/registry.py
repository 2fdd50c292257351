"""The operator's file of nodes: which client a node is, and what it may do at most.

Nodes are known by the name that the operator gave their key (`flwr supernode register --name`),
which no node can forge. Without node keys there are no names, and this file matches nobody.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from nefl.errors import ConfigError
from nefl.parsing import parse_toml

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_node_name(name: str) -> str:
    """Return a node's name if it can be one: it stands in file names, commands and logs.

    Raises:
        ConfigError: if it cannot.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"node {name!r:.80}: a node's name has 1 to 64 letters, digits, dots, dashes and "
            "underscores (a-z, A-Z, 0-9, . - _) and begins with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class NodeEntry:
    """What the operator says of a node; what is left out, the node may say itself.

    Attributes:
        client: its number among the clients.
        tier: its tier.
        largest: the largest submodel it may train.
        memory: bytes that training may take there.
        macs_per_second: multiply-accumulates it computes in a second.
        bandwidth: bytes it sends or receives in a second.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", allow_inf_nan=False)

    client: int | None = None
    tier: int | None = None
    largest: int | None = None
    memory: float | None = None
    macs_per_second: float | None = None
    bandwidth: float | None = None


@dataclass(frozen=True)
class Registry:
    """The whole file.

    Attributes:
        others: whether nodes that are not listed may take part.
        default: what holds for them.
        nodes: the nodes by name.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    others: Literal["allow", "refuse"] = "allow"
    default: NodeEntry = field(default_factory=NodeEntry)
    nodes: Mapping[str, NodeEntry] = field(default_factory=dict)

    @property
    def has_device_profiles(self) -> bool:
        """Whether it says of some node what its device can do."""
        entries = (self.default, *self.nodes.values())
        return any(e.memory or e.macs_per_second or e.bandwidth for e in entries)

    def entry(self, name: str) -> NodeEntry | None:
        """Return what is said of a node, or nothing if it may not take part."""
        if name and name in self.nodes:
            return self.nodes[name]
        return self.default if self.others == "allow" else None

    def number_taken(self, client: int, name: str) -> bool:
        """Whether a client's number is kept for a node of another name."""
        return self._named.get(client, name) != name

    @cached_property
    def _named(self) -> dict[int, str]:
        """The nodes whose numbers are given, by them."""
        return {e.client: name for name, e in self.nodes.items() if e.client is not None}


_REGISTRY = TypeAdapter(Registry)


class RegistryFile:
    """The operator's file, read anew when it has changed.

    Args:
        path: the file; without one, everybody may do everything.
        clients: how many clients there are.
        submodels: how many submodels there are.
        tiers: how many tiers there are; as many as submodels if left out.
        note: told of a change, and of one that cannot be used.

    Raises:
        ConfigError: naming the entry that cannot be.
    """

    def __init__(
        self,
        path: str | None,
        clients: int,
        submodels: int,
        *,
        tiers: int | None = None,
        note: Callable[..., None] = lambda *_, **__: None,
    ) -> None:
        self._path = path
        self._bounds = clients, submodels, submodels if tiers is None else tiers
        self._note = note
        self._seen = self._state()
        self._current = Registry() if path is None else read_registry(path, *self._bounds)

    def __call__(self) -> Registry:
        """Return what it says now; a change that cannot be used leaves what it said before."""
        state = self._state()
        if self._path is not None and state != self._seen:
            self._seen = state
            try:
                self._current = read_registry(self._path, *self._bounds)
                self._note("registry", reason=f"{self._path}: has changed and holds from now on")
            except ConfigError as error:
                self._note("registry", reason=f"{error}; what it said before holds on")
        return self._current

    def _state(self) -> tuple[int, ...]:
        try:
            found = Path(self._path or "").stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


def read_registry(path: str, clients: int, submodels: int, tiers: int) -> Registry:
    """Read and check the operator's file.

    Raises:
        ConfigError: naming the entry that cannot be.
    """
    try:
        registry = _REGISTRY.validate_python(parse_toml(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path}: {where} is {first['input']!r:.60}: {first['msg']}") from None
    except ValueError as error:
        raise ConfigError(f"{path}: is not valid TOML ({error})") from None
    _check(path, registry, clients, submodels, tiers)
    return registry


def _check(path: str, registry: Registry, clients: int, submodels: int, tiers: int) -> None:
    numbers: dict[int, str] = {}
    if registry.default.client is not None:
        raise ConfigError(f"{path}: default.client: a number is one node's; list the node")
    for name in registry.nodes:
        try:
            check_node_name(name)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    for name, entry in {"default": registry.default, **registry.nodes}.items():
        for key, value, top in (
            ("client", entry.client, clients - 1),
            ("tier", entry.tier, tiers),
            ("largest", entry.largest, submodels),
        ):
            least = 0 if key == "client" else 1
            if value is not None and not least <= value <= top:
                raise ConfigError(f"{path}: {name}: {key} is {value}, expected {least} to {top}")
        for key in ("memory", "macs_per_second", "bandwidth"):
            value = getattr(entry, key)
            if value is not None and value <= 0:
                raise ConfigError(f"{path}: {name}: {key} is {value}, expected above 0")
        if entry.client is not None and numbers.setdefault(entry.client, name) != name:
            raise ConfigError(
                f"{path}: client {entry.client} is both {numbers[entry.client]} and {name}"
            )
