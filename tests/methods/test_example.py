"""The method of the page "How to add a method": shown as it is, run as it is."""

from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.config.reading import with_settings
from nefl.rounds import Observer

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "own_method.py"


class Killed(Observer):
    """Ends a run in its third round, as a kill between two updates would."""

    seen = 0

    def task_done(self, done: int, tasks: int) -> None:
        self.seen += 1
        if self.seen == 2 * tasks + 1:
            raise KeyboardInterrupt


def test_the_page_shows_the_file() -> None:
    assert len(FILE.read_text().splitlines()) < 30
    page = (ROOT / "docs" / "adding-a-method.md").read_text()
    assert f"```python\n{FILE.read_text()}```" in page


@pytest.mark.long
def test_it_runs_in_workers_and_goes_on_after_a_kill(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FILE.parent))
    changes = {
        "rounds": 3,
        "model.method": "own_method:onward",
        "data.train": 60,
        "data.test": 50,
        "clients": {"count": 4, "per_round": 3},
    }
    quick = with_settings(quick, changes)
    serial = nefl.train(quick, tmp_path / "serial").summary
    assert serial["failures"] == 0
    workers = with_settings(quick, {"engine.name": "workers", "engine.workers": 1})
    with pytest.raises(KeyboardInterrupt):
        nefl.train(workers, tmp_path / "run", observers=[Killed()])
    resumed = nefl.resume(tmp_path / "run").summary
    assert resumed["state_sha256"] == serial["state_sha256"]
    plain = with_settings(quick, {"model.method": "nefl-wd"})
    assert nefl.train(plain, tmp_path / "plain").summary["state_sha256"] != serial["state_sha256"]
