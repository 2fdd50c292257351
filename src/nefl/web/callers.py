"""Who may ask a server: under which names, and from which pages.

A page of elsewhere can give its own name the address of this machine, and would then be let in by
the browser; but the request still bears that name. An address cannot be given to another machine.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass


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
        name = _without_port(host).lower()
        if name not in self._names and not is_loopback(name) and not self._is_address(name):
            raise Refusal(403, "this server is not reached under that name")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "pages of other sites may not ask here")

    def _is_address(self, name: str) -> bool:
        return self._open and _address(name) is not None


def is_loopback(host: str) -> bool:
    """Whether a name or address means this machine alone."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        return host[1:].partition("]")[0]
    return host if host.count(":") > 1 else host.partition(":")[0]
