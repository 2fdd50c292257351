"""From requests to answers: a WSGI application of one function."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from nefl.web.callers import Callers, Refusal

JSON, HTML, TEXT = "application/json", "text/html; charset=utf-8", "text/plain; charset=utf-8"

HEADERS = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)

Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


@dataclass(frozen=True)
class Answer:
    """What a request gets.

    Attributes:
        body: its bytes.
        kind: what they are, as HTTP says it.
        status: 200 unless there is nothing to tell.
    """

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class Application:
    """A WSGI application.

    Args:
        answer: from a request to its answer; it raises a `Refusal` where there is none.
        refuse: how a refusal is said.
        callers: who may ask.
        headers: of every answer, beside `HEADERS`.
    """

    def __init__(
        self,
        answer: Callable[[Environ], Answer],
        refuse: Callable[[str], Answer],
        callers: Callers,
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._answer = answer
        self._refuse = refuse
        self._callers = callers
        self._headers = (*HEADERS, *headers)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        extra: list[tuple[str, str]] = []
        try:
            self._callers.check(environ.get("HTTP_HOST", ""), environ.get("HTTP_ORIGIN"))
            answer = self._answer(environ)
            status = answer.status
        except Refusal as refusal:
            status, answer = HTTPStatus(refusal.status), self._refuse(refusal.reason)
            if status == HTTPStatus.SERVICE_UNAVAILABLE:
                extra = [("Retry-After", "1")]
        sizes = [("Content-Type", answer.kind), ("Content-Length", str(len(answer.body)))]
        start_response(f"{status.value} {status.phrase}", [*sizes, *self._headers, *extra])
        return [answer.body]
