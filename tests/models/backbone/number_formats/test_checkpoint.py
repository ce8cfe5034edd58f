"""Checkpoints that are quantised already: computed as transformers computes them, or refused by the name of their method."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel
from transformers.quantizers import quantizer_mxfp4

from everlong_models.backbone.loading import load_backbone, weight_bytes
from everlong_models.backbone.number_formats import checkpoint
from everlong_models.backbone.number_formats.on_load import torchao_config
from everlong_models.errors import BackboneError
from everlong_models.memories.state import decode_state, encode_state
from everlong_models.model import load_model
from tests.models.backbone.number_formats.tiny import SIZES, WINDOW, distance, held_bytes, logits, save, tokens
from tests.models.test_lora import adapt
from tests.tinymodel import make_tokenizer

CPU = {"device_map": {"": "cpu"}, "dtype": torch.float32}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def bitsandbytes(**bits: Any) -> BitsAndBytesConfig:
    pytest.importorskip("bitsandbytes")
    return BitsAndBytesConfig(**bits)


KINDS: dict[str, Any] = {
    "bitsandbytes 8": lambda: bitsandbytes(load_in_8bit=True),
    "bitsandbytes 4": lambda: bitsandbytes(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
    ),
    "torchao": lambda: pytest.importorskip("torchao") and torchao_config("int8"),
}


@pytest.fixture(params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkpoint that transformers quantised and stored."""
    quantisation = KINDS[request.param]()
    floats, folder = save(tmp_path / "floats", "llama"), tmp_path / "quantised"
    AutoModelForCausalLM.from_pretrained(floats, quantization_config=quantisation, **CPU).save_pretrained(folder)
    make_tokenizer(300).save_pretrained(folder)
    return folder


def named(folder: Path, quantisation: dict[str, Any], kind: str = "llama") -> Path:
    """A backbone of floats whose config says that it is quantised."""
    save(folder, kind)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantisation}))
    return folder


def original(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, **CPU).eval()


