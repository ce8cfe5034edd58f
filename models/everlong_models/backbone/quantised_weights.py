"""A GGUF file's weights in the layout that the kernels multiply: written once to a folder, then mapped from it.

The folder has the model's `config.json`, `quantised.json` and a safetensors file for each layer and for what is outside of the layers. Mapped
pages are shared by the processes of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig

from everlong_models.backbone.gguf import gpt
from everlong_models.backbone.gguf.blocks import KINDS, codes_of, floats_of, stackable
from everlong_models.backbone.gguf.families import (
    ATTENTION,
    NORMS,
    ROUTER,
    config_of,
    expert_count,
    family_of,
    floats,
    head_dim,
    layer_norms,
    source,
    turned_heads,
    unreadable_reason,
    unturned,
    vector_of,
)
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.kernels.cpu.job import Layer
from everlong_models.kernels.cpu.quantised_matrix import Codes, QuantisedMatrix
from everlong_models.kernels.cpu.simd import GROUP, PANEL
from everlong_models.kernels.experts import QuantisedExperts, Router
from everlong_models.kernels.norms import Norms

MANIFEST = "quantised.json"
LAYOUT = 1
"""The version of the folder's layout. It is part of the folder's name."""
_MATRICES = {Layer.O: "attn_output", Layer.GATE: "ffn_gate", Layer.UP: "ffn_up", Layer.DOWN: "ffn_down"}
_WITHOUT_GATE = {Layer.O: "attn_output", Layer.GATE: "ffn_up", Layer.DOWN: "ffn_down"}
_LEAVING = (Layer.O, Layer.DOWN)
"""Matrices whose outputs are added to the residual stream."""
_ROWS = 4096
"""Rows that are dequantised at once. It bounds memory."""
_EXPERTS = {Layer.GATE: "ffn_gate_exps", Layer.UP: "ffn_up_exps", Layer.DOWN: "ffn_down_exps"}


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """The weights of a decoder. `experts`: of each layer that has them; `norm`: of the last norm; `embedding`: blocks (V, bytes of a row) of `embedding_kind`.

    For layer norms, `norm_bias` is the last one's. `norm_biases`, by matrix of each layer: of the norm before it (K,), whose product with the
    matrix is part of its bias. `means`: of the rows of a matrix (K,) whose outputs need mean 0 (`decoder.parts.Description.centred`).
    `positions`: learned positions (positions, D).
    """

    layers: Sequence[Mapping[Layer, QuantisedMatrix]]
    experts: Sequence[QuantisedExperts | None]
    norms: Sequence[Norms]
    norm: Tensor
    head: QuantisedMatrix
    embedding: Tensor
    embedding_kind: Kind
    digest: str
    norm_biases: Sequence[Mapping[Layer, Tensor]]
    means: Sequence[Mapping[Layer, Tensor]]
    norm_bias: Tensor | None = None
    positions: Tensor | None = None


def unsupported_reason(file: GGUFFile) -> str | None:
    """Return in words why this file cannot be served from one copy of its weights; None if it can."""
    if (reason := unreadable_reason(file)) is not None:
        return reason
    config, name = config_of(file), file.metadata["general.architecture"]
    for tensor_name, tensor in file.tensors.items():
        matrix = len(tensor.shape) >= 2 and not tensor_name.endswith((f"{ROUTER}.weight", f"{gpt.POSITIONS}.weight"))
        if matrix and (tensor.kind not in KINDS or tensor.shape[-1] % GROUP):
            return f"{tensor_name} of kind {tensor.kind.name} and shape {tensor.shape}"
    if expert_count(config) and config.moe_intermediate_size % PANEL:
        return f"experts of width {config.moe_intermediate_size}"
    per_head = file.metadata.get(f"{name}.attention.key_length", head_dim(config))
    return f"a head dimension of {per_head}" if head_dim(config) % PANEL or per_head != head_dim(config) else None


def write_folder(file: GGUFFile, digest: str, folder: Path) -> None:
    """Write the config and the weights of `file` to `folder`. `digest`: SHA-256 of the file."""
    config = config_of(file)
    config.save_pretrained(folder)
    for layer in range(config.num_hidden_layers):
        save_file(_layer_tensors(file, config, layer), folder / _layer_file(layer))
    output = "output" if "output.weight" in file.tensors else "token_embd"
    outside = {
        "embedding": torch.from_numpy(file.rows("token_embd.weight").copy()),
        "norm": vector_of(file, "output_norm.weight"),
    }
    if "output_norm.bias" in file.tensors:
        outside["norm_bias"] = vector_of(file, "output_norm.bias")
    if (positions := f"{gpt.POSITIONS}.weight") in file.tensors:
        outside["positions"] = floats(file, positions)
    save_file(outside | _matrix_tensors("head", file, [_Rows(output)]), folder / "outside.safetensors")
    manifest = {"digest": digest, "embedding": file.tensors["token_embd.weight"].kind.name}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def read_folder(folder: Path, config: PretrainedConfig) -> QuantisedWeights:
    """Map the weights that `write_folder` has written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files = [load_file(folder / _layer_file(layer)) for layer in range(config.num_hidden_layers)]
    outside = load_file(folder / "outside.safetensors")
    d, kv_heads = head_dim(config), gpt.kv_heads(config)
    kept, both = kv_heads * d, (config.num_attention_heads + kv_heads) * d
    layers = []
    for tensors in files:
        split = "V.codes" in tensors
        outputs = {Layer.QKV: both if split else both + kept, Layer.O: config.hidden_size}
        if not expert_count(config):
            inner = gpt.mlp_width(config)
            outputs |= {Layer.GATE: inner, Layer.DOWN: config.hidden_size}
            outputs |= {} if config.model_type in gpt.LAYERS else {Layer.UP: inner}
        if split:
            outputs[Layer.V] = kept
        layers.append({name: _matrix(tensors, name.name, count) for name, count in outputs.items()})
    return QuantisedWeights(
        layers=layers,
        experts=[_experts(tensors, config) if expert_count(config) else None for tensors in files],
        norms=[_norms(tensors, config) for tensors in files],
        norm=outside["norm"],
        head=_matrix(outside, "head", config.vocab_size),
        embedding=outside["embedding"],
        embedding_kind=Kind[manifest["embedding"]],
        digest=manifest["digest"],
        norm_biases=[_by_matrix(tensors, "norm_bias") for tensors in files],
        means=[_by_matrix(tensors, "mean") for tensors in files],
        norm_bias=outside.get("norm_bias"),
        positions=outside.get("positions"),
    )


