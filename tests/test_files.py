"""Files are replaced whole or not at all, and only files are replaced."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from nefl.errors import RunError
from nefl.files import read_small, write_atomically


def fill(beside: Path) -> None:
    beside.write_text("new")


def test_pipes_and_folders_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "to-pipe").symlink_to(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name, kind in (("pipe", "a pipe"), ("to-pipe", "a pipe"), ("folder", "a folder")):
        with pytest.raises(RunError, match=f"{name}: is {kind}, not a file; name a file"):
            write_atomically(tmp_path / name, fill)
    assert stat.S_ISFIFO((tmp_path / "pipe").lstat().st_mode)
    assert (tmp_path / "to-pipe").is_symlink()
    assert len(list(tmp_path.iterdir())) == 3


def test_standard_output_is_no_file(tmp_path: Path) -> None:
    """By a link like /dev/stdout, in a folder of the test's own: a device is never tried on."""
    out = tmp_path / "stdout"
    out.symlink_to("/proc/self/fd/1")
    program = (
        "import sys; from pathlib import Path; from nefl.files import write_atomically; "
        "write_atomically(Path(sys.argv[1]), lambda p: p.write_text('x') and None)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(out)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert f"{out}: is a pipe, not a file" in result.stderr
    assert not result.stdout
    assert out.is_symlink()


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "model"
    for before in ("old", None):
        if before is None:
            target.unlink()  # a link to nothing: the file is made where it points
        else:
            target.write_text(before)
        link = tmp_path / f"link-{before}"
        link.symlink_to(Path("there") / "model")
        write_atomically(link, fill)
        assert link.is_symlink()
        assert target.read_text() == "new"
        assert list((tmp_path / "there").iterdir()) == [target]


def test_a_link_is_refused_where_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(RunError, match="link: is a symbolic link"):
        write_atomically(tmp_path / "link", fill, follow_links=False)
    assert (tmp_path / "target").read_text() == "old"


def test_what_is_written_aside_is_ours_alone(tmp_path: Path) -> None:
    seen: list[Path] = []

    def look(beside: Path) -> None:
        seen.append(beside)
        beside.with_name("side-file").write_text("some formats write several")
        fill(beside)

    write_atomically(tmp_path / "model.onnx", look)
    (beside,) = seen
    assert beside.name == "model.onnx", "some formats look at the name"
    assert beside.parent.parent == tmp_path
    assert beside.parent.name.endswith(".part")
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_notes_are_read_from_small_files_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = tmp_path / "note"
    note.write_text("ä")
    assert read_small(note) == "ä"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(note)
    for name, kind in (("pipe", "a pipe"), ("link", "a symbolic link"), (".", "a folder")):
        with pytest.raises(OSError, match=f"is {kind}, not a file"):
            read_small(tmp_path / name)
    monkeypatch.setattr("nefl.files.MAX_SMALL", 1)
    with pytest.raises(OSError, match="has more than 1 bytes"):
        read_small(note)
