"""A GGUF file's weights in the layout that the kernels multiply: written once to a folder, then mapped from it.

The folder has the model's `config.json`, `quantised.json` and a safetensors file for each layer and for what is outside of the layers. Mapped
pages are shared by the processes of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, PretrainedConfig

from everlong_models.backbone.gguf_blocks import KINDS, codes_of, floats_of, stackable
from everlong_models.backbone.gguf_file import GGUFFile
from everlong_models.kernels.cpu.job import Layer
from everlong_models.kernels.cpu.quantised_matrix import Codes, QuantisedMatrix
from everlong_models.kernels.cpu.simd import GROUP, PANEL
from everlong_models.kernels.norms import Norms

MANIFEST = "quantised.json"
LAYOUT = 1
"""The version of the folder's layout. It is part of the folder's name."""
_MATRICES = {Layer.O: "attn_output", Layer.GATE: "ffn_gate", Layer.UP: "ffn_up", Layer.DOWN: "ffn_down"}
_ATTENTION = ("attn_q", "attn_k", "attn_v")
_NORMS = {
    "attn_norm": "before", "ffn_norm": "between", "post_attention_norm": "after_attention", "post_ffw_norm": "after_mlp",
    "attn_q_norm": "queries", "attn_k_norm": "keys",
}  # fmt: skip
"""Norms of a layer in a GGUF file → fields of `Norms`."""
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
class _Family:
    """What files of an architecture have. `kind`: transformers' `model_type`; `norms`: of a layer; `fields`: like `_CONFIG`, if they are there.

    `turned`: llama.cpp rotates neighbouring numbers of a head, so it reorders the rows of queries and keys. `fused`: one tensor for
    queries, keys and values, and one for gate and up. `plus_one`: transformers' norms add 1 to their weights, llama.cpp's do not.
    `scaling`: kinds of scaled rotary positions.
    """

    kind: str
    norms: tuple[str, ...] = _PRE
    turned: bool = False
    fused: bool = False
    plus_one: bool = False
    scaling: tuple[str, ...] = ("none",)
    fields: Mapping[str, str] = field(default_factory=dict)


_GEMMA = {"head_dim": "attention.key_length", "sliding_window": "attention.sliding_window"}
_FAMILIES = {
    "llama": _Family("llama", turned=True),
    "qwen2": _Family("qwen2"),
    "qwen3": _Family("qwen3", (*_PRE, *_HEADS), fields={"head_dim": "attention.key_length"}),
    "gemma2": _Family(
        "gemma2",
        (*_PRE, *_POST),
        plus_one=True,
        fields=_GEMMA
        | {"attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping"},
    ),
    "gemma3": _Family(
        "gemma3_text", (*_PRE, *_POST, *_HEADS), plus_one=True, scaling=("none", "linear"), fields=_GEMMA
    ),
    "phi3": _Family("phi3", fused=True, fields={"sliding_window": "attention.sliding_window"}),
}
"""By the architecture's name in a GGUF file: those of `description.FAMILIES` whose tokenizers transformers reads from such a file."""
FAMILIES = tuple(family.kind for family in _FAMILIES.values())
"""transformers' `model_type` of the families whose files can be served from one copy of their weights."""


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """The weights of a decoder. `norm`: of the last norm; `embedding`: blocks (V, bytes of a row) of `embedding_kind`."""

    layers: Sequence[Mapping[Layer, QuantisedMatrix]]
    norms: Sequence[Norms]
    norm: Tensor
    head: QuantisedMatrix
    embedding: Tensor
    embedding_kind: Kind
    digest: str


