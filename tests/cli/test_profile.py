import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nefl.cli.app import app
from nefl.cli.profile import show_blocks
from nefl.config.reading import config_from, with_settings
from nefl.errors import OwnCodeError
from nefl.running.assembly import assemble
from nefl.wording import counted, show_bytes, show_count

from .conftest import call, run

FIELDS = {
    "index",
    "gamma_w",
    "gamma_d",
    "gamma",
    "width",
    "blocks",
    "params",
    "step_sizes",
    "macs",
    "macs_total",
    "train_macs",
    "train_memory_bytes",
    "payload_bytes",
    "wire",
}


def test_json_for_programs() -> None:
    result = CliRunner().invoke(app, ["profile", "resnet18", "--method", "nefl-wd", "--json"])
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert {"model", "method", "classes", "input", "submodels", "average", "min_coverage"} <= set(
        report
    )
    assert report["input"] == [3, 32, 32]
    assert [s["index"] for s in report["submodels"]] == [1, 2, 3, 4, 5]
    assert all(set(s) >= FIELDS for s in report["submodels"])
    assert report["submodels"][-1]["params"] == 11_173_962
    sent = report["submodels"][-1]["wire"]
    assert sent["float32"] == report["submodels"][-1]["payload_bytes"]
    # Statistics, counters and step sizes stay as they are.
    assert sent["bfloat16"] == sent["float32"] - 2 * 11_173_962
    assert f"{report['average']['params'] / 1e6:.3f}" == "6.711"
    assert report["min_coverage"] == 1
    assert report["uncovered_without_full"] > 2_000_000, "the outermost channels"
    assert report["expected_coverage"]["cohort"] == 10
    # Tiers 3, 4 and 5 draw the full model with 1/5, 1/4 and 1/3.
    expected = 10 * (1 / 5 + 1 / 4 + 1 / 3) / 5
    assert abs(report["expected_coverage"]["minimum"] - expected) < 1e-9


def test_a_recipe_is_costed_on_its_own_data(tmp_path: Path) -> None:
    """Its batches and cohort too; of data that is not in the table, examples are looked at."""
    recipe = tmp_path / "listed.toml"
    recipe.write_text(
        'rounds = 1\n[model]\nname = "mlp"\n[[model.members]]\nwidth = 0.5\n'
        '[[model.members]]\nwidth = 1.0\n[data]\nname = "breast-cancer"\n'
        "[local]\nbatch_size = 7\n[clients]\nper_round = 3\n"
    )
    for asked, expected in {
        ("digits",): ("nefl-wd", [1, 8, 8], 10, 32, 10, 5),
        ("digits", "--method", "nefl-w", "--ratios", "0.5,1", "--cohort", "4"): (
            *("nefl-w", [1, 8, 8], 10, 32, 4, 2),
        ),
        (str(recipe),): ("nefl-wd", [30], 2, 7, 3, 2),
        (str(recipe), "--classes", "3"): ("nefl-wd", [30], 3, 7, 3, 2),
    }.items():
        result = CliRunner().invoke(app, ["profile", *asked, "--json"])
        assert result.exit_code == 0, result
        report = json.loads(result.stdout)
        found = [report[key] for key in ("method", "input", "classes", "batch")]
        cohort, members = report["expected_coverage"]["cohort"], len(report["submodels"])
        assert (*found, cohort, members) == expected


TRAINED: dict[str, dict[str, Any]] = {
    "optimiser": {"local.optimizer": "adam"},
    "sets": {"model.method": "scaffold"},
    "wire": {"wire.down": "int8", "wire.up": "bfloat16"},
    "within": {
        "model.method": "within",
        "model.method_options.from_round": 3,
        "model.method_options.every": 2,
    },
}


@pytest.mark.parametrize("what", TRAINED)
def test_a_recipe_is_priced_as_its_run_is(what: str, quick: dict[str, Any], tmp_path: Path) -> None:
    settings = with_settings(quick, TRAINED[what])
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(settings))
    result = CliRunner().invoke(app, ["profile", str(recipe), "--json"])
    assert result.exit_code == 0, result
    shown = json.loads(result.stdout)["submodels"]
    for row, price in zip(shown, assemble(config_from(settings)).profiles(), strict=True):
        for key in ("train_macs", "train_memory_bytes", "down_bytes", "up_bytes"):
            assert row[key] == getattr(price, key), key


OWN_TABLE = """
import nefl

def make(outputs, input_shape):
    return nefl.make_family("mlp", "nefl-w", classes=outputs, input_shape=input_shape)
"""


def test_a_model_of_ones_own_for_other_things_than_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_table.py").write_text(OWN_TABLE)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        'rounds = 1\n[model]\nname = "own_table:make"\n[data]\nname = "breast-cancer"\n'
    )
    for asked in ([str(recipe)], ["own_table:make", "--input", "30", "--classes", "2"]):
        result = CliRunner().invoke(app, ["profile", *asked, "--json"])
        assert result.exit_code == 0, result
        report = json.loads(result.stdout)
        assert (report["input"], report["classes"]) == ([30], 2)


