"""Map GGUF files of GPT-2, GPT-NeoX and Falcon to transformers, which stores the same models differently.

A file's `attn_qkv` has all queries, then all keys, then all values. transformers' GPT-NeoX and Falcon have, for each key head, its queries,
its key and its value. transformers' GPT-2 stores matrices transposed.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from everlong_models.backbone.gguf.file import GGUFFile

POSITIONS = "position_embd"
"""The tensor of GPT-2's learned positions."""
SECOND_NORM = "attn_norm_2"
"""Falcon 40B's norm before attention. Its `attn_norm` is the norm before the MLP; that of Falcon 7B is the norm before both."""
MATRICES = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
"""Tensors of a layer's matrices."""
_ROWS_IN_ORDER = "jploski"
"""llama.cpp's name of the order of rows in Falcon's `attn_qkv` (see above)."""
_NEEDED = (
    "embedding_length", "block_count", "feed_forward_length", "attention.head_count", "context_length",
    "attention.layer_norm_epsilon",
)  # fmt: skip
_ALSO_NEEDED = {"gptneox": "use_parallel_residual", "falcon": "attention.head_count_kv"}
_TANH = 44
"""Layers of GPT-NeoX-20B, which computes GELU by its form with tanh. Other models, such as Pythia, use the exact form. Files do not say it."""
_GPT2 = {
    "attn_qkv": "attn.c_attn", "attn_output": "attn.c_proj", "ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj", "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
}  # fmt: skip
_OTHERS = {
    "attn_qkv": "{attention}.query_key_value", "attn_output": "{attention}.dense", "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h", "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
OUTSIDE = {
    "gpt2": {"token_embd": "transformer.wte", POSITIONS: "transformer.wpe", "output_norm": "transformer.ln_f"},
    "gpt_neox": {"token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm"},
    "falcon": {"token_embd": "transformer.word_embeddings", "output_norm": "transformer.ln_f"},
}
"""By transformers' `model_type`: tensors outside of the layers, without the head → names of transformers' modules."""
LAYERS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers", "falcon": "transformer.h"}
"""transformers' names of the list of layers."""


def needed(name: str) -> list[str]:
    """Return the metadata that a file of the architecture `name` must have."""
    return [*_NEEDED, *([_ALSO_NEEDED[name]] if name in _ALSO_NEEDED else [])]


def norm_before(tensors: Collection[str], block: str) -> str:
    """Return the tensor of a layer's norm before attention. `block`: the prefix of the layer's tensors."""
    return SECOND_NORM if f"{block}{SECOND_NORM}.weight" in tensors else "attn_norm"


def unreadable_reason(file: GGUFFile, name: str) -> str | None:
    """Return in words what is wrong with the layout of a file that has all tensors and metadata; None if nothing is."""
    D, H, F, length = (
        int(file.metadata[f"{name}.{field}"])
        for field in ("embedding_length", "attention.head_count", "feed_forward_length", "context_length")
    )
    G, d = _kv_heads(file, name), D // H
    per_head = file.metadata.get(f"{name}.attention.key_length", d)
    if H * per_head != D:
        return f"{H} heads of {per_head} numbers in a width of {D}"
    if name != "falcon" and G != H:
        return f"{G} key heads for {H} query heads"
    if (order := file.metadata.get(f"{name}.tensor_data_layout", _ROWS_IN_ORDER)) != _ROWS_IN_ORDER:
        return f"queries, keys and values in the order {order!r}"
    shapes = {"attn_qkv": ((H + 2 * G) * d, D), "attn_output": (D, D), "ffn_up": (F, D), "ffn_down": (D, F)}
    layers = range(int(file.metadata[f"{name}.block_count"]))
    wanted = {f"blk.{layer}.{part}.weight": shape for layer in layers for part, shape in shapes.items()}
    if name == "gpt2":
        wanted[f"{POSITIONS}.weight"] = (length, D)
    for tensor, shape in wanted.items():
        if (found := file.tensors[tensor].shape) != shape:
            return f"{tensor} of shape {found} instead of {shape}"
    return None


def is_plain(file: GGUFFile, name: str) -> bool:
    """Return whether transformers' reader reads a file of GPT-2 or Falcon right: it ignores the fields that are compared here, and Falcon's head."""
    D, F, length, theta, eps = (
        file.metadata.get(f"{name}.{field}")
        for field in (
            "embedding_length", "feed_forward_length", "context_length", "rope.freq_base", "attention.layer_norm_epsilon",
        )
    )  # fmt: skip
    if not (D and F and length and eps) or F != 4 * D:
        return False
    if name == "gpt2":
        return bool(length == 1024)
    ignored = (
        any(tensor.endswith(".bias") and "norm" not in tensor for tensor in file.tensors)
        or "output.weight" in file.tensors
    )
    alike = _kv_heads(file, name) == 1 and norm_before(file.tensors, "blk.0.") != SECOND_NORM and not ignored
    return alike and theta in (None, 10000.0) and math.isclose(eps, 1e-5, rel_tol=1e-6)


def config_fields(file: GGUFFile, name: str) -> dict[str, Any]:
    """Return fields of transformers' config, without rotary positions and what all families have."""
    metadata = {field: file.metadata[f"{name}.{field}"] for field in needed(name)}
    fields = {
        "hidden_size": metadata["embedding_length"],
        "num_hidden_layers": metadata["block_count"],
        "num_attention_heads": metadata["attention.head_count"],
        "max_position_embeddings": metadata["context_length"],
    }
    inner, eps = metadata["feed_forward_length"], metadata["attention.layer_norm_epsilon"]
    biased = {tensor.split(".")[-2] for tensor in file.tensors if tensor.endswith(".bias")} & set(MATRICES)
    if name == "gpt2":
        return fields | {"n_inner": inner, "layer_norm_epsilon": eps}
    if name == "gptneox":
        return fields | {
            "intermediate_size": inner,
            "layer_norm_eps": eps,
            "hidden_act": "gelu_fast" if metadata["block_count"] == _TANH else "gelu",
            "use_parallel_residual": bool(metadata["use_parallel_residual"]),
            "attention_bias": bool(biased & {"attn_qkv", "attn_output"}),
        }
    kv_heads, second = _kv_heads(file, name), norm_before(file.tensors, "blk.0.") == SECOND_NORM
    return fields | {
        "ffn_hidden_size": inner,
        "layer_norm_epsilon": eps,
        "bias": bool(biased),
        "alibi": False,
        "parallel_attn": True,
        "multi_query": True,
        "new_decoder_architecture": second or kv_heads > 1,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if second else 1,
    }


def _kv_heads(file: GGUFFile, name: str) -> int:
    return int(
        file.metadata.get(f"{name}.attention.head_count_kv") or file.metadata.get(f"{name}.attention.head_count", 0)
    )


def modules(kind: str, norms: Collection[str]) -> dict[str, str]:
    """Return, for parts of a layer in a file, the names of transformers' modules. `norms`: the file's norms of a layer."""
    if kind == "gpt2":
        return _GPT2
    attention = "attention" if kind == "gpt_neox" else "self_attention"
    found = {part: name.format(attention=attention) for part, name in _OTHERS.items()}
    return found | ({"attn_norm": "ln_mlp", SECOND_NORM: "ln_attn"} if SECOND_NORM in norms else {})


def as_in_transformers(config: PretrainedConfig, part: str, weights: Tensor) -> Tensor:
    """Return the weight or bias of a file's `part` of a layer in transformers' layout."""
    if part not in MATRICES:
        return weights
    if config.model_type == "gpt2":
        return weights.t().contiguous() if weights.dim() == 2 else weights
    return weights[_interleaved(config)] if part == "attn_qkv" else weights


def _interleaved(config: PretrainedConfig) -> Tensor:
    """Return, for each row of transformers' matrix of queries, keys and values, its row in a file."""
    H, G = config.num_attention_heads, kv_heads(config)
    d = config.hidden_size // H
    q, k, v = torch.arange((H + 2 * G) * d).view(-1, d).split([H, G, G])
    return torch.cat([q.view(G, -1, d), k[:, None], v[:, None]], dim=1).flatten()


def kv_heads(config: PretrainedConfig) -> int:
    """Return the number of heads of keys and values, of any family."""
    if config.model_type == "falcon":
        return int(config.num_kv_heads if config.new_decoder_architecture else 1)
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def mlp_width(config: PretrainedConfig) -> int:
    """Return the width of the MLPs, of any family."""
    names = {"gpt2": "n_inner", "falcon": "ffn_hidden_size"}
    return int(getattr(config, names.get(config.model_type, "intermediate_size")))
