"""`Llama`: a fast inference forward for decoders of Llama's kind.

Computes the same as transformers' forward (tests/models/backbone/test_llama.py compares them), for final weights. `description` has the
formula of a layer and its variants.

Norm weights, the attention's scale and the factor of the residual sum are folded into the matrices next to them, and element-wise work into
the matmuls before it. The upper triangle of the attention is skipped in blocks. In the last layer only the requested positions have
queries. Shapes: B rows, T positions, D width, G kv heads, R query heads per kv head, d head dimension, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from everlong_models.backbone.decoder.folding import (
    drop_weight,
    entering,
    fold_attention,
    folded,
    leaving,
    quantise_layer,
    scaled,
)
from everlong_models.backbone.decoder.fusing import can_fuse, fuse_layer
from everlong_models.backbone.decoder.parts import Description, GatedMLP, LayerDescription, Mixture
from everlong_models.backbone.description import describe
from everlong_models.backbone.kv_cursor import KVCursor, same_position
from everlong_models.backbone.observing import Observer
from everlong_models.kernels.attention import SHORT, Attend, additive_mask, causal, masked
from everlong_models.kernels.blocks import BLOCK
from everlong_models.kernels.cpu import prefill, thread_pool
from everlong_models.kernels.cpu.decode_layers import CACHED, DecodeLayer, DecodeLayers
from everlong_models.kernels.cpu.job import Layer as Name
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix, can_quantise
from everlong_models.kernels.cpu.simd import PANEL
from everlong_models.kernels.experts import MLP, Experts, QuantisedExperts, UngatedMLP
from everlong_models.kernels.linear import Activation, Linear, has_bfloat16, has_onednn, has_simd_kernels
from everlong_models.kernels.low_rank import detach, split_update
from everlong_models.kernels.norms import HeadNorm, Norms, norm_and_rotate, rms_norm, rotate
from everlong_models.kernels.yield_point import yield_point


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's matrices, with the weights of the norms before them and the attention's scale folded in.

    `norms`: those that exist; the weights of the first two are in the matrices. `head_norm`: with the scale folded into it. `parallel`: see
    `Description`.
    """

    qkv: Linear
    o: Linear
    mlp: MLP | UngatedMLP | Experts
    eps: float
    norms: Norms
    head_norm: HeadNorm | None = None
    activation: Activation = Activation.SILU
    parallel: bool = False

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries, keys and values (B, T, heads, d) of `h` (B, T, D), the first `turning` heads rotated (`_rotation`)."""
        heads = self.qkv(h if self.norms.before is None else _normed(h, self.eps)).unflatten(-1, (-1, head_dim))
        if self.head_norm is None:
            rotate(heads, turning, cos, sin)
        else:
            norm_and_rotate(heads, self.head_norm, cos, sin)
        return heads

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """Return the layer's output (B, n, D) from attention's output `mixed` (B, n, H·d) and input `h` (B, n, D).

        May overwrite `h`.
        """
        before, h = h, self._add(self.o, mixed, h, self.norms.after_attention)
        of_mlp = before if self.parallel else h
        x = of_mlp if self.norms.between is None else _normed(of_mlp, self.eps)
        if isinstance(self.mlp, Experts):
            return _plus(self.mlp(x), h, self.norms.after_mlp, self.eps)
        inner = self.mlp.inner(x.to(self.mlp.down.dtype), self.activation)
        return self._add(self.mlp.down, inner, h, self.norms.after_mlp)

    def _add(self, matrix: Linear, x: Tensor, h: Tensor, norm: Tensor | None) -> Tensor:
        return matrix(x, plus=h) if norm is None else _plus(matrix(x), h, norm, self.eps)


def _plus(x: Tensor, h: Tensor, norm: Tensor | None, eps: float) -> Tensor:
    return h + x if norm is None else rms_norm(x.to(h.dtype), norm, eps, plus=h)


class AnyLayer(Protocol):
    """What `Llama` needs of a layer: `Layer` computes it with float weights, others on a GPU or with quantised weights."""

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `Layer`."""

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `Layer`."""


@dataclass(slots=True)
class Llama:
    """A fast forward. `Llama.of` makes one of a model, `quantised_llama.build` one of quantised weights.

    `shape`: the model's description; its modules may have lost their weights. `decoding`, `decoding_head`: compute decode steps, if they are
    quantised. `cached`: the dtype of stored keys and values. `attend`: computes `causal` attention. `overwrites`: a layer may overwrite its
    input. `in_blocks`: the layers and `attend` compute in blocks of `BLOCK` positions what libraries compute.
    `in_rows`: a row's result never depends on the number of rows, on a processor for which `has_simd_kernels` holds. False if PyTorch computes
    some products, as for low-rank updates with 8 bits.
    """

    shape: Description
    norm: Tensor
    layers: Sequence[AnyLayer]
    head: Callable[[Tensor], Tensor]
    cached: torch.dtype
    attend: Attend
    decoding: DecodeLayers | None = None
    decoding_head: QuantisedMatrix | None = None
    overwrites: bool = False
    in_blocks: bool = False
    in_rows: bool = True
    _decode_rotation: tuple[Tensor, Tensor] = field(
        default_factory=lambda: (torch.empty(1, 0, 0), torch.empty(1, 0, 0))
    )
    """For quantised decoding: the tables of all positions of the largest cache so far, (kinds, C, r)."""

    @classmethod
    def of(cls, model: PreTrainedModel, *, quantize: bool = False, bfloat16: bool = False) -> Llama:
        """Make the forward of `model`, for which `unsupported_reason` must be None.

        Takes over the matrices one by one, so that no weight is held twice; `model` keeps only its embeddings and norms. `quantize`: decode
        steps use `QuantisedMatrix` matrices, if all of them fit, and keys and values are stored in 16 bits. `bfloat16`: prefill multiplies
        in bfloat16, except attention and head.
        """
        shape, head = describe(model), model.get_output_embeddings()
        matrices = (part.split[0] for layer in shape.layers for part in layer.matrices)
        mixtures = [layer.mlp if isinstance(layer.mlp, Mixture) else None for layer in shape.layers]
        of_experts = (matrix for each in mixtures if each is not None for expert in each.matrices for matrix in expert)
        weight, update = split_update(head)
        quantize = (
            quantize and shape.head_dim % PANEL == 0 and all(map(can_quantise, chain([weight], matrices, of_experts)))
        )
        if has_simd_kernels(weight):
            thread_pool.prepare(prefill.linear, prefill.norm, prefill.rotate, prefill.attend)
            if shape.activation == Activation.EXACT_GELU:
                thread_pool.prepare(prefill.exact_gelu_linear)
        elif not shape.plain and weight.device.type == "cpu":
            thread_pool.prepare(prefill.norm, prefill.rotate)
        decoding = None
        if quantize:
            experts = [
                None if each is None else QuantisedExperts.quantise(each.router, each.matrices) for each in mixtures
            ]
            decoding = decode_layers(
                shape, shape.norm, [quantise_layer(layer, shape) for layer in shape.layers], experts
            )
        fused = can_fuse(shape, head.weight)
        layers = [_fold_layer(layer, shape, bfloat16=bfloat16, fuse=fused) for layer in shape.layers]
        decoding_head = QuantisedMatrix(weight, head.bias, update) if quantize else None
        whole_head, cached = Linear(head.weight, head.bias), CACHED if quantize else head.weight.dtype
        detach(head)
        if head.weight is not model.get_input_embeddings().weight:
            drop_weight(head)
        return cls(
            shape=shape, norm=shape.norm, layers=layers, head=whole_head, cached=cached, attend=causal,
            decoding=decoding, decoding_head=decoding_head, overwrites=fused,
        )  # fmt: skip

    def hidden(
        self,
        x: Tensor,
        kv: Tensor | None,
        at: Tensor | None,
        keep: int | None,
        observer: Observer | None = None,
    ) -> Tensor:
        """See `Backbone.hidden`."""
        B, T, _ = x.shape
        if kv is not None and at is not None and T == 1 and observer is None and self.decoding is not None:
            return self.steps(x, kv, at)
        H, G, d = self.shape.heads, self.shape.kv_heads, self.shape.head_dim
        if self.shape.embedding != 1:
            x = x * self.shape.embedding
        if kv is not None and at is not None and kv.device.type == "cpu":
            # Attend to filled positions only. On a GPU that would wait for `at`, which costs more.
            kv = kv[..., : int(at.max()) + T, :]
        cursor = KVCursor(T, x.device, kv, at)
        x = self.shape.placed(x, cursor.positions)
        rotations = [_rotation(*tables) for tables in self.shape.rotations(x, cursor.positions)]
        masks = None if cursor.at_start or (T > SHORT and same_position(at)) else _Masks(cursor, x.dtype)
        # On a CPU, a contiguous copy of one layer's keys and values, which the next layer overwrites.
        scratch = x.new_empty(B, 2, G, T, d) if x.device.type == "cpu" else None
        h = x.clone(memory_format=torch.contiguous_format) if self.overwrites else x
        for index, (layer, described) in enumerate(zip(self.layers, self.shape.layers, strict=True)):
            yield_point()
            heads = layer.heads(h, H + G, d, *rotations[described.rotation])
            queries = heads[:, :, :H].unflatten(2, (G, -1))
            pair = heads[:, :, H:].unflatten(2, (2, G)).permute(0, 2, 3, 1, 4)  # (B, 2, G, T, d)
            if cursor.at_start and scratch is not None:
                pair = scratch.copy_(pair)
            keys, values = cursor.store_pair(index, pair).to(x.dtype).unbind(1)
            if observer is not None:  # the scale is folded into the queries
                observer(index, queries.permute(0, 2, 3, 1, 4), keys)
            if keep is not None and index + 1 == len(self.layers):  # no later layer needs the other positions
                queries, h = queries[:, T - keep :], h[:, T - keep :].contiguous()
            if masks is None:
                mixed = self.attend(queries, keys, values, described.window, self.shape.cap)
            else:
                mixed = masked(queries, keys, values, masks[described.window], self.shape.cap)
            h = layer.after(mixed, h)
        hidden = _last_norm(h, self.norm, self.shape.eps)
        return hidden if self.shape.norm_bias is None else hidden + self.shape.norm_bias

    def steps(self, x: Tensor, kv: Tensor, at: Tensor) -> Tensor:
        """See `Backbone.steps`."""
        if self.decoding is None:
            return self.hidden(x, kv, at, None)
        x = x if self.shape.embedding == 1 else x * self.shape.embedding
        return self.decoding(x, kv, at, *self._decode_tables(x, kv.shape[4]))

    def _decode_tables(self, x: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines (kinds, C, r) of at least `capacity` positions for quantised decoding, computed once."""
        if self._decode_rotation[0].shape[1] < capacity:
            tables = [_rotation(*each) for each in self.shape.rotations.of_steps(x, capacity)]
            r = max(cos.shape[-1] for cos, _ in tables)
            cos, sin = (
                torch.stack([F.pad(table[0, :, 0], (0, r - table.shape[-1]), value=value) for table in each])
                for each, value in zip(zip(*tables, strict=True), (1.0, 0.0), strict=True)
            )
            self._decode_rotation = cos, sin
        return self._decode_rotation

    @property
    def exact_step(self) -> int | None:
        """See `Backbone.exact_step`. 1: this package's products and attention, in layers without windows and further norms."""
        plain = self.shape.plain and all(layer.window is None for layer in self.shape.layers)
        own = self.in_rows and has_simd_kernels(self.norm) and not has_bfloat16()
        if plain and own and self.shape.head_dim % PANEL == 0:
            return 1
        in_blocks = self.in_blocks and (has_simd_kernels(self.norm) or has_onednn(self.norm))
        return BLOCK if in_blocks else None

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Backbone.logits`."""
        quantised = self.decoding_head is not None and hidden.dim() == 2
        scores = self.decoding_head(hidden) if quantised and self.decoding_head else self.head(hidden)
        scores = scores if self.shape.head == 1 else scores * self.shape.head
        cap = self.shape.head_cap
        return scores if cap is None else torch.tanh(scores / cap) * cap


class _Masks(dict[int | None, Tensor]):
    """The masks (1 or B, T, C) of a pass, by the layers' windows, made when they are needed."""

    def __init__(self, cursor: KVCursor, dtype: torch.dtype) -> None:
        super().__init__()
        self._cursor, self._dtype = cursor, dtype

    def __missing__(self, window: int | None) -> Tensor:
        self[window] = additive_mask(self._cursor.visible(window), self._dtype, -torch.inf)
        return self[window]


def decode_layers(
    shape: Description,
    norm: Tensor,
    matrices: Sequence[Mapping[Name, QuantisedMatrix]],
    experts: Sequence[QuantisedExperts | None],
) -> DecodeLayers:
    """Return the decode steps of a model with these quantised matrices of its layers; `experts`: of those that have them."""
    layers = [
        DecodeLayer(each, layer.norms, mixture, layer.window, layer.rotation)
        for layer, each, mixture in zip(shape.layers, matrices, experts, strict=True)
    ]
    return DecodeLayers(
        layers, norm, scale=shape.scale, heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim, eps=shape.eps,
        activation=shape.activation, residual=shape.residual, cap=shape.cap, norm_bias=shape.norm_bias, parallel=shape.parallel,
        learned=None if shape.positions is None else shape.positions.weight,
    )  # fmt: skip


def _fold_experts(
    mixture: Mixture, norm: Tensor | None, residual: float, activation: Activation, *, bfloat16: bool
) -> Experts:
    """Return experts with the weight of the norm before them and the factor of the residual sum folded in."""

    def linear(weight: Tensor) -> Linear:
        return Linear(weight, None, bfloat16=bfloat16)

    experts = [
        MLP(linear(folded(gate, norm)), linear(folded(up, norm)), linear(scaled(down, residual)))
        for gate, up, down in mixture.matrices
    ]
    router = replace(mixture.router, weight=folded(mixture.router.weight, norm))
    return Experts(router, experts, activation)


def _fold_layer(layer: LayerDescription, shape: Description, *, bfloat16: bool, fuse: bool) -> AnyLayer:
    """Return a layer. Takes over its weights."""
    made = fuse_layer(layer, shape) if fuse else _layer(layer, shape, bfloat16=bfloat16)
    for module in {part.module for part in layer.matrices}:
        drop_weight(module)
    if isinstance(layer.mlp, Mixture):
        layer.mlp.drop_weights()
    return made


def _layer(layer: LayerDescription, shape: Description, *, bfloat16: bool) -> Layer:
    def linear(matrix: tuple[Tensor, Tensor | None]) -> Linear:
        return Linear(*matrix, bfloat16=bfloat16)

    norms, mlp, (_, norm_bias) = layer.norms, layer.mlp, layer.norm_biases or (None, None)
    qkv, o, head_norm = fold_attention(layer, shape)
    inner: MLP | UngatedMLP | Experts
    if isinstance(mlp, Mixture):
        inner = _fold_experts(mlp, norms.between, shape.residual, shape.activation, bfloat16=bfloat16)
    else:
        up, down = linear(entering((mlp.up,), norms.between, norm_bias)), linear(leaving(mlp.down, shape))
        inner = (
            MLP(linear(entering((mlp.gate,), norms.between)), up, down)
            if isinstance(mlp, GatedMLP)
            else UngatedMLP(up, down)
        )
    return Layer(
        qkv=linear(qkv), o=linear(o), mlp=inner, eps=shape.eps, norms=norms, head_norm=head_norm,
        activation=shape.activation, parallel=shape.parallel,
    )  # fmt: skip


def _rotation(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape tables of rotary positions (1 or B, T, d) to what `rotate` takes, (1 or B, T, 1, d)."""
    first, second = sin.chunk(2, dim=-1)
    return cos[:, :, None], torch.cat([-first, second], dim=-1)[:, :, None]


def _normed(x: Tensor, eps: float) -> Tensor:
    return thread_pool.norm(x, eps) if has_simd_kernels(x) else F.rms_norm(x, x.shape[-1:], None, eps)


def _last_norm(h: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(h, h.shape[-1:], weight, eps) if weight.dtype == h.dtype else rms_norm(h, weight, eps)
