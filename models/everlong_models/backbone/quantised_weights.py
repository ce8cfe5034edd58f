"""A GGUF file's weights in the layout that the kernels multiply: written once to a folder, then mapped from it.

The folder has the model's `config.json`, `quantised.json` and a safetensors file for each layer and for what is outside of the layers. Mapped
pages are shared by the processes of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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

MANIFEST = "quantised.json"
LAYOUT = 1
"""The version of the folder's layout. It is part of the folder's name."""
_FAMILIES = ("llama", "qwen2")
_MATRICES = {Layer.O: "attn_output", Layer.GATE: "ffn_gate", Layer.UP: "ffn_up", Layer.DOWN: "ffn_down"}
_ATTENTION = ("attn_q", "attn_k", "attn_v")
_NORMS = ("attn_norm", "ffn_norm")
_MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Parts of a layer in a GGUF file → transformers' modules."""
_CONFIG = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}  # fmt: skip
"""Fields of transformers' config → names in a GGUF file."""


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """The weights of a decoder. `norms`: of each layer's two norms; `embedding`: blocks (V, bytes of a row) of `embedding_kind`."""

    layers: Sequence[Mapping[Layer, QuantisedMatrix]]
    norms: Sequence[tuple[Tensor, Tensor]]
    norm: Tensor
    head: QuantisedMatrix
    embedding: Tensor
    embedding_kind: Kind
    digest: str


def unsupported_reason(file: GGUFFile) -> str | None:
    """Return in words why this file cannot be served from one copy of its weights; None if it can."""
    family = file.metadata.get("general.architecture")
    if family not in _FAMILIES:
        return f"architecture {family!r}"
    scaling = file.metadata.get(f"{family}.rope.scaling.type", "none")
    if scaling != "none":
        return f"rotary positions with scaling {scaling!r}"
    lacking = [name for name in _CONFIG.values() if f"{family}.{name}" not in file.metadata]
    if lacking:
        return f"metadata without {', '.join(lacking)}"
    config = config_of(file)
    head_dim = config.hidden_size // config.num_attention_heads
    names = _names(config.num_hidden_layers)
    if missing := sorted(names - file.tensors.keys() - {"output.weight"}):
        return f"tensors without {', '.join(missing[:3])}"
    biases = {f"{name.removesuffix('.weight')}.bias" for name in names if "norm" not in name}
    if unknown := sorted(file.tensors.keys() - names - biases):
        return f"tensors {', '.join(unknown[:3])}"
    for name in names & file.tensors.keys():
        tensor = file.tensors[name]
        if len(tensor.shape) == 2 and (tensor.kind not in KINDS or tensor.shape[1] % GROUP):
            return f"{name} of kind {tensor.kind.name} and shape {tensor.shape}"
    per_head = file.metadata.get(f"{family}.attention.key_length", head_dim)
    return f"a head dimension of {per_head}" if head_dim % PANEL or per_head != head_dim else None


def _names(layers: int) -> set[str]:
    """Return the names of all tensors but biases."""
    parts = (*_MATRICES.values(), *_ATTENTION, *_NORMS)
    outside = {"token_embd.weight", "output_norm.weight", "output.weight"}
    return outside | {f"blk.{layer}.{part}.weight" for layer in range(layers) for part in parts}


