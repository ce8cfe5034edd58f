"""`Decoding`: the layers of a Llama for one position a row on a CPU, with `QuantisedMatrix` matrices, as one call.

Equal to `Llama.hidden` but for what the weights' four or eight bits lose, and the sixteen of activations, keys and values. What is
computed, and why so: `decode_step`; by whom: `team`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everlong_models.kernels.cpu import decode_step, quantise
from everlong_models.kernels.cpu.decode_step import DecodeJob, Layer, Matrix
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.cpu.thread_pool import prepare, step
from everlong_models.kernels.low_rank import split_update

CACHED = torch.float16
"""The type of keys and values: half the memory to go through, which is what a long context costs."""


class DecodeLayers:
    """`layers`: modules as transformers' Llama has them, whose weights all fit (`quantized.fits`). They are copied.
    `head_dim`: a multiple of `PANEL`. `norm` (D,): the last one's weight."""

    def __init__(
        self, layers: Sequence[Any], norm: Tensor, *, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> None:
        prepare(quantise.quantise_groups, decode_step.step, decode_step.multiply)
        self.layers = [_quantized(layer) for layer in layers]
        self._norms = [
            [norm.weight.detach().float().clone() for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
            for layer in layers
        ]
        self._norm = norm.detach().float().clone()
        self._table = np.zeros((len(layers), len(Layer), len(Matrix)), np.int64)
        for row, matrices, (before, between) in zip(self._table, self.layers, self._norms, strict=True):
            for name, matrix in matrices.items():
                row[name] = matrix.table
            row[Layer.NORMS, Matrix.N], row[Layer.NORMS, Matrix.K] = before.data_ptr(), between.data_ptr()
        self._eps, self._scale = (np.array([number], np.float32) for number in (eps, layers[0].self_attn.scaling))
        first = self.layers[0]
        self._sizes = {
            DecodeJob.LAYERS: len(layers), DecodeJob.WIDTH: self._table[0, Layer.DOWN, Matrix.N], DecodeJob.HEADS: heads, DecodeJob.KV_HEADS: kv_heads,
            DecodeJob.HEAD_DIM: head_dim, DecodeJob.INNER: self._table[0, Layer.DOWN, Matrix.K], DecodeJob.TABLE: self._table.ctypes.data,
            DecodeJob.EPS: self._eps.ctypes.data, DecodeJob.NORM: self._norm.data_ptr(),
            DecodeJob.SCALE: self._scale.ctypes.data, DecodeJob.RANK: self._table[:, :, Matrix.RANK].max(),
        }  # fmt: skip
        self._widths = {
            DecodeJob.Y: first[Layer.QKV].table[Matrix.N], DecodeJob.MIXED: heads * head_dim, DecodeJob.GATE: self._sizes[DecodeJob.INNER],
            DecodeJob.UP: self._sizes[DecodeJob.INNER], DecodeJob.OUT: self._sizes[DecodeJob.WIDTH],
        }  # fmt: skip

    def __call__(self, x: Tensor, kv: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The final hidden states (B, 1, D), after the last norm, for `x` (B, 1, D), whose keys and values are stored in `kv` (B, layers, 2,
        G, C, d) at the rows' own positions `at` (B,). `cos`, `sin` (at least C, d): of all positions; the first half of the sines is
        negative. Raises `IndexError` for a position that `kv` does not have, `ValueError` for another shape or type."""
        rows, capacity = len(x), kv.shape[4]
        wanted = (
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
        for name, tensor, dtype, shape in wanted:
            if tensor.dtype != dtype or tuple(tensor.shape) != shape:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {shape}")
        if kv.stride(5) != 1:
            raise ValueError("kv: the numbers of a key do not lie side by side")
        if not 0 <= int(at.min()) <= int(at.max()) < capacity:
            raise IndexError(f"positions {at.tolist()} of {capacity}")
        hidden = x.clone(memory_format=torch.contiguous_format)
        at, cos, sin = at.contiguous(), cos.contiguous(), sin.contiguous()
        buffers = {
            name: torch.empty(rows, int(width), dtype=torch.float32, device="cpu")
            for name, width in self._widths.items()
        }
        step(
            self._sizes | {name: buffer.data_ptr() for name, buffer in buffers.items()} | {
                DecodeJob.ROWS: rows, DecodeJob.X: hidden.data_ptr(), DecodeJob.AT: at.data_ptr(), DecodeJob.COS: cos.data_ptr(), DecodeJob.SIN: sin.data_ptr(),
                DecodeJob.KV: kv.data_ptr(), DecodeJob.CONTEXT: int(at.max()) + 1,
                **{
                    name: kv.stride(axis) * kv.element_size()
                    for axis, name in enumerate((DecodeJob.KV_ROW, DecodeJob.KV_LAYER, DecodeJob.KV_KIND, DecodeJob.KV_HEAD, DecodeJob.KV_POSITION))
                },
            },
        )  # fmt: skip
        return hidden


def _quantized(layer: Any) -> dict[Layer, QuantisedMatrix]:
    """Neither norms nor the attention's scale are folded in, which would take weights off the grid of their group."""
    a, mlp = layer.self_attn, layer.mlp
    (wq, uq), (wk, uk), (wv, uv) = map(split_update, (a.q_proj, a.k_proj, a.v_proj))
    updates = [u or (wq.new_zeros(0, wq.shape[1]), wq.new_zeros(len(w), 0)) for w, u in ((wq, uq), (wk, uk), (wv, uv))]
    biases = [a.q_proj.bias, a.k_proj.bias, a.v_proj.bias]
    qkv = QuantisedMatrix(
        torch.cat([wq, wk, wv]),
        None if biases[0] is None else torch.cat(biases),
        (torch.cat([a for a, _ in updates]), torch.block_diag(*(b for _, b in updates))) if uq or uk or uv else None,
    )
    others = {Layer.O: a.o_proj, Layer.GATE: mlp.gate_proj, Layer.UP: mlp.up_proj, Layer.DOWN: mlp.down_proj}
    return {Layer.QKV: qkv} | {
        name: QuantisedMatrix(weight, matrix.bias, update)
        for name, matrix in others.items()
        for weight, update in [split_update(matrix)]
    }
