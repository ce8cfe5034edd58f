"""`Decoding`: the layers of a Llama for one position a row on a CPU, with `Quantized` matrices, as one call.

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
from everlong_models.kernels.cpu.decode_step import Job, Layer, Matrix
from everlong_models.kernels.cpu.quantised_matrix import Quantized
from everlong_models.kernels.cpu.thread_pool import prepare, step
from everlong_models.kernels.low_rank import apart

CACHED = torch.float16
"""The type of keys and values: half the memory to go through, which is what a long context costs."""


class Decoding:
    """`layers`: modules as transformers' Llama has them, whose weights all fit (`quantized.fits`). They are copied.
    `head_dim`: a multiple of `PANEL`. `norm` (D,): the last one's weight."""

    def __init__(
        self, layers: Sequence[Any], norm: Tensor, *, heads: int, kv_heads: int, head_dim: int, eps: float
    ) -> None:
        prepare(quantise.onto_grids, decode_step.step, decode_step.multiply)
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
            Job.LAYERS: len(layers), Job.WIDTH: self._table[0, Layer.DOWN, Matrix.N], Job.HEADS: heads, Job.KV_HEADS: kv_heads,
            Job.HEAD_DIM: head_dim, Job.INNER: self._table[0, Layer.DOWN, Matrix.K], Job.TABLE: self._table.ctypes.data,
            Job.EPS: self._eps.ctypes.data, Job.NORM: self._norm.data_ptr(),
            Job.SCALE: self._scale.ctypes.data, Job.RANK: self._table[:, :, Matrix.RANK].max(),
        }  # fmt: skip
        self._widths = {
            Job.Y: first[Layer.QKV].table[Matrix.N], Job.MIXED: heads * head_dim, Job.GATE: self._sizes[Job.INNER],
            Job.UP: self._sizes[Job.INNER], Job.OUT: self._sizes[Job.WIDTH],
        }  # fmt: skip

    def __call__(self, x: Tensor, kv: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The final hidden states (B, 1, D), after the last norm, for `x` (B, 1, D), whose keys and values are stored in `kv` (B, layers, 2,
        G, C, d) at the rows' own positions `at` (B,). `cos`, `sin` (at least C, d): of all positions; the first half of the sines is
        negative. Raises `IndexError` for a position that `kv` does not have, `ValueError` for another shape or type."""
        rows, capacity = len(x), kv.shape[4]
        wanted = (
            ("x", x, torch.float32, (rows, 1, int(self._sizes[Job.WIDTH]))),
            (
                "kv",
                kv,
                CACHED,
                (rows, len(self.layers), 2, self._sizes[Job.KV_HEADS], capacity, self._sizes[Job.HEAD_DIM]),
            ),
            ("at", at, torch.int64, (rows,)),
            *(
                (name, table[:capacity], torch.float32, (capacity, self._sizes[Job.HEAD_DIM]))
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
                Job.ROWS: rows, Job.X: hidden.data_ptr(), Job.AT: at.data_ptr(), Job.COS: cos.data_ptr(), Job.SIN: sin.data_ptr(),
                Job.KV: kv.data_ptr(), Job.CONTEXT: int(at.max()) + 1,
                **{
                    name: kv.stride(axis) * kv.element_size()
                    for axis, name in enumerate((Job.KV_ROW, Job.KV_LAYER, Job.KV_KIND, Job.KV_HEAD, Job.KV_POSITION))
                },
            },
        )  # fmt: skip
        return hidden


def _quantized(layer: Any) -> dict[Layer, Quantized]:
    """Neither norms nor the attention's scale are folded in, which would take weights off the grid of their group."""
    a, mlp = layer.self_attn, layer.mlp
    (wq, uq), (wk, uk), (wv, uv) = map(apart, (a.q_proj, a.k_proj, a.v_proj))
    updates = [u or (wq.new_zeros(0, wq.shape[1]), wq.new_zeros(len(w), 0)) for w, u in ((wq, uq), (wk, uk), (wv, uv))]
    biases = [a.q_proj.bias, a.k_proj.bias, a.v_proj.bias]
    qkv = Quantized(
        torch.cat([wq, wk, wv]),
        None if biases[0] is None else torch.cat(biases),
        (torch.cat([a for a, _ in updates]), torch.block_diag(*(b for _, b in updates))) if uq or uk or uv else None,
    )
    others = {Layer.O: a.o_proj, Layer.GATE: mlp.gate_proj, Layer.UP: mlp.up_proj, Layer.DOWN: mlp.down_proj}
    return {Layer.QKV: qkv} | {
        name: Quantized(weight, matrix.bias, update)
        for name, matrix in others.items()
        for weight, update in [apart(matrix)]
    }
