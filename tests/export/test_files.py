"""Foreign, cut off and damaged files are refused by name; nothing in a file is executed."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import nefl
from nefl.artifacts import programfile
from nefl.artifacts.card import CARD_KEY
from nefl.artifacts.tensorfile import read_tensors, save_tensors
from nefl.elastic.file import checksum, save_family
from nefl.errors import RunError
from nefl.export import onnxfile
from nefl.export.formats import FORMATS, open_model
from nefl.serving.predictor import Predictor

FILES = [name for name, form in FORMATS.items() if not form.is_folder]


@pytest.fixture(scope="module")
def files(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("formats")
    for name in FILES:
        nefl.export_submodel(
            digits_run, folder / name, submodel=1, format_name=name, examples=20, measure=False
        )
    return {name: folder / name for name in FILES}


@pytest.fixture(scope="module")
def archive(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("archive") / "model.pt2"
    nefl.export_submodel(
        digits_run, path, submodel=1, format_name="torch-export", examples=20, measure=False
    )
    return path.read_bytes()


def flip(data: bytes) -> bytes:
    """Turn a bit here and there: a single one may lie in the padding of an archive."""
    changed = bytearray(data)
    for place in range(len(data) // 2, len(data), 101):
        changed[place] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("name", FILES)
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


def test_a_family_with_a_large_card_is_told_from_one_submodel(
    elastic_file: Path, tmp_path: Path
) -> None:
    trained = nefl.load(elastic_file)
    for padding in range(60_000, 80_000, 4_000):
        card = replace(trained.card, data="d" * padding)
        save_family(tmp_path / "e", replace(trained, card=card))
        assert len(Predictor(tmp_path / "e").latencies) == 5


def test_a_card_is_part_of_the_checksum(files: dict[str, Path], tmp_path: Path) -> None:
    for name, path in files.items():
        data = path.read_bytes()
        at = data.index(b"class_names") + 20
        (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(RunError, match="damaged"):
            open_model(tmp_path / name)


def _with_card(name: str, data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A file that lies consistently: another card, with a right checksum."""
    if name == "onnx":
        model = onnx.ModelProto.FromString(data[: -onnxfile.SEAL_BYTES])
        (entry,) = model.metadata_props
        entry.value = _changed(entry.value, change)
        return onnxfile.seal(model.SerializeToString())
    if name == "torch-export":
        return repack(
            data, lambda m: m.update({"extra/nefl": _changed(m["extra/nefl"], change).encode()})
        )
    size = programfile.TRAILER.size
    length = programfile.TRAILER.unpack(data[-size:])[0]
    text = _changed(data[-size - length : -size], change).encode()
    return programfile.seal(data[: -size - length], text)


def _changed(text: str | bytes, change: Callable[[dict[str, Any]], object]) -> str:
    card = json.loads(text)
    change(card)
    return json.dumps(card)


@pytest.mark.parametrize("name", ["onnx", "executorch", "torch-export"])
def test_files_that_lie_about_shapes_are_refused_in_a_line(
    files: dict[str, Path], name: str, tmp_path: Path
) -> None:
    lies: list[Callable[[dict[str, Any]], object]] = [
        lambda card: card["signature"].update(input_shape=[3, 8, 8]),
        lambda card: card["signature"].update(input_shape=[2**20, 2**20, 2**20]),
        lambda card: card["signature"].update(tokens=256),
        lambda card: card["signature"].update(tokens=-1),
        lambda card: card["signature"].update(each_token=True),
        lambda card: card["signature"].update(outputs=11),
        lambda card: card["class_names"].append("one more"),
        lambda card: card.update(class_names="none"),
        lambda card: card.clear(),
    ]
    for lie in lies:
        (tmp_path / "lie").write_bytes(_with_card(name, files[name].read_bytes(), lie))
        with pytest.raises(RunError, match="lie: .*export it again") as caught:
            open_model(tmp_path / "lie")
        assert "\n" not in str(caught.value)


def _rewritten(path: Path, out: Path, change: Callable[[dict[str, Tensor]], object]) -> Path:
    """A safetensors file with other tensors and a right checksum."""
    metadata, tensors = read_tensors(path)
    change(tensors)
    metadata["sha256"] = checksum(tensors, metadata[CARD_KEY])
    save_tensors(out, tensors, metadata)
    return out


