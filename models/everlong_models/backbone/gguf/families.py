"""Map GGUF files of each architecture to transformers: the names of tensors and metadata, and the config."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from everlong_models.backbone.gguf import gpt, rope
from everlong_models.backbone.gguf.blocks import floats_of
from everlong_models.backbone.gguf.file import GGUFFile

ATTENTION = ("attn_q", "attn_k", "attn_v")
NORMS = {
    "attn_norm": "before", "ffn_norm": "between", "post_attention_norm": "after_attention", "post_ffw_norm": "after_mlp",
    "attn_q_norm": "queries", "attn_k_norm": "keys",
}  # fmt: skip
"""Norms of a layer in a GGUF file → fields of `kernels.norms.Norms`."""
_REST = ("attn_output", "ffn_gate", "ffn_up", "ffn_down")
ROUTER = "ffn_gate_inp"
_OF_EXPERTS = ("attn_output", ROUTER, "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
"""What layers with experts have in place of `_REST`."""
_CONFIG = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
"""Fields of transformers' config → names in a GGUF file."""
_PRE = ("attn_norm", "ffn_norm")
_POST = ("post_attention_norm", "post_ffw_norm")
_HEADS = ("attn_q_norm", "attn_k_norm")


@dataclass(frozen=True, slots=True)
class Family:
    """What files of an architecture have. `kind`: transformers' `model_type`; `norms`: of a layer; `fields`: like `_CONFIG`, if they are there.

    `turned`: llama.cpp rotates neighbouring numbers of a head, so it reorders the rows of queries and keys. `fused`: one tensor for
    queries, keys and values, and one for gate and up. `plus_one`: transformers' norms add 1 to their weights, llama.cpp's do not.
    `experts`: the MLPs are mixtures of experts. `known`: transformers reads such files, or their tokenizers, too. `biases`: prefixes of the
    names of the matrices that may have biases. `gpt`: `gpt` has what is special about the family: norms are layer norms with biases, MLPs
    have no gate, and one tensor has queries, keys and values.
    """

    kind: str
    norms: tuple[str, ...] = _PRE
    turned: bool = False
    fused: bool = False
    plus_one: bool = False
    experts: bool = False
    known: bool = True
    biases: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    gpt: bool = False


_GEMMA = {"head_dim": "attention.key_length", "sliding_window": "attention.sliding_window"}
_CAPS = {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"}
_EXPERTS = {
    "num_experts": "expert_count", "num_experts_per_tok": "expert_used_count", "moe_intermediate_size": "expert_feed_forward_length",
}  # fmt: skip
_GRANITE = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale", "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}  # fmt: skip
_FAMILIES = {
    "llama": Family("llama", turned=True, biases=("attn", "ffn")),
    "qwen2": Family("qwen2", biases=ATTENTION),
    "qwen3": Family("qwen3", (*_PRE, *_HEADS), fields={"head_dim": "attention.key_length"}),
    "qwen3moe": Family(
        "qwen3_moe", (*_PRE, *_HEADS), experts=True, fields={"head_dim": "attention.key_length"} | _EXPERTS
    ),
    "gemma2": Family("gemma2", (*_PRE, *_POST), plus_one=True, fields=_GEMMA | _CAPS),
    "gemma3": Family("gemma3_text", (*_PRE, *_POST, *_HEADS), plus_one=True, fields=_GEMMA),
    "phi3": Family("phi3", fused=True, fields={"sliding_window": "attention.sliding_window"}),
    "granite": Family("granite", turned=True, known=False, biases=("attn", "ffn"), fields=_GRANITE),
    "smollm3": Family("smollm3", turned=True, known=False, biases=("attn", "ffn")),
    "olmo2": Family(
        "olmo2", (*_POST, *_HEADS), known=False, biases=("attn",), fields={"sliding_window": "attention.sliding_window"}
    ),
    "gpt2": Family("gpt2", fused=True, biases=("attn", "ffn"), gpt=True),
    "gptneox": Family("gpt_neox", fused=True, known=False, biases=("attn", "ffn"), gpt=True),
    "falcon": Family("falcon", ("attn_norm",), fused=True, biases=("attn", "ffn"), gpt=True),
}
"""By the architecture's name in a GGUF file. Files of OLMo 3 are files of OLMo 2 with a sliding window."""
FAMILIES = (*(family.kind for family in _FAMILIES.values()), "olmo3")
"""transformers' `model_type` of the families whose files are read here."""
_LARGEST = {"gemma2": 46, "gemma3": 62}
"""Layers of Gemma's 27B, whose attention is scaled by the width."""
_SPLITS = (
    "default", "gpt-2", "olmo", "refact", "smollm", "smaug-bpe", "dbrx", "llama-bpe", "llama3", "llama-v3", "qwen2",
)  # fmt: skip
"""`tokenizer.ggml.pre` of files that transformers does not know: how texts are split before merging. These are read right."""
DIGITS = ("smollm", "refact")
"""Of these: every digit is a token of its own."""


