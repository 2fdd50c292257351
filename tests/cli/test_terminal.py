"""Text that comes from files is shown, never obeyed by the terminal."""

import io
import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from rich.table import Table
from typer.testing import CliRunner

import nefl
from nefl.cli.app import app, main
from nefl.cli.terminal import LogHandler, Terminal, visible
from nefl.elastic.file import save_family

HOSTILE = "[red]cat\x1b]0;owned\x07\x1b[2J\x9b1A\r\u202e"
SHOWN = r"[red]cat\x1b]0;owned\x07\x1b[2J\x9b1A\r\u202e"


def test_controls_are_shown_as_escapes() -> None:
    assert visible(HOSTILE) == SHOWN
    assert visible("a\tb\nø µ 猫 \udc80") == "a\tb\nø µ 猫 \\udc80"


@pytest.mark.parametrize("terminal", [True, False])
def test_tables_titles_and_lines_show_them_too(terminal: bool) -> None:
    written = io.StringIO()
    console = Terminal(file=written, width=300, force_terminal=terminal)
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(HOSTILE)
    console.print(table)
    console.print(HOSTILE)
    own = re.sub("\x1b\\[[0-9;]*m", "", written.getvalue())  # rich's colours
    assert visible(own) == own
    assert own.count(r"[red]cat\x1b") == 4


def test_names_of_a_file_reach_no_terminal_raw(elastic_file: Path, tmp_path: Path) -> None:
    trained = nefl.load(elastic_file)
    named = tuple(f"{HOSTILE}{k}" for k in range(len(trained.card.class_names)))
    save_family(tmp_path / "e", replace(trained, card=replace(trained.card, class_names=named)))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "p.png")
    result = CliRunner().invoke(app, ["predict", str(tmp_path / "e"), str(tmp_path / "p.png")])
    assert "[red]cat" in result.output
    assert visible(result.output) == result.output


def test_an_error_and_a_note_are_shown_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        logging.getLogger("nefl.data").warning("note %s", HOSTILE)
        raise nefl.NeflError(HOSTILE)

    monkeypatch.setattr("nefl.cli.app.app", fail)
    with pytest.raises(SystemExit, match="2"):
        main()
    for handler in logging.getLogger("nefl").handlers:
        if isinstance(handler, LogHandler):
            logging.getLogger("nefl").removeHandler(handler)
    said = capsys.readouterr().err
    # Of an error, rich leaves out bells and returns by itself.
    short = SHOWN.replace(r"\x07", "").replace(r"\r", "")
    assert said.splitlines() == [f"note {SHOWN}", f"nefl: error: {short}"]


def test_an_error_that_quotes_a_whole_file_is_cut_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise nefl.NeflError("x" * 10**6)

    monkeypatch.setattr("nefl.cli.app.app", fail)
    with pytest.raises(SystemExit, match="2"):
        main()
    said = capsys.readouterr().err
    assert said.endswith("… (1000000 characters)\n")
    assert len(said) < 5000


def test_nothing_is_written_past_it() -> None:
    folder = Path(nefl.__file__).parent / "cli"
    for path in folder.glob("*.py"):
        if path.name != "terminal.py":
            text = path.read_text(encoding="utf-8")
            assert not re.search(
                r"typer\.echo|click\.echo|\bConsole\(|\bprint\((?!Text)",
                (text.replace("console.print(", "").replace(").print(", "")),
            ), path
