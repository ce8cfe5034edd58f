"""A GGUF file's weights in the layout that the kernels multiply: written once to a folder, then mapped from it.

The folder has the model's `config.json`, `quantised.json` and a safetensors file for each layer and for what is outside of the layers. Mapped
pages are shared by the processes of a machine.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig

from everlong_models.backbone.gguf.blocks import KINDS, codes_of, floats_of, stackable
from everlong_models.backbone.gguf.families import (
    ATTENTION,
    NORMS,
    ROUTER,
    config_of,
    expert_count,
    family_of,
    head_dim,
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
_EXPERTS = {Layer.GATE: "ffn_gate_exps", Layer.UP: "ffn_up_exps", Layer.DOWN: "ffn_down_exps"}


@dataclass(frozen=True, slots=True)
class QuantisedWeights:
    """The weights of a decoder. `experts`: of each layer that has them; `norm`: of the last norm; `embedding`: blocks (V, bytes of a row) of `embedding_kind`."""

    layers: Sequence[Mapping[Layer, QuantisedMatrix]]
    experts: Sequence[QuantisedExperts | None]
    norms: Sequence[Norms]
    norm: Tensor
    head: QuantisedMatrix
    embedding: Tensor
    embedding_kind: Kind
    digest: str


def unsupported_reason(file: GGUFFile) -> str | None:
    """Return in words why this file cannot be served from one copy of its weights; None if it can."""
    if (reason := unreadable_reason(file)) is not None:
        return reason
    config, name = config_of(file), file.metadata["general.architecture"]
    for tensor_name, tensor in file.tensors.items():
        matrix = len(tensor.shape) >= 2 and not tensor_name.endswith(f"{ROUTER}.weight")
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
    save_file(outside | _matrix_tensors("head", file, [_Rows(output)]), folder / "outside.safetensors")
    manifest = {"digest": digest, "embedding": file.tensors["token_embd.weight"].kind.name}
    (folder / MANIFEST).write_text(json.dumps(manifest))


def read_folder(folder: Path, config: PretrainedConfig) -> QuantisedWeights:
    """Map the weights that `write_folder` has written."""
    manifest = json.loads((folder / MANIFEST).read_text())
    files = [load_file(folder / _layer_file(layer)) for layer in range(config.num_hidden_layers)]
    outside = load_file(folder / "outside.safetensors")
    d = head_dim(config)
    kept, both = (
        config.num_key_value_heads * d,
        (config.num_attention_heads + config.num_key_value_heads) * d,
    )
    layers = []
    for tensors in files:
        split = "V.codes" in tensors
        outputs = {Layer.QKV: both if split else both + kept, Layer.O: config.hidden_size}
        if not expert_count(config):
            inner = config.intermediate_size
            outputs |= {Layer.GATE: inner, Layer.UP: inner, Layer.DOWN: config.hidden_size}
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


def _layer_file(layer: int) -> str:
    return f"layer-{layer:03}.safetensors"


def _layer_tensors(file: GGUFFile, config: PretrainedConfig, layer: int) -> dict[str, Tensor]:
    block, family = f"blk.{layer}.", family_of(file)
    turned = turned_heads(family, config)

    def rows_of(part: str) -> _Rows:
        tensor, rows = source(family, config, part)
        return _Rows(f"{block}{tensor}", rows, turned.get(part))

    def matrix(name: str, *parts: str) -> dict[str, Tensor]:
        return _matrix_tensors(name, file, [rows_of(part) for part in parts])

    norms = [name for name in NORMS if f"{block}{name}.weight" in file.tensors]
    tensors = {NORMS[name]: vector_of(file, f"{block}{name}.weight") for name in norms}
    together = stackable(*(file.tensors[f"{rows_of(part).tensor}.weight"].kind for part in ATTENTION))
    tensors |= matrix("QKV", *(ATTENTION if together else ATTENTION[:2]))
    if not together:
        tensors |= matrix("V", ATTENTION[2])
    for name, part in (_MATRICES | (_EXPERTS if family.experts else {})).items():
        tensors |= matrix(name.name, part)
    if family.experts:
        tensors["router"] = floats_of(
            file.rows(f"{block}{ROUTER}.weight").copy(), file.tensors[f"{block}{ROUTER}.weight"].kind
        )
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
        matrices.append(codes_of(unturned(rows, heads), file.tensors[f"{tensor}.weight"].kind))
        vector = vector_of(file, name_of_bias)[which] if name_of_bias in file.tensors else torch.zeros(len(rows))
        biases.append(torch.from_numpy(unturned(vector.numpy(), heads)))
    tensors = {f"{name}.{field}": torch.cat([getattr(matrix, field) for matrix in matrices]) for field in Codes._fields}
    bias = torch.cat(biases)
    return tensors | ({f"{name}.bias": bias} if bias.any() else {})


def _matrix(tensors: Mapping[str, Tensor], name: str, outputs: int) -> QuantisedMatrix:
    codes = Codes(tensors[f"{name}.codes"], tensors[f"{name}.scales"])
    return QuantisedMatrix.of(codes, outputs, tensors.get(f"{name}.bias"))
