"""The HTTP server of `nefl serve`: waitress, with its limits set."""

from typing import Any

from nefl.errors import ConfigError, RunError
from nefl.extras import need
from nefl.serving.app import CONCURRENCY, MAX_BODY, ServeApp
from nefl.serving.predictor import Predictor

EXTRA = "serve"
CONNECTIONS = 200
"""Open connections; further ones wait to be accepted."""

IDLE_SECONDS = 20
"""After so long without a byte a connection is closed."""

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


def make_server(
    predictor: Predictor,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    max_body: int = MAX_BODY,
    concurrency: int = CONCURRENCY,
) -> Any:
    """Return a server that listens already; `run` serves until `close`.

    Slow clients cost a connection and no thread: a request is handed on when it is complete.

    Raises:
        ConfigError: if waitress is not installed or a limit makes no sense.
        RunError: if the address cannot be had.
    """
    waitress = need("waitress", EXTRA)
    if not 0 <= port < 65_536:
        raise ConfigError(f"port {port}: give 0 to 65535")
    if max_body < 1 or concurrency < 1:
        raise ConfigError("the limits on body and concurrency: give 1 or more")
    hosts = frozenset(LOOPBACK) if host in LOOPBACK else None
    app = ServeApp(predictor, hosts, max_body=max_body, concurrency=concurrency)
    try:
        return waitress.create_server(
            app,
            host=host,
            port=port,
            threads=concurrency + 4,  # so that a page, or the news of being busy, needs no queue
            connection_limit=CONNECTIONS,
            channel_timeout=IDLE_SECONDS,
            cleanup_interval=5,
            max_request_body_size=max_body,
            max_request_header_size=16_384,
            ident=None,
            clear_untrusted_proxy_headers=True,
        )
    except (OSError, ValueError) as error:
        raise RunError(
            f"{host}:{port}: cannot be listened on ({error}); give another --host or --port"
        ) from None
