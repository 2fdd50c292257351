"""Within the report, too, imports run one way: page → figures → tables → reading."""

import ast
from pathlib import Path

import pytest

import nefl.report

ROOT = Path(nefl.report.__file__).parent
ROOMS = ("reading", "tables", "figures", "page")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_sees_only_those_before_it(room: str) -> None:
    seen = set()
    for path in (ROOT / room).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nefl.report."):
                seen.add(str(node.module).split(".")[2])
    assert seen <= set(ROOMS[: ROOMS.index(room) + 1])


def test_every_file_is_in_a_room() -> None:
    assert {path.name for path in ROOT.iterdir() if path.name[0] != "_"} == set(ROOMS)