def _experts(tensors: Mapping[str, Tensor], config: PretrainedConfig) -> QuantisedExperts:
    """Return a layer's experts. Their matrices are stored one below the other."""

    def matrices(layer: Layer, outputs: int) -> list[QuantisedMatrix]:
        codes = Codes(tensors[f"{layer.name}.codes"], tensors[f"{layer.name}.scales"])
        parts = (part.chunk(expert_count(config)) for part in codes)
        return [QuantisedMatrix.of(Codes(*one), outputs) for one in zip(*parts, strict=True)]

    inner = config.moe_intermediate_size
    sizes = {Layer.GATE: inner, Layer.UP: inner, Layer.DOWN: config.hidden_size}
    found = zip(*(matrices(layer, outputs) for layer, outputs in sizes.items()), strict=True)
    router = Router(tensors["router"], config.num_experts_per_tok, config.norm_topk_prob)
    return QuantisedExperts(router, list(found))


def _norms(tensors: Mapping[str, Tensor], config: PretrainedConfig) -> Norms:
    found = {name: tensors[name] for name in NORMS.values() if name in tensors}
    return Norms(**found, whole="queries" in found and len(found["queries"]) != head_dim(config))


def _by_matrix(tensors: Mapping[str, Tensor], field: str) -> dict[Layer, Tensor]:
    return {name: tensors[f"{name.name}.{field}"] for name in Layer if f"{name.name}.{field}" in tensors}


def _layer_file(layer: int) -> str:
    return f"layer-{layer:03}.safetensors"


