"""Files that a user names as output: whole or as they were."""

import os
from pathlib import Path

import pytest

from nefl.cli.user_files import write_output
from nefl.errors import RunError


def test_a_file_that_was_there_stays_if_the_new_one_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "page.html"
    write_output(out, "old")

    def full(path: Path, data: bytes) -> int:
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(RunError, match=r"page\.html: cannot be written \(No space left"):
            write_output(out, "new")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out], "nothing half-written stays beside it"
    write_output(out, b"new")
    assert out.read_text() == "new"


def test_a_link_is_followed_and_a_pipe_is_written_to(tmp_path: Path) -> None:
    link, there, pipe = tmp_path / "link", tmp_path / "there", tmp_path / "pipe"
    there.write_text("old")
    link.symlink_to(there)
    write_output(link, "new")
    assert (link.is_symlink(), there.read_text()) == (True, "new")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_output(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
