"""What all tests share: a cache of their own, so that no test sees or changes the user's."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from playwright.sync_api import Browser, sync_playwright

# How long an example takes says something of the machine, not of the code.
settings.register_profile("nefl", deadline=None)
settings.load_profile("nefl")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["NEFL_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    # Tests run in a process for each core: more threads would only wait for each other.
    torch.set_num_threads(1)


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start workers as copies of this process, which takes no time.

    Not for what only a new process shows: how it starts and dies, and code that it has to import.
    """
    from tests.forked import PROCESSES

    monkeypatch.setattr("nefl.engines.workers.subprocess", PROCESSES)


@pytest.fixture
def quick() -> dict[str, Any]:
    """Settings of a run that takes a second."""
    return {
        "rounds": 4,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits", "train": 200, "test": 100},
        "clients": {"count": 20, "per_round": 4},
        "local": {"epochs": 1, "batch_size": 8},
        "server": {"evaluate_every": 2, "checkpoint_every": 1},
        "engine": {"name": "serial", "device": "cpu"},
    }


@pytest.fixture
def cifar10() -> Path:
    """The real CIFAR-10, where it is at hand."""
    given = os.environ.get("NEFL_TEST_CIFAR10")
    beside = Path(__file__).parents[2] / "shared" / "data" / "cifar10"
    path = Path(given) if given else beside
    if not path.is_dir():
        pytest.skip("needs CIFAR-10 as parquet files; set NEFL_TEST_CIFAR10 to its folder")
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium, where one is installed; nothing it does may leave the machine."""
    path = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
    )
    if not path:
        pytest.skip("needs Chromium: install it (Debian: apt-get install chromium)")
    quiet = (
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
    )
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, headless=True, args=quiet)
        yield found
        found.close()


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on digits, to export from; do not change it."""
    import nefl

    out = tmp_path_factory.mktemp("runs") / "digits"
    settings_ = {
        "rounds": 6,
        "model": {"name": "resnet8", "method": "nefl-wd"},
        "data": {"name": "digits", "train": 600, "test": 200},
        "clients": {"count": 10, "per_round": 5},
        "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.05},
        "server": {"evaluate_every": 6, "checkpoint_every": 6},
        "engine": {"name": "serial", "device": "cpu"},
    }
    return nefl.train(settings_, out).path


@pytest.fixture(scope="session")
def elastic_file(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole family of that run in one file; do not change it."""
    import nefl

    out = tmp_path_factory.mktemp("files") / "digits.safetensors"
    return nefl.export_family(digits_run, out, examples=100).path


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of `transformers` in a folder, tiny and with random weights; do not change it."""
    from nefl.models.base import need_text

    transformers = need_text("transformers")
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=260,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.LlamaForCausalLM(config)
    folder = tmp_path_factory.mktemp("llama") / "base"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def lora_settings(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Settings of a run that tunes adapters on it for a second."""
    texts = tmp_path_factory.mktemp("texts")
    for client in range(4):
        lines = [f"the {a}{client} sees the {b}" for a in range(8) for b in range(8)]
        (texts / f"client{client}.txt").write_text("\n".join(lines))
    return {
        "rounds": 2,
        "model": {
            "name": "lora",
            "method": "lora",
            "options": {"base": str(llama), "ranks": [1, 2, 4], "targets": ["q_proj", "up_proj"]},
        },
        "data": {"name": "text", "root": str(texts), "options": {"length": 16}},
        "partition": {"kind": "owner"},
        "clients": {"count": 4, "per_round": 3, "capability": "fixed"},
        "local": {
            "epochs": 1, "batch_size": 16, "optimizer": "adamw", "learning_rate": 0.02,
        },
        "schedule": {"name": "constant"},
        "server": {"evaluate_every": 2, "checkpoint_every": 1},
        "engine": {"name": "serial", "device": "cpu"},
    }  # fmt: skip


@pytest.fixture(scope="session")
def lora_run(lora_settings: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of adapters, to export from; do not change it."""
    import nefl

    return nefl.train(lora_settings, tmp_path_factory.mktemp("runs") / "lora").path


TASK_RUNS: dict[str, dict[str, Any]] = {
    "next-token": {
        "model": {"name": "decoder_tiny"}, "data": {"name": "text", "options": {"length": 16}},
    },
    "text-classification": {
        "model": {"name": "decoder_tiny"},
        "data": {"name": "json-lines", "options": {"length": 16}},
    },
    "table-classification": {"model": {"name": "mlp"}, "data": {"name": "breast-cancer"}},
    "table-regression": {"model": {"name": "mlp"}, "data": {"name": "diabetes"}},
    "series-classification": {
        "model": {"name": "conv1d"}, "data": {"name": "digit-strokes", "train": 200, "test": 50},
    },
}  # fmt: skip


class _TaskRuns(dict[str, Path]):
    """Finished runs by kind of task, trained when they are first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, kind: str) -> Path:
        import nefl

        settings_ = {
            "rounds": 1,
            "clients": {"count": 4, "per_round": 2},
            "local": {"epochs": 1, "batch_size": 16, "learning_rate": 0.005},
            "server": {"evaluate_every": 1, "checkpoint_every": 1},
            "engine": {"name": "serial", "device": "cpu"},
            **TASK_RUNS[kind],
        }
        model = {"method": "nefl-wd", "ratios": [0.3, 1.0], **settings_["model"]}
        data = dict(settings_["data"])
        if data["name"] == "text":
            data["root"] = str(self._folder / "words.txt")
            words = [f"the {a} sees the {b}" for a in ("cat", "dog") for b in ("tree", "river")]
            Path(data["root"]).write_text("\n".join(words * 10))
        if data["name"] == "json-lines":
            data["root"] = str(self._folder / "words.jsonl")
            lines = [
                f'{{"text": "it is {w} {n}", "label": "{w}"}}'
                for n in range(40)
                for w in ("so", "not so")
            ]
            Path(data["root"]).write_text("\n".join(lines))
        made = nefl.train({**settings_, "model": model, "data": data}, self._folder / kind)
        self[kind] = made.path
        return made.path


@pytest.fixture(scope="session")
def task_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Finished runs by kind of task, to export from; do not change them."""
    return _TaskRuns(tmp_path_factory.mktemp("tasks"))