def _layer_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    block, family, norms = f"blk.{layer}.", family_of(file), layer_norms(file, layer)
    turned = turned_heads(family, config)
    tensors = {name: vector_of(file, f"{norm}.weight") for name, norm in norms.items()}
    biases = {name: vector_of(file, f"{norm}.bias") for name, norm in norms.items() if f"{norm}.bias" in file.tensors}

    def rows_of(part: str) -> _Rows:
        tensor, rows = source(family, config, part)
        return _Rows(f"{block}{tensor}", rows, turned.get(part))

    def matrix(name: Layer, *parts: str) -> dict[str, Tensor]:
        before = biases.get("between" if name == Layer.GATE else "before") if name not in _LEAVING else None
        return _matrix_tensors(
            name.name, file, [rows_of(part) for part in parts], before, centred=family.gpt and name in _LEAVING
        )

    together = stackable(*(file.tensors[f"{rows_of(part).tensor}.weight"].kind for part in ATTENTION))
    tensors |= matrix(Layer.QKV, *(ATTENTION if together else ATTENTION[:2]))
    if not together:
        tensors |= matrix(Layer.V, ATTENTION[2])
    matrices = _WITHOUT_GATE if family.gpt else _MATRICES | (_EXPERTS if family.experts else {})
    for name, part in matrices.items():
        tensors |= matrix(name, part)
    if family.experts:
        tensors["router"] = floats(file, f"{block}{ROUTER}.weight")
    return tensors


class _Rows(NamedTuple):
    """Rows of a tensor of a file, which has a weight and may have a bias. `turned`: heads whose rows are reordered."""

    tensor: str
    rows: slice = slice(None)
    turned: int | None = None


def _matrix_tensors(
    name: str, file: GGUFFile, parts: Sequence[_Rows], norm_bias: Tensor | None = None, *, centred: bool = False
) -> dict[str, Tensor]:
    """Return codes, scales and bias of the matrix that consists of the rows of `parts`, and what `QuantisedWeights` has about it.

    `norm_bias` (K,): of the norm before the matrix. `centred`: the outputs need mean 0. The bias gets it here; subtracting the mean from the
    weights would move them off their grid.
    """
    matrices, biases, means = [], [], []
    for tensor, which, heads in parts:
        kind, rows, name_of_bias = (
            file.tensors[f"{tensor}.weight"].kind,
            file.rows(f"{tensor}.weight")[which],
            f"{tensor}.bias",
        )
        matrices.append(codes_of(unturned(rows, heads), kind))
        vector = vector_of(file, name_of_bias)[which] if name_of_bias in file.tensors else torch.zeros(len(rows))
        if norm_bias is not None:
            vector = vector + torch.cat([part @ norm_bias for part in _floats(rows, kind)])
        if centred:
            vector = vector - vector.mean()
            means.append(torch.stack([part.sum(0) for part in _floats(rows, kind)]).sum(0) / len(rows))
        biases.append(torch.from_numpy(unturned(vector.numpy(), heads)))
    tensors = {f"{name}.{field}": torch.cat([getattr(matrix, field) for matrix in matrices]) for field in Codes._fields}
    bias = torch.cat(biases)
    tensors |= {f"{name}.mean": means[0]} if centred else {}
    tensors |= {} if norm_bias is None else {f"{name}.norm_bias": norm_bias.clone()}
    return tensors | ({f"{name}.bias": bias} if bias.any() else {})


def _floats(rows: np.ndarray, kind: Kind) -> Iterable[Tensor]:
    """Yield the weights of `rows` (N, bytes of a row) as float32, some rows at a time."""
    for first in range(0, len(rows), _ROWS):
        yield floats_of(rows[first : first + _ROWS].copy(), kind)


def _matrix(tensors: Mapping[str, Tensor], name: str, outputs: int) -> QuantisedMatrix:
    codes = Codes(tensors[f"{name}.codes"], tensors[f"{name}.scales"])
    return QuantisedMatrix.of(codes, outputs, tensors.get(f"{name}.bias"))
