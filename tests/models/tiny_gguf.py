"""Tiny GGUF files with every kind of block, and the same models with float weights."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import PreTrainedModel
from transformers.convert_slow_tokenizer import bytes_to_unicode

from everlong_models.backbone.gguf.blocks import floats_of
from everlong_models.backbone.gguf.families import config_of
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.gguf.rope import TENSORS

WIDTH, MLP, LAYERS, HEADS, KV_HEADS, VOCABULARY = 256, 512, 2, 8, 2, 264
EXPERTS = 6
KINDS = {"attn_q": Kind.Q4_K, "attn_k": Kind.Q4_K, "attn_v": Kind.Q6_K, "attn_output": Kind.Q5_K}
KINDS |= {
    "attn_qkv": Kind.Q4_K,
    "ffn_gate": Kind.Q5_0,
    "ffn_up": Kind.Q4_1,
    "ffn_down": Kind.Q4_0,
    "ffn_gate_exps": Kind.Q4_K,
    "ffn_up_exps": Kind.Q5_0,
    "ffn_down_exps": Kind.Q6_K,
    "token_embd": Kind.Q5_1,
    "output": Kind.Q8_0,
}
_SCALES = {
    Kind.Q4_K: {0: 1e-4, 2: 7.5e-4},
    Kind.Q5_K: {0: 5e-5, 2: 15.5 * 5e-5},
    Kind.Q6_K: {208: 5e-5},
}
"""Where a K-quant's float16 scales are in a block, and their sizes. The second scales a minimum, which is subtracted: so many times the
first that weights are 0 on average, as those of trained models are. Otherwise all queries and keys would share one large direction, and
attention would depend on the last bits of a query that has little of it."""


def blocks(rows: int, columns: int, kind: Kind, seed: int, mean: float = 0) -> np.ndarray:
    """Return a random matrix in blocks: uint8 (rows, bytes of a row), weights of about 0.05. `mean`: of the weights, without effect on K-quants."""
    random = np.random.default_rng(seed)
    if kind not in _SCALES:
        weights = random.normal(mean, 0.05, (rows, columns)).astype(np.float32)
        return gguf.quants.quantize(weights, kind)
    size, bytes_of_one = gguf.GGML_QUANT_SIZES[kind]
    made = random.integers(0, 256, (rows * columns // size, bytes_of_one), np.uint8)
    drawn = random.uniform(0.5, 1.0, len(made))
    for at, scale in _SCALES[kind].items():
        made[:, at : at + 2] = (drawn * scale).astype(np.float16).view(np.uint8).reshape(-1, 2)
    return made.reshape(rows, -1)


_PRE, _POST, _HEADS = (
    ["attn_norm", "ffn_norm"],
    ["post_attention_norm", "post_ffw_norm"],
    ["attn_q_norm", "attn_k_norm"],
)
GPT = ("gpt2", "gptneox", "falcon")
"""Families with layer norms, MLPs without gates, and one matrix for queries, keys and values."""
NORMS = {
    "qwen3": _PRE + _HEADS,
    "qwen3moe": _PRE + _HEADS,
    "gemma2": _PRE + _POST,
    "gemma3": _PRE + _POST + _HEADS,
    "olmo2": _POST + _HEADS,
    "falcon": ["attn_norm", "attn_norm_2"],
}
"""Norms of a layer, where they are not `_PRE`."""
FIELDS: dict[str, dict[str, int | float]] = {
    "qwen3": {"attention.key_length": 32},
    "qwen3moe": {
        "attention.key_length": 32, "expert_count": EXPERTS, "expert_used_count": 2, "expert_feed_forward_length": MLP,
    },
    "gemma2": {
        "attention.key_length": 32, "attention.sliding_window": 16, "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 10.0,
    },
    "gemma3": {"attention.key_length": 32, "attention.sliding_window": 16},
    "phi3": {"rope.dimension_count": 24},
    "granite": {"attention.scale": 0.05, "embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 2.0},
    "gptneox": {"use_parallel_residual": True, "rope.dimension_count": 8, "attention.head_count_kv": HEADS},
    "gpt2": {"attention.head_count_kv": HEADS},
}  # fmt: skip
"""Metadata of a family."""
BIASES = dict.fromkeys(["qwen2", "llama"], ("attn_q", "attn_k", "attn_v"))
BIASES |= dict.fromkeys(["gpt2", "gptneox"], ("attn_qkv", "attn_output", "ffn_up", "ffn_down"))
"""Matrices with biases. Few files of Llama have them."""


def write(
    file: Path,
    family: str = "qwen2",
    *,
    seed: int = 0,
    tied: bool = False,
    factors: dict[str, np.ndarray] | None = None,
    pre: str = "qwen2",
    biases: tuple[str, ...] | None = None,
    norms: tuple[str, ...] | None = None,
    without: str = "",
    mlp: int = MLP,
    length: int = 2048,
    spaces: bool = False,
    **more: object,
) -> Path:
    """Write a model with a tokenizer of bytes. `factors`: vectors, such as of rotary factors; `more`: other metadata.

    `biases`: matrices with biases (see `BIASES`). `norms`: see `NORMS`. `without`: a tensor or metadata that the file lacks. `spaces`: two spaces
    are a token, in place of one of the special ones. SmolLM3 and OLMo have four layers, of which the last differs: it rotates nothing, or has no window.
    """
    layers = 4 if family in ("smollm3", "olmo2") else LAYERS
    writer, fields = (
        gguf.GGUFWriter(file, family),
        {f"{family}.{name}": value for name, value in FIELDS.get(family, {}).items()} | more,
    )
    head_dim = int(fields.get(f"{family}.attention.key_length", WIDTH // HEADS))
    common = {
        "context_length": length, "embedding_length": WIDTH, "block_count": layers, "feed_forward_length": mlp,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "rope.freq_base": 10_000.0,
        **({"attention.layer_norm_epsilon": 1e-5} if family in GPT else {"attention.layer_norm_rms_epsilon": 1e-6}),
    }  # fmt: skip
    fields = {f"{family}.{name}": value for name, value in common.items()} | fields
    q_width, kv_width = head_dim * HEADS, head_dim * int(fields[f"{family}.attention.head_count_kv"])
    for name, value in fields.items():
        writers = {
            int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool,
        }  # fmt: skip
        if name != without:
            writers[type(value)](name, value)
    for name, vector in (factors or {}).items():
        writer.add_tensor(name, vector.astype(np.float32))
    characters = [bytes_to_unicode()[byte] for byte in range(256)]
    special, numbers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|0|>"], ["19", "91", "1991"]
    if spaces:
        special[3] = "  "
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*characters, "he", *special, *numbers])
    kinds = [
        (257, gguf.TokenType.NORMAL),
        (3, gguf.TokenType.CONTROL),
        (1, gguf.TokenType.USER_DEFINED if spaces else gguf.TokenType.CONTROL),
        (len(numbers), gguf.TokenType.NORMAL),
    ]
    writer.add_token_types([kind for count, kind in kinds for _ in range(count)])
    writer.add_token_merges(["h e", "1 9", "9 1", "19 91"])
    writer.add_eos_token_id(259)
    writer.add_bos_token_id(257)
    sizes = {
        "attn_q": (q_width, WIDTH),
        "attn_k": (kv_width, WIDTH),
        "attn_v": (kv_width, WIDTH),
        "attn_output": (WIDTH, q_width),
    }
    sizes |= {"ffn_gate": (mlp, WIDTH), "ffn_up": (mlp, WIDTH), "ffn_down": (WIDTH, mlp)}
    if family == "phi3" or family in GPT:
        rows = sum(sizes.pop(name)[0] for name in ("attn_q", "attn_k", "attn_v"))
        del sizes["ffn_gate"]
        sizes |= {"attn_qkv": (rows, WIDTH), "ffn_up": (mlp if family in GPT else 2 * mlp, WIDTH)}
    if family == "qwen3moe":
        sizes |= {f"{name}_exps": (EXPERTS, *sizes.pop(name)) for name in ("ffn_gate", "ffn_up", "ffn_down")}
    matrices = {f"blk.{n}.{name}": (name, size) for n in range(layers) for name, size in sizes.items()}
    matrices |= {name: (name, (VOCABULARY, WIDTH)) for name in ("token_embd", *(() if tied else ("output",)))}
    random = np.random.default_rng(seed)
    for number, (name, (part, size)) in enumerate(matrices.items()):
        kind = KINDS[part]
        if name == without:
            continue
        mean = 0.02 if family in GPT else 0  # without effect on a layer norm
        made = blocks(math.prod(size[:-1]), size[-1], kind, 1000 * seed + number, mean).reshape(*size[:-1], -1)
        writer.add_tensor(f"{name}.weight", made, raw_shape=made.shape, raw_dtype=kind)
        if part in (BIASES.get(family, ()) if biases is None else biases):
            writer.add_tensor(f"{name}.bias", random.normal(0, 1, size[0]).astype(np.float32))
    if family == "qwen3moe":
        for n in range(layers):
            writer.add_tensor(
                f"blk.{n}.ffn_gate_inp.weight", random.normal(0, 0.3, (EXPERTS, WIDTH)).astype(np.float32)
            )
    if family == "gpt2" and without != "position_embd":
        writer.add_tensor("position_embd.weight", random.normal(0, 0.05, (length, WIDTH)).astype(np.float32))
    norms = norms or NORMS.get(family, _PRE)
    for name in ("output_norm", *(f"blk.{n}.{part}" for n in range(layers) for part in norms)):
        width = WIDTH
        if "_q_" in name or "_k_" in name:  # OLMo 2's are of all heads
            width = (q_width if "_q_" in name else kv_width) if family == "olmo2" else head_dim
        writer.add_tensor(f"{name}.weight", random.uniform(0.5, 1.5, width).astype(np.float32))
        if family in GPT and f"{name}.bias" != without:
            writer.add_tensor(f"{name}.bias", random.normal(0, 0.5, width).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


_NAMES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "token_embd": "embed_tokens", "output_norm": "norm", "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.gate", "ffn_up_exps": "mlp.experts.up",
    "ffn_down_exps": "mlp.experts.down",
}  # fmt: skip


def float_model(path: Path) -> PreTrainedModel:
    """Return transformers' model with the file's weights as float32."""
    from transformers import AutoModelForCausalLM

    file, state = GGUFFile(path), {}
    config, family = config_of(file), file.metadata["general.architecture"]
    if family in GPT:
        return _float_gpt(file, AutoModelForCausalLM.from_config(config))
    names = dict(_NAMES)
    if "post_ffw_norm" in NORMS.get(family, ()):
        names["ffn_norm"] = "pre_feedforward_layernorm"
    if family == "phi3":
        names["ffn_up"] = "mlp.gate_up_proj"
    for name, tensor in file.tensors.items():
        if name in TENSORS:
            continue
        *block, part, field = name.split(".")
        weights = floats_of(file.rows(name).copy(), tensor.kind).reshape(tensor.shape)
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(part)
        if family.startswith("gemma") and "norm" in part:  # Gemma's modules add 1
            weights = weights - 1
        if heads and family in ("llama", "granite", "smollm3"):
            weights = weights.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)
        prefix = "lm_head" if part == "output" else f"model.{f'layers.{block[1]}.' if block else ''}{names[part]}"
        state[f"{prefix}.{field}"] = weights
    for part in [name.removesuffix("gate.weight") for name in state if name.endswith("experts.gate.weight")]:
        gate, up, down = (state.pop(f"{part}{each}.weight") for each in ("gate", "up", "down"))
        state |= {f"{part}gate_up_proj": torch.cat([gate, up], dim=1), f"{part}down_proj": down}
    model = AutoModelForCausalLM.from_config(config)
    missing, unexpected = model.load_state_dict(state, strict=False)
    biases = {name for name in missing if name.endswith(".bias")}
    assert not unexpected
    assert set(missing) - biases <= {"lm_head.weight"}
    for name in biases:
        torch.nn.init.zeros_(model.get_parameter(name))
    model.tie_weights()
    return model.eval()


def _float_gpt(file: GGUFFile, model: PreTrainedModel) -> PreTrainedModel:
    """Set all weights of transformers' model to those of a file, by the names of the `gguf` package and the layout of llama.cpp's converter."""
    family, heads = file.metadata["general.architecture"], file.metadata
    architecture = {each: key for key, each in gguf.MODEL_ARCH_NAMES.items()}[family]
    names = gguf.get_tensor_name_map(architecture, LAYERS)
    state, left = {}, set(file.tensors)
    for name, old in model.state_dict().items():
        stored = str(names.get_name(name, try_suffixes=(".weight", ".bias")))
        if stored == "output.weight" and stored not in file.tensors:  # tied
            stored = "token_embd.weight"
        elif stored not in file.tensors:
            assert stored.endswith(".bias")
            state[name] = torch.zeros_like(old)
            continue
        left -= {stored}
        tensor = file.tensors[stored]
        weights = floats_of(file.rows(stored).copy(), tensor.kind).reshape(tensor.shape)
        if family == "gpt2" and ".c_" in name and weights.dim() == 2:
            weights = weights.t()
        if "query_key_value" in name:
            groups = heads[f"{family}.attention.head_count_kv"]
            rows = torch.arange(len(weights)).view(groups, HEADS // groups + 2, -1)
            order = torch.cat([rows[:, :-2].flatten(), rows[:, -2].flatten(), rows[:, -1].flatten()])
            weights = torch.empty_like(weights).index_copy_(0, order, weights)
        state[name] = weights
    assert not left
    model.load_state_dict(state)
    return model.eval()
