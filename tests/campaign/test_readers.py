"""The campaign's readers, in short: some spoilt files of every kind that needs no runtime."""

from pathlib import Path

import pytest

from benchmarks.campaign.readers import readers, try_reader
from benchmarks.campaign.samples import make_samples
from benchmarks.campaign.watched import try_all
from nefl.errors import NeflError


@pytest.mark.long
def test_every_reader_reads_or_refuses(tmp_path: Path) -> None:
    make_samples(tmp_path, formats=("safetensors",))
    known = readers(tmp_path)
    assert len(known) > 20
    for name, reader in known.items():
        reader.read(tmp_path / reader.file)  # as long as it is sound
        outcomes, broken = try_reader(tmp_path, name, reader, 0, 5)
        assert len(outcomes) == 5
        assert not broken


def test_what_dies_hangs_or_raises_is_told_and_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.campaign.watched.SECONDS", 5.0)

    def attempt(number: int) -> object:
        if number == 1:
            raise NeflError("refused")
        if number == 2:
            return [][0]
        if number == 3:
            import os

            os.abort()
        while number == 4:
            pass
        return bytearray(2**33) if number == 5 else None

    found = try_all(attempt, 7)
    assert [outcome.kind for outcome in found] == [
        "read", "refused", "raised", "crashed", "hung", "raised", "read",
    ]  # fmt: skip
    assert found[3].detail == "SIGABRT"
    assert "MemoryError" in found[5].detail
