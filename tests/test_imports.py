"""Imports run one way: cli → engines → rounds → server, client → models, data → nesting → state."""

import ast
import re
from pathlib import Path

import pytest

import nefl

ROOT = Path(nefl.__file__).parent
RANK = {
    "errors": 0,
    "files": 1,
    "parsing": 0,
    "seeds": 0,
    "lazy": 0,
    "collecting": 0,
    "measured": 0,
    "wording": 0,
    "extras": 1,
    "own_code": 1,
    "own_source": 0,
    "references": 3,
    "remembered": 3,
    "state": 1,
    "moving": 0,
    "web": 3,
    "config": 2,
    "nesting": 3,
    "artifacts": 4,
    "models": 4,
    "data": 4,
    "recipes": 4,
    "wire": 4,
    "tasks": 5,
    "asking": 8,
    "server": 6,
    "client": 6,
    "methods": 7,
    "ondevice": 7,
    "rounds": 7,
    "elastic": 8,
    "engines": 8,
    "running": 9,
    "export": 10,
    "estimate": 10,
    "doctor": 10,
    "report": 10,
    "serving": 11,
    "fleet": 11,
    "flower": 12,
    "cli": 13,
    "__init__": 13,
    "__main__": 14,
}
ARTIFACTS_SEE = {
    "errors",
    "files",
    "parsing",
    "measured",
    "state",
    "config",
    "nesting",
}


def part_of(module: str) -> str:
    """Return the part of nefl that a dotted module name belongs to."""
    pieces = module.split(".")
    return pieces[1] if len(pieces) > 1 else "__init__"


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [node.module or ""]
            if names == ["nefl"]:
                names = [f"nefl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {part_of(name) for name in names if name.split(".")[0] == "nefl"}
    return found


def third_parties(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    return {name.split(".")[0] for name in names}


SOURCES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_run_one_way(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for other in imported_parts(path) - {part}:
        assert RANK[other] < RANK[part], f"{path.name}: {part} must not import {other}"
        if part == "artifacts":
            assert other in ARTIFACTS_SEE


def test_only_the_flower_engine_imports_flower() -> None:
    for path in SOURCES:
        if "flower" not in path.relative_to(ROOT).parts:
            assert "flwr" not in third_parties(path), path


def test_every_part_has_its_place() -> None:
    parts = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in SOURCES}
    assert parts <= RANK.keys()


PAGES = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_pages_say_what_is_checked_here(page: str) -> None:
    text = (PAGES / page).read_text()
    (seen,) = re.findall(r"`artifacts` sees only ([^;.]*)[;.]", text)
    assert set(re.findall(r"`(\w+)`", seen)) == ARTIFACTS_SEE
    (order,) = re.findall(r"```\n(cli → [^`]*)```", text)
    ranks = [{RANK[part] for part in re.findall(r"\w+", level)} for level in order.split("→")]
    assert all(len(level) == 1 for level in ranks), "parts of one level have one rank"
    assert [max(level) for level in ranks] == sorted(map(max, ranks), reverse=True)
    assert set(re.findall(r"\w+", order)) == RANK.keys() - {"__init__", "__main__"}


def test_the_architecture_page_names_every_file() -> None:
    text = (PAGES / "docs/architecture.md").read_text()
    for path in SOURCES:
        part = path.relative_to(ROOT).parts[0]
        if not path.stem.endswith(("__init__", "_figures")) and part not in ("data", "recipes"):
            assert re.search(rf"\b{path.stem}\b", text), f"{path} is not in the tree"