@torch.no_grad()
def test_logits_are_those_of_transformers(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    found, _ = load_backbone(str(folder), models_dir=tmp_path, progress=said.append)
    expected = original(folder)(tokens()).logits
    assert distance(logits(found, tokens()), expected) < 1e-5
    floats = original(folder.with_name("floats"))
    assert 0.005 < distance(expected, floats(tokens()).logits) < 0.3
    assert held_bytes(found.model) < 0.35 * held_bytes(floats)
    told = weight_bytes(str(folder), models_dir=tmp_path)
    assert told is not None
    assert held_bytes(found.model) <= told < 1.3 * held_bytes(found.model)
    assert f"{told / 1e9:.2f} GB of weights" in said[0]
    assert "matrices of type" in (found.optimize() or "")
    assert torch.get_float32_matmul_precision() == "highest"


@torch.no_grad()
def test_whether_a_row_depends_on_the_others_is_told(folder: Path, tmp_path: Path) -> None:
    """LLM.int8() computes the columns that are large in any row with floats, in all rows."""
    said: list[str] = []
    found, _ = load_backbone(str(folder), models_dir=tmp_path, progress=said.append)
    layer, x = found.model.model.layers[0].mlp.up_proj, torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    mixed = distance(layer(torch.cat([x[:1], 1000 * x[1:]]))[:1], layer(x[:1])) > 1e-6
    assert mixed == any("changes slightly with the other answers of its batch" in line for line in said)
    assert mixed == bool(dict(found.model.config.quantization_config.to_dict()).get("load_in_8bit"))


@torch.no_grad()
def test_a_model_with_outliers_in_8_bits_is_not_taken_for_another(tmp_path: Path) -> None:
    """Real models have activations so large that LLM.int8() computes their columns with floats, which the first tokens' rows feel."""
    quantisation = bitsandbytes(load_in_8bit=True)
    floats = AutoModelForCausalLM.from_pretrained(save(tmp_path / "floats", "llama"))
    for layer in floats.model.layers:
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight[:64] *= 4
    floats.save_pretrained(tmp_path / "floats")
    folder = tmp_path / "quantised"
    AutoModelForCausalLM.from_pretrained(tmp_path / "floats", quantization_config=quantisation, **CPU).save_pretrained(
        folder
    )
    make_tokenizer(300).save_pretrained(folder)
    found, _ = load_backbone(str(folder), models_dir=tmp_path)
    assert distance(logits(found, tokens()), original(folder)(tokens()).logits) < 1e-5
    x = found.embed(tokens())
    assert distance(found.hidden(x)[:1], found.hidden(x[:1])) > 1e-3, "rows depend on each other"


def test_a_state_continues_after_a_restart(folder: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"models_dir": tmp_path, "memory": "window", "options": WINDOW}
    first, second = (load_model(str(folder), **how) for _ in range(2))
    assert first.fingerprint != load_model(str(folder.with_name("floats")), **how).fingerprint
    text = tokens(1, 60)
    with torch.inference_mode():
        state = first.memory.read(text[:, :48], first.memory.initial_state(1))
        stored = decode_state(encode_state(state, first.fingerprint), second.fingerprint)
        expected, found = (each.memory.open(kept, text[:, 48:])[1] for each, kept in ((first, state), (second, stored)))
    assert torch.equal(found, expected)


def test_the_fingerprint_covers_the_files(folder: Path, tmp_path: Path) -> None:
    before = load_model(str(folder), models_dir=tmp_path, memory="window", options=WINDOW).fingerprint
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 1
    with (folder / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    save_file(tensors, folder / "model.safetensors", metadata=header["__metadata__"])
    assert load_model(str(folder), models_dir=tmp_path, memory="window", options=WINDOW).fingerprint != before


@torch.no_grad()
def test_an_adapter_counts(folder: Path, tmp_path: Path) -> None:
    adapter = adapt(folder.with_name("floats"), tmp_path / "mine")
    model = load_model(f"{folder}+{adapter}", models_dir=tmp_path, memory="window", options=WINDOW)
    whole, floats = original(folder), AutoModelForCausalLM.from_pretrained(folder.with_name("floats"))
    adapted = PeftModel.from_pretrained(floats, adapter)
    layers = {
        name.removeprefix("base_model.model."): layer
        for name, layer in adapted.named_modules()
        if hasattr(layer, "lora_A") and "default" in layer.lora_A
    }
    assert len(layers) == 6
    for name, layer in layers.items():
        a, b = layer.lora_A["default"].weight, layer.scaling["default"] * layer.lora_B["default"].weight
        whole.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, a=a, b=b: output + (inputs[0] @ a.T) @ b.T
        )
    assert distance(logits(model.memory.backbone, tokens()), whole(tokens()).logits) < 1e-5
    assert distance(logits(model.memory.backbone, tokens()), original(folder)(tokens()).logits) > 0.01


@torch.no_grad()
def test_compressed_tensors_become_floats_when_they_are_loaded(tmp_path: Path) -> None:
    """The library's own way is to replace them by floats at the first token: more memory than any check has seen."""
    pytest.importorskip("compressed_tensors")
    each = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    quantisation = {
        "quant_method": "compressed-tensors", "format": "int-quantized", "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": each}},
    }  # fmt: skip
    folder = named(tmp_path / "model", quantisation)
    tensors, floats = (
        load_file(folder / "model.safetensors"),
        AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES)),
    )
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        scale = tensors[name].abs().amax(1, keepdim=True) / 127
        stored = (tensors[name] / scale).round()
        floats.get_parameter(name).copy_(stored * scale)
        tensors |= {name: stored.to(torch.int8), f"{name}_scale": scale}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    floats.load_state_dict({name: tensor for name, tensor in tensors.items() if "_proj" not in name}, strict=False)
    found, _ = load_backbone(str(folder), models_dir=tmp_path)
    assert distance(logits(found, tokens()), floats.eval()(tokens()).logits) < 1e-5
    assert weight_bytes(str(folder), models_dir=tmp_path) == 5 * held_bytes(floats) // 4
    assert found.optimize() is None, "plain floats have the fast path"