def unsupported_reason(file: GGUFFile) -> str | None:
    """Return in words why this file cannot be served from one copy of its weights; None if it can."""
    name = file.metadata.get("general.architecture")
    family = _FAMILIES.get(str(name))
    if family is None:
        return f"architecture {name!r}"
    scaling = file.metadata.get(f"{name}.rope.scaling.type", "none")
    if scaling not in family.scaling:
        return f"rotary positions with scaling {scaling!r}"
    lacking = [field for field in _CONFIG.values() if f"{name}.{field}" not in file.metadata]
    if lacking:
        return f"metadata without {', '.join(lacking)}"
    config = config_of(file)
    names = _names(config.num_hidden_layers, family)
    if missing := sorted(names - file.tensors.keys() - {"output.weight"}):
        return f"tensors without {', '.join(missing[:3])}"
    biases = {f"{name.removesuffix('.weight')}.bias" for name in names if "norm" not in name}
    if unknown := sorted(file.tensors.keys() - names - biases):
        return f"tensors {', '.join(unknown[:3])}"
    for tensor_name in names & file.tensors.keys():
        tensor = file.tensors[tensor_name]
        if len(tensor.shape) == 2 and (tensor.kind not in KINDS or tensor.shape[1] % GROUP):
            return f"{tensor_name} of kind {tensor.kind.name} and shape {tensor.shape}"
    head_dim = _head_dim(config)
    per_head = file.metadata.get(f"{name}.attention.key_length", head_dim)
    return f"a head dimension of {per_head}" if head_dim % PANEL or per_head != head_dim else None


def _names(layers: int, family: _Family) -> set[str]:
    """Return the names of all tensors but biases."""
    fused = ("attn_qkv", "attn_output", "ffn_up", "ffn_down")
    parts = (*family.norms, *(fused if family.fused else (*_MATRICES.values(), *_ATTENTION)))
    outside = {"token_embd.weight", "output_norm.weight", "output.weight"}
    return outside | {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts}


def _head_dim(config: PretrainedConfig) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _family(file: GGUFFile) -> _Family:
    return _FAMILIES[str(file.metadata["general.architecture"])]


