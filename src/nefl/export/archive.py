"""What of a torch.export archive (.pt2) may reach torch.

torch's loader runs much of what it reads: pickled weights and samples, shared libraries, symbolic
sizes as Python text (sympy), guards and names as parts of generated code, operators by any path
below `torch`. So it is never given a file. The members that `nefl export` writes are read here with
bounds, every text in them is compared with what torch.export writes for networks, and a new archive
is made of them; whatever else a file holds refuses it.
"""

import ast
import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from nefl.artifacts.card import CARD_KEY
from nefl.export.operators import is_allowed

MAX_JSON = 64 * 2**20
"""Bytes of a description; that of ResNet110 takes three million."""

GRAPH = "models/model.json"
SAMPLES = "data/sample_inputs/model.pt"  # a pickle; nefl writes it empty
CONFIGS = {
    "data/weights/model_weights_config.json": re.compile(r"weight_\d{1,6}"),
    "data/constants/model_constants_config.json": re.compile(r"tensor_\d{1,6}"),
}
_PAYLOAD = re.compile(r"data/(weights/weight|constants/tensor)_\d{1,6}")
_MADE_ANEW = ("archive_format", "archive_version", "byteorder", ".data/version")
_SERIAL = ".data/serialization_id"

_NAME = re.compile(r"((?!__)\w+(\.(?!__)\w+)*)?", re.ASCII)
_MODE = re.compile(r"[\w ,.>-]*", re.ASCII)  # a rounding, a padding, the equation of an einsum
_VERSION = re.compile(r"[\w.+-]*", re.ASCII)
_DROPPED: dict[str, Any] = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {}}
_CODE = ("as_operator", "as_graph", "as_custom_obj", "custom_obj")

_FUNCTIONS = ("Add", "Mul", "FloorDiv", "CeilDiv", "Mod", "PythonMod", "Max", "Min", "ToFloat",
              "Eq", "Ne", "Ge", "Gt", "Le", "Lt", "And", "Or", "Not",
              "Equality", "Unequality", "GreaterThan", "StrictGreaterThan", "LessThan",
              "StrictLessThan")  # fmt: skip
_SYMBOL = re.compile(r"[a-z]{1,3}\d{1,4}")  # torch counts up to the number of some
_ASSUMPTIONS = ("positive", "negative", "nonnegative", "integer")
MAX_EXPRESSION = 4096  # a longer one is cut off, and is none then
MAX_INTEGER = 2**64


# What reading a description of another shape than the expected ends in.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, EOFError, NotImplementedError)


class ArchiveError(ValueError):
    """An archive that torch must not see, with the reason."""


def rebuild(data: bytes) -> tuple[str | None, bytes]:
    """Return the card of an archive and a new archive of what was checked in it.

    Raises:
        ArchiveError: if it is no such archive, damaged, or holds what could run or is not known.
    """
    try:
        members = _members(data)
        graph = _checked(_json(members, GRAPH))
        for symbol in graph["range_constraints"]:
            _matching(_SYMBOL, symbol, "range_constraints")
        configs = {name: _checked(_json(members, name)) for name in CONFIGS}
    except ArchiveError:
        raise
    except (zipfile.BadZipFile, *_MALFORMED) as error:
        raise ArchiveError(f"is no torch.export archive, or damaged ({error})") from None
    except (RecursionError, OverflowError):
        raise ArchiveError("is no torch.export archive: it is nested too deeply") from None
    for name, config in configs.items():
        _check_payloads(name, config, members)
    from torch.export.pt2_archive._package import PT2ArchiveWriter  # takes long to import

    buffer = io.BytesIO()
    with PT2ArchiveWriter(buffer) as writer:
        for name, content in ((GRAPH, graph), *configs.items()):
            writer.write_bytes(name, json.dumps(content).encode())
        for name, raw in members.items():
            if _PAYLOAD.fullmatch(name):
                writer.write_bytes(name, raw)
        writer.write_bytes(SAMPLES, b"")
        card = members.get(f"extra/{CARD_KEY}")
        if card is not None:
            writer.write_bytes(f"extra/{CARD_KEY}", card)
    return None if card is None else card.decode(), buffer.getvalue()


def _members(data: bytes) -> dict[str, bytes]:
    """Read all members that an archive of nefl's may have, and refuse others."""
    found: dict[str, bytes] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            name = entry.filename.partition("/")[2]  # the first folder is named after the file
            known = name in (GRAPH, SAMPLES, *CONFIGS, *_MADE_ANEW, _SERIAL, f"extra/{CARD_KEY}")
            if not (known or _PAYLOAD.fullmatch(name)) or (name == SAMPLES and entry.file_size):
                raise ArchiveError(
                    f"holds {entry.filename[:80]!r}, which may be a pickle or a library and run "
                    "code when it is loaded; nefl writes none, so this file is not from "
                    "`nefl export`"
                )
            if name in found or entry.compress_type != zipfile.ZIP_STORED:
                raise ArchiveError(f"is no archive of torch's: {name} is packed, or there twice")
            if name.endswith(".json") and entry.file_size > MAX_JSON:
                raise ArchiveError(f"{name} has {entry.file_size} bytes, at most {MAX_JSON} fit")
            found[name] = archive.read(entry)  # compares its CRC
    return found


