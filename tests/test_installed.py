"""A wheel, installed alone: it trains, and names what each missing extra would bring.

The fresh environment sees the core dependencies of this one by links, so nothing is downloaded.
"""

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
NEEDS_EXTRA = {
    "tensorboard": (["train", "--rounds", "1", "--tensorboard", "--out", "other"],),
    "report": (["plot", "run", "-o", "curves.svg"], ["report", "run", "-o", "page.html"]),
    "flower": (["flower", "init", "app"], ["flower", "simulate", "app"]),
    "onnx": (["export", "run", "--format", "onnx", "--submodel", "1", "-o", "x.onnx"],),
    "executorch": (["export", "run", "--format", "executorch", "--submodel", "1", "-o", "x.pte"],),
    "serve": (["serve", "family.safetensors"],),
    "text": (["train", "--set", "data.options.tokenizer=bpe", "stdlib", "--out", "tuned"],),
}
"""Commands that need an extra, by its name."""

TRY_ALL = """
import contextlib, io, json, sys
from nefl.cli import main

told = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["nefl", *arguments]
    errors = io.StringIO()
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        except BaseException as error:
            code = repr(error)
    told.append([arguments, code, errors.getvalue()])
print(json.dumps(told))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("needs hatchling to build a wheel: pip install hatchling")
    out = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment that holds the wheel and its core dependencies."""
    home = tmp_path_factory.mktemp("alone")
    venv.create(home, symlinks=True)
    site = next(home.glob("lib/python*/site-packages"))
    for name in core_closure():
        link_distribution(importlib.metadata.distribution(name), site)
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python")]
    install = [*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120, env=plain_environment())
    return home / "bin"


def core_closure() -> set[str]:
    """Return the names of all that nefl without extras rests on."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            found.add(name)
            for text in importlib.metadata.requires(name) or ():
                needed = Requirement(text)
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    waiting.append(needed)
    return found


def link_distribution(distribution: importlib.metadata.Distribution, site: Path) -> None:
    for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        link = site / top
        if not link.exists():
            link.symlink_to(Path(str(distribution.locate_file(top))).resolve())


def plain_environment() -> dict[str, str]:
    """Return this environment without what would let another nefl in."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def run(alone: Path, folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [str(alone / command[0]), *command[1:]],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
        env=plain_environment(),
    )


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_wheel_alone_trains_and_names_each_missing_extra(alone: Path, tmp_path: Path) -> None:
    settings = ["--set", "data.train=200", "--engine", "serial", "--out", "run"]
    trained = run(alone, tmp_path, "nefl", "train", "digits", "--rounds", "2", *settings, "--json")
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["rounds"] == 2
    elastic = ["export", "run", "--format", "elastic", "-o", "family.safetensors", "--no-measure"]
    commands = [elastic, *(each for group in NEEDS_EXTRA.values() for each in group)]
    tried = run(alone, tmp_path, "python", "-c", TRY_ALL, json.dumps(commands))
    assert tried.returncode == 0, tried.stderr
    (_, exported, said), *others = json.loads(tried.stdout)
    assert exported == 0, said
    extras = [extra for extra, group in NEEDS_EXTRA.items() for _ in group]
    for extra, (arguments, code, error) in zip(extras, others, strict=True):
        assert code == 2, (arguments, code, error)
        assert error.count("\n") == 1, error
        assert f"pip install 'nefl[{extra}]'" in error, (arguments, error)
