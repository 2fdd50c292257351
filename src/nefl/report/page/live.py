"""A page that follows runs while they go on, served to this machine only."""

import threading
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from nefl.artifacts.notes import METRICS, to_json
from nefl.errors import NeflError
from nefl.report.page.counters import KIND, exposition
from nefl.report.page.make import live_content, make_page
from nefl.report.reading.folders import read_runs
from nefl.web.answers import HTML, JSON, TEXT, Answer, Application, Environ
from nefl.web.callers import Callers, Refusal
from nefl.web.server import listen

LOOPBACK = "127.0.0.1"
THREADS = 4


class Watched:
    """Runs, and their page as of the last change of their logs."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = list(paths)
        self._lock = threading.Lock()  # pages that ask at once share the work
        self._page: tuple[str | None, str] = (None, "")
        self._made: tuple[str | None, str] = (None, "")

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
        with self._lock:
            version = self.version()
            if self._page[0] != version:
                runs, refused = read_runs(self._paths)
                self._page = (version, make_page(runs, refused, watched=version))
            return self._page[1]

    def content(self, seen: str) -> str | None:
        """Return what is new as JSON, or nothing if the page has seen it."""
        with self._lock:
            version = self.version()
            if version == seen:
                return None
            if self._made[0] != version:
                runs, refused = read_runs(self._paths)
                self._made = (version, to_json(live_content(runs, refused, version)))
            return self._made[1]

    def answer(self, environ: Environ) -> Answer:
        """Answer one request: GET for the page, its content and the counters, nothing else.

        Raises:
            Refusal: if it asks for something else, or the runs can no longer be read.
        """
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            raise Refusal(405, "this can only be fetched")
        path = environ.get("PATH_INFO", "/")
        try:
            if path == "/":
                return Answer(self.page().encode(), HTML)
            if path == "/content":
                seen = parse_qs(environ.get("QUERY_STRING", "")).get("seen", [""])[0]
                fresh = self.content(seen)
                if fresh is None:
                    return Answer(b"", JSON, HTTPStatus.NO_CONTENT)
                return Answer(fresh.encode(), JSON)
            if path == "/metrics":
                return Answer(exposition(read_runs(self._paths)[0]), KIND)
        except (NeflError, OSError) as error:
            raise Refusal(500, str(error)) from None
        raise Refusal(404, "there are only / and /metrics")


def _refuse(reason: str) -> Answer:
    return Answer(reason.encode(), TEXT)


def make_server(paths: Sequence[Path], port: int) -> Any:
    """Return a server of the runs' page for this machine; `run` serves until `close`.

    Raises:
        ConfigError: if waitress is not installed.
        RunError: if the port cannot be had, or nothing there is a run.
    """
    watched = Watched(paths)
    watched.page()  # what cannot be shown fails here, not in the browser
    app = Application(watched.answer, _refuse, Callers(LOOPBACK))
    return listen(app, host=LOOPBACK, port=port, threads=THREADS, max_body=1, extra="report")


def address_of(server: Any) -> str:
    """Return where a server's page is found."""
    return f"http://{LOOPBACK}:{server.effective_port}/"
