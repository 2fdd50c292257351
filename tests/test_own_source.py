"""The source of the user's own modules, found by reading imports."""

import sys
from pathlib import Path

import pytest

from nefl.own_source import code_checksums, code_files


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "codeproject"
    (package / "parts").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text(
        "import torch\nimport numpy as np\nfrom nefl import Family\nfrom . import layers\n"
        "from .parts.gates import gate\nimport codehelper\n"
        "def family():\n    from codeproject import late\n"
    )
    (package / "layers.py").write_text("from .model import family\n")  # in a circle
    (package / "late.py").write_text("raise RuntimeError('reading runs nothing')\n")
    (package / "unused.py").write_text("")
    (package / "parts" / "__init__.py").write_text("from ..layers import *\n")
    (package / "parts" / "gates.py").write_text("gate = 1\n")
    (tmp_path / "codehelper.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_what_a_function_rests_on_is_found_without_running_it(project: Path) -> None:
    before = set(sys.modules)
    found = code_checksums(["codeproject.model:family"])
    assert list(found) == [
        "codehelper",
        "codeproject",
        "codeproject.late",
        "codeproject.layers",
        "codeproject.model",
        "codeproject.parts",
        "codeproject.parts.gates",
    ]
    assert not {name for name in set(sys.modules) - before if name.startswith("code")}


def test_a_changed_module_has_another_sum_and_the_others_keep_theirs(project: Path) -> None:
    before = code_checksums(["codeproject.model:family"])
    (project / "parts" / "gates.py").write_text("gate = 2\n")
    (project / "unused.py").write_text("x = 1\n")
    after = code_checksums(["codeproject.model:family"])
    assert {name for name in before if before[name] != after[name]} == {"codeproject.parts.gates"}


def test_nothing_of_ones_own_rests_on_nothing() -> None:
    assert code_checksums([]) == {}
    assert code_checksums(["absent_module:function"]) == {}
    named = code_checksums(["json.decoder:x"])
    assert "json.decoder" in named, "what is named counts wherever it lies"
    assert "re" not in named


def test_files_are_found_and_hostile_sources_end_the_search(project: Path) -> None:
    (project / "layers.py").write_text("(" * 100_000)
    found = code_files(["codeproject.model:family"])
    assert list(found) == list(code_checksums(["codeproject.model:family"]))
    assert found["codehelper"] == str(project.parent / "codehelper.py")


def test_folders_without_init_files_lie_in_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "codefolder" / "inner"
    inner.mkdir(parents=True)
    (inner / "made.py").write_text("from codefolder.inner import beside\n")
    (inner / "beside.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = code_files(["codefolder.inner.made:thing", "codefolder.absent.made:thing"])
    assert found == {
        f"codefolder.inner.{name}": str(inner / f"{name}.py") for name in ("beside", "made")
    }
