"""Costs are counted once, and a damaged note of them costs nothing but time."""

from pathlib import Path

import pytest

from nefl.methods import make_family
from nefl.models.images import SMALL_IMAGES
from nefl.nesting.profile import profile_family
from nefl.running import counted


def test_what_was_counted_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path))
    family = make_family("resnet8", "nefl-wd")
    wanted = tuple(profile_family(family, SMALL_IMAGES, 8, 1))
    counted.counted_once.cache_clear()
    assert counted.counted_once(family, SMALL_IMAGES, 8, 1) == wanted
    (note,) = (tmp_path / "costs").glob("*.json")
    counted.counted_once.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(counted, "profile_family", None)
        assert counted.counted_once(family, SMALL_IMAGES, 8, 1) == wanted
    note.write_text("[{}]")
    counted.counted_once.cache_clear()
    assert counted.counted_once(family, SMALL_IMAGES, 8, 1) == wanted
    counted.counted_once(family, SMALL_IMAGES, 16, 1)
    counted.counted_once(make_family("resnet8", "nefl-w"), SMALL_IMAGES, 8, 1)
    assert len(list((tmp_path / "costs").glob("*.json"))) == 3