def config_of(file: GGUFFile) -> PretrainedConfig:
    """Return the model's config. `unsupported_reason` must be None."""
    name, family = str(file.metadata["general.architecture"]), _family(file)
    fields: dict[str, Any] = {ours: file.metadata[f"{name}.{theirs}"] for ours, theirs in _CONFIG.items()}
    for ours, theirs in family.fields.items():
        if (value := file.metadata.get(f"{name}.{theirs}")) is not None:
            fields[ours] = value
    fields["rope_theta"] = file.metadata.get(f"{name}.rope.freq_base", 10000.0)
    fields |= {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for token in ("bos", "eos"):
        fields[f"{token}_token_id"] = file.metadata.get(f"tokenizer.ggml.{token}_token_id")
    if name == "llama":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    else:
        fields["pad_token_id"] = file.metadata.get("tokenizer.ggml.padding_token_id")
    if name in ("gemma2", "gemma3"):
        fields |= _gemma_fields(file, name, fields)
    if name == "phi3":
        fields |= _phi3_fields(file, fields)
    return AutoConfig.for_model(family.kind, **fields)


def _gemma_fields(file: GGUFFile, name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Gemma's files leave to the program that reads them (llama.cpp's `load_hparams`)."""
    largest = {"gemma2": 46, "gemma3": 62}[name]  # layers of the 27B, whose attention is scaled by the width
    by_width = fields["hidden_size"] // fields["num_attention_heads"]
    found: dict[str, Any] = {
        "query_pre_attn_scalar": by_width if fields["num_hidden_layers"] == largest else fields["head_dim"],
        "tie_word_embeddings": True,
    }
    if name == "gemma3":
        full = {"rope_type": "default", "rope_theta": fields["rope_theta"]}
        if file.metadata.get("gemma3.rope.scaling.type", "none") == "linear":
            full |= {"rope_type": "linear", "factor": file.metadata["gemma3.rope.scaling.factor"]}
        near = {"rope_type": "default", "rope_theta": file.metadata.get("gemma3.rope.freq_base_swa", 10000.0)}
        found["rope_parameters"] = {"sliding_attention": near, "full_attention": full}
    return found


def _phi3_fields(file: GGUFFile, fields: Mapping[str, Any]) -> dict[str, Any]:
    head_dim = fields["hidden_size"] // fields["num_attention_heads"]
    rotated = file.metadata.get("phi3.rope.dimension_count", head_dim)
    theta, part = fields["rope_theta"], rotated / head_dim
    rope = {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": part}
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": fields["max_position_embeddings"],
        "sliding_window": fields.get("sliding_window") or None,
    }


def _source(family: _Family, config: PretrainedConfig, part: str) -> tuple[str, slice]:
    """Return the tensor of a layer that has a matrix, and its rows there."""
    if not family.fused:
        return part, slice(None)
    d, F = _head_dim(config), config.intermediate_size
    q = config.num_attention_heads * d
    k = q + config.num_key_value_heads * d
    fused = {
        "attn_q": ("attn_qkv", slice(0, q)), "attn_k": ("attn_qkv", slice(q, k)), "attn_v": ("attn_qkv", slice(k, None)),
        "ffn_gate": ("ffn_up", slice(0, F)), "ffn_up": ("ffn_up", slice(F, None)),
    }  # fmt: skip
    return fused.get(part, (part, slice(None)))


def float_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    """Return a layer's weights as float32, by the names of transformers' modules."""
    found, family = {}, _family(file)
    turned = _turned_heads(family, config)
    for part, module in _modules(family).items():
        for suffix in ("weight", "bias"):
            name = f"blk.{layer}.{part}.{suffix}"
            if name in file.tensors:
                tensor = file.tensors[name]
                weights = floats_of(file.rows(name).copy(), tensor.kind).reshape(tensor.shape)
                weights = torch.from_numpy(_unturned(weights.numpy(), turned.get(part)))
                found[f"{module}.{suffix}"] = weights - 1 if family.plus_one and part in _NORMS else weights
    return found


def _modules(family: _Family) -> dict[str, str]:
    """Return, for parts of a layer in a GGUF file, the names of transformers' modules."""
    after = _POST[0] in family.norms
    return {
        "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
        "attn_qkv": "self_attn.qkv_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
        "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.gate_up_proj" if family.fused else "mlp.up_proj",
        "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm" if after else "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm",
    }  # fmt: skip


def write_folder(file: GGUFFile, digest: str, folder: Path) -> None:
    """Write the config and the weights of `file` to `folder`. `digest`: SHA-256 of the file."""
    config = config_of(file)
    config.save_pretrained(folder)
    for layer in range(config.num_hidden_layers):
        save_file(_layer_tensors(file, config, layer), folder / _layer_file(layer))
    output = "output" if "output.weight" in file.tensors else "token_embd"
    outside = {
        "embedding": torch.from_numpy(file.rows("token_embd.weight").copy()),
        "norm": _vector(file, "output_norm.weight"),
    }
    save_file(outside | _matrix_tensors("head", file, [_Rows(output)]), folder / "outside.safetensors")
    manifest = {"digest": digest, "embedding": file.tensors["token_embd.weight"].kind.name}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def read_folder(folder: Path, config: PretrainedConfig) -> QuantisedWeights:
    """Map the weights that `write_folder` has written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files = [load_file(folder / _layer_file(layer)) for layer in range(config.num_hidden_layers)]
    outside = load_file(folder / "outside.safetensors")
    head_dim = _head_dim(config)
    kept, both = (
        config.num_key_value_heads * head_dim,
        (config.num_attention_heads + config.num_key_value_heads) * head_dim,
    )
    layers = []
    for tensors in files:
        split = "V.codes" in tensors
        outputs = {
            Layer.QKV: both if split else both + kept, Layer.O: config.hidden_size, Layer.GATE: config.intermediate_size,
            Layer.UP: config.intermediate_size, Layer.DOWN: config.hidden_size,
        }  # fmt: skip
        if split:
            outputs[Layer.V] = kept
        layers.append({name: _matrix(tensors, name.name, count) for name, count in outputs.items()})
    return QuantisedWeights(
        layers=layers,
        norms=[_norms(tensors, config) for tensors in files],
        norm=outside["norm"],
        head=_matrix(outside, "head", config.vocab_size),
        embedding=outside["embedding"],
        embedding_kind=Kind[manifest["embedding"]],
        digest=manifest["digest"],
    )


def _norms(tensors: Mapping[str, Tensor], config: PretrainedConfig) -> Norms:
    found = {name: tensors[name] for name in _NORMS.values() if name in tensors}
    return Norms(**found, whole="queries" in found and len(found["queries"]) != _head_dim(config))


def _layer_file(layer: int) -> str:
    return f"layer-{layer:03}.safetensors"


def _layer_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    block, family = f"blk.{layer}.", _family(file)
    turned = _turned_heads(family, config)

    def source(part: str) -> _Rows:
        tensor, rows = _source(family, config, part)
        return _Rows(f"{block}{tensor}", rows, turned.get(part))

    def matrix(name: str, *parts: str) -> dict[str, Tensor]:
        return _matrix_tensors(name, file, [source(part) for part in parts])

    norms = [name for name in _NORMS if f"{block}{name}.weight" in file.tensors]
    tensors = {_NORMS[name]: _vector(file, f"{block}{name}.weight") for name in norms}
    together = stackable(*(file.tensors[f"{source(part).tensor}.weight"].kind for part in _ATTENTION))
    tensors |= matrix("QKV", *(_ATTENTION if together else _ATTENTION[:2]))
    if not together:
        tensors |= matrix("V", _ATTENTION[2])
    for name, part in _MATRICES.items():
        tensors |= matrix(name.name, part)
    return tensors


class _Rows(NamedTuple):
    """Rows of a tensor of a file, which has a weight and may have a bias. `turned`: heads whose rows are reordered."""

    tensor: str
    rows: slice = slice(None)
    turned: int | None = None


def _matrix_tensors(name: str, file: GGUFFile, parts: Sequence[_Rows]) -> dict[str, Tensor]:
    """Return codes, scales and bias of the matrix that consists of the rows of `parts`."""
    matrices, biases = [], []
    for tensor, which, heads in parts:
        rows, name_of_bias = file.rows(f"{tensor}.weight")[which], f"{tensor}.bias"
        matrices.append(codes_of(_unturned(rows, heads), file.tensors[f"{tensor}.weight"].kind))
        vector = _vector(file, name_of_bias)[which] if name_of_bias in file.tensors else torch.zeros(len(rows))
        biases.append(torch.from_numpy(_unturned(vector.numpy(), heads)))
    tensors = {f"{name}.{field}": torch.cat([getattr(matrix, field) for matrix in matrices]) for field in Codes._fields}
    bias = torch.cat(biases)
    return tensors | ({f"{name}.bias": bias} if bias.any() else {})


def _turned_heads(family: _Family, config: PretrainedConfig) -> dict[str, int]:
    """Return the number of heads of the matrices whose rows llama.cpp reorders."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return heads if family.turned else {}


def _unturned(rows: np.ndarray, heads: int | None) -> np.ndarray:
    """Return rows of queries or keys in transformers' order: the first numbers of all pairs of a head before the second ones."""
    return rows if heads is None else rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _vector(file: GGUFFile, name: str) -> Tensor:
    kind = file.tensors[name].kind
    if kind not in (Kind.F32, Kind.F16):
        raise ValueError(f"{name} must be F32 or F16, is {kind.name}")
    return torch.from_numpy(file.rows(name)[0].view(np.float32 if kind == Kind.F32 else np.float16).astype(np.float32))


def _matrix(tensors: Mapping[str, Tensor], name: str, outputs: int) -> QuantisedMatrix:
    codes = Codes(tensors[f"{name}.codes"], tensors[f"{name}.scales"])
    return QuantisedMatrix.of(codes, outputs, tensors.get(f"{name}.bias"))