def test_table_for_people() -> None:
    result = CliRunner().invoke(app, ["profile", "resnet18", "--method", "nefl-d"])
    assert result.exit_code == 0
    assert "11 00 11 00" in result.stdout
    assert "11.174M" in result.stdout
    assert "the paper's table" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet19"], "did you mean 'resnet18'"),
        (["resnet18", "--method", "fedsgd"], "method 'fedsgd' is unknown"),
        (["resnet18", "--ratios", "0.5,0.2,1"], "increasing"),
        (["resnet18", "--ratios", "a,b"], "give numbers"),
        (["resnet18", "--input", "32x32"], "channels, height and width"),
        (["resnet18", "--input", "3x2x2"], "8 to 1024"),
        (["resnet18", "--classes", "0"], "outputs 0"),
        (["resnet18", "--batch", "0"], "batch 0"),
        (["digits", "--cohort", "0"], "cohort 0"),
        (["nowhere.toml"], "nowhere.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    result = call("profile", *arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr


def test_a_word_for_a_number_is_exit_code_2() -> None:
    result = call("profile", "resnet18", "--classes", "ten")
    assert result.returncode == 2
    assert "--classes" in result.stderr


def test_writing_for_people() -> None:
    assert [counted(n, "round") for n in (0, 1, 2)] == ["0 rounds", "1 round", "2 rounds"]
    assert show_blocks(((1, 0, 1), (1,) * 4 + (0,) * 5)) == "101 4/9"
    assert show_blocks(((1,) * 7 + (0,) * 10 + (1,),)) == "8/18*"
    assert show_blocks(((1, 8) + (0,) * 7,)) == "2/9≤8"
    assert [show_bytes(n) for n in (5, 2048, 3 << 20, 5 << 30)] == [
        "5 B",
        "2.0 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [show_count(n) for n in (5, 175_300, 6_711_000, 140.2e6)] == [
        "5",
        "175.3K",
        "6.711M",
        "140.2M",
    ]


FUSED = """
from torch import nn
from nefl import Family, SubmodelSpec
from nefl.nesting.spec import kept_channels

class Net(nn.Module):
    def __init__(self, channels, classes, inputs):
        super().__init__()
        self.stem = nn.Linear(inputs, channels)
        self.pair = nn.Linear(channels, 2 * channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        gate, value = self.pair(self.stem(x.mean((2, 3)))).chunk(2, -1)
        return self.head(gate.sigmoid() * value)

class Apart(Net):
    def __init__(self, channels, classes, inputs):
        super().__init__(channels, classes, inputs)
        self.pair = nn.Linear(channels, channels)

    def forward(self, x):
        return self.head(self.pair(self.stem(x.mean((2, 3)))).relu())

SPECS = SubmodelSpec(((1.0,),), width=0.5), SubmodelSpec(((1.0,),))

def fused(classes, input_shape):
    return Family(lambda s: Net(kept_channels(8, s.stage_width(0)), classes, input_shape[0]), SPECS)

class Flat(Apart):
    def forward(self, x):
        return self.head(self.stem(x.flatten(1)))

def flat(classes, input_shape):
    return Family(lambda s: Flat(kept_channels(8, s.stage_width(0)), classes, 64), SPECS)

def apart(classes, input_shape):
    return Family(
        lambda s: Apart(kept_channels(8, s.stage_width(0)), classes, input_shape[0]), SPECS
    )
"""


@pytest.mark.long
def test_a_model_of_ones_own_is_profiled_if_its_corners_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "fusednet.py").write_text(FUSED, encoding="utf-8")
    good = run("profile", "fusednet:apart", "--input", "1x8x8", "--json", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert len(json.loads(good.stdout)["submodels"]) == 2
    bad = run("profile", "fusednet:fused", "--input", "1x8x8", cwd=tmp_path)
    assert (bad.returncode, bad.stdout) == (2, "")
    # Its rows are the full layer's; what departs is what the whole makes of them.
    assert "head: submodel 1 gives another output there" in bad.stderr
    assert "axes of their own" in bad.stderr


def test_what_is_said_of_a_model_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fusednet_told.py").write_text(FUSED, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    invoke = CliRunner().invoke
    own = ["profile", "fusednet_told:apart"]
    told = " ".join(invoke(app, [*own, "--input", "1x8x8", "--cohort", "1"]).stdout.split())
    assert "submodels from the user's own list" in told
    assert "an element is in 1 submodel or more" in told
    assert "of 1 client or more" in told
    for nothing in (["--classes", "0"], ["--input", "0x8x8"]):
        assert ": give " in str(invoke(app, [*own, *nothing]).exception)
    guessed = invoke(app, ["profile", "fusednet_told:flat"]).exception
    assert isinstance(guessed, OwnCodeError)
    assert "3x32x32 was taken: give that of your data" in str(guessed)
    assert isinstance(guessed.__cause__, RuntimeError)


def test_a_model_whose_corners_mean_something_else_is_not_trained(tmp_path: Path) -> None:
    (tmp_path / "fusednet.py").write_text(FUSED, encoding="utf-8")
    result = run("train", "--set", "model.name=fusednet:fused", "--out", "run", cwd=tmp_path)
    assert result.returncode == 2
    assert "submodel 1 gives another output" in result.stderr
    assert not (tmp_path / "run").exists()


def test_members_within_are_charged_for() -> None:
    def shown(method: str) -> list[dict[str, Any]]:
        result = CliRunner().invoke(app, ["profile", "resnet8", "--method", method, "--json"])
        submodels: list[dict[str, Any]] = json.loads(result.stdout)["submodels"]
        return submodels

    plain, within = shown("nefl-d"), shown("within")
    assert within[0] == plain[0], "nothing is inside the smallest"
    alone, full = plain[-1], within[-1]
    assert full["train_macs"] == alone["train_macs"] + plain[0]["train_macs"]
    assert full["train_memory_bytes"] > alone["train_memory_bytes"]
    assert full["payload_bytes"] == full["wire"]["float32"] > alone["payload_bytes"]
    assert full["macs_total"] == alone["macs_total"]
