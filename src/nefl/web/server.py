"""An HTTP server that slow, silent and greedy clients cannot keep from others."""

from collections.abc import Callable
from typing import Any

from nefl.errors import ConfigError, RunError
from nefl.extras import need

MAX_HEADER = 16_384
"""Bytes of a request before its body."""

HELD_IN_MEMORY = 65_536
"""Bytes of a body, or of an answer that is not taken, kept in memory; more waits in a file."""


def listen(
    app: Callable[..., Any], *, host: str, port: int, threads: int, max_body: int, extra: str
) -> Any:
    """Return a server that listens already; `run` serves until `close`.

    A request is handed on when it is complete, so a slow client costs a connection and no thread.

    Args:
        app: a WSGI application.
        host: where to listen.
        port: 0 takes a free one; `effective_port` tells which.
        threads: requests that are answered at once.
        max_body: bytes of a body that are taken.
        extra: what of nefl installs waitress.

    Raises:
        ConfigError: if waitress is not installed, or there is no such port.
        RunError: if the address cannot be had.
    """
    need("waitress", extra)
    from waitress.adjustments import Adjustments

    from nefl.web.connections import CONNECTIONS, LimitedServer

    if not 0 <= port < 65_536:
        raise ConfigError(f"port {port}: give 0 to 65535")
    try:
        settings = Adjustments(
            host=host,
            port=port,
            threads=threads,
            connection_limit=2 * CONNECTIONS,  # `LimitedServer` keeps below it
            cleanup_interval=1,
            asyncore_use_poll=True,
            recv_bytes=HELD_IN_MEMORY,
            max_request_body_size=max_body,
            max_request_header_size=MAX_HEADER,
            inbuf_overflow=HELD_IN_MEMORY,
            outbuf_overflow=HELD_IN_MEMORY,
            ident=None,
            clear_untrusted_proxy_headers=True,
        )
        return LimitedServer(app, {}, adj=settings)
    except (OSError, ValueError) as error:
        raise RunError(
            f"{host}:{port}: cannot be listened on ({error}); give another --host or --port"
        ) from None
