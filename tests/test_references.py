"""What a stored run names is run only if the user has named it here, or says so."""

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.artifacts.notes import CONFIG, stored_config
from nefl.config.reading import with_settings
from nefl.errors import ConfigError, NeflError, RunError
from nefl.export.export import export_family, export_submodel
from nefl.references import NAMED, check_code, import_function, remember_code
from nefl.running.first_state import read_trained
from nefl.running.lifecycle import draw_partition

EVIL = """
from pathlib import Path
Path("ran").touch()
def make(**options):
    return None
"""
Use = Callable[[Path], Any]
USES: dict[str, Use] = {
    "evaluate": nefl.evaluate,
    "resume": nefl.resume,
    "partition": draw_partition,
    "export": lambda run: export_submodel(run, "out.onnx", submodel=1),
    "export the family": lambda run: export_family(run, "out.safetensors"),
    "start from": read_trained,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stranger's module in it, a cache of its own, and the user in it."""
    monkeypatch.setenv("NEFL_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "unpacked"
    (place / "evil_package").mkdir(parents=True)
    (place / "evil_package" / "__init__.py").write_text(EVIL)
    (place / "evil_package" / "deep.py").write_text(EVIL)
    (place / "evil.py").write_text(EVIL)
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("evil", "evil_package", "evil_package.deep", "mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return place


def strange_run(here: Path, digits_run: Path, part: str, name: str, **options: Any) -> Path:
    run = here / "run"
    shutil.copytree(digits_run, run)
    config = json.loads((run / CONFIG).read_text())
    config[part]["name"] = name
    if options:
        config[part]["options"] = options
    (run / CONFIG).write_text(json.dumps(config))
    return run


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize(
    ("part", "name"), [("model", "evil:make"), ("data", "evil_package.deep:make")]
)
def test_a_strangers_code_is_not_run_unasked(
    here: Path, digits_run: Path, use: Use, part: str, name: str
) -> None:
    run = strange_run(here, digits_run, part, name)
    before, files = list(sys.path), {path.name for path in run.iterdir()}
    with pytest.raises(RunError, match=rf"names code, {name} \(.*evil.*py\).*--trust-code"):
        use(run)
    assert not (here / "ran").exists()
    assert sys.path == before
    assert {path.name for path in run.iterdir()} == files


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("task", "evil:make"),
        ("metrics", ["evil:make"]),
        ("model.method", "evil:make"),
        ("server.average", "evil:make"),
        ("server.step.name", "evil:make"),
    ],
)
def test_whatever_a_run_names_is_asked_about(
    here: Path, digits_run: Path, key: str, value: object
) -> None:
    run = here / "run"
    shutil.copytree(digits_run, run)
    config = with_settings(json.loads((run / CONFIG).read_text()), {key: value})
    (run / CONFIG).write_text(json.dumps(config))
    with pytest.raises(RunError, match=r"names code, evil:make \(.*evil\.py\).*--trust-code"):
        nefl.resume(run)
    assert not (here / "ran").exists()


def test_an_installed_function_that_does_harm_is_not_run_either(
    here: Path, digits_run: Path
) -> None:
    run = strange_run(here, digits_run, "data", "subprocess:run", args=["touch", "ran"])
    with pytest.raises(RunError, match="names code, subprocess:run"):
        nefl.evaluate(run)
    assert not (here / "ran").exists()


def test_trust_is_said_once_and_holds_for_that_file_alone(
    here: Path, digits_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = strange_run(here, digits_run, "model", "evil:make")
    with pytest.raises(ConfigError, match="evil:make: returned NoneType"):
        nefl.evaluate(run, trust_code=True)
    assert (here / "ran").exists()
    with pytest.raises(ConfigError, match="evil:make: returned NoneType"):
        draw_partition(run)  # nothing is asked any more
    other = here / "other"
    other.mkdir()
    (other / "evil.py").write_text(EVIL)
    monkeypatch.delitem(sys.modules, "evil")
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(here))])
    monkeypatch.chdir(other)
    with pytest.raises(RunError, match="names code"):
        nefl.evaluate(run)
    assert not (other / "ran").exists()


def test_what_one_trains_oneself_is_remembered(here: Path, quick: dict[str, Any]) -> None:
    (here / "mine.py").write_text(
        "import numpy as np\n"
        "def make(rows):\n"
        "    y = np.arange(rows) % 10\n"
        "    x = np.ones((rows, 8, 8), np.uint8) * y[:, None, None].astype(np.uint8)\n"
        "    return {'x_train': x, 'y_train': y, 'x_test': x, 'y_test': y}\n"
    )
    quick["data"] = {"name": "mine:make", "options": {"rows": 60}}
    run = nefl.train(quick | {"rounds": 1}, here / "own").path
    assert len(nefl.evaluate(run)) == 5
    shutil.rmtree(here.parent / "cache")
    with pytest.raises(NeflError, match="--trust-code"):
        nefl.evaluate(run)


@pytest.fixture
def installed(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place of installed packages, with one in it that the user trusts."""
    place = here.parent / "site-packages"
    (place / "trustedpkg").mkdir(parents=True)
    (place / "trustedpkg" / "__init__.py").write_text(
        "import trustedhelper\ndef make():\n    return trustedhelper.x\n"
    )
    (place / "trustedhelper.py").write_text("x = 'installed'\n")
    monkeypatch.syspath_prepend(str(place))
    for name in ("trustedpkg", "trustedhelper"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return place


def test_the_current_folder_takes_the_place_of_nothing_installed(
    here: Path, installed: Path
) -> None:
    (here / "trustedhelper.py").write_text("x = 'of a stranger'\n")
    assert import_function("trustedpkg:make")() == "installed"
    for name in ("trustedpkg", "trustedhelper"):
        del sys.modules[name]


def test_trust_ends_where_an_import_leads_elsewhere(
    here: Path, installed: Path, digits_run: Path
) -> None:
    run = strange_run(here, digits_run, "model", "trustedpkg:make")
    config = stored_config(run)
    remember_code(config)
    check_code(config, run, trusted=False)
    (installed / "trustedhelper.py").unlink()
    (here / "trustedhelper.py").write_text(EVIL)
    importlib.invalidate_caches()
    with pytest.raises(RunError, match=r"trustedpkg:make \(.*, which imports .*trustedhelper.py\)"):
        check_code(config, run, trusted=False)
    check_code(config, run, trusted=True)
    check_code(config, run, trusted=False)
    assert not (here / "ran").exists()


def test_notes_of_earlier_versions_are_asked_about_once_more(
    here: Path, installed: Path, digits_run: Path
) -> None:
    run = strange_run(here, digits_run, "model", "trustedpkg:make")
    config = stored_config(run)
    notes = here.parent / "cache" / NAMED
    notes.parent.mkdir()
    file = str(installed / "trustedpkg" / "__init__.py")
    notes.write_text(json.dumps(["trustedpkg:make", file]) + "\n5\n{\n")
    with pytest.raises(RunError, match="names code"):
        check_code(config, run, trusted=False)
    check_code(config, run, trusted=True)
    check_code(config, run, trusted=False)
