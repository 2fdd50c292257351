"""Who may ask a server: under which names, and from which pages.

A page of elsewhere can give its own name the address of this machine, and would then be let in by
the browser; but the request still bears that name. An address cannot be given to another machine.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

_HOST = re.compile(r"(\[(?P<address>[^\[\]]+)\]|(?P<name>[^\[\]:]+))(:[0-9]+)?")


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818 -- it is an answer, not a fault of the program
    """An answer other than the one asked for."""

    status: int
    reason: str


class Callers:
    """The names under which a server may be asked.

    Those of this machine (`localhost`, any loopback address), the one it listens on, and those
    given. Where others can reach the server, any plain address will do, as it has several.

    Args:
        host: where the server listens.
        names: further names, such as that of a proxy before it.
    """

    def __init__(self, host: str, names: Sequence[str] = ()) -> None:
        self._names = frozenset(name.lower() for name in ("localhost", host, *names))
        self._open = not is_loopback(host)

    def check(self, host: str, origin: str | None) -> None:
        """Refuse a request.

        Args:
            host: its `Host`, with a port or without.
            origin: its `Origin`, if it comes from a page.

        Raises:
            Refusal: 403.
        """
        name = _without_port(host)
        if name is None or not self._is_ours(name.lower()):
            raise Refusal(403, "this server is not reached under that name")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "pages of other sites may not ask here")

    def _is_ours(self, name: str) -> bool:
        is_address = self._open and _address(name) is not None
        return name in self._names or is_loopback(name) or is_address


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _without_port(host: str) -> str | None:
    """Return the name of a `Host`; None if what follows it is no port."""
    if host.count(":") > 1 and not host.startswith("["):  # a bare IPv6 address
        return host
    found = _HOST.fullmatch(host)
    return (found["address"] or found["name"]) if found else None
