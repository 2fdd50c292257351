"""The pages and answers of `nefl serve`."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl

from nefl.artifacts.notes import to_json
from nefl.elastic.budget import Budget, parse_budget
from nefl.errors import ConfigError, DataError, RunError
from nefl.serving.lanes import Lane
from nefl.serving.predictor import Prediction, Predictor
from nefl.web.answers import HTML, JSON, Answer, Environ
from nefl.web.callers import Refusal

MAX_BODY = 10 * 2**20
"""Bytes of a picture that are taken."""

CONCURRENCY = 16
"""Pictures under way at once; more are told to come again."""

LARGE_BODY = 2**20
"""Bytes from which on a picture waits among the large ones before it is even read."""

LARGE_PLACES = 4
"""Large pictures under way at once. One is unpacked while the others wait, and small ones pass."""

ECHO = 100
"""Characters of a query that an answer may repeat."""

POLICY = (
    "Content-Security-Policy",
    (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
)
PAGES = {
    "/": ("index.html", HTML),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}


class ServeApp:
    """Answers requests for one file.

    Small pictures and large ones have a lane each: one of either is unpacked at a time, so that
    memory is bounded, and large ones keep no small one waiting.

    Args:
        predictor: the file's.
        max_body: bytes of a picture that are taken.
        concurrency: pictures under way at once.
    """

    def __init__(
        self, predictor: Predictor, *, max_body: int = MAX_BODY, concurrency: int = CONCURRENCY
    ) -> None:
        self._predictor = predictor
        self._max_body = max_body
        self._small, self._large = Lane(concurrency), Lane(min(concurrency, LARGE_PLACES))
        folder = files("nefl.serving") / "page"
        self._pages = {
            path: Answer((folder / name).read_bytes(), kind) for path, (name, kind) in PAGES.items()
        }

    def answer(self, environ: Environ) -> Answer:
        """Answer one request.

        Raises:
            Refusal: if it cannot be.
        """
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "/")
        if path == "/predict":
            if method != "POST":
                raise Refusal(405, "send the picture's bytes with POST")
            return _json(as_json(self._predict(environ)))
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "this can only be fetched; pictures go to /predict")
        if path == "/model":
            return _json(self._describe())
        if path in self._pages:
            return self._pages[path]
        raise Refusal(404, "there is /, /model and /predict")

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

    def _predict(self, environ: Environ) -> Prediction:
        submodel, budget = _read_query(environ.get("QUERY_STRING", ""))
        length = self._read_length(environ)
        try:
            if length > LARGE_BODY:
                with self._large.turn():
                    picture = _read_body(environ, length)
                    return self._predictor(picture, submodel=submodel, budget=budget)
            picture = _read_body(environ, length)
            lane = self._large if self._predictor.is_large(picture) else self._small
            with lane.turn():
                return self._predictor(picture, submodel=submodel, budget=budget)
        except (DataError, ConfigError) as error:
            raise Refusal(400, str(error)) from None
        except RunError as error:
            raise Refusal(500, str(error)) from None

    def _read_length(self, environ: Environ) -> int:
        length = str(environ.get("CONTENT_LENGTH") or "")
        if not _is_number(length):
            raise Refusal(411, "say how long the picture is (Content-Length)")
        if int(length) > self._max_body:
            raise Refusal(413, f"the picture has more than {self._max_body} bytes")
        return int(length)


def refuse(reason: str) -> Answer:
    """Return how a refusal is said."""
    return _json({"error": reason})


def as_json(found: Prediction) -> dict[str, Any]:
    """Return an answer in plain values."""
    return {
        "class": found.name,
        "classes": [{"name": name, "probability": share} for name, share in found.classes],
        "submodel": found.submodel,
        "fits": found.fits,
        "latency_ms": found.latency * 1e3,
    }


def _json(content: Mapping[str, Any]) -> Answer:
    return Answer(to_json(content).encode(), JSON)


def _read_body(environ: Environ, length: int) -> bytes:
    body: bytes = environ["wsgi.input"].read(length)
    if not body:
        raise Refusal(400, "there is no picture: send its bytes as the body")
    return body


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()  # digits of other scripts are decimal, too


def _read_query(text: str) -> tuple[int | None, Budget | None]:
    """Read `submodel=2` or `fits=latency<5ms`.

    Raises:
        Refusal: if it says something else.
    """
    try:
        pairs = parse_qsl(text, strict_parsing=bool(text), max_num_fields=4)
    except ValueError:
        raise Refusal(
            400, "the query cannot be read; give submodel=2 or fits=latency<5ms"
        ) from None
    asked = dict(pairs)
    for key in asked.keys() - {"submodel", "fits"}:
        raise Refusal(400, f"{key[:ECHO]!r} cannot be asked for; there is submodel and fits")
    if len(asked) < len(pairs):
        raise Refusal(400, "give submodel or fits once")
    number = asked.get("submodel")
    if number is not None and not (_is_number(number) and len(number) < 6):
        raise Refusal(400, f"submodel {number[:ECHO]!r} is no number")
    if len(asked.get("fits", "")) > ECHO:
        raise Refusal(400, f"fits {asked['fits'][:ECHO]!r}... has more than {ECHO} characters")
    try:
        budget = parse_budget(asked["fits"]) if "fits" in asked else None
    except ConfigError as error:
        raise Refusal(400, str(error)) from None
    if number is not None and budget is not None:
        raise Refusal(400, "give one of submodel and fits")
    return (None if number is None else int(number)), budget
