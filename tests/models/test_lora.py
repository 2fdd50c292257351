"""Adapters nested by rank on a frozen base: what they are, what is refused, and whole runs."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import nefl
from nefl.cli.dry_run import _of_texts, cost_report
from nefl.config.reading import config_from, with_settings
from nefl.errors import ConfigError, DataError, NeflError, RunError
from nefl.estimate import estimate_run
from nefl.models.base import MadeBase, open_folder
from nefl.models.lora import Heads, LoraModel
from nefl.models.ranks import lora_family
from nefl.nesting.frozen import learned_state, load_learned
from nefl.nesting.signature import Signature
from nefl.nesting.zero_extension import check_family
from nefl.rounds import run_round
from nefl.running.assembly import assemble

TAKES = Signature((16,), 256, tokens=256, each_token=True)
ALL = ("q_proj", "v_proj", "*.mlp.*_proj")
Settings = dict[str, Any]


def plain_base(outputs: int, input_shape: tuple[int, ...]) -> nn.Module:
    """A base of one's own: no language model, drawn from a generator that starts anew."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(input_shape[0], 12), nn.BatchNorm1d(12), nn.Linear(12, outputs)
    )


def narrow_base(outputs: int, input_shape: tuple[int, ...]) -> nn.Module:
    """A base that does not give what the task asks for."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(input_shape[0], 12), nn.Identity(), nn.Linear(12, outputs + 1)
    )


def test_a_smaller_rank_is_the_leading_corner(llama: Path) -> None:
    family = lora_family(llama, TAKES, ranks=[2, 4, 8], targets=ALL)
    check_family(family, TAKES.noise(2))
    a, b = (f"base.model.layers.0.self_attn.q_proj.lora_{x}.default.weight" for x in "AB")
    assert [family.layout(k)[a].shape for k in (1, 2, 3)] == [(2, 16), (4, 16), (8, 16)]
    assert [family.layout(k)[b].shape for k in (1, 2, 3)] == [(16, 2), (16, 4), (16, 8)]
    assert all("lora" in name for name in family.layout(3))
    assert len(family.layout(3)) == 2 * 3 * 5
    assert family.base_checksum == open_folder(llama).checksum


@pytest.mark.parametrize("cut", [False, True])
def test_nested_in_depth(llama: Path, cut: bool) -> None:
    family = lora_family(llama, TAKES, ranks=[2, 2, 4], depths=[1, 2, 3], cut=cut, targets=ALL)
    check_family(family, TAKES.noise(2))
    assert [len(family.layout(k)) for k in (1, 2, 3)] == [10, 20, 30]
    kept = len({name for name in family.frozen(1) if ".layers.2." in name})
    assert (kept == 0) == cut
    tokens = TAKES.noise(2)
    small = family.build(family.specs[0]).eval()
    layers = small.base.model.layers  # type: ignore[union-attr]
    assert len(layers) == (1 if cut else 3)  # type: ignore[arg-type]
    assert small(tokens).shape == (2, 16, 256)


def test_members_share_the_base_that_a_process_loads_once(llama: Path) -> None:
    family = lora_family(llama, TAKES, ranks=[1, 2], targets=["q_proj"])
    small, large = (family.build(spec).state_dict() for spec in family.specs)
    for name in family.frozen(2):
        assert small[name].data_ptr() == large[name].data_ptr(), name
    untouched = family.build(family.specs[1]).eval()
    from nefl.export.huggingface import load_causal

    alone, tokens = load_causal(llama), TAKES.noise(2)
    with torch.no_grad():
        assert torch.equal(untouched(tokens), alone(tokens).logits[..., :256])


def test_merging_leaves_the_base_alone(llama: Path) -> None:
    family = lora_family(llama, TAKES, ranks=[1, 3], targets=ALL, alpha=6)
    module = family.build(family.specs[-1]).eval()
    assert isinstance(module, LoraModel)
    assert module.scaling == 2.0
    load_learned(module, {n: torch.randn_like(t) / 4 for n, t in learned_state(module).items()})
    tokens, before = TAKES.noise(2), family.build(family.specs[-1]).state_dict()
    before = {name: before[name].clone() for name in family.frozen(2)}
    with torch.no_grad():
        wanted = module(tokens)
        merged = copy.deepcopy(module).plain()
        assert torch.allclose(merged(tokens), wanted, atol=1e-4)
    assert not any("lora" in name for name in merged.state_dict())
    again = family.build(family.specs[-1]).state_dict()
    assert all(torch.equal(again[name], tensor) for name, tensor in before.items())


def test_a_base_with_transposed_maps(tmp_path: Path) -> None:
    from nefl.models.base import need_text

    transformers = need_text("transformers")
    config = transformers.GPT2Config(vocab_size=256, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    family = lora_family(tmp_path / "gpt2", TAKES, ranks=[1, 2], targets=["c_attn"])
    check_family(family, TAKES.noise(2))
    name = "base.transformer.h.0.attn.c_attn.lora_B.default.weight"
    assert family.layout(2)[name].shape == (48, 2)
    module = family.build(family.specs[-1]).eval()
    load_learned(module, {n: torch.randn_like(t) for n, t in learned_state(module).items()})
    tokens = TAKES.noise(2)
    with torch.no_grad():
        wanted = module(tokens)
        assert torch.allclose(module.plain()(tokens), wanted, atol=1e-3)  # type: ignore[operator]


def test_a_model_that_sees_what_comes_is_no_base(tmp_path: Path) -> None:
    """Transformers opens a BERT as a causal model; trained so, it would copy the answer."""
    from nefl.models.base import need_text

    transformers = need_text("transformers")
    config = transformers.BertConfig(
        vocab_size=256, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path / "bert")
    family = lora_family(tmp_path / "bert", TAKES, ranks=[1, 2], targets=["query"])
    with pytest.raises(DataError, match="type 'bert' that looks at the tokens to come"):
        family.build(family.specs[0])


def test_heads_between_frozen_bases_nest_and_average_exactly(llama: Path) -> None:
    family = lora_family(llama, TAKES, ranks=[2, 4, 8], targets=ALL, heads=True)
    check_family(family, TAKES.noise(2))
    name = "base.model.layers.0.self_attn.q_proj.lora_B.default"
    layouts = [family.layout(k) for k in (1, 2, 3)]
    assert [layout[f"{name}.cores"].shape for layout in layouts] == [
        (1, 2, 2), (2, 2, 2), (4, 2, 2),
    ]  # fmt: skip
    assert all(n.endswith("cores") for n in layouts[-1])
    small, heads = (family.build(family.specs[k]).get_submodule(name) for k in (0, 2))
    assert isinstance(small, Heads)
    assert isinstance(heads, Heads)
    assert torch.equal(small.basis, heads.basis[:, :2])
    torch.nn.init.normal_(heads.cores)
    x = torch.randn(3, 8)
    assert torch.allclose(heads(x), x @ heads.weight.T, atol=1e-5)
    # The sum over heads, by hand.
    parts = [heads.basis[:, 2 * h : 2 * h + 2] @ heads.cores[h] for h in range(4)]
    assert torch.allclose(heads.weight, torch.cat(parts, 1), atol=1e-6)
    with pytest.raises(ConfigError, match=r"ranks \(2, 4, 8\): give multiples of .*head.* is 4"):
        lora_family(llama, TAKES, ranks=[2, 4, 8], targets=ALL, heads=True, head=4)
    with pytest.raises(ConfigError, match="model.options.head: .* under model.method lora-heads"):
        lora_family(llama, TAKES, ranks=[2, 4, 8], targets=ALL, head=2)


def test_a_that_is_frozen_is_the_same_at_every_rank_and_place(llama: Path) -> None:
    def drawn(rank: int, **options: Any) -> torch.Tensor:
        made = lora_family(
            llama, TAKES, ranks=[rank, 4], targets=["q_proj"], fixed_a=True, **options
        )
        assert not any("lora_A" in name for name in made.layout(1))
        name = "base.model.layers.1.self_attn.q_proj.lora_A.default.weight"
        return made.build(made.specs[0]).get_parameter(name)

    assert torch.equal(drawn(1), drawn(3)[:1])
    assert not torch.equal(drawn(1), drawn(1, seed=5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": ["q_proj", "w_proj"]}, r"targets: 'w_proj' names no linear map of .*q_proj"),
        ({"ranks": [2, 17]}, r"q_proj: rank 17 is above its dimension, 16 of \(16, 16\)"),
        ({"ranks": [2, 4], "alpha": [4, 4]}, r"alpha/rank is 2 at rank 2, 1 at rank 4; a corner"),
        ({"ranks": [2, 4], "alpha": [4, 4, 4]}, r"alpha: 3 of them for 2 ranks"),
        ({"ranks": [2, 4], "alpha": -1}, r"alpha -1.0: give numbers above 0"),
        ({"ranks": [4, 2]}, r"ranks \(4, 2\): give increasing"),
        ({"ranks": [0, 2]}, r"ranks \(0, 2\): give increasing"),
        ({"ranks": "many"}, r"model.options.ranks is 'many'"),
        ({"rank": 2}, r"model.options.rank: lora takes base, targets"),
        ({"depths": [1, 2]}, r"depths: 2 of them for 4 ranks"),
        ({"ranks": [1, 2], "depths": [1, 9]}, r"depths \(1, 9\): .*has 3 blocks \(model.layers\)"),
        ({"ranks": [2], "depths": [3], "blocks": "model.h"}, r"has no list model.h; there are"),
        ({"cut": True}, r"cut and blocks belong to depths"),
    ],
)
def test_what_makes_no_family_is_refused_by_name(
    llama: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        lora_family(llama, TAKES, **{"targets": ["q_proj"], **options})


def test_a_base_that_cannot_take_the_data_is_refused(llama: Path, tmp_path: Path) -> None:
    for takes, message in (
        (Signature((16,), 300, tokens=300, each_token=True), "knows 260 tokens, the data has 300"),
        (
            Signature((65,), 256, tokens=256, each_token=True),
            "takes texts of 64 tokens, the data's",
        ),
        (Signature((16,), 5, tokens=256), "foretells the next token, and the data is for"),
    ):
        with pytest.raises(ConfigError, match=message):
            lora_family(llama, takes, targets=["q_proj"])
    with pytest.raises(DataError, match="is no folder; give one in Hugging Face's layout"):
        lora_family(tmp_path / "absent", TAKES)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(DataError, match="has no model.safetensors; expected weights"):
        lora_family(tmp_path, TAKES)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    with pytest.raises(DataError, match="has no ../x"):
        lora_family(tmp_path, TAKES)


def test_adapters_have_methods_of_their_own(lora_settings: Settings) -> None:
    for method, message in (("fedrolex", "take lora, lora"),):
        with pytest.raises(ConfigError, match=message):
            assemble(config_from(with_settings(lora_settings, {"model.method": method})))
    with pytest.raises(ConfigError, match="needs adapters, and resnet8 has none; take model lora"):
        nefl.make_family("resnet8", "lora")
    with pytest.raises(ConfigError, match="model.options.base: resnet8 takes no options"):
        assemble(config_from({"model": {"options": {"base": "x"}}}))


def test_a_base_of_ones_own(tmp_path: Path) -> None:
    settings = {
        "rounds": 1,
        "model": {
            "name": "lora",
            "method": "lora-products",
            "options": {
                "base": f"{__name__}:plain_base", "targets": ["1", "3"], "ranks": [1, 2],
            },
        },
        "data": {"name": "breast-cancer"},
        "clients": {"count": 3, "per_round": 2},
        "local": {"epochs": 1, "learning_rate": 0.01},
        "engine": {"name": "serial", "device": "cpu"},
    }  # fmt: skip
    result = nefl.train(settings, tmp_path / "run")
    assert result.summary["failures"] == 0
    setting = assemble(config_from(settings))
    assert set(setting.identity()) >= {"base", "code"}
    assert {n.split(".")[1] for n in setting.family.layout(1)} == {"1", "3"}
    with pytest.raises(NeflError, match="names no linear map"):
        assemble(config_from(with_settings(settings, {"model.options.targets": ["2"]})))
    narrow = {"model.options.base": f"{__name__}:narrow_base"}
    with pytest.raises(NeflError, match=r"narrow_base: submodel 1, .*expected \[2, 2\]"):
        assemble(config_from(with_settings(settings, narrow)))


def trained(settings: Settings, changes: dict[str, Any], out: Path) -> nefl.RunResult:
    return nefl.train(with_settings(settings, changes), out)


@pytest.mark.parametrize("method", ["lora-padded", "lora-ffa", "lora-heads", "lora-products"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(
    lora_settings: Settings, tmp_path: Path, method: str
) -> None:
    whole = trained(lora_settings, {"model.method": method}, tmp_path / "whole")
    assert whole.summary["failures"] == 0
    start = trained(lora_settings, {"model.method": method, "rounds": 1}, tmp_path / "part")
    assert start.summary["state_sha256"] != whole.summary["state_sha256"]
    assert (
        nefl.resume(tmp_path / "part", rounds=2).summary["state_sha256"]
        == whole.summary["state_sha256"]
    )


@pytest.mark.long
def test_the_same_bits_with_workers_and_members_within_and_a_server_step(
    lora_settings: Settings, tmp_path: Path
) -> None:
    changes = {
        "model.method": "within",
        "model.method_options.family": "lora",
        "server.step.name": "momentum",
        "server.step.momentum": 0.5,
    }
    serial = trained(lora_settings, changes, tmp_path / "serial")
    workers = {"engine.name": "workers", "engine.workers": 1}
    other = trained(lora_settings, changes | workers, tmp_path / "workers")
    assert serial.summary["failures"] == 0
    assert serial.summary["state_sha256"] == other.summary["state_sha256"]


def test_a_checkpoint_holds_adapters_and_nothing_else(lora_run: Path, llama: Path) -> None:
    weights = (llama / "model.safetensors").stat().st_size
    for file in (lora_run / "checkpoints").iterdir():
        assert file.stat().st_size < weights / 2
    identity = json.loads((lora_run / "identity.json").read_text())
    assert identity["base"] == open_folder(llama).checksum


def test_another_base_is_refused_and_another_place_is_not(
    lora_settings: Settings, llama: Path, tmp_path: Path
) -> None:
    import shutil

    shutil.copytree(llama, tmp_path / "base")
    settings = with_settings(
        lora_settings, {"model.options.base": str(tmp_path / "base"), "rounds": 1}
    )
    nefl.train(settings, tmp_path / "run")
    here = assemble(config_from(with_settings(lora_settings, {"rounds": 1}))).identity()
    assert here == json.loads((tmp_path / "run" / "identity.json").read_text())
    weights = tmp_path / "base" / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-2] ^= 1
    weights.write_bytes(damaged)
    with pytest.raises(RunError, match="base changed since the run was started"):
        nefl.resume(tmp_path / "run", rounds=2)


def test_the_recipe_passes_over_a_base_of_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nefl.models.base import need_text

    transformers = need_text("transformers")
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=128,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "stdlib-base")
    monkeypatch.chdir(tmp_path)
    cost = estimate_run(nefl.load_recipe("stdlib-lora"), timed=False)
    assert not cost.notes
    assert cost.tokens == 128
    first, *_, last = (each.profile for each in cost.submodels)
    assert last.payload_bytes == 8 * first.payload_bytes  # ranks 2 and 16
    assert first.frozen == last.frozen > 50 * first.params / 4
    report = cost_report(cost, "stdlib-lora")
    assert dict(_of_texts(cost))["frozen base"].endswith("never sent")
    assert report["submodels"][0]["frozen"] == first.frozen


def test_every_rank_learns(lora_settings: Settings) -> None:
    setting = assemble(config_from(lora_settings))
    from nefl.engines.serial import SerialEngine

    engine, state = SerialEngine(setting.site(), setting.family), setting.initial_state()
    before = engine.evaluate(state, [1, 2, 3])
    assert len({e.loss for e in before}) == 1  # B is zero: every member is the base
    for _ in range(4):
        state, report = run_round(state, setting.plan, engine)
        assert not report.failures
    after = engine.evaluate(state, [1, 2, 3])
    assert all(a.loss < b.loss for a, b in zip(after, before, strict=True))


def test_code_in_a_folder_is_never_run(llama: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(llama, tmp_path / "base")
    config = json.loads((tmp_path / "base" / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (tmp_path / "base" / "config.json").write_text(json.dumps(config))
    (tmp_path / "base" / "mine.py").write_text("raise SystemExit('ran')")
    with pytest.raises(DataError, match=r"transformers cannot read its config.json"):
        lora_family(tmp_path / "base", TAKES)


def another_base(llama: Path, folder: Path, change: str = "") -> Path:
    """Return a copy of a base with other weights, or with one that lacks a tensor, or cut off."""
    shutil.copytree(llama, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    first = next(name for name in tensors if name.endswith("up_proj.weight"))
    if change == "missing":
        del tensors[first]
    else:
        tensors[first] = tensors[first] + 1
    save_file(tensors, file, {"format": "pt"})
    if change == "cut off":
        file.write_bytes(file.read_bytes()[:100])
    return folder


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("missing", r"lack \S*up_proj.weight \(1 tensors"),
        ("cut off", "transformers cannot load it"),
    ],
)
def test_a_base_that_is_not_whole_is_refused(
    llama: Path, tmp_path: Path, change: str, reason: str
) -> None:
    """Transformers would draw what is missing at random, in each process anew."""
    family = lora_family(another_base(llama, tmp_path / "base", change), TAKES, ranks=[1, 2])
    with pytest.raises(DataError, match=reason):
        family.build(family.specs[0])


def test_a_run_over_another_base_is_neither_measured_nor_exported_nor_begun_from(
    lora_settings: Settings, lora_run: Path, llama: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(lora_run, run)
    other = str(another_base(llama, tmp_path / "other"))
    config = run / "config.json"
    config.write_text(config.read_text().replace(str(llama), other))
    for act in (nefl.evaluate, lambda path: nefl.export_family(path, tmp_path / "f.safetensors")):
        with pytest.raises(RunError, match="base"):
            act(run)
    options = {**lora_settings["model"]["options"], "base": other}
    changes = {"model.options": options, "model.start": str(lora_run)}
    with pytest.raises(ConfigError, match="model.start .*its base is .*another one than this run"):
        nefl.train(with_settings(lora_settings, changes), tmp_path / "new")
    same = with_settings(lora_settings, {"model.start": str(lora_run), "rounds": 1})
    assert nefl.train(same, tmp_path / "on").summary["failures"] == 0


def test_an_elastic_file_opens_over_its_own_base_and_ranks_alone(
    lora_run: Path, llama: Path, tmp_path: Path
) -> None:
    file = tmp_path / "family.safetensors"
    nefl.export_family(lora_run, file)
    targets = ["q_proj", "up_proj"]
    right = lora_family(llama, TAKES, ranks=[1, 2, 4], targets=targets)
    assert len(nefl.load(file, right).family) == 3
    other = another_base(llama, tmp_path / "other")
    with pytest.raises(RunError, match="was trained on another base"):
        nefl.load(file, lora_family(other, TAKES, ranks=[1, 2, 4], targets=targets))
    with pytest.raises(RunError, match="its submodel 2 is"):
        nefl.load(file, lora_family(llama, TAKES, ranks=[1, 3, 4], targets=targets))
    with pytest.raises(RunError, match="another alpha or seed"):
        nefl.load(file, lora_family(llama, TAKES, ranks=[1, 2, 4], targets=targets, alpha=40))


def test_what_is_given_with_adapters_is_in_the_checksum(llama: Path) -> None:
    def checksum(**given: Any) -> str:
        return lora_family(llama, TAKES, ranks=[1, 2], **given).base_checksum

    assert checksum() == checksum(seed=1) == checksum(alpha=4) == open_folder(llama).checksum
    others: list[dict[str, Any]] = [{"alpha": 20}, {"fixed_a": True}, {"fixed_a": True, "seed": 1}]
    others += [{"fixed_a": True, "alpha": 20}]
    assert len({checksum(), *(checksum(**given) for given in others)}) == len(others) + 1


def test_data_in_other_tokens_than_the_bases_own_is_refused(llama: Path, tmp_path: Path) -> None:
    folder = tmp_path / "base"
    shutil.copytree(llama, folder)
    tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "b": 1}, [])).save(
        str(folder / "tokenizer.json")
    )
    with pytest.raises(ConfigError, match="tokenizer of 2 tokens, and the data is in 256"):
        lora_family(folder, TAKES, ranks=[1, 2])


def test_adapters_do_not_train_in_executorch(lora_settings: Settings) -> None:
    settings = with_settings(lora_settings, {"engine.client": "executorch"})
    with pytest.raises(ConfigError, match="model 'lora' has frozen weights"):
        assemble(config_from(settings))


def test_a_cut_base_is_no_adapter_of_peft(llama: Path) -> None:
    family = lora_family(llama, TAKES, ranks=[2, 4], depths=[1, 3], cut=True)
    assert [family.build(spec).cut for spec in family.specs] == [True, False]


class _Chain(nn.Module):
    """A base whose blocks are linear maps themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))


def test_depths_count_blocks_that_are_linear_maps_themselves() -> None:
    base = MadeBase(_Chain, "chain")
    family = lora_family(base, ranks=[2, 2], depths=[1, 3], targets=["blocks.?"])
    assert [len(family.layout(k)) for k in (1, 2)] == [2, 6]
