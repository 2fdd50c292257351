"""`nefl export` and `nefl predict` as they are typed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import nefl
from nefl.cli.app import app
from nefl.config.reading import with_settings
from nefl.errors import ConfigError, RunError
from nefl.export.source import open_run


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_from_a_run_to_an_answer(digits_run: Path, tmp_path: Path) -> None:
    out, elastic = tmp_path / "m.safetensors", tmp_path / "e.safetensors"
    said = invoke(
        "export", digits_run, "--submodel", 2, "--format", "safetensors", "-o", out, "--no-measure",
        "--examples", 50, "--quantize", "int8", "--max-loss", 1,
    )  # fmt: skip
    assert "submodel 2 as safetensors, int8" in said
    assert "largest difference of outputs" in said
    report = json.loads(
        invoke("export", digits_run, "--format", "elastic", "-o", elastic, "--json")
    )
    assert len(report["comparisons"]) == 5
    image = np.array(open_run(digits_run).setting.task.test["image"][0, 0])
    Image.fromarray(image).save(tmp_path / "digit.png")
    for file, more in ((out, []), (elastic, ["--submodel", "1"]), (elastic, ["--fits", "macs<9G"])):
        answer = json.loads(invoke("predict", file, tmp_path / "digit.png", "--json", *more))
        (found,) = answer["predictions"]
        assert found["class"] in "0123456789"
    assert found["submodel"] == 5
    assert "digit.png" in invoke("predict", out, tmp_path / "digit.png")


def test_a_bare_export_takes_the_whole_family(digits_run: Path, tmp_path: Path) -> None:
    for name in ("family.safetensors", "family"):
        assert "elastic file" in invoke(
            "export", digits_run, "-o", tmp_path / name, "--examples", 20
        )
        assert len(nefl.load(tmp_path / name)) == 5
    with pytest.raises(ConfigError, match="all submodels go into one file with the format elastic"):
        invoke("export", digits_run, "-o", tmp_path / "x.onnx")


def test_flags_that_contradict_each_other(digits_run: Path, tmp_path: Path) -> None:
    for wrong in (
        ["--format", "elastic", "--submodel", 1],
        ["--submodel", 1, "--quantize", "int4"],
        ["--submodel", 1, "--fits", "macs<1M"],
    ):
        try:
            invoke("export", digits_run, "-o", tmp_path / "x", *wrong)
        except ConfigError:
            continue
        raise AssertionError(wrong)
    assert not (tmp_path / "x").exists()


@pytest.mark.long
def test_from_texts_and_tables_to_answers(task_runs: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "e.safetensors"
    said = invoke("export", task_runs["next-token"], "-o", out, "--examples", 10)
    assert "perplexity" in said
    assert len(invoke("predict", out, "--text", "the cat", "--length", 5).strip("\n")) > 0
    (tmp_path / "prompt.txt").write_text("the cat")
    more = ("--length", 5, "--temperature", 2, "--seed", 3, "--json")
    answers = [
        json.loads(invoke("predict", out, *given, *more))["predictions"][0]["text"]
        for given in (("--text", "the cat"), (tmp_path / "prompt.txt",))
    ]
    piped = CliRunner().invoke(app, ["predict", str(out), "-", *map(str, more)], input="the cat")
    answers.append(json.loads(piped.stdout)["predictions"][0]["text"])
    assert answers[0] == answers[1] == answers[2]

    said = invoke(
        "export", task_runs["table-regression"], "--submodel", 2, "-o", tmp_path / "m.safetensors",
        "--no-measure",
    )  # fmt: skip
    assert "mae" in said
    assert "same answer" not in said
    (tmp_path / "rows.csv").write_text(
        "age,sex,bmi,bp,s1,s2,s3,s4,s5,s6\n0,0,0,0,0,0,0,0,0,0\n,0,0.1,0,0,0,0,0,0.1,0\n"
    )
    said = invoke("predict", tmp_path / "m.safetensors", tmp_path / "rows.csv")
    assert "rows.csv, 1" in said
    assert "rows.csv, 2" in said
    with pytest.raises(ConfigError, match="give a file to answer for"):
        invoke("predict", out)


OWN_NET = """
from torch import nn
from nefl import Family, SubmodelSpec
from nefl.nesting.spec import kept_channels

def family(classes, input_shape):
    specs = tuple(SubmodelSpec(((1.0,),), width) for width in (0.5, 1.0))
    return Family(lambda spec: net(spec, classes, input_shape), specs, ())

def net(spec, classes, shape):
    wide = kept_channels(8, spec.stage_width(0))
    first = [nn.Conv2d(shape[0], wide, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(wide, classes))

def deeper(classes, input_shape):
    return Family(family(classes, input_shape).build, (SubmodelSpec(((1.0, 1.0),)),), ())
"""


def test_an_elastic_file_of_ones_own_model_asks_for_its_function(
    quick: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elastic_net.py").write_text(OWN_NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = with_settings(quick, {"model.name": "elastic_net:family", "rounds": 1})
    run = nefl.train(own, tmp_path / "run").path
    out = tmp_path / "e.safetensors"
    invoke("export", run, "-o", out, "--examples", 10)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "digit.png")
    asked = ("predict", out, tmp_path / "digit.png", "--json")
    with pytest.raises(RunError, match="name its function yourself: --model package.module"):
        invoke(*asked)
    with pytest.raises(RunError, match="'resnet8': give a function as package.module:function"):
        invoke(*asked, "--model", "resnet8")
    with pytest.raises(RunError, match="has no submodel like number 1"):
        invoke(*asked, "--model", "elastic_net:deeper")
    (found,) = json.loads(invoke(*asked, "--model", "elastic_net:family"))["predictions"]
    assert found["submodel"] == 2


def test_programs_that_train_take_no_other_options(tmp_path: Path) -> None:
    for wrong, message in (
        (("--quantize", "int8"), "leave out --fits, --quantize"),
        (("--best",), "leave out --fits, --quantize"),
        (("--all", "--submodel", 1), "--all and --submodel"),
    ):
        with pytest.raises(ConfigError, match=message):
            invoke("export", "digits", "--trainable", "-o", tmp_path / "out", *wrong)
    with pytest.raises(ConfigError, match="--all belongs to --trainable"):
        invoke("export", "digits", "--all", "-o", tmp_path / "out")
