"""The pages and answers of `nefl serve`, as a WSGI application."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qsl

from nefl.elastic.budget import Budget, parse_budget
from nefl.errors import ConfigError, DataError
from nefl.serving.predictor import Prediction, Predictor

MAX_BODY = 10 * 2**20
"""Bytes of a picture that are taken."""

CONCURRENCY = 16
"""Requests under way at once; more are told to come again."""

HEADERS = (
    (
        "Content-Security-Policy",
        (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
PAGES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
REASONS = {
    200: "OK",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    411: "Length Required",
    413: "Content Too Large",
    503: "Service Unavailable",
}

Environ = Mapping[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], object]


@dataclass(frozen=True)
class Refusal(Exception):  # noqa: N818 -- it is an answer, not a fault of the program
    """An answer other than the one asked for."""

    status: int
    reason: str


class ServeApp:
    """Answers requests for one file.

    Args:
        predictor: the file's.
        hosts: names under which the server may be asked; others are refused, so that a page of
            elsewhere cannot reach it by giving its own name this machine's address.
        max_body: bytes of a picture that are taken.
        concurrency: requests under way at once.
    """

    def __init__(
        self,
        predictor: Predictor,
        hosts: frozenset[str] | None,
        *,
        max_body: int = MAX_BODY,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._predictor = predictor
        self._hosts = hosts
        self._max_body = max_body
        self._slots = BoundedSemaphore(concurrency)
        folder = files("nefl.serving") / "page"
        self._pages = {
            path: ((folder / name).read_bytes(), kind) for path, (name, kind) in PAGES.items()
        }

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer one request."""
        extra: list[tuple[str, str]] = []
        try:
            status, body, kind = self._answer(environ)
        except Refusal as refusal:
            status, kind = refusal.status, "application/json"
            body = _json({"error": refusal.reason})
            if status == 503:
                extra = [("Retry-After", "1")]
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), *HEADERS, *extra]
        start_response(f"{status} {REASONS[status]}", headers)
        return [body]

    def _answer(self, environ: Environ) -> tuple[int, bytes, str]:
        self._check_origin(environ)
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        if path == "/predict":
            if method != "POST":
                raise Refusal(405, "send the picture's bytes with POST")
            return 200, _json(self._predict(environ)), "application/json"
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "this can only be fetched; pictures go to /predict")
        if path == "/model":
            return 200, _json(self._describe()), "application/json"
        if path in self._pages:
            body, kind = self._pages[path]
            return 200, body, kind
        raise Refusal(404, "there is /, /model and /predict")

    def _check_origin(self, environ: Environ) -> None:
        host = environ.get("HTTP_HOST", "")
        name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
        if self._hosts is not None and name.lower() not in self._hosts:
            raise Refusal(403, "this server is not reached under that name")
        origin = environ.get("HTTP_ORIGIN")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refusal(403, "pages of other sites may not ask here")

    def _describe(self) -> dict[str, Any]:
        card = self._predictor.card
        latencies = self._predictor.latencies
        return {
            "model": card.model,
            "data": card.data,
            "quantized": card.quantized,
            "classes": card.class_names,
            "max_body": self._max_body,
            "submodels": [
                {
                    "number": s.number,
                    "params": s.params,
                    "macs": s.macs,
                    "memory": s.memory,
                    "accuracy": s.accuracy,
                    "latency_ms": None if latency is None else latency * 1e3,
                }
                for s, latency in zip(card.submodels, latencies, strict=True)
            ],
        }

    def _predict(self, environ: Environ) -> dict[str, Any]:
        submodel, budget = _read_query(environ.get("QUERY_STRING", ""))
        if not self._slots.acquire(blocking=False):
            raise Refusal(503, "busy with other pictures; try again in a moment")
        try:
            picture = self._read_body(environ)
            found = self._predictor(picture, submodel=submodel, budget=budget)
        except (DataError, ConfigError) as error:
            raise Refusal(400, str(error)) from None
        finally:
            self._slots.release()
        return as_json(found)

    def _read_body(self, environ: Environ) -> bytes:
        length = str(environ.get("CONTENT_LENGTH") or "")
        if not length.isdecimal():
            raise Refusal(411, "say how long the picture is (Content-Length)")
        if int(length) > self._max_body:
            raise Refusal(413, f"the picture has more than {self._max_body} bytes")
        body: bytes = environ["wsgi.input"].read(int(length))
        if not body:
            raise Refusal(400, "there is no picture: send its bytes as the body")
        return body


def as_json(found: Prediction) -> dict[str, Any]:
    """Return an answer in plain values."""
    return {
        "class": found.name,
        "classes": [{"name": name, "probability": share} for name, share in found.classes],
        "submodel": found.submodel,
        "fits": found.fits,
        "latency_ms": found.latency * 1e3,
    }


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _read_query(text: str) -> tuple[int | None, Budget | None]:
    """Read `submodel=2` or `fits=latency<5ms`.

    Raises:
        Refusal: if it says something else.
    """
    try:
        asked = dict(parse_qsl(text, strict_parsing=bool(text), max_num_fields=4))
    except ValueError:
        raise Refusal(
            400, "the query cannot be read; give submodel=2 or fits=latency<5ms"
        ) from None
    for key in asked.keys() - {"submodel", "fits"}:
        raise Refusal(400, f"{key!r} cannot be asked for; there is submodel and fits")
    number = asked.get("submodel")
    if number is not None and not (number.isdecimal() and len(number) < 6):
        raise Refusal(400, f"submodel {number!r} is no number")
    try:
        budget = parse_budget(asked["fits"]) if "fits" in asked else None
    except ConfigError as error:
        raise Refusal(400, str(error)) from None
    if number is not None and budget is not None:
        raise Refusal(400, "give one of submodel and fits")
    return (None if number is None else int(number)), budget
