"""Foreign, cut off and damaged files are refused by name; nothing in a file is executed."""

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import nefl
from nefl.errors import RunError
from nefl.export.formats import FORMATS, open_model


@pytest.fixture(scope="module")
def files(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("formats")
    for name in FORMATS:
        nefl.export_submodel(
            digits_run, folder / name, submodel=1, format_name=name, images=20, measure=False
        )
    return {name: folder / name for name in FORMATS}


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x10]) + data[middle + 1 :]


@pytest.mark.parametrize("name", list(FORMATS))
def test_damaged_files_are_refused_by_name(
    files: dict[str, Path], name: str, tmp_path: Path
) -> None:
    whole = files[name].read_bytes()
    damages: list[Callable[[bytes], bytes]] = [
        flip,
        lambda d: d[:-1],
        lambda d: d[: len(d) // 2],
        lambda d: d[:20],
        lambda _: b"",
        lambda _: b"hello, this is some text of no format",
        lambda d: d[:8] + b"{" * 40,
    ]
    for number, damage in enumerate(damages):
        path = tmp_path / f"damaged-{number}"
        path.write_bytes(damage(whole))
        with pytest.raises(RunError, match=f"damaged-{number}: "):
            FORMATS[name].open(path)
        with pytest.raises(RunError, match=f"damaged-{number}: "):
            open_model(path)
    with pytest.raises(RunError, match="nowhere: cannot be read"):
        open_model(tmp_path / "nowhere")


def test_the_elastic_file_is_checked_too(elastic_file: Path, tmp_path: Path) -> None:
    whole = elastic_file.read_bytes()
    for number, data in enumerate((flip(whole), whole[:-1], whole[:100], b"", b"x" * 99)):
        path = tmp_path / f"e{number}"
        path.write_bytes(data)
        with pytest.raises(RunError, match=f"e{number}: "):
            nefl.load(path)
    with pytest.raises(RunError, match="missing"):
        nefl.load(tmp_path / "missing")


def test_foreign_safetensors_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(RunError, match="foreign: holds no nefl format"):
        nefl.load(tmp_path / "foreign")
    with pytest.raises(RunError, match="holds nefl-submodel-1, expected nefl-elastic-1"):
        nefl.load(files["safetensors"])


class _Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("trapped"),)


@pytest.mark.parametrize(
    "entry",
    ["data/sample_inputs/model.pt", "data/weights/model.pt", "data/constants/opaque_obj_0"],
)
def test_no_pickle_of_an_archive_is_loaded(
    files: dict[str, Path], entry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    changed = io.BytesIO()
    with (
        zipfile.ZipFile(files["torch-export"]) as old,
        zipfile.ZipFile(changed, "w") as new,
    ):
        for item in old.infolist():
            if item.filename.partition("/")[2] != entry:
                new.writestr(item, old.read(item))
        new.writestr(f"archive/{entry}", pickle.dumps(_Trap()))
    Path("bad.pt2").write_bytes(changed.getvalue())
    with pytest.raises(RunError, match="may be a pickle"):
        open_model("bad.pt2")
    assert not Path("trapped").exists()


def test_a_file_names_no_code_to_run(
    elastic_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from nefl.elastic.file import save_family

    trained = nefl.load(elastic_file)
    own = replace(trained, card=replace(trained.card, model="os:system"))
    save_family(tmp_path / "own", own)
    with pytest.raises(RunError, match="a file may not name code to run"):
        nefl.load(tmp_path / "own")
    assert len(nefl.load(tmp_path / "own", family=trained.family)) == 5