def test_tensors_of_another_type_or_shape_are_refused_by_name(
    files: dict[str, Path], elastic_file: Path, tmp_path: Path
) -> None:
    for number, (path, name) in enumerate(
        ((files["safetensors"], "conv1.weight"), (elastic_file, "shared/conv1.weight"))
    ):
        bad = tmp_path / f"{number}.safetensors"
        _rewritten(path, bad, lambda t, name=name: t.update({name: t[name].double()}))  # type: ignore[misc]
        with pytest.raises(RunError, match="conv1.weight is torch.float64.*expected torch.float32"):
            Predictor(bad)
        _rewritten(path, bad, lambda t, name=name: t.update({name: t[name][:1].clone()}))  # type: ignore[misc]
        with pytest.raises(RunError, match="belongs to another model"):
            Predictor(bad)


@pytest.mark.parametrize("count", [4, 300_000])
def test_cards_with_other_blocks_than_the_model_are_refused_before_a_network_is_built(
    files: dict[str, Path], elastic_file: Path, tmp_path: Path, count: int
) -> None:
    def lie(card: dict[str, Any]) -> None:
        for submodel in card["submodels"]:
            submodel["spec"]["blocks"][0] = [1.0] * count
            submodel["spec"]["inner_width"] = None

    for path in (files["safetensors"], elastic_file):
        metadata, tensors = read_tensors(path)
        metadata[CARD_KEY] = _changed(metadata[CARD_KEY], lie)
        metadata["sha256"] = checksum(tensors, metadata[CARD_KEY])
        save_tensors(tmp_path / "lie.safetensors", tensors, metadata)
        with pytest.raises(RunError, match=f"lie.*3 stages of {count}, 1, 1 blocks: resnet8 has"):
            Predictor(tmp_path / "lie.safetensors")


def test_weights_that_are_not_finite_are_refused(
    files: dict[str, Path], elastic_file: Path, tmp_path: Path
) -> None:
    for path, name in (
        (files["safetensors"], "conv1.weight"),
        (elastic_file, "shared/conv1.weight"),
    ):
        bad = tmp_path / "bad.safetensors"
        _rewritten(path, bad, lambda t, name=name: t[name].fill_(float("nan")))  # type: ignore[misc]
        with pytest.raises(RunError, match="not finite"):
            Predictor(bad)


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    for length in (2**24 + 1, 2**40, 2**64 - 1):
        (tmp_path / "h").write_bytes(length.to_bytes(8, "little") + b'{"a":1}')
        with pytest.raises(RunError, match="its header would have"):
            open_model(tmp_path / "h")


def test_tied_weights_are_written_for_each_of_their_names(
    elastic_file: Path, tmp_path: Path
) -> None:
    tied = torch.rand(3, 2)
    save_tensors(tmp_path / "t", {"a": tied, "b": tied, "c": tied[:2]}, {})
    _, back = read_tensors(tmp_path / "t")
    assert torch.equal(back["a"], tied)
    assert torch.equal(back["b"], tied)
    assert torch.equal(back["c"], tied[:2])
    trained = nefl.load(elastic_file)
    shared = dict(trained.state.shared)
    twin = next(
        n
        for n in shared
        if n != "layer1.0.conv1.weight" and shared[n].shape == shared["layer1.0.conv1.weight"].shape
    )
    shared[twin] = shared["layer1.0.conv1.weight"]
    save_family(tmp_path / "e", replace(trained, state=replace(trained.state, shared=shared)))
    again = nefl.load(tmp_path / "e").state.shared
    assert torch.equal(again[twin], again["layer1.0.conv1.weight"])


class _Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (Path("trapped"),)


Members = dict[str, bytes]


def repack(whole: bytes, change: Callable[[Members], None], **options: int) -> bytes:
    """An archive with its members changed, and right checksums for what it holds then."""
    with zipfile.ZipFile(io.BytesIO(whole)) as old:
        members = {name.partition("/")[2]: old.read(name) for name in old.namelist()}
    change(members)
    changed = io.BytesIO()
    with zipfile.ZipFile(changed, "w", **options) as new:  # type: ignore[call-overload]
        for name, content in members.items():
            new.writestr(f"archive/{name}", content)
    return changed.getvalue()


def put(name: str, content: bytes) -> Callable[[Members], None]:
    return lambda members: members.update({name: content})


def in_graph(change: Callable[[dict[str, Any]], object]) -> Callable[[Members], None]:
    """Change the description of the network."""

    def apply(members: Members) -> None:
        model = json.loads(members["models/model.json"])
        change(model)
        members["models/model.json"] = json.dumps(model).encode()

    return apply


TOUCH = "__import__('pathlib').Path('trapped').touch()"


def _nodes(model: dict[str, Any]) -> list[dict[str, Any]]:
    return model["graph_module"]["graph"]["nodes"]  # type: ignore[no-any-return]