def family_of(file: GGUFFile) -> Family:
    """Return the family of a file that can be read. Raises `KeyError` for an architecture that is not read here."""
    family = _FAMILIES[str(file.metadata.get("general.architecture"))]
    second = family.kind == "falcon" and gpt.norm_before(file.tensors, "blk.0.") == gpt.SECOND_NORM
    return replace(family, norms=(*family.norms, gpt.SECOND_NORM)) if second else family


def unreadable_reason(file: GGUFFile) -> str | None:
    """Return, in words, which content of this file is not supported; None if all of it is."""
    name = str(file.metadata.get("general.architecture"))
    if name not in _FAMILIES:
        return f"architecture {name!r}"
    family = family_of(file)
    needed = gpt.needed(name) if family.gpt else [*_CONFIG.values(), *(_EXPERTS.values() if family.experts else ())]
    lacking = [each for each in needed if f"{name}.{each}" not in file.metadata]
    if lacking:
        return f"metadata without {', '.join(lacking)}"
    if (reason := rope.unreadable_reason(file, name, _head_dim(file, name))) is not None:
        return reason
    values = file.metadata.get(f"{name}.attention.value_length", _head_dim(file, name))
    if values != _head_dim(file, name):
        return f"heads with keys of {_head_dim(file, name)} numbers and values of {values}"
    split = file.metadata.get("tokenizer.ggml.pre")
    if not family.known and (file.metadata.get("tokenizer.ggml.model") != "gpt2" or split not in _SPLITS):
        return f"a tokenizer of kind {file.metadata.get('tokenizer.ggml.model')!r}, {split!r}"
    names = tensor_names(int(file.metadata[f"{name}.block_count"]), family)
    if missing := sorted(names - file.tensors.keys() - {"output.weight"}):
        return f"tensors without {', '.join(missing[:3])}"
    biases = {each for each in _biases(file) if _part(each).startswith(family.biases)}
    biases &= {f"{each.removesuffix('.weight')}.bias" for each in names if "norm" not in each}
    if unknown := sorted(file.tensors.keys() - names - biases - set(rope.TENSORS)):
        return f"tensors {', '.join(unknown[:3])}"
    if family.gpt:
        return gpt.unreadable_reason(file, name)
    return _unreadable_experts(file, name) if family.experts else None