@torch.no_grad()
def test_mxfp4_becomes_floats_without_its_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of the floats is told, four times that of the file for bfloat16, and they are refused if they do not fit."""
    monkeypatch.setattr(quantizer_mxfp4, "is_kernels_available", lambda: False)
    more = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "head_dim": 16,
    }
    folder = save(tmp_path / "model", "gpt_oss", **more)
    tensors = load_file(folder / "model.safetensors")
    numbers = sum(tensor.numel() for tensor in tensors.values())
    generator = torch.Generator().manual_seed(2)
    for name in [name for name in tensors if name.endswith("_proj") and "experts" in name]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32)
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        tensors[f"{name}_scales"] = torch.randint(118, 122, shape, dtype=torch.uint8, generator=generator)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    file = folder / "config.json"
    quantisation = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantisation}))
    said: list[str] = []
    found, _ = load_backbone(str(folder), models_dir=tmp_path, progress=said.append)
    assert "float32 made of mxfp4" in said[0]
    assert distance(logits(found, tokens()), original(folder)(tokens()).logits) < 1e-5
    assert held_bytes(found.model) == 4 * numbers
    assert weight_bytes(str(folder), models_dir=tmp_path) == 5 * numbers
    assert weight_bytes(str(folder), models_dir=tmp_path, device="cuda") == 2 * numbers


class TestRefused:
    @pytest.mark.parametrize(
        ("quantisation", "message"),
        [
            (GPTQ, r"the method 'gptq': .*; pip install gptqmodel optimum\. Supported methods.*: awq, bitsandbytes,"),
            (AWQ, r"the method 'awq': .*; pip install gptqmodel\. Supported"),
            ({"quant_method": "hexagon"}, r"the method 'hexagon': .*Unknown quantization type.*\. Supported methods"),
            ({"bits": 4}, r"the method 'None': .*no `quant_method`.*\. Supported methods"),
        ],
        ids=["gptq", "awq", "unknown", "none"],
    )
    def test_a_method_that_is_not_here(self, quantisation: dict[str, Any], message: str, tmp_path: Path) -> None:
        folder = named(tmp_path / "model", quantisation)
        for call in (load_backbone, weight_bytes):
            with pytest.raises(BackboneError, match=f"{folder}: the weights are quantised by {message}"):
                call(str(folder), models_dir=tmp_path)

    @pytest.fixture
    def on_h100(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))

    @pytest.mark.usefixtures("on_h100")
    def test_fp8_without_its_kernels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = named(tmp_path / "model", FP8)
        monkeypatch.setattr(checkpoint, "is_kernels_available", lambda: False)
        with pytest.raises(BackboneError, match="the method 'fp8': its kernels are missing; pip install kernels"):
            weight_bytes(str(folder), models_dir=tmp_path, device="cuda")

    @pytest.mark.usefixtures("on_h100")
    def test_fp8_takes_a_byte_on_a_gpu_and_is_floats_on_a_cpu(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        folder = named(tmp_path / "model", FP8)
        monkeypatch.setattr(checkpoint, "is_kernels_available", lambda: True)
        tensors: dict[str, Tensor] = load_file(folder / "model.safetensors")
        numbers = sum(tensor.numel() for tensor in tensors.values())
        small = [name for name in tensors if name.endswith("_proj.weight")]
        tensors |= {name: tensors[name].to(torch.float8_e4m3fn) for name in small}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        in_8_bits = sum(tensors[name].numel() for name in small)
        told = weight_bytes(str(folder), models_dir=tmp_path, device="cuda")
        assert told == in_8_bits + 2 * (numbers - in_8_bits)
        assert weight_bytes(str(folder), models_dir=tmp_path) == 5 * numbers
        assert checkpoint.prepare(AutoConfig.from_pretrained(folder), torch.device("cpu"))[0].quantization_config[
            "dequantize"
        ]

    @pytest.mark.parametrize("folder", ["torchao"], indirect=True)
    def test_its_own_numbers_stay_whatever_is_asked_for(self, folder: Path, tmp_path: Path) -> None:
        said: list[str] = []
        found, _ = load_backbone(str(folder), models_dir=tmp_path, gpu_quantize="fp8", progress=said.append)
        assert "Int8Tensor" in type(found.model.model.layers[0].mlp.up_proj.weight).__name__
        assert "(cpu, torchao)" in said[0]