def _size(model: dict[str, Any]) -> dict[str, Any]:
    """The symbol of the batch size of the input."""
    values = model["graph_module"]["graph"]["tensor_values"].values()
    found = [size["as_expr"] for v in values for size in v["sizes"] if "as_expr" in size]
    return found[0]  # type: ignore[no-any-return]


def _rename(model: dict[str, Any], new: str) -> None:
    """Give the input another name wherever it is used: names are put into generated code."""
    text = json.dumps(model).replace('"x"', json.dumps(new))
    model.update(json.loads(text))


HOSTILE: dict[str, Callable[[Members], None]] = {
    "samples": put("data/sample_inputs/model.pt", pickle.dumps(_Trap())),
    "old weights": put("data/weights/model.pt", pickle.dumps(_Trap())),
    "opaque": put("data/constants/opaque_obj_0", pickle.dumps(_Trap())),
    "custom": put("data/constants/custom_obj_0", pickle.dumps(_Trap())),
    "library": put("data/aotinductor/model/x.so", b"\x7fELF"),
    "another model": lambda m: m.update({"models/other.json": m["models/model.json"]}),
    "pickled weight": lambda m: m.update(
        {n: m[n].replace(b'"use_pickle": false', b'"use_pickle": true') for n in m if "fig.j" in n}
    ),
    "size": in_graph(lambda m: _size(m).update(expr_str=TOUCH)),
    "size in a function": in_graph(lambda m: _size(m).update(expr_str=f"Add(Integer(1), {TOUCH})")),
    "attribute": in_graph(lambda m: _size(m).update(expr_str="Symbol.__class__")),
    "power": in_graph(lambda m: _size(m).update(expr_str="Pow(Integer(9), Integer(99999999))")),
    "guard": in_graph(lambda m: m.update(guards_code=[f"{TOUCH} is None"])),
    "operator": in_graph(lambda m: _nodes(m)[0].update(target="torch.os.system")),
    "file": in_graph(lambda m: _nodes(m)[0].update(target="torch.ops.aten.from_file.default")),
    "backward": in_graph(
        lambda m: _nodes(m)[0].update(
            target="torch.ops.aten.max_pool2d_with_indices_backward.default"
        )
    ),
    "argument": in_graph(
        lambda m: _nodes(m)[0]["inputs"][3].update(arg={"as_operator": "torch.os.system"})
    ),
    "name": in_graph(lambda m: _rename(m, f"x={TOUCH}")),
    "attribute name": in_graph(lambda m: _rename(m, f'x", {TOUCH}, "')),
    "trace": in_graph(lambda m: _nodes(m)[0]["metadata"].update(stack_trace=f"\n{TOUCH}\n")),
    "many symbols": in_graph(
        lambda m: m["range_constraints"].update(u999999999={"min_val": 0, "max_val": 9})
    ),
    "large": lambda m: m.update(
        {n: m[n].replace(b'"as_int": 3', b'"as_int": 3333333') for n in m if "fig.j" in n}
    ),
}


@pytest.mark.parametrize("kind", list(HOSTILE))
def test_nothing_in_an_archive_is_run(
    archive: bytes, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pt2").write_bytes(repack(archive, HOSTILE[kind]))
    if kind in ("guard", "trace"):  # left out of what torch is given
        open_model("bad.pt2")(torch.zeros(1, 1, 8, 8))
    else:
        with pytest.raises(RunError, match="bad.pt2: "):
            open_model("bad.pt2")(torch.zeros(1, 1, 8, 8))
    assert not Path("trapped").exists()


def test_packed_members_of_an_archive_are_refused(archive: bytes, tmp_path: Path) -> None:
    bomb = repack(
        archive,
        put("models/model.json", b" " * 2**22),
        compression=zipfile.ZIP_DEFLATED,
    )
    assert len(bomb) < 2**20
    (tmp_path / "bomb").write_bytes(bomb)
    with pytest.raises(RunError, match="is packed"):
        open_model(tmp_path / "bomb")


def test_an_archive_names_no_path_of_the_machine(archive: bytes) -> None:
    assert str(Path(nefl.__file__).parent).encode() not in archive
    assert b"stack_trace" not in archive


def test_a_file_names_no_code_to_run(
    elastic_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = nefl.load(elastic_file)
    own = replace(trained, card=replace(trained.card, model="os:system"))
    save_family(tmp_path / "own", own)
    with pytest.raises(RunError, match="a file may not name code to run"):
        nefl.load(tmp_path / "own")
    assert len(nefl.load(tmp_path / "own", family=trained.family)) == 5
