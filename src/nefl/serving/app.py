"""The pages and answers of `nefl serve`."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Any

from nefl.artifacts.notes import to_json
from nefl.errors import ConfigError, DataError, RunError
from nefl.serving.lanes import Lane
from nefl.serving.predictor import Prediction, Predictor
from nefl.serving.query import is_number, read_query
from nefl.web.answers import HTML, JSON, Answer, Environ
from nefl.web.callers import Refusal

MAX_BODY = 10 * 2**20
"""Bytes of a picture, a text, rows or arrays that are taken."""

CONCURRENCY = 16
"""Requests under way at once; more are told to come again."""

LARGE_BODY = 2**20
"""Bytes from which on a request waits among the large ones before it is even read."""

LARGE_PLACES = 4
"""Large requests under way at once. One is unpacked while the others wait, and small ones pass."""

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

    Small things and large ones have a lane each: one of either is unpacked at a time, so that
    memory is bounded, and large ones keep no small one waiting.

    Args:
        predictor: the file's.
        max_body: bytes of a request's body that are taken.
        concurrency: requests under way at once.
    """

    def __init__(
        self, predictor: Predictor, *, max_body: int = MAX_BODY, concurrency: int = CONCURRENCY
    ) -> None:
        self._predictor = predictor
        self._noun = predictor.way.noun
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
                raise Refusal(405, f"send the {self._noun}'s bytes with POST")
            return _json(as_json(self._predict(environ)))
        if method not in ("GET", "HEAD"):
            raise Refusal(405, "this can only be fetched; what to answer for goes to /predict")
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
            "kind": card.kind,
            "about": self._noun,
            "takes": self._predictor.way.takes,
            "example": self._predictor.way.example,
            "input_shape": card.signature.input_shape,
            "outputs": card.signature.outputs,
            "classes": card.class_names,
            "metrics": [asdict(metric) for metric in card.metrics],
            "max_body": self._max_body,
            "submodels": [
                {
                    "number": s.number,
                    "params": s.params,
                    "macs": s.macs,
                    "memory": s.memory,
                    "values": s.values,
                    "examples": s.examples,
                    "latency_ms": None if latency is None else latency * 1e3,
                }
                for s, latency in zip(card.submodels, latencies, strict=True)
            ],
        }

    def _predict(self, environ: Environ) -> Prediction:
        asked = read_query(environ.get("QUERY_STRING", ""))
        kind = str(environ.get("CONTENT_TYPE", "")).partition(";")[0].strip().lower()
        ask = partial(
            self._predictor,
            submodel=asked.submodel,
            budget=asked.budget,
            wish=asked.wish,
            is_json=kind == JSON,
        )
        length = self._read_length(environ)
        try:
            if length > LARGE_BODY:
                with self._large.turn():
                    return ask(self._read_body(environ, length))
            body = self._read_body(environ, length)
            lane = self._large if self._predictor.is_large(body) else self._small
            with lane.turn():
                return ask(body)
        except (DataError, ConfigError) as error:
            raise Refusal(400, str(error)) from None
        except RunError as error:
            raise Refusal(500, str(error)) from None

    def _read_length(self, environ: Environ) -> int:
        length = str(environ.get("CONTENT_LENGTH") or "")
        if not is_number(length):
            raise Refusal(411, f"say how long the {self._noun} is (Content-Length)")
        if int(length) > self._max_body:
            raise Refusal(413, f"the {self._noun} has more than {self._max_body} bytes")
        return int(length)

    def _read_body(self, environ: Environ, length: int) -> bytes:
        body: bytes = environ["wsgi.input"].read(length)
        if not body:
            raise Refusal(400, f"there is no {self._noun}: send its bytes as the body")
        return body


def refuse(reason: str) -> Answer:
    """Return how a refusal is said."""
    return _json({"error": reason})


def as_json(found: Prediction) -> dict[str, Any]:
    """Return an answer in plain values."""
    each = [dict(answer.values) for answer in found.answers]
    return {
        **({"answers": each} if found.several else each[0]),
        "submodel": found.submodel,
        "fits": found.fits,
        "latency_ms": found.latency * 1e3,
    }


def _json(content: Mapping[str, Any]) -> Answer:
    return Answer(to_json(content).encode(), JSON)