def _unreadable_experts(file: GGUFFile, name: str) -> str | None:
    """Return in words what is wrong with the experts of a file that has all tensors and metadata; None if nothing is."""
    count, used, F = (int(file.metadata[f"{name}.{field}"]) for field in _EXPERTS.values())
    D = int(file.metadata[f"{name}.embedding_length"])
    if not 1 <= used <= count:
        return f"{used} experts for each token, of {count}"
    if (scale := file.metadata.get(f"{name}.expert_weights_scale", 1.0)) not in (0.0, 1.0):
        return f"weights of experts scaled by {scale}"
    shapes = {
        ROUTER: (count, D),
        "ffn_gate_exps": (count, F, D),
        "ffn_up_exps": (count, F, D),
        "ffn_down_exps": (count, D, F),
    }
    for layer in range(int(file.metadata[f"{name}.block_count"])):
        for part, shape in shapes.items():
            if (found := file.tensors[f"blk.{layer}.{part}.weight"].shape) != shape:
                return f"blk.{layer}.{part}.weight of shape {found} instead of {shape}"
    return None


def misread_by_transformers(file: GGUFFile) -> bool:
    """Return whether transformers refuses this file, or would ignore what changes the result, such as Llama 3's rotary frequencies."""
    name = str(file.metadata.get("general.architecture"))
    family = _FAMILIES.get(name)
    if family is None:
        return rope.is_scaled(file, name)
    if family.gpt:
        return not family.known or not gpt.is_plain(file, name) or rope.is_scaled(file, name)
    largest = file.metadata.get(f"{name}.block_count") == _LARGEST.get(name, 0)
    always = (
        ATTENTION if name == "qwen2" else ()
    )  # transformers' reader drops other biases: their configs must name them
    dropped = not all(_part(bias).startswith(always) for bias in _biases(file))
    # transformers ignores the width of experts.
    special = not family.known or family.experts or largest or dropped or _other_heads(file, name, family)
    return special or rope.is_scaled(file, name) or rope.is_partial(file, name)


def tensor_names(layers: int, family: Family) -> set[str]:
    """Return the names of all tensors but biases of matrices and rotary factors."""
    fused = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    separate = (*(_OF_EXPERTS if family.experts else _REST), *ATTENTION)
    parts = (*family.norms, *(fused if family.fused else separate))
    names = {"token_embd.weight", "output_norm.weight", "output.weight"}
    names |= {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts}
    if family.gpt:
        names |= {f"{gpt.POSITIONS}.weight"} if family.kind == "gpt2" else set()
        names |= {f"{name.removesuffix('.weight')}.bias" for name in names if "norm" in name}
    return names


def _biases(file: GGUFFile) -> list[str]:
    return [name for name in file.tensors if name.endswith(".bias")]


def _part(tensor: str) -> str:
    return tensor.split(".")[-2]


def _head_dim(file: GGUFFile, name: str) -> int:
    return int(file.metadata.get(f"{name}.attention.key_length", _by_width(file, name)))


