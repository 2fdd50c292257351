import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import nefl.doctor
from nefl.cli.app import app
from nefl.doctor import Finding, Report, examine, largest_difference
from nefl.state import ServerState


def state_of(*values: float) -> ServerState:
    return ServerState(1, {"weight": torch.tensor(values)}, ())


class Trials:
    """Runs that come out as told, in their order, or raise what is told."""

    def __init__(self, *runs: tuple[ServerState, str, float] | Exception) -> None:
        self.runs = list(runs)

    def __call__(self, _folder: Path) -> "Trials":
        return self

    def run(self, _engine: dict[str, Any], _precision: str = "float32") -> Any:
        found = self.runs.pop(0)
        if isinstance(found, Exception):
            raise found
        return nefl.doctor._Trial(*found)

    def speed(self, _device: torch.device) -> tuple[float, float]:
        return 0.5, 1.0


def verdicts(report: Report) -> dict[str, str]:
    return {found.what: found.verdict for found in report.findings}


def test_what_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    good, other = (state_of(1.0, 2.0), "a", 2.0), (state_of(1.0, 2.0), "b", 3.0)
    monkeypatch.setattr("nefl.doctor._Trials", Trials(good, good, good, good, good))
    well = examine(["cpu"])
    assert not well.wrong
    assert verdicts(well)["trains in fp16"] == "not here"
    monkeypatch.setattr(
        "nefl.doctor._Trials", Trials(good, other, RuntimeError("no workers"), other, other)
    )
    ill = examine(["cpu"])
    assert [found.what for found in ill.wrong] == [
        "repeats to the bit",
        "workers agree with one process",
        "trains in bf16",
    ]
    assert "no workers" in ill.wrong[1].told
    monkeypatch.setattr("nefl.doctor._Trials", Trials(RuntimeError("nothing at all")))
    assert verdicts(examine(["cpu"])) == {"trains in float32": "wrong"}


def test_another_device_is_compared_with_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = (state_of(1.0, 2.001), "b", 2.0), (state_of(1.0, 2.1), "b", 2.0)
    cpu = [(state_of(1.0, 2.0), "a", 2.0)] * 5
    monkeypatch.setattr("nefl.doctor.gpus", lambda: (torch.device("cuda", 0),))
    monkeypatch.setattr("nefl.doctor.has_precision", lambda _p, device: device.type == "cpu")
    monkeypatch.setattr("nefl.doctor.describe_gpu", lambda device: {"device": str(device)})
    for there, verdict in ((near, "ok"), (far, "wrong")):
        runs = Trials(*cpu, *cpu[:2], there, there, there)
        monkeypatch.setattr("nefl.doctor._Trials", runs)
        report = examine()
        assert verdicts(report)["agrees with the CPU"] == verdict
        assert report.devices == ({"device": "cuda:0"},)
    assert largest_difference(state_of(float("nan")), state_of(1.0)) == float("inf")


def test_the_command_tells_by_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    known = nefl.doctor.about_machine()
    for verdict, code in (("ok", 0), ("wrong", 1)):
        found = Finding("trains in float32", "cpu", verdict, "told", {"loss": 1.0})  # type: ignore[arg-type]
        report = Report(known, (), (found,))

        def examined(_names: Any, tell: Any, report: Report = report) -> Report:
            tell(report.findings[0])
            return report

        monkeypatch.setattr("nefl.cli.doctor.examine", examined)
        shown = CliRunner().invoke(app, ["doctor", "-o", str(tmp_path / "report.json")])
        assert shown.exit_code == code
        assert "trains in float32: told" in shown.output
        written = json.loads((tmp_path / "report.json").read_text())
        assert written["healthy"] is (code == 0)
        assert json.loads(CliRunner().invoke(app, ["doctor", "--json"]).output) == written


@pytest.mark.long
def test_this_machine_is_well() -> None:
    report = examine(["cpu"])
    assert not report.wrong
    assert len(report.findings) == 7
