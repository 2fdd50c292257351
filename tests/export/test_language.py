"""Language models as folders: transformers and peft open them, and give the same logits."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import nefl
from nefl.errors import ConfigError, NeflError, RunError
from nefl.export.source import open_run
from nefl.models.base import need_text, open_folder
from nefl.nesting.corners import extract
from nefl.nesting.frozen import load_learned
from nefl.running.assembly import assemble
from nefl.serving.predictor import Predictor


def trained_logits(run: Path, submodel: int) -> tuple[torch.Tensor, torch.Tensor]:
    source = open_run(run)
    tokens, _ = source.test_batch(8)
    with torch.no_grad():
        return tokens, source.submodel(submodel)(tokens)


def test_an_adapter_opens_in_peft_over_the_base(
    lora_run: Path, llama: Path, tmp_path: Path
) -> None:
    done = nefl.export_submodel(
        lora_run, tmp_path / "adapter", submodel=2, format_name="peft", examples=8
    )
    assert done.size < (llama / "model.safetensors").stat().st_size
    transformers, peft = need_text("transformers"), need_text("peft")
    base = transformers.AutoModelForCausalLM.from_pretrained(llama)
    model = peft.PeftModel.from_pretrained(base, str(done.path)).eval()
    tokens, wanted = trained_logits(lora_run, 2)
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[..., : wanted.shape[-1]]
        plain = model.unload()(input_ids=tokens).logits[..., : wanted.shape[-1]]
    assert torch.allclose(logits, wanted, atol=1e-4)
    assert not torch.allclose(plain, wanted, atol=1e-3)  # the adapter does something
    settings = json.loads((done.path / "adapter_config.json").read_text())
    assert (settings["r"], settings["lora_alpha"]) == (2, 4)
    assert Predictor(done.path)(b"the cat").answers[0].values["tokens"] > 0


def test_an_adapter_over_another_base_is_refused(lora_run: Path, tmp_path: Path) -> None:
    done = nefl.export_submodel(
        lora_run, tmp_path / "adapter", submodel=1, format_name="peft", examples=8
    )
    said = json.loads((done.path / "nefl.json").read_text())
    other = said | {"card": said["card"] | {"base": "0" * 64}}
    (done.path / "nefl.json").write_text(json.dumps(other))
    with pytest.raises(RunError, match="was trained on another base"):
        nefl.open_model(done.path)
    (done.path / "nefl.json").write_text(json.dumps(said))
    config = done.path / "adapter_config.json"
    named = json.loads(config.read_text())
    config.write_text(json.dumps(named | {"base_model_name_or_path": "meta-llama/any"}))
    with pytest.raises(RunError, match=r"its base, 'meta-llama/any', is no folder here"):
        nefl.open_model(done.path)
    config.write_text(json.dumps(named))
    nefl.open_model(done.path)
    weights = done.path / "adapter_model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-2] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(RunError, match="is damaged: adapter_model.safetensors is not what was"):
        nefl.open_model(done.path)
    weights.unlink()
    with pytest.raises(RunError, match="is damaged: adapter_model.safetensors"):
        nefl.open_model(done.path)
    (done.path / "nefl.json").write_text("{}")
    with pytest.raises(RunError, match="its nefl.json is damaged"):
        nefl.open_model(done.path)


def test_a_merged_member_opens_in_transformers(lora_run: Path, tmp_path: Path) -> None:
    done = nefl.export_submodel(
        lora_run, tmp_path / "merged", submodel=3, format_name="huggingface", examples=8
    )
    model = need_text("transformers").AutoModelForCausalLM.from_pretrained(done.path).eval()
    tokens, wanted = trained_logits(lora_run, 3)
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[..., : wanted.shape[-1]]
    assert torch.allclose(logits, wanted, atol=1e-4)
    assert not any("lora" in name for name in model.state_dict())
    with pytest.raises(RunError, match="is there already; name a folder that is not"):
        nefl.export_submodel(lora_run, done.path, submodel=3, format_name="huggingface")


def test_a_member_of_the_decoder_is_a_llama(task_runs: dict[str, Path], tmp_path: Path) -> None:
    run = task_runs["next-token"]
    for submodel in (1, 2):
        path = tmp_path / str(submodel)
        nefl.export_submodel(run, path, submodel=submodel, format_name="huggingface", examples=8)
        model = need_text("transformers").AutoModelForCausalLM.from_pretrained(path).eval()
        assert type(model).__name__ == ("MistralForCausalLM", "LlamaForCausalLM")[submodel - 1]
        tokens, wanted = trained_logits(run, submodel)
        with torch.no_grad():
            assert torch.allclose(model(input_ids=tokens).logits, wanted, atol=1e-4)
    assert Predictor(path)(b"the cat").submodel == 2


def test_adapters_in_one_elastic_file(lora_run: Path, tmp_path: Path) -> None:
    done = nefl.export_family(lora_run, tmp_path / "all.safetensors", examples=8)
    family = open_run(lora_run).setting.family
    tokens, wanted = trained_logits(lora_run, 1)
    with torch.no_grad():
        assert torch.allclose(nefl.load(done.path, family).model(1)(tokens), wanted, atol=1e-5)
    with pytest.raises(RunError, match="'lora' is no model of nefl's own"):
        nefl.load(done.path)


def test_what_is_no_language_model_is_refused(
    digits_run: Path, task_runs: dict[str, Path], tmp_path: Path
) -> None:
    for form in ("huggingface", "peft"):
        with pytest.raises(ConfigError, match=f"format {form}: resnet8 is no"):
            nefl.export_submodel(digits_run, tmp_path / form, submodel=1, format_name=form)
    with pytest.raises(ConfigError, match="decoder_tiny is no model for the next token"):
        nefl.export_submodel(
            task_runs["text-classification"], tmp_path / "x", submodel=1, format_name="huggingface"
        )
    assert not list(tmp_path.iterdir())
    (tmp_path / "empty").mkdir()
    with pytest.raises(NeflError, match="has no nefl.json"):
        nefl.open_model(tmp_path / "empty")


def test_a_llama_in_a_folder_starts_a_nested_decoder(
    task_runs: dict[str, Path], tmp_path: Path
) -> None:
    run = task_runs["next-token"]
    nefl.export_submodel(run, tmp_path / "llama", submodel=2, format_name="huggingface", examples=8)
    config = open_run(run).setting.config
    begun = assemble(replace(config, model=replace(config.model, weights=str(tmp_path / "llama"))))
    state, family = begun.initial_state(), begun.family
    tokens, wanted = trained_logits(run, 2)
    module = family.build(family.specs[-1]).eval()
    load_learned(module, extract(state, family, 2))
    with torch.no_grad():
        assert torch.allclose(module(tokens), wanted, atol=1e-4)
    assert begun.identity()["weights"] == open_folder(tmp_path / "llama").checksum
    small = family.build(family.specs[0])
    load_learned(small, extract(state, family, 1))
    assert small(tokens).shape == wanted.shape