def config_of(file: GGUFFile) -> PretrainedConfig:
    """Return the model's config. `unsupported_reason` must be None."""
    family = str(file.metadata["general.architecture"])
    fields: dict[str, Any] = {ours: file.metadata[f"{family}.{theirs}"] for ours, theirs in _CONFIG.items()}
    fields["rope_theta"] = file.metadata.get(f"{family}.rope.freq_base", 10000.0)
    fields |= {
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    for name in ("bos", "eos"):
        fields[f"{name}_token_id"] = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
    if family == "llama":
        fields["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    return AutoConfig.for_model(family, **fields)


def float_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    """Return a layer's weights as float32, by the names of transformers' modules."""
    found = {}
    for part, module in _MODULES.items():
        for field in ("weight", "bias"):
            name = f"blk.{layer}.{part}.{field}"
            if name in file.tensors:
                tensor = file.tensors[name]
                weights = floats_of(file.rows(name).copy(), tensor.kind).reshape(tensor.shape)
                found[f"{module}.{field}"] = torch.from_numpy(
                    _unturned(weights.numpy(), _turned_heads(config).get(part))
                )
    return found


def write_folder(file: GGUFFile, digest: str, folder: Path) -> None:
    """Write the config and the weights of `file` to `folder`. `digest`: SHA-256 of the file."""
    config = config_of(file)
    config.save_pretrained(folder)
    for layer in range(config.num_hidden_layers):
        save_file(_layer_tensors(file, config, layer), folder / _layer_file(layer))
    output = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    outside = {
        "embedding": torch.from_numpy(file.rows("token_embd.weight").copy()),
        "norm": _vector(file, "output_norm.weight"),
    }
    save_file(outside | _matrix_tensors("head", file, [output]), folder / "outside.safetensors")
    manifest = {"digest": digest, "embedding": file.tensors["token_embd.weight"].kind.name}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def read_folder(folder: Path, config: PretrainedConfig) -> QuantisedWeights:
    """Map the weights that `write_folder` has written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files = [load_file(folder / _layer_file(layer)) for layer in range(config.num_hidden_layers)]
    outside = load_file(folder / "outside.safetensors")
    head_dim = config.hidden_size // config.num_attention_heads
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
        norms=[(tensors["before"], tensors["between"]) for tensors in files],
        norm=outside["norm"],
        head=_matrix(outside, "head", config.vocab_size),
        embedding=outside["embedding"],
        embedding_kind=Kind[manifest["embedding"]],
        digest=manifest["digest"],
    )


def _layer_file(layer: int) -> str:
    return f"layer-{layer:03}.safetensors"


def _layer_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    block = f"blk.{layer}."
    names = [f"{block}{part}.weight" for part in _ATTENTION]
    turned = [_turned_heads(config).get(part) for part in _ATTENTION]
    together = stackable(*(file.tensors[name].kind for name in names))
    tensors = {"before": _vector(file, f"{block}attn_norm.weight"), "between": _vector(file, f"{block}ffn_norm.weight")}
    tensors |= _matrix_tensors("QKV", file, names if together else names[:2], turned)
    if not together:
        tensors |= _matrix_tensors("V", file, names[2:])
    for name, part in _MATRICES.items():
        tensors |= _matrix_tensors(name.name, file, [f"{block}{part}.weight"])
    return tensors


def _matrix_tensors(
    name: str, file: GGUFFile, parts: Sequence[str], turned: Sequence[int | None] = (None,)
) -> dict[str, Tensor]:
    """Return codes, scales and bias of the matrix that consists of the rows of `parts`. `turned`: heads whose rows are reordered."""
    matrices, biases = [], []
    for part, heads in zip(parts, turned, strict=False):
        rows, name_of_bias = file.rows(part), f"{part.removesuffix('.weight')}.bias"
        matrices.append(codes_of(_unturned(rows, heads), file.tensors[part].kind))
        vector = _vector(file, name_of_bias) if name_of_bias in file.tensors else torch.zeros(len(rows))
        biases.append(torch.from_numpy(_unturned(vector.numpy(), heads)))
    tensors = {f"{name}.{field}": torch.cat([getattr(matrix, field) for matrix in matrices]) for field in Codes._fields}
    bias = torch.cat(biases)
    return tensors | ({f"{name}.bias": bias} if bias.any() else {})


def _turned_heads(config: PretrainedConfig) -> dict[str, int]:
    """Return the number of heads of the matrices whose rows llama.cpp reorders: for Llama it rotates neighbouring numbers of a head."""
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    return heads if config.model_type == "llama" else {}


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
