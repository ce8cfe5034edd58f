"""`BACKBONE+ADAPTER`: a model with an adapter in PEFT's format computes what PEFT computes, and other adapters are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from everlong_models.errors import AdapterError, BackboneError
from everlong_models.lora import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from everlong_models.model import Model, load_model
from everlong_models.naming import catalogue_entry, model_name, split_adapter
from everlong_models.size import model_bytes
from tests.models import tiny_families, tiny_gguf
from tests.models.backbone import test_text_part
from tests.models.model_folders import backbone, manifest
from tests.models.tiny_recurrent import save_recurrent
from tests.tinymodel import make_tokenizer

WINDOW = {"segment_length": 16, "window": 40, "sinks": 2}
TARGETS = {
    "gpt2": ["c_attn", "c_fc"],
    "gpt_neox": "all-linear",
    "falcon": "all-linear",
    "phi3": ["qkv_proj", "gate_up_proj", "down_proj"],
}
PLAIN = ["q_proj", "v_proj", "down_proj"]


def base(folder: Path, kind: str) -> Path:
    """Write a tiny backbone of this `model_type`."""
    torch.manual_seed(0)
    made = tiny_families.model(kind, vocab_size=300)
    tiny_families.randomise(made, 0.2)
    made.save_pretrained(folder)
    make_tokenizer(300).save_pretrained(folder)
    return folder


def adapt(
    backbone: Path | str, folder: Path, *, seed: int = 1, model: Any = None, whole: bool = False, **config: Any
) -> Path:
    """Write an adapter with random weights, made by PEFT."""
    model = AutoModelForCausalLM.from_pretrained(backbone) if model is None else model
    fields = {"r": 4, "lora_alpha": 12, "target_modules": PLAIN, "task_type": "CAUSAL_LM"} | config
    adapted = get_peft_model(model, LoraConfig(**fields))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    adapted.save_pretrained(folder, save_embedding_layers=whole)
    return folder


def load(name: str, models: Path, **options: Any) -> Model:
    return load_model(
        name,
        models_dir=models,
        **({"memory": "window", "options": WINDOW, "quantize": False, "bfloat16": False} | options),
    )


def tokens(count: int = 40) -> torch.Tensor:
    return torch.randint(3, 290, (2, count), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def logits(model: Model, ids: torch.Tensor) -> torch.Tensor:
    around = model.memory.backbone
    return around.logits(around.hidden(around.embed(ids)))


@torch.no_grad()
def require_equal(model: Model, expected: torch.Tensor, plain: torch.Tensor) -> None:
    found = logits(model, tokens())
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert float((plain - expected).norm() / expected.norm()) > 0.01, "the adapter changes the answers"


@pytest.mark.long
@pytest.mark.parametrize("kind", [*tiny_families.SWITCHES, *tiny_families.OTHERS])
@torch.no_grad()
def test_logits_are_those_of_peft(kind: str, tmp_path: Path) -> None:
    folder = base(tmp_path / "base", kind)
    adapter = adapt(
        folder, tmp_path / "mine", target_modules=TARGETS.get(kind, PLAIN[:2] if kind == "qwen3_moe" else PLAIN)
    )
    original = AutoModelForCausalLM.from_pretrained(folder).eval()
    plain = original(tokens()).logits
    expected = PeftModel.from_pretrained(original, adapter).eval()(tokens()).logits
    require_equal(load(f"{folder}+{adapter}", tmp_path), expected, plain)


@pytest.mark.parametrize(
    "config",
    [
        {"use_rslora": True},
        {"rank_pattern": {"v_proj": 2}, "alpha_pattern": {"layers.1.self_attn.q_proj": 40, "down_proj": 3}},
        {"target_modules": ["q_proj", "lm_head"]},
        {"layers_to_transform": [1]},
        {"init_lora_weights": "gaussian"},
    ],
    ids=str,
)
@torch.no_grad()
def test_every_form_of_plain_lora_is_read(config: dict[str, Any], tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine", **config)
    original = AutoModelForCausalLM.from_pretrained(backbone()).eval()
    plain = original(tokens()).logits
    expected = PeftModel.from_pretrained(original, adapter).eval()(tokens()).logits
    require_equal(load(f"{backbone()}+{adapter}", tmp_path), expected, plain)


@pytest.mark.parametrize("old_names", [False, True])
@torch.no_grad()
def test_an_adapter_of_a_model_that_reads_pictures_counts_in_its_decoder(old_names: bool, tmp_path: Path) -> None:
    """Also if it changes layers that read pictures, and with the names that transformers gave layers until 4.51."""
    original = test_text_part.save(tmp_path / "base", "mistral3", "ministral3")
    plain = original(input_ids=tokens()).logits
    scales = {"alpha_pattern": {r".*language_model\..*v_proj": 40}, "target_modules": ["q_proj", "v_proj", "lm_head"]}
    adapter = adapt("", tmp_path / "mine", model=original, **scales)
    original = AutoModelForImageTextToText.from_pretrained(tmp_path / "base")
    expected = PeftModel.from_pretrained(original, adapter).eval()(input_ids=tokens()).logits
    stored = load_file(adapter / ADAPTER_WEIGHTS)
    assert any("vision_tower" in name for name in stored)
    if old_names:
        names = {
            name: name.replace("model.language_model", "language_model.model").replace(
                "lm_head", "language_model.lm_head"
            )
            for name in stored
        }
        save_file({names[name]: tensor for name, tensor in stored.items()}, adapter / ADAPTER_WEIGHTS)
    said: list[str] = []
    model = load(f"{tmp_path / 'base'}+{adapter}", tmp_path, progress=said.append)
    require_equal(model, expected, plain)
    assert "adapter mine: 2 layers that only read pictures are left out" in said


@torch.no_grad()
def test_a_recurrent_model_takes_an_adapter(tmp_path: Path) -> None:
    folder = save_recurrent(tmp_path / "base", "mamba")
    adapter = adapt(folder, tmp_path / "mine", target_modules=["in_proj", "x_proj"])
    original = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = tokens() % 97
    plain = original(ids).logits
    expected = PeftModel.from_pretrained(original, adapter).eval()(ids).logits
    model = load_model(f"{folder}+{adapter}", models_dir=tmp_path, options={"segment_length": 64})
    found = model.memory.forward(ids, model.memory.initial_state(2))
    assert model.memory_name == "native"
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert float((plain - expected).norm() / expected.norm()) > 0.01


@torch.no_grad()
def test_a_gguf_file_keeps_one_copy_of_its_weights(tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "tiny.gguf")
    original = tiny_gguf.float_model(file)
    adapter = adapt("", tmp_path / "mine", model=original, target_modules="all-linear")
    expected = PeftModel.from_pretrained(tiny_gguf.float_model(file), adapter).eval()(tokens() % 260).logits
    model = load(f"{file}+{adapter}", tmp_path / "models", quantize=True)
    found = logits(model, tokens() % 260)
    assert model.memory.backbone.digest
    assert float((found - expected).norm() / expected.norm()) < 0.005
    plain = load(str(file), tmp_path / "models", quantize=True)
    assert float((logits(plain, tokens() % 260) - expected).norm() / expected.norm()) > 0.05


class TestNames:
    def test_the_model_is_named_after_both(self, tmp_path: Path) -> None:
        adapter = adapt(backbone(), tmp_path / "mine")
        name = f"{backbone()}+{adapter}"
        model = load(name, tmp_path)
        assert model.name == model_name(name, tmp_path) == "llama+mine"
        assert (model.backbone_name, model.template, model.tuned) == ("llama", "instruct", False)

    def test_an_adapter_in_the_folder_of_models_needs_no_path(self, tmp_path: Path) -> None:
        adapt(backbone(), tmp_path / "someone--mine")
        assert load(f"{backbone()}+someone/mine", tmp_path).name == "llama+someone/mine"

    def test_a_path_with_a_plus_is_no_adapter(self, tmp_path: Path) -> None:
        (tmp_path / "a+b").mkdir()
        assert split_adapter(str(tmp_path / "a+b"), tmp_path) == (str(tmp_path / "a+b"), None)
        assert split_adapter(f"{tmp_path}/a+b+c", tmp_path) == (f"{tmp_path}/a+b", "c")
        assert split_adapter("+c", tmp_path) == ("+c", None)

    def test_both_parts_may_have_a_plus_in_their_paths(self, tmp_path: Path) -> None:
        adapter = adapt(backbone(), tmp_path / "v1+v2")
        base = shutil.copytree(backbone(), tmp_path / "tiny+base")
        assert split_adapter(f"{base}+{adapter}", tmp_path) == (str(base), str(adapter))
        assert split_adapter(f"smollm2-135m-instruct+{adapter}", tmp_path) == ("smollm2-135m-instruct", str(adapter))
        assert split_adapter("some/base+v1+v2", tmp_path) == ("some/base", "v1+v2"), (
            "the adapter is in the folder of models"
        )
        assert split_adapter("nothing+of+this", tmp_path) == ("nothing+of", "this")
        assert load(f"{base}+{adapter}", tmp_path).name == "tiny+base+v1+v2"

    def test_the_catalogue_and_the_size_are_the_backbones(self, tmp_path: Path) -> None:
        adapter = adapt(backbone(), tmp_path / "mine")
        entry = catalogue_entry(f"qwen2.5-coder-0.5b-instruct+{adapter}", tmp_path)
        assert entry is not None
        sizes = [model_bytes(name, models_dir=tmp_path) for name in (str(backbone()), f"{backbone()}+{adapter}")]
        assert sizes[1] - sizes[0] == (adapter / ADAPTER_WEIGHTS).stat().st_size


def test_fingerprints_differ_by_adapter_and_scale(tmp_path: Path) -> None:
    adapters = [
        adapt(backbone(), tmp_path / f"{n}", **each) for n, each in enumerate([{}, {"seed": 2}, {"lora_alpha": 6}, {}])
    ]
    found = [load(f"{backbone()}+{each}", tmp_path).fingerprint for each in adapters]
    assert found[0] == found[3], "equal adapters are equal models, wherever they are"
    assert len({*found, load(str(backbone()), tmp_path).fingerprint}) == 4


def test_the_adapters_chat_template_is_used(tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine")
    other = make_tokenizer(300, template="{% for m in messages %}Mine: {{ m['content'] }}{% endfor %}")
    other.save_pretrained(adapter)
    plain, model = load(str(backbone()), tmp_path), load(f"{backbone()}+{adapter}", tmp_path)
    assert model.tokenizer.chat_template != plain.tokenizer.chat_template
    assert set(plain.tokenizer.eos_ids) <= set(model.tokenizer.eos_ids)
    make_tokenizer(400).save_pretrained(adapter)
    with pytest.raises(AdapterError, match="its tokenizer has 400 tokens, the backbone only 300"):
        load(f"{backbone()}+{adapter}", tmp_path)


def change(folder: Path, **fields: Any) -> None:
    file = folder / ADAPTER_CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type: Input should be 'LORA'"),
        ({"lora_alpha": "much"}, "lora_alpha"),
        ({"use_dora": True}, "use_dora: only plain LoRA is supported"),
        ({"modules_to_save": ["lm_head"], "layer_replication": [[0, 2]]}, "layer_replication, modules_to_save: only plain LoRA"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights='pissa_niter_4' also changed the backbone's weights"),
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern: missing"),
    ],
    ids=str,
)  # fmt: skip
def test_other_kinds_of_adapters_are_refused(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine")
    change(adapter, **fields)
    with pytest.raises(AdapterError, match=f"{ADAPTER_CONFIG}: {message}".replace("(", r"\(")):
        load(f"{backbone()}+{adapter}", tmp_path)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"base_model.model.model.embed_tokens.lora_embedding_A": torch.ones(4, 300)}, "embed_tokens.lora_embedding_A' is not part"),
        ({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.ones(4, 16)}, "'model.layers.9.mlp.up_proj' needs both A and B"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(17, 4)}, r"must have the layer's shape \(16, 16\)"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.ones(16)}, r"must have A \(r, in\) and B"),
        ({"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": torch.full((16, 4), torch.nan)}, "contains NaN"),
    ],
    ids=["embedding", "no such layer", "another shape", "a vector", "not finite"],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused(tensors: dict[str, torch.Tensor], message: str, tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine")
    save_file(load_file(adapter / ADAPTER_WEIGHTS) | tensors, adapter / ADAPTER_WEIGHTS)
    with pytest.raises(AdapterError, match=message):
        load(f"{backbone()}+{adapter}", tmp_path)


def test_whole_matrices_are_refused_with_a_hint(tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine", whole=True, target_modules=["q_proj", "lm_head"])
    with pytest.raises(AdapterError, match="save_embedding_layers=False"):
        load(f"{backbone()}+{adapter}", tmp_path)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "mine")
    (adapter / ADAPTER_WEIGHTS).write_bytes(b"damaged")
    with pytest.raises(AdapterError, match=f"{ADAPTER_WEIGHTS} as safetensors"):
        load(f"{backbone()}+{adapter}", tmp_path)
    (adapter / ADAPTER_WEIGHTS).rename(adapter / "adapter_model.bin")
    with pytest.raises(AdapterError, match=f"has no {ADAPTER_WEIGHTS}"):
        load(f"{backbone()}+{adapter}", tmp_path)
    (adapter / ADAPTER_CONFIG).write_text("{")
    with pytest.raises(AdapterError, match=ADAPTER_CONFIG):
        load(f"{backbone()}+{adapter}", tmp_path)
    with pytest.raises(AdapterError, match="no adapter 'nobody/nothing'"):
        load(f"{backbone()}+nobody/nothing", tmp_path)


def test_an_adapter_alone_and_one_on_a_trained_model_are_refused(tmp_path: Path) -> None:
    adapter = adapt(backbone(), tmp_path / "someone--mine")
    for name in (str(adapter), "someone/mine"):
        with pytest.raises(BackboneError, match=rf"holds a LoRA adapter: serve it as BACKBONE\+{name}"):
            load(name, tmp_path)
    trained = manifest(tmp_path / "trained", trained=False)
    with pytest.raises(AdapterError, match=rf"an adapter needs a plain backbone, such as {backbone()}"):
        load_model(f"{trained}+{adapter}", models_dir=tmp_path)