def _by_width(file: GGUFFile, name: str) -> int:
    return int(file.metadata[f"{name}.embedding_length"] // file.metadata[f"{name}.attention.head_count"])


def _other_heads(file: GGUFFile, name: str, family: Family) -> bool:
    """Return whether the heads have a dimension that transformers' reader does not see; it reads that of Llama's rotary positions."""
    dimension, width, heads = (
        file.metadata.get(f"{name}.{field}")
        for field in ("attention.key_length", "embedding_length", "attention.head_count")
    )
    if not (dimension and width and heads) or "head_dim" in family.fields:
        return False
    seen = file.metadata.get(f"{name}.rope.dimension_count") if name == "llama" else None
    return bool(dimension != (seen or width // heads))


def head_dim(config: PretrainedConfig) -> int:
    """Return the dimension of an attention head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def config_of(file: GGUFFile) -> PretrainedConfig:
    """Return the model's config. `unreadable_reason` must be None."""
    name, family = str(file.metadata["general.architecture"]), family_of(file)
    theta = file.metadata.get(f"{name}.rope.freq_base", 10000.0)
    fields: dict[str, Any] = {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for token in ("bos", "eos"):
        fields[f"{token}_token_id"] = file.metadata.get(f"tokenizer.ggml.{token}_token_id")
    if family.gpt:
        fields |= gpt.config_fields(file, name)
        if name != "gpt2":
            length = fields["max_position_embeddings"]
            fields["rope_parameters"] = rope.parameters(file, name, theta, length, _head_dim(file, name))
        return AutoConfig.for_model(family.kind, **fields)
    fields |= {ours: file.metadata[f"{name}.{theirs}"] for ours, theirs in _CONFIG.items()}
    for ours, theirs in family.fields.items():
        if (value := file.metadata.get(f"{name}.{theirs}")) is not None:
            fields[ours] = value
    fields["rope_theta"] = theta
    biased = {_part(bias).split("_")[0] for bias in _biases(file)}
    if name == "llama" or not family.known:
        fields["attention_bias"] = "attn" in biased
    if "ffn" in biased:
        fields["mlp_bias"] = True
    if _head_dim(file, name) != _by_width(file, name):
        fields["head_dim"] = _head_dim(file, name)
    if name != "llama":
        fields["pad_token_id"] = file.metadata.get("tokenizer.ggml.padding_token_id")
    kind = "olmo3" if name == "olmo2" and "sliding_window" in fields else family.kind
    fields |= _fields(file, name, kind, fields)
    return AutoConfig.for_model(kind, **fields)


def _fields(file: GGUFFile, name: str, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return further fields: rotary positions, and what files leave to the program that reads them (llama.cpp's `load_hparams`)."""
    by_width, per_head = _by_width(file, name), _head_dim(file, name)
    found: dict[str, Any] = {}
    if name in _LARGEST:
        largest = fields["num_hidden_layers"] == _LARGEST[name]
        found = {"query_pre_attn_scalar": by_width if largest else fields["head_dim"], "tie_word_embeddings": True}
    if name == "granite":
        found["attention_multiplier"] = fields.get("attention_multiplier") or per_head**-0.5
    if name == "qwen3moe":  # files do not say it
        found["norm_topk_prob"] = True
    if name == "phi3":
        found |= {
            "original_max_position_embeddings": rope.original_length(file, name, fields["max_position_embeddings"]),
            "sliding_window": fields.get("sliding_window") or None,
        }
    parameters = rope.parameters(file, name, fields["rope_theta"], fields["max_position_embeddings"], per_head)
    if kind in ("gemma3_text", "olmo3"):  # their sliding windows have rotary positions of their own, without scaling
        near = file.metadata.get(f"{name}.rope.freq_base_swa", 10000.0 if name == "gemma3" else fields["rope_theta"])
        found["rope_parameters"] = {
            "sliding_attention": {"rope_type": "default", "rope_theta": near}, "full_attention": parameters,
        }  # fmt: skip
    elif parameters["rope_type"] != "default" or name == "phi3":
        found["rope_parameters"] = parameters
    return found


def float_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    """Return a layer's weights as float32, by the names of transformers' modules."""
    found, family = {}, family_of(file)
    turned = turned_heads(family, config)
    for part, module in _modules(family).items():
        for suffix in ("weight", "bias"):
            name = f"blk.{layer}.{part}.{suffix}"
            if name in file.tensors:
                weights = torch.from_numpy(unturned(floats(file, name).numpy(), turned.get(part)))
                weights = gpt.as_in_transformers(config, part, weights) if family.gpt else weights
                found[f"{module}.{suffix}"] = weights - 1 if family.plus_one and part in NORMS else weights
    if family.experts:
        gate, up, down = (found.pop(f"mlp.experts.{part}.weight") for part in ("gate", "up", "down"))
        found |= {"mlp.experts.gate_up_proj": torch.cat([gate, up], dim=1), "mlp.experts.down_proj": down}
    return found


def all_float_tensors(file: GGUFFile, config: PretrainedConfig) -> Iterable[tuple[str, Tensor]]:
    """Yield all weights as float32, by the names of transformers' modules."""
    family = family_of(file)
    outside = gpt.OUTSIDE.get(family.kind, {"token_embd": "model.embed_tokens", "output_norm": "model.norm"})
    for name, module in (outside | {"output": "lm_head"}).items():
        for suffix in ("weight", "bias"):
            if f"{name}.{suffix}" in file.tensors:
                weights = floats(file, f"{name}.{suffix}")
                yield f"{module}.{suffix}", weights - 1 if family.plus_one and name == "output_norm" else weights
    layers = gpt.LAYERS.get(family.kind, "model.layers")
    for layer in range(config.num_hidden_layers):
        for name, weights in float_tensors(file, config, layer).items():
            yield f"{layers}.{layer}.{name}", weights


def expert_count(config: PretrainedConfig) -> int:
    """Return how many experts each layer has; 0 without experts."""
    return int(getattr(config, "num_experts", None) or 0)


def _modules(family: Family) -> dict[str, str]:
    """Return, for parts of a layer in a GGUF file, the names of transformers' modules."""
    if family.gpt:
        return gpt.modules(family.kind, family.norms)
    after = _POST[0] in family.norms
    return {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "attn_qkv": "self_attn.qkv_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.gate_up_proj" if family.fused else "mlp.up_proj",
        "ffn_down": "mlp.down_proj", ROUTER: "mlp.gate", "ffn_gate_exps": "mlp.experts.gate", "ffn_up_exps": "mlp.experts.up",
        "ffn_down_exps": "mlp.experts.down", "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm" if after else "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    }  # fmt: skip


def source(family: Family, config: PretrainedConfig, part: str) -> tuple[str, slice]:
    """Return the tensor of a layer that has a matrix, and its rows there."""
    if not family.fused:
        return part, slice(None)
    d = head_dim(config)
    q = config.num_attention_heads * d
    k = q + gpt.kv_heads(config) * d
    fused = {
        "attn_q": ("attn_qkv", slice(0, q)),
        "attn_k": ("attn_qkv", slice(q, k)),
        "attn_v": ("attn_qkv", slice(k, None)),
    }
    if not family.gpt:
        F = config.intermediate_size
        fused |= {"ffn_gate": ("ffn_up", slice(0, F)), "ffn_up": ("ffn_up", slice(F, None))}
    return fused.get(part, (part, slice(None)))


def layer_norms(file: GGUFFile, layer: int) -> dict[str, str]:
    """Return the tensors of a layer's norms, without suffix, by the fields of `kernels.norms.Norms`."""
    block = f"blk.{layer}."
    found = {field: f"{block}{name}" for name, field in NORMS.items() if f"{block}{name}.weight" in file.tensors}
    if family_of(file).kind == "falcon":
        return {"before": f"{block}{gpt.norm_before(file.tensors, block)}", "between": f"{block}attn_norm"}
    return found


def turned_heads(family: Family, config: PretrainedConfig) -> dict[str, int]:
    """Return the number of heads of the matrices whose rows llama.cpp reorders."""
    return {"attn_q": config.num_attention_heads, "attn_k": gpt.kv_heads(config)} if family.turned else {}


def unturned(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """Return rows of queries or keys in transformers' order: the first numbers of all pairs of a head before the second ones."""
    return rows if heads is None else rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def floats(file: GGUFFile, name: str) -> Tensor:
    """Return a tensor as float32, in its shape."""
    tensor = file.tensors[name]
    return floats_of(file.rows(name).copy(), tensor.kind).reshape(tensor.shape)


def vector_of(file: GGUFFile, name: str) -> Tensor:
    """Return a vector as float32. Raises `ValueError` for one in blocks."""
    kind = file.tensors[name].kind
    if kind not in (Kind.F32, Kind.F16):
        raise ValueError(f"{name} must be F32 or F16, is {kind.name}")
    return torch.from_numpy(file.rows(name)[0].view(np.float32 if kind == Kind.F32 else np.float16).astype(np.float32))
