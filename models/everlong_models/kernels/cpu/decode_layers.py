"""`DecodeLayers`: all layers of a Llama for one position per row on a CPU, with quantised weights, as one call.

Computes what `Llama.hidden` computes, up to the rounding of weights (four or eight bits) and of activations, keys and values
(16 bits). `decode_step` has the computation, `thread_pool` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everlong_models.kernels.cpu import decode_step, matrix_product, quantise
from everlong_models.kernels.cpu.job import DecodeJob, Layer, Matrix
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.cpu.thread_pool import prepare, step
from everlong_models.kernels.low_rank import split_update, stack_updates

CACHED = torch.float16
"""The type of keys and values. A long context is bound by reading them, and float16 halves the bytes."""


class DecodeLayers:
    """The decoder layers with quantised weights.

    `layers`: each layer's matrices; `norms`: the weights (D,) of each layer's two norms; `norm` (D,): the weight of the last norm; `scale`:
    the attention's. `head_dim`: a multiple of `PANEL`. `head_norms`: each layer's weights (d,) of the norms over each head of queries and
    of keys; empty for a layer without them.
    """

    def __init__(
        self,
        layers: Sequence[Mapping[Layer, QuantisedMatrix]],
        norms: Sequence[tuple[Tensor, Tensor]],
        norm: Tensor,
        *,
        scale: float,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        head_norms: Sequence[Sequence[Tensor]] = (),
    ) -> None:
        prepare(decode_step.step, matrix_product.multiply)
        self.layers = layers
        self._norms = [[weight.detach().float().clone() for weight in pair] for pair in norms]
        self._norm = norm.detach().float().clone()
        self._table = np.zeros((len(layers), len(Layer), len(Matrix)), np.int64)
        for row, matrices, (before, between) in zip(self._table, self.layers, self._norms, strict=True):
            for name, matrix in matrices.items():
                row[name] = matrix.table
            row[Layer.NORMS, Matrix.N], row[Layer.NORMS, Matrix.K] = before.data_ptr(), between.data_ptr()
        self._head_norms = [[weight.detach().float().clone() for weight in pair] for pair in head_norms if pair]
        for row, (queries, keys) in zip(self._table, self._head_norms, strict=False):  # all layers have them, or none
            row[Layer.NORMS, Matrix.CODES], row[Layer.NORMS, Matrix.SCALES] = queries.data_ptr(), keys.data_ptr()
        self._eps, self._scale = (np.array([number], np.float32) for number in (eps, scale))
        self._sizes = {
            DecodeJob.LAYERS: len(layers), DecodeJob.WIDTH: self._table[0, Layer.DOWN, Matrix.N], DecodeJob.HEADS: heads, DecodeJob.KV_HEADS: kv_heads,
            DecodeJob.HEAD_DIM: head_dim, DecodeJob.MLP_WIDTH: self._table[0, Layer.DOWN, Matrix.K], DecodeJob.TABLE: self._table.ctypes.data,
            DecodeJob.EPS: self._eps.ctypes.data, DecodeJob.NORM: self._norm.data_ptr(),
            DecodeJob.SCALE: self._scale.ctypes.data, DecodeJob.RANK: self._table[:, :, Matrix.RANK].max(),
        }  # fmt: skip
        self._widths = {
            DecodeJob.Y: (heads + 2 * kv_heads) * head_dim, DecodeJob.MIXED: heads * head_dim, DecodeJob.GATE: self._sizes[DecodeJob.MLP_WIDTH],
            DecodeJob.UP: self._sizes[DecodeJob.MLP_WIDTH], DecodeJob.OUT: self._sizes[DecodeJob.WIDTH],
        }  # fmt: skip

    def __call__(self, x: Tensor, kv: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the final hidden states (B, 1, D), after the last norm, for the embeddings `x` (B, 1, D).

        Stores the new keys and values in `kv` (B, layers, 2, G, C, d), each row's at its own position `at` (B,). `cos` and `sin`
        (at least C, d) cover all positions; the first half of the sines is negated. Raises `IndexError` for a position outside `kv`,
        `ValueError` for a wrong shape or type.
        """
        rows, capacity = len(x), kv.shape[4]
        expected = (
            ("x", x, torch.float32, (rows, 1, int(self._sizes[DecodeJob.WIDTH]))),
            (
                "kv",
                kv,
                CACHED,
                (rows, len(self.layers), 2, self._sizes[DecodeJob.KV_HEADS], capacity, self._sizes[DecodeJob.HEAD_DIM]),
            ),
            ("at", at, torch.int64, (rows,)),
            *(
                (name, table[:capacity], torch.float32, (capacity, self._sizes[DecodeJob.HEAD_DIM]))
                for name, table in (("cos", cos), ("sin", sin))
            ),
        )
        for name, tensor, dtype, shape in expected:
            if tensor.dtype != dtype or tuple(tensor.shape) != shape:
                raise ValueError(
                    f"{name} must be {dtype} of shape {shape}, got {tensor.dtype} of shape {tuple(tensor.shape)}"
                )
        if kv.stride(5) != 1:
            raise ValueError(f"kv: the last axis must be contiguous (stride 1), got stride {kv.stride(5)}")
        if not 0 <= int(at.min()) <= int(at.max()) < capacity:
            raise IndexError(f"positions must be from 0 to {capacity - 1}, got {at.tolist()}")
        hidden = x.clone(memory_format=torch.contiguous_format)
        at, cos, sin = at.contiguous(), cos.contiguous(), sin.contiguous()
        buffers = {
            name: torch.empty(rows, int(width), dtype=torch.float32, device="cpu")
            for name, width in self._widths.items()
        }
        step(
            self._sizes | {name: buffer.data_ptr() for name, buffer in buffers.items()} | {
                DecodeJob.ROWS: rows, DecodeJob.X: hidden.data_ptr(), DecodeJob.POSITIONS: at.data_ptr(), DecodeJob.COS: cos.data_ptr(), DecodeJob.SIN: sin.data_ptr(),
                DecodeJob.KV: kv.data_ptr(), DecodeJob.CONTEXT: int(at.max()) + 1,
                **{
                    name: kv.stride(axis) * kv.element_size()
                    for axis, name in enumerate((DecodeJob.KV_ROW, DecodeJob.KV_LAYER, DecodeJob.KV_KIND, DecodeJob.KV_HEAD, DecodeJob.KV_POSITION))
                },
            },
        )  # fmt: skip
        return hidden


def quantise_layers(layers: Sequence[Any]) -> list[dict[Layer, QuantisedMatrix]]:
    """Quantise the matrices of transformers' Llama layers; `can_quantise` must hold for each of their weights."""
    prepare(quantise.quantise_groups)
    return [_quantise_layer(layer) for layer in layers]


def _quantise_layer(layer: Any) -> dict[Layer, QuantisedMatrix]:
    """Return a layer's quantised matrices.

    Norm weights and the attention's scale are not folded in: that would move weights off their quantisation grid.
    """
    a, mlp = layer.self_attn, layer.mlp
    stacked = [a.q_proj, a.k_proj, a.v_proj]
    qkv = QuantisedMatrix(
        torch.cat([split_update(matrix)[0] for matrix in stacked]),
        None if a.q_proj.bias is None else torch.cat([matrix.bias for matrix in stacked]),
        stack_updates(stacked),
    )
    others = {Layer.O: a.o_proj, Layer.GATE: mlp.gate_proj, Layer.UP: mlp.up_proj, Layer.DOWN: mlp.down_proj}
    return {Layer.QKV: qkv} | {
        name: QuantisedMatrix(weight, matrix.bias, update)
        for name, matrix in others.items()
        for weight, update in [split_update(matrix)]
    }