def _json(members: Mapping[str, bytes], name: str) -> Any:
    if name not in members:
        raise ArchiveError(f"is no torch.export archive: it has no {name}")
    return json.loads(members[name])


def _checked(value: Any, key: str = "") -> Any:
    """Return a description without what is not needed; refuse texts that torch would evaluate."""
    if key in _CODE and value is not None:
        raise ArchiveError(f"{key} may run code when it is loaded; nefl writes none")
    if isinstance(value, dict):
        return {
            _text(name, "a key"): _DROPPED[name]
            if name in _DROPPED
            else _checked(part, _text(name, "a key"))
            for name, part in value.items()
        }
    if isinstance(value, list):
        return [_checked(part, key) for part in value]
    return _text(value, key) if isinstance(value, str) else value


def _text(text: str, key: str) -> str:
    if key in _TEXTS:
        return _TEXTS[key](text)
    return _matching(_NAME, text, key)


def _matching(pattern: re.Pattern[str], text: str, key: str) -> str:
    if not pattern.fullmatch(text):
        raise ArchiveError(f"{key} {text[:80]!r} is no name that torch.export writes")
    return text


def _operator(target: str) -> str:
    if not is_allowed(target):
        raise ArchiveError(
            f"calls {target[:80]!r}, which is not among the operators that nefl lets an archive "
            "call; export the network to ONNX"
        )
    return target


def _expression(text: str) -> str:
    """Accept integers, symbols and sums, products, quotients and comparisons of them."""
    try:
        tree = ast.parse(text[:MAX_EXPRESSION], mode="eval")
        _check_expression(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArchiveError(
            f"expr_str {text[:80]!r} is no size that torch.export writes; it would be run as Python"
        ) from None
    return ast.unparse(tree)


def _check_expression(node: ast.expr) -> None:
    """Raise ValueError unless a node is of the few kinds that sizes are made of."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value < MAX_INTEGER:
        return
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise ValueError  # noqa: TRY004 -- as for all that is no size
    if node.func.id == "Symbol":
        (name,) = node.args
        if not isinstance(name, ast.Constant) or not _SYMBOL.fullmatch(str(name.value)):
            raise ValueError
        for word in node.keywords:
            plain = isinstance(word.value, ast.Constant) and type(word.value.value) is bool
            if word.arg not in _ASSUMPTIONS or not plain:
                raise ValueError
        return
    if node.func.id not in ("Integer", *_FUNCTIONS) or node.keywords:
        raise ValueError
    for argument in node.args:
        _check_expression(argument)


def _tree(text: str) -> str:
    """Accept how arguments are nested: tuples, lists and dictionaries by names."""
    version, tree = json.loads(text)
    _check_tree(tree)
    if version != 1:
        raise ArchiveError(f"in_spec has version {version!r}, expected 1")
    return json.dumps([1, tree])


def _check_tree(tree: Mapping[str, Any]) -> None:
    known = (None, "builtins.tuple", "builtins.list", "builtins.dict")
    if tree["type"] not in known or tree.keys() != {"type", "context", "children_spec"}:
        raise ArchiveError(f"takes arguments of type {str(tree['type'])[:80]!r}")
    if tree["context"] is not None:
        _checked(json.loads(tree["context"]))
    for child in tree["children_spec"]:
        _check_tree(child)


_TEXTS: dict[str, Callable[[str], str]] = {
    "expr_str": _expression,
    "target": _operator,
    "in_spec": _tree,
    "out_spec": _tree,
    "as_string": lambda text: _matching(_MODE, text, "as_string"),
    "as_strings": lambda text: _matching(_MODE, text, "as_strings"),
    "torch_version": lambda text: _matching(_VERSION, text, "torch_version"),
}


def _check_payloads(name: str, content: Any, members: Mapping[str, bytes]) -> None:
    """Refuse pickled tensors, and those with more elements than there are bytes for them."""
    folder = name.rpartition("/")[0]
    try:
        for tensor, part in content["config"].items():
            if part["use_pickle"] is not False or not CONFIGS[name].fullmatch(part["path_name"]):
                raise ArchiveError(
                    f"{tensor} may be a pickle, which runs code when it is loaded; nefl writes none"
                )
            sizes = [int(size["as_int"]) for size in part["tensor_meta"]["sizes"]]
            room = len(members[f"{folder}/{part['path_name']}"])
            if math.prod(sizes) > room or min(sizes, default=0) < 0:
                raise ArchiveError(f"{tensor} has shape {sizes}, but {room} bytes")
    except _MALFORMED as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"is damaged: {name} does not describe its tensors ({error})") from None
