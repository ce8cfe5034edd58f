"""`DecodeLayers`: all layers of a decoder for one or a few positions per row on a CPU, with quantised weights, as one call.

Computes what `Llama.hidden` computes, up to the rounding of weights (four or eight bits) and of activations, keys and values
(16 bits). `decode_step` has the computation, `thread_pool` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from everlong_models.kernels.cpu import decode_step, matrix_product
from everlong_models.kernels.cpu.experts import memory_size
from everlong_models.kernels.cpu.job import DecodeJob, Detail, Layer, Matrix
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.kernels.cpu.thread_pool import prepare, shared_memory, step
from everlong_models.kernels.experts import QuantisedExperts
from everlong_models.kernels.linear import Activation
from everlong_models.kernels.norms import Norms

_EVERYTHING = 1 << 62
CACHED = torch.float16
"""The type of keys and values. A long context is bound by reading them, and float16 halves the bytes."""


@dataclass(frozen=True, slots=True)
class DecodeLayer:
    """One layer. `experts`: its mixture of experts; None if `matrices` has its MLP. `window`: how many positions a query sees, its own included; None: all. `rotation`: which rotary table it uses."""

    matrices: Mapping[Layer, QuantisedMatrix]
    norms: Norms
    experts: QuantisedExperts | None = None
    window: int | None = None
    rotation: int = 0


class DecodeLayers:
    """The decoder layers with quantised weights.

    `norm` (D,): the weight of the last norm; `scale`: the attention's. `head_dim`: a multiple of `PANEL`. `activation`: of the MLP's
    gate, or of an MLP without a gate. `residual`: factor of what attention and MLP add. `cap`: attention scores s become cap · tanh(s / cap).

    `norm_bias` (D,): bias of the last norm. Then all norms are layer norms: the biases of the others must be part of the matrices' biases, and
    `O` and `DOWN` must compute rows with mean 0. And no MLP has a gate: its first matrix is `GATE`. `parallel`: attention and MLP of a layer have
    the same input. `learned` (positions, D): learned positions, which are added to the embeddings.
    """

    def __init__(
        self,
        layers: Sequence[DecodeLayer],
        norm: Tensor,
        *,
        scale: float,
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        activation: Activation = Activation.SILU,
        residual: float = 1.0,
        cap: float | None = None,
        norm_bias: Tensor | None = None,
        parallel: bool = False,
        learned: Tensor | None = None,
    ) -> None:
        self.layers = [layer.matrices for layer in layers]
        self.experts = [layer.experts for layer in layers]
        self._kernel = decode_step.STEP_WITH_EXPERTS if any(self.experts) else decode_step.STEP
        if norm_bias is not None:
            self._kernel = decode_step.STEP_IN_PARALLEL if parallel else decode_step.STEP_WITH_LAYER_NORMS
        prepare(self._kernel.run, matrix_product.multiply)
        tables = [one.table for one in self.experts if one is not None]
        self._largest = max(tables, key=lambda table: memory_size(table, 1, len(norm)), default=None)
        self._norm = norm.detach().float().clone()
        self._norm_bias, self._learned = (
            None if each is None else each.detach().float().contiguous() for each in (norm_bias, learned)
        )
        self._norms = [
            {name: weight.detach().float().clone() for name, weight in layer.norms.tensors().items()}
            for layer in layers
        ]
        self._table = np.zeros((len(layers), len(Layer), len(Matrix)), np.int64)
        for row, layer, norms in zip(self._table, layers, self._norms, strict=True):
            for name, matrix in layer.matrices.items():
                row[name] = matrix.table
            for field, weight in norms.items():
                row[Layer.DETAILS, Detail[field.upper()]] = weight.data_ptr()
            row[Layer.DETAILS, Detail.WHOLE] = layer.norms.whole
            row[Layer.DETAILS, Detail.WINDOW] = _EVERYTHING if layer.window is None else layer.window
            row[Layer.DETAILS, Detail.ROTATION] = layer.rotation
            row[Layer.DETAILS, Detail.EXPERTS] = 0 if layer.experts is None else layer.experts.table.ctypes.data
        self._rotations = 1 + max(layer.rotation for layer in layers)
        self._numbers = {
            name: np.array([number], np.float32)
            for name, number in ((DecodeJob.EPS, eps), (DecodeJob.SCALE, scale), (DecodeJob.RESIDUAL, residual), (DecodeJob.CAP, cap or 0))
        }  # fmt: skip
        width, inner = len(self._norm), self._table[:, Layer.DOWN, Matrix.K].max()  # 0 if all MLPs are experts
        self._sizes = {
            DecodeJob.LAYERS: len(layers), DecodeJob.WIDTH: width, DecodeJob.HEADS: heads, DecodeJob.KV_HEADS: kv_heads,
            DecodeJob.HEAD_DIM: head_dim, DecodeJob.MLP_WIDTH: inner, DecodeJob.TABLE: self._table.ctypes.data, DecodeJob.NORM: self._norm.data_ptr(),
            DecodeJob.RANK: max(int(matrix.table[Matrix.RANK]) for matrices in self.layers for matrix in matrices.values()), DecodeJob.GELU: activation == Activation.GELU,
            **{name: number.ctypes.data for name, number in self._numbers.items()},
        }  # fmt: skip
        if cap is None:
            self._sizes[DecodeJob.CAP] = 0
        for place, tensor in ((DecodeJob.NORM_BIAS, self._norm_bias), (DecodeJob.LEARNED, self._learned)):
            self._sizes[place] = 0 if tensor is None else tensor.data_ptr()
        self._widths = {
            DecodeJob.Y: (heads + 2 * kv_heads) * head_dim, DecodeJob.MIXED: heads * head_dim, DecodeJob.GATE: inner,
            DecodeJob.UP: inner, DecodeJob.OUT: width,
        }  # fmt: skip

    def __call__(self, x: Tensor, kv: Tensor, at: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return the final hidden states (B, T, D), after the last norm, for the embeddings `x` (B, T, D) of T positions of each row.

        They are those of T calls with one position each, bit for bit, at less cost: weights are read once. Stores the new keys and values
        in `kv` (B, layers, 2, G, C, d), each row's from its own position `at` (B,) on. `cos` and `sin` (tables, at least C, r) cover all
        positions; the first half of the sines is negated. Raises `IndexError` for a position outside `kv` or the learned positions,
        `ValueError` for a wrong shape or type.
        """
        rows, T, capacity = len(x), x.shape[1], kv.shape[4]
        rotary = min(cos.shape[-1], int(self._sizes[DecodeJob.HEAD_DIM]))
        expected = (
            ("x", x, torch.float32, (rows, T, int(self._sizes[DecodeJob.WIDTH]))),
            (
                "kv",
                kv,
                CACHED,
                (rows, len(self.layers), 2, self._sizes[DecodeJob.KV_HEADS], capacity, self._sizes[DecodeJob.HEAD_DIM]),
            ),
            ("at", at, torch.int64, (rows,)),
            *(
                (name, table, torch.float32, (self._rotations, max(capacity, cos.shape[1]), rotary))
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
        at = (at[:, None] + torch.arange(T, device="cpu")).flatten()
        end = capacity if self._learned is None else min(capacity, len(self._learned))
        if not 0 <= int(at.min()) <= int(at.max()) < end:
            raise IndexError(f"positions must be from 0 to {end - 1}, got {at.tolist()}")
        hidden = x.clone(memory_format=torch.contiguous_format)
        cos, sin = cos.contiguous(), sin.contiguous()
        # One for all layers: no layer begins before the one before it is done.
        pairs = None if self._largest is None else shared_memory(self._largest, rows * T, x.shape[2])
        buffers = {
            name: torch.empty(rows * T, int(width), dtype=torch.float32, device="cpu")
            for name, width in self._widths.items()
        }
        step(
            self._kernel, self._sizes | {name: buffer.data_ptr() for name, buffer in buffers.items()} | {
                DecodeJob.PAIRS: 0 if pairs is None else pairs.data_ptr(),
                DecodeJob.ROWS: rows * T, DecodeJob.STEPS: T, DecodeJob.X: hidden.data_ptr(), DecodeJob.POSITIONS: at.data_ptr(), DecodeJob.COS: cos.data_ptr(), DecodeJob.SIN: sin.data_ptr(),
                DecodeJob.ROTARY: rotary, DecodeJob.ROTATION_SIZE: cos.stride(0) * cos.element_size(), DecodeJob.KV: kv.data_ptr(), DecodeJob.CONTEXT: int(at.max()) + 1,
                **{
                    name: kv.stride(axis) * kv.element_size()
                    for axis, name in enumerate((DecodeJob.KV_ROW, DecodeJob.KV_LAYER, DecodeJob.KV_KIND, DecodeJob.KV_HEAD, DecodeJob.KV_POSITION))
                },
            },
        )  # fmt: skip
        return hidden
