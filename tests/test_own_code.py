"""A user's own functions that fail: whose they are is told first, and nothing of them is lost."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import nefl
from nefl.cli import app
from nefl.own_code import describe, own_tracebacks

MODEL = """
from torch import nn
from nefl import Family, SubmodelSpec

def raises(classes, input_shape):
    return inner()

def inner():
    raise KeyError("width")

def other_signature(classes):
    return None

def ends(classes, input_shape):
    raise SystemExit("enough")

def returns_none(classes, input_shape):
    pass

def builds_nothing(classes, input_shape):
    return Family(lambda spec: None, (SubmodelSpec(((1.0,),)),))

def builder_raises(classes, input_shape):
    def build(spec):
        raise RuntimeError("no such width")
    return Family(build, (SubmodelSpec(((1.0,),)),))
"""
DATA = """
import numpy as np

def load(size=4):
    images = np.zeros((40, size, size), np.uint8)
    labels = np.arange(40) % 2
    return dict(x_train=images, y_train=labels, x_test=images, y_test=labels)

def raises():
    return {}["no such file"]

def returns_none():
    pass

def ragged():
    return load() | {"x_train": [[1, 2], [3]]}
"""
BROKEN = "import no_such_library\n"


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in (("own_model", MODEL), ("own_data", DATA), ("own_broken", BROKEN)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("own_model", "own_data", "own_broken"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model.name=own_model:raises", "KeyError: 'width' (own_model.py, line 9, in inner)"),
        ("model.name=own_model:other_signature", "takes (classes), and is called with classes, i"),
        ("model.name=own_model:returns_none", "returned NoneType, expected a Family"),
        ("model.name=own_model:builds_nothing", "returned NoneType for SubmodelSpec(blocks"),
        ("model.name=own_model:builder_raises", "RuntimeError: no such width"),
        ("model.name=own_model:ends", "SystemExit: enough (own_model.py, line 15, in ends)"),
        ("model.name=own_broken:make", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("model.name=own_model:x", "own_model:x: cannot be imported"),
        ("data.name=own_data:raises", "KeyError: 'no such file' (own_data.py, line 10, in raises)"),
        ("data.name=own_data:returns_none", "returned NoneType, expected a dict with x_train"),
        ("data.name=own_data:ragged", "own_data:ragged: x_train: cannot be made an array"),
    ],
)
def test_one_line_says_whose_function_failed(
    setting: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = command(capsys, "train", "--set", setting, "--out", "run")
    assert code == 2
    first, *below = printed.splitlines()
    assert first.startswith("nefl: error: ")
    assert words in first
    assert setting.split("=")[1].split(":")[0] in first
    # Its own errors keep their traceback, and nothing of nefl's inside stands above them.
    assert ("Traceback" in "".join(below)) == ("rror: " in words or "Exit: " in words)
    assert "own_code.py" not in printed
    assert not (tmp_path / "run").exists()


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command line in this process; return its exit code and what it said of errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["nefl", *arguments])
        with pytest.raises(SystemExit) as ended:
            app.main()
    code = ended.value.code
    assert isinstance(code, int)
    return code, capsys.readouterr().err


def test_an_error_told_once_is_not_told_again_as_that_of_a_second_try(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, printed = command(capsys, "train", "--set", "model.name=own_model:builder_raises")
    assert printed.count("Traceback") == 1


def test_unknown_data_options_name_the_function_and_what_it_takes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ["--set", "data.name=own_data:load", "--set", "data.options.sise=8"]
    code, printed = command(capsys, "train", *given)
    assert code == 2
    assert printed.count("\n") == 1
    assert "own_data:load" in printed
    assert "own_data.py, line 4" in printed
    assert "takes (size=4), and is called with sise" in printed


def test_in_python_the_cause_is_the_users_error(quick: dict[str, Any], tmp_path: Path) -> None:
    broken = quick | {"model": {"name": "own_model:raises"}}
    with pytest.raises(nefl.OwnCodeError, match="own_model:raises") as caught:
        nefl.train(broken, tmp_path / "run")
    assert isinstance(caught.value, nefl.ConfigError)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_worker_tells_of_the_users_code_too(quick: dict[str, Any], tmp_path: Path) -> None:
    # Fine in this process, and not in another one.
    (tmp_path / "own_elsewhere.py").write_text(
        "import os, own_model_net\n"
        f"SERVER = {os.getpid()}\n"
        "def make(classes, input_shape):\n"
        "    if os.getpid() != SERVER:\n"
        "        raise KeyError('not here')\n"
        "    return own_model_net.make(classes, input_shape)\n",
        encoding="utf-8",
    )
    (tmp_path / "own_model_net.py").write_text(NET, encoding="utf-8")
    config = quick | {
        "model": {"name": "own_elsewhere:make"},
        "engine": {"name": "workers", "workers": 1, "device": "cpu"},
    }
    with pytest.raises(nefl.RunError, match="own_elsewhere:make .* KeyError: 'not here'") as caught:
        nefl.train(config, tmp_path / "run")
    (trace,) = own_tracebacks(caught.value)
    assert trace.startswith("Traceback")
    assert "raise KeyError('not here')" in trace


NET = """
from torch import nn
from nefl import Family, SubmodelSpec

class Net(nn.Module):
    def __init__(self, classes, pixels):
        super().__init__()
        self.head = nn.Linear(pixels, classes)

    def forward(self, x):
        return self.head(x.flatten(1))

def make(classes, input_shape):
    channels, height, width = input_shape
    return Family(lambda s: Net(classes, channels * height * width), (SubmodelSpec(((1.0,),)),))
"""


def test_a_client_that_fails_says_where_in_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "own_late.py").write_text("def step():\n    return [][3]\n", encoding="utf-8")
    import own_late  # type: ignore[import-not-found]

    with pytest.raises(IndexError) as caught:
        own_late.step()
    told = describe(caught.value)
    assert "IndexError: list index out of range (own_late.py, line 2, in step)" in told
    assert str(tmp_path) not in told, "what is logged and sent has no paths of a machine"
