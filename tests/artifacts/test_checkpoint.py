import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nefl.artifacts.checkpoint import load_state, save_state, state_sha256
from nefl.artifacts.kept import checkpoints
from nefl.artifacts.notes import METRICS, read_log, stored_config
from nefl.artifacts.runfolder import RunFolder
from nefl.artifacts.tensorfile import read_tensors, save_tensors
from nefl.config import RunConfig
from nefl.errors import RunError
from nefl.files import write_atomically
from nefl.methods import make_family
from nefl.server.stepping import remembering
from nefl.server.steps import Adam
from nefl.state import ServerState

FAMILY = make_family("resnet8", "nefl-wd")


def state(seed: int = 0, round_number: int = 3) -> ServerState:
    fresh = FAMILY.initial_state(seed)
    return ServerState(round_number, fresh.shared, fresh.per_submodel)


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_state(path, state(), note="x")
    back = load_state(path, FAMILY)
    assert back.round_number == 3
    assert state_sha256(back) == state_sha256(state())
    assert list(back.shared) == list(FAMILY.global_layout)
    assert all(torch.equal(back.shared[n], t) for n, t in state().shared.items())


def test_the_checksum_sees_every_value_name_and_place() -> None:
    base = state_sha256(state())
    assert base == state_sha256(state(round_number=9)), "of weights, not of rounds"
    assert base != state_sha256(state(seed=1))
    changed = state()
    changed.per_submodel[2]["bn1.running_mean"][0] += 1e-7
    assert base != state_sha256(changed)
    swapped = ServerState(3, changed.shared, state().per_submodel[::-1])
    assert base != state_sha256(swapped)


@pytest.mark.parametrize("damage", ["flip", "truncate", "header", "empty", "text", "missing"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "c.safetensors"
    save_state(path, state())
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[-1000] ^= 1
    elif damage == "truncate":
        data = data[:-500]
    elif damage == "header":
        data[:8] = b"\xff" * 8
    elif damage == "empty":
        data = bytearray()
    elif damage == "text":
        data = bytearray(b"not a checkpoint")
    path.write_bytes(data)
    if damage == "missing":
        path.unlink()
    with pytest.raises(RunError, match=r"c\.safetensors: (is|cannot be read)"):
        load_state(path, FAMILY)


def test_another_models_checkpoint_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_state(path, state())
    with pytest.raises(RunError, match="another model"):
        load_state(path, make_family("resnet8", "nefl-w"))
    with pytest.raises(RunError, match="another model"):
        load_state(path, make_family("resnet20", "nefl-wd"))


def test_a_steps_memory_is_part_of_the_state(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    kept = remembering(state(), FAMILY, Adam())
    assert state_sha256(kept) != state_sha256(state())
    save_state(path, kept)
    back = load_state(path, FAMILY)
    assert back.memory.keys() == kept.memory.keys()
    assert state_sha256(back) == state_sha256(kept)
    lame = {n: t for n, t in kept.memory.items() if n != "variance/shared/fc.bias"}
    save_state(path, replace(kept, memory=lame))
    with pytest.raises(RunError, match=r"only the model has variance/shared/fc\.bias"):
        load_state(path, FAMILY)
    save_state(path, replace(kept, memory={**kept.memory, "evil": torch.ones(3)}))
    with pytest.raises(RunError, match="another model: only the"):
        load_state(path, FAMILY)


def test_tied_weights_are_stored_under_both_names(tmp_path: Path) -> None:
    plain = state()
    first, second = "layer1.0.conv1.weight", "layer1.0.conv2.weight"
    tied = replace(plain, shared={**plain.shared, second: plain.shared[first]})
    save_state(tmp_path / "c.safetensors", tied)
    back = load_state(tmp_path / "c.safetensors", FAMILY)
    assert state_sha256(back) == state_sha256(tied)
    one = torch.nn.Linear(2, 2)
    views = {"a": one.weight, "b": one.weight, "row": one.weight[0]}
    save_tensors(tmp_path / "views.safetensors", views, {})
    _, found = read_tensors(tmp_path / "views.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in views.items())


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("old")

    def full(beside: Path) -> None:
        beside.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(RunError, match="f: cannot be written .No space left"):
        write_atomically(path, full)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


SAVE_ON_A_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from nefl.artifacts.checkpoint import save_state
from nefl.errors import RunError
from nefl.methods import make_family
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    save_state(Path(sys.argv[1]), make_family("resnet8", "nefl-wd").initial_state(1))
except RunError as error:
    sys.exit(str(error))
"""


def test_a_real_write_that_the_system_refuses(tmp_path: Path) -> None:
    path = tmp_path / "c.safetensors"
    save_state(path, state())
    before = path.read_bytes()
    result = subprocess.run(
        [sys.executable, "-c", SAVE_ON_A_FULL_DISK, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 1
    assert "c.safetensors: cannot be written" in result.stderr
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_folder_is_new_or_empty(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", RunConfig(rounds=7)).close()
    assert stored_config(tmp_path / "run").rounds == 7
    with pytest.raises(RunError, match="exists; resume it"):
        RunFolder.create(tmp_path / "run", RunConfig())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    with pytest.raises(RunError, match="it is not empty"):
        RunFolder.create(tmp_path / "other", RunConfig())
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be made"):
        RunFolder.create(tmp_path / "file", RunConfig())
    with pytest.raises(RunError, match="no run's folder"):
        RunFolder(tmp_path / "other")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", RunConfig())
    with pytest.raises(RunError, match=f"in use by another process .number {os.getpid()}"):
        RunFolder(tmp_path / "run")
    first.close()
    RunFolder(tmp_path / "run").close()


def test_the_log_survives_a_line_that_was_cut_off(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RunConfig())
    folder.log("round", round=1)
    folder.close()
    log = tmp_path / "run" / METRICS
    log.write_text(log.read_text() + '{"event": "round", "rou')
    folder = RunFolder(tmp_path / "run")
    folder.log("round", round=2)
    folder.close()
    assert [e["round"] for e in read_log(tmp_path / "run")] == [1, 2]


def test_the_newest_whole_checkpoint_is_taken(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", RunConfig())
    assert folder.load_newest(FAMILY) == (None, [])
    for round_number in (1, 2, 3, 4):
        folder.save_checkpoint(state(round_number, round_number), keep=3)
    names = [p.name for p in checkpoints(folder.path)]
    assert names == [f"round-{n:07d}.safetensors" for n in (4, 3, 2)]
    newest = checkpoints(folder.path)[0]
    newest.write_bytes(newest.read_bytes()[:-9])
    found, problems = folder.load_newest(FAMILY)
    assert found is not None
    assert found.round_number == 3
    assert len(problems) == 1
    assert "round-0000004" in problems[0]
    for path in checkpoints(folder.path):
        path.write_bytes(b"")
    with pytest.raises(RunError, match="no checkpoint can be used: .*round-0000004"):
        folder.load_newest(FAMILY)
    folder.close()
