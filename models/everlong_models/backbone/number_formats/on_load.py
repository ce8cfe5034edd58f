"""Weights that are quantised while they are loaded, by torchao, for a GPU.

Every linear layer of the decoder gets a weight in the format `Method`. Embeddings, norms, biases and the output head keep their dtype. Only
weights are quantised: a layer multiplies activations in their own dtype, so a row's result does not depend on the other rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, TorchAoConfig
from transformers.utils import is_torchao_available

from everlong_models.errors import BackboneError

Method = Literal["int8", "fp8", "int4"]
"""int8: one scale for each row of a matrix. fp8: e4m3, one scale for each row. int4: one scale and one zero for each group of `GROUP`."""
EXTRA = "everlong[gpu-quantize]"
"""The extra that installs torchao."""
GROUP = 128
_TILE_ROWS, _TILE_COLUMNS = 8, 1024
"""The kernels for int4 pad a matrix to multiples of these."""
_LEAST_SHARE = 0.5
"""Share of the decoder's weights, without embeddings and head, that must be in linear layers."""


def torchao_config(method: Method) -> TorchAoConfig:
    """Return what tells transformers to quantise while it loads. Raises `BackboneError` if torchao is not installed."""
    if not is_torchao_available():
        raise BackboneError(f"gpu_quantize={method} needs the package torchao: pip install '{EXTRA}'")
    return TorchAoConfig(_config(method))


def number_format(method: Method) -> str:
    """Return the name of the format, with the version of the library that rounds to it."""
    return f"{method} by torchao {version('torchao')}"


def _config(method: Method) -> Any:
    """Return torchao's config."""
    from torchao import quantization as ao  # noqa: PLC0415 - optional, and slow to import
    from torchao.quantization.quantize_.workflows import Int4PackingFormat  # noqa: PLC0415

    # Without settings for a compiler, which are those of the whole process.
    if method == "int8":
        return ao.Int8WeightOnlyConfig(set_inductor_config=False)
    if method == "fp8":
        return ao.Float8WeightOnlyConfig(set_inductor_config=False)
    # The other layouts need another package of kernels; those of this one are PyTorch's own.
    return ao.Int4WeightOnlyConfig(
        group_size=GROUP, int4_packing_format=Int4PackingFormat.TILE_PACKED_TO_4D, set_inductor_config=False
    )


def float_numbers(config: Any) -> int:
    """Return how many numbers the weights of a decoder with this config are, without quantisation."""
    return sum(weight.numel() for weight in _on_meta(config).parameters())


def quantised_bytes(config: Any, method: Method, dtype: torch.dtype) -> int:
    """Return how many bytes the weights of a decoder with this config take.

    Raises `BackboneError` for a decoder that is mostly not made of linear layers, such as a mixture of experts: it would hardly shrink.
    """
    model = _on_meta(config)
    linear = _linear_weights(model, method)
    ends = {id(end.weight) for end in (model.get_input_embeddings(), model.get_output_embeddings()) if end is not None}
    inside = sum(weight.numel() for weight in model.parameters() if id(weight) not in ends)
    share = sum(weight.numel() for weight in linear.values()) / max(inside, 1)
    if share < _LEAST_SHARE:
        raise BackboneError(
            f"gpu_quantize={method}: {type(model).__name__} has {share:.0%} of its weights in linear layers that torchao quantises so"
            f"{f' (of a multiple of {GROUP} columns)' if method == 'int4' else ''}; serve a checkpoint that is quantised already"
        )
    return sum(
        matrix_bytes(method, weight.shape[0], weight.shape[1])
        if id(weight) in linear
        else weight.numel() * dtype.itemsize
        for weight in model.parameters()
    )


def _can_quantise(method: Method, columns: int) -> bool:
    """Return whether torchao quantises a matrix with this many columns, rather than leave it as it is."""
    return method != "int4" or columns % GROUP == 0


def matrix_bytes(method: Method, rows: int, columns: int) -> int:
    """Return how many bytes the matrix (rows, columns) of a linear layer takes, with its scales."""
    scale = torch.float32.itemsize
    if method != "int4":  # a row has a scale, and for int8 also a zero in 8 bits
        return rows * (columns + scale + (method == "int8"))
    rows, columns = rows + -rows % _TILE_ROWS, columns + -columns % _TILE_COLUMNS
    return rows * columns // 2 + rows * columns // GROUP * 2 * torch.bfloat16.itemsize


def gguf_bytes(shapes: Mapping[str, Sequence[int]], method: Method | None, dtype: torch.dtype) -> int:
    """Return how many bytes the tensors of a GGUF file take, by their names there, once they are loaded as `dtype` or by `method`."""
    return sum(
        math.prod(shape) * dtype.itemsize
        if method is None
        or len(shape) != 2
        or name in ("token_embd.weight", "output.weight")
        or not _can_quantise(method, shape[1])
        else matrix_bytes(method, shape[0], shape[1])
        for name, shape in shapes.items()
    )


def _linear_weights(model: PreTrainedModel, method: Method) -> dict[int, torch.Tensor]:
    """Return the weights that are quantised, by their ids."""
    head = model.get_output_embeddings()
    return {
        id(module.weight): module.weight
        for module in model.modules()
        if type(module) is nn.Linear and module is not head and _can_quantise(method, module.in_features)
    }


def _on_meta(config: Any) -> PreTrainedModel:
    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model
