"""Adapters over Flower: the same bits, messages without the base, and a base that is another."""

import shutil
from pathlib import Path
from typing import Any, cast

import nefl
from nefl.artifacts.notes import read_log
from nefl.config.reading import with_settings
from nefl.engines.flower.messages import ARRAYS, WEIGHTS
from nefl.engines.flower.server.mailbox import Grid
from nefl.flower import connect_to, site_client

from .conftest import LocalGrid, population

QUICK = {"engine.flower": {"patience": 0.2, "deadline": 30.0, "poll": 0.01}}


def test_the_same_bits_and_no_base_in_a_message(
    lora_settings: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    settings = with_settings(lora_settings, {"model.method": "lora-products", **QUICK})
    here = nefl.train(settings, tmp_path / "here")
    shutil.copytree(llama, tmp_path / "moved")
    nodes = population(4)
    next(iter(nodes.values()))["model-base"] = str(tmp_path / "moved")
    grid = LocalGrid(site_client(), nodes)
    there = nefl.train(settings, tmp_path / "there", connect=connect_to(cast("Grid", grid)))
    assert here.summary["state_sha256"] == there.summary["state_sha256"]
    assert there.summary["failures"] == 0
    tensors = 4 * 6 * (16 + 16 + 16 + 24) // 2  # rank 1: three blocks, two maps, A and B, float32
    found = {
        len(message.content.array_records[ARRAYS][WEIGHTS].data)
        for message in grid.sent
        if message.metadata.message_type == "train"
    }
    assert tensors < min(found) < tensors + 12 * 150  # names and shapes beside them
    assert max(found) < (llama / "model.safetensors").stat().st_size / 2


def test_a_node_with_another_base_is_refused(
    lora_settings: dict[str, Any], llama: Path, tmp_path: Path
) -> None:
    shutil.copytree(llama, tmp_path / "other")
    weights = tmp_path / "other" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-2] ^= 1
    weights.write_bytes(damaged)
    nodes = population(4)
    next(iter(nodes.values()))["model-base"] = str(tmp_path / "other")
    changes = {**QUICK, "rounds": 1, "clients.per_round": 4, "server.quorum": 0.5}
    settings = with_settings(lora_settings, changes)
    grid = LocalGrid(site_client(), nodes)
    nefl.train(settings, tmp_path / "run", connect=connect_to(cast("Grid", grid)))
    rounds = [event for event in read_log(tmp_path / "run") if event["event"] == "round"]
    (failure,) = rounds[0]["failures"]
    assert "the base under the adapters is another here" in str(failure)
