"""A page that follows runs while they go on, served to this machine only."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from nefl.artifacts.runfolder import METRICS, to_json
from nefl.errors import NeflError, RunError
from nefl.report.page import live_content, make_page
from nefl.report.runs import read_runs

LOOPBACK = "127.0.0.1"


class Watched:
    """Runs, and their page as of the last change of their logs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._lock = threading.Lock()
        self._made: tuple[str, str] = ("", "")

    def version(self) -> str:
        """Return what changes whenever a run's folder has something new."""
        marks = []
        for run in read_runs(self._paths)[0]:
            log = run.path / METRICS
            size = log.stat().st_size if log.exists() else 0
            marks.append(f"{run.name} {size} {run.status}")
        return "; ".join(marks)

    def page(self) -> str:
        """Return the whole page."""
        runs, refused = read_runs(self._paths)
        return make_page(runs, refused, watched=self.version())

    def content(self, seen: str) -> str | None:
        """Return what is new as JSON, or nothing if the page has seen it."""
        with self._lock:  # two pages that ask at once share the work
            version = self.version()
            if version == seen:
                return None
            if self._made[0] != version:
                runs, refused = read_runs(self._paths)
                self._made = (version, to_json(live_content(runs, refused, version)))
            return self._made[1]


class _Handler(BaseHTTPRequestHandler):
    """Answers GET for the page and its content; refuses everything else."""

    watched: Watched

    def do_GET(self) -> None:
        """Answer."""
        # A page elsewhere must not read this one through a name that resolves to this machine.
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        if host not in (LOOPBACK, "localhost"):
            self._answer(HTTPStatus.FORBIDDEN, "text/plain", "ask 127.0.0.1")
            return
        asked = urlsplit(self.path)
        try:
            if asked.path == "/":
                self._answer(HTTPStatus.OK, "text/html", self.watched.page())
            elif asked.path == "/content":
                seen = parse_qs(asked.query).get("seen", [""])[0]
                fresh = self.watched.content(seen)
                status = HTTPStatus.NO_CONTENT if fresh is None else HTTPStatus.OK
                self._answer(status, "application/json", fresh or "")
            else:
                self._answer(HTTPStatus.NOT_FOUND, "text/plain", "there is only /")
        except NeflError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "text/plain", str(error))

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if data:
            self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing of each request."""


@contextmanager
def serving(paths: Sequence[Path], port: int) -> Iterator[tuple[str, ThreadingHTTPServer]]:
    """Serve the page of runs on this machine; give its address and the server to run.

    Raises:
        RunError: if the port cannot be had, or nothing there is a run.
    """
    watched = Watched(paths)
    watched.page()  # what cannot be shown fails here, not in the browser
    handler = type("Handler", (_Handler,), {"watched": watched})
    try:
        server = ThreadingHTTPServer((LOOPBACK, port), handler)
    except OSError as error:
        raise RunError(
            f"port {port}: cannot be used ({error.strerror}); give another with --port"
        ) from None
    with server:
        yield f"http://{LOOPBACK}:{server.server_address[1]}/", server
