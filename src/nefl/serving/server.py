"""The HTTP server of `nefl serve`."""

from collections.abc import Sequence
from typing import Any

from nefl.errors import ConfigError
from nefl.serving.app import CONCURRENCY, MAX_BODY, POLICY, ServeApp, refuse
from nefl.serving.predictor import Predictor
from nefl.web.answers import Application
from nefl.web.callers import Callers
from nefl.web.server import listen


def make_server(
    predictor: Predictor,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    names: Sequence[str] = (),
    max_body: int = MAX_BODY,
    concurrency: int = CONCURRENCY,
) -> Any:
    """Return a server that listens already; `run` serves until `close`.

    Args:
        predictor: the file's.
        host: where to listen.
        port: 0 takes a free one.
        names: further names under which it may be asked.
        max_body: bytes of a request that are taken.
        concurrency: requests under way at once.

    Raises:
        ConfigError: if waitress is not installed or a limit makes no sense.
        RunError: if the address cannot be had.
    """
    if max_body < 1 or concurrency < 1:
        raise ConfigError("the limits on body and concurrency: give 1 or more")
    app = ServeApp(predictor, max_body=max_body, concurrency=concurrency)
    return listen(
        Application(app.answer, refuse, Callers(host, names), (POLICY,)),
        host=host,
        port=port,
        threads=concurrency + 8,  # so that a page, or the news of being busy, needs no queue
        max_body=max_body + 1,  # waitress refuses what reaches its limit
        extra="serve",
    )
