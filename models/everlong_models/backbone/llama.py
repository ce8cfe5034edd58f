"""`Llama`: a fast inference forward for Llama-family models.

Computes the same as transformers' forward (tests/models/backbone/test_llama.py compares them), for final weights:

    h ← h + O attention(rope(Q n(h)), rope(K n(h)), V n(h)),    h ← h + D (silu(G n(h)) · U n(h)),    n = RMS norm

In Qwen 3, queries and keys also pass a norm over each head before their rotation.

Norm weights and the attention's scale are folded into the matrices that follow, and element-wise work into the matmuls
before it. The upper triangle of the attention is skipped in blocks. In the last layer only the requested positions have
queries. Shapes: B rows, T positions, D width, G kv heads, R query heads per kv head, d head dimension, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from everlong_models.backbone import rotary
from everlong_models.backbone.kv_cursor import KVCursor, additive_mask, causal_mask
from everlong_models.backbone.observing import Observer
from everlong_models.kernels.cpu import prefill, thread_pool
from everlong_models.kernels.cpu.decode_layers import CACHED, DecodeLayers, quantise_layers
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix, can_quantise
from everlong_models.kernels.cpu.simd import PANEL
from everlong_models.kernels.gpu import layer_kernels
from everlong_models.kernels.linear import Linear, has_onednn, has_simd_kernels, matmul
from everlong_models.kernels.low_rank import detach, split_update
from everlong_models.kernels.yield_point import yield_point

OPTIMISED_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
# Query positions per block of scores. Small blocks skip more of the upper triangle, large ones make better matmuls.
BLOCK = 192
# Up to this many positions, one call per row and head costs more than the upper triangle that it skips.
SHORT = 64


def unsupported_reason(model: PreTrainedModel) -> str | None:
    """Return in words what `Llama` does not support about `model`; None if it supports everything."""
    config = model.config
    if config.model_type not in OPTIMISED_FAMILIES:
        return f"architecture {config.model_type!r}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act!r}"
    if not rotary.has_fixed_frequencies(config):
        return f"rotary positions {config.rope_parameters}"
    if getattr(config, "sliding_window", None) is not None:
        return f"a sliding window of {config.sliding_window}"
    matrices = [matrix for layer in model.base_model.layers for matrix in _matrices(layer)]
    # Not isinstance: adapters and quantised matrices derive from nn.Linear and compute something else.
    others = {_kind(matrix) for matrix in [*matrices, model.get_output_embeddings()]} - {nn.Linear}
    return f"matrices of type {', '.join(map(str, others))}" if others else None


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's matrices, with the norms' weights and the attention's scale folded in.

    `head_norm` (H + G, d): weights of the norm over each head of queries and keys, or None without one; the scale is folded into it.
    """

    qkv: Linear
    o: Linear
    gate: Linear
    up: Linear
    down: Linear
    eps: float
    head_norm: Tensor | None = None

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """Return queries, keys and values (B, T, heads, d) of `h` (B, T, D), the first `turning` heads rotated (`_rotation`)."""
        heads = self.qkv(_normed(h, self.eps)).unflatten(-1, (-1, head_dim))
        if self.head_norm is not None:
            normed = F.rms_norm(heads[:, :, :turning], (head_dim,), None, self.eps)
            torch.mul(normed, self.head_norm, out=heads[:, :, :turning])
        rotate(heads, turning, cos, sin)
        return heads

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """Return the layer's output (B, n, D) from attention's output `mixed` (B, n, H·d) and input `h` (B, n, D).

        May overwrite `h`.
        """
        h = self.o(mixed, plus=h)
        normed = _normed(h, self.eps).to(self.down.dtype)
        return self.down(self.up(normed, times=self.gate(normed, silu=True)), plus=h)


class AnyLayer(Protocol):
    """What `Llama` needs of a layer: `Layer` computes it with float weights, others on a GPU or with quantised weights."""

    def heads(self, h: Tensor, turning: int, head_dim: int, cos: Tensor, sin: Tensor) -> Tensor:
        """See `Layer`."""

    def after(self, mixed: Tensor, h: Tensor) -> Tensor:
        """See `Layer`."""


@dataclass(slots=True)
class Llama:
    """A fast forward. `Llama.of` makes one of a model, `quantised_llama.build` one of quantised weights.

    `decoding`, `decoding_head`: compute decode steps, if they are quantised. `cached`: the dtype of stored keys and values. `attend`: computes
    `causal` attention. `overwrites`: a layer may overwrite its input.
    """

    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    rotary: nn.Module
    norm: Tensor
    layers: Sequence[AnyLayer]
    head: Callable[[Tensor], Tensor]
    cached: torch.dtype
    attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    decoding: DecodeLayers | None = None
    decoding_head: QuantisedMatrix | None = None
    overwrites: bool = False
    _decode_rotation: tuple[Tensor, Tensor] = field(default_factory=lambda: (torch.empty(0), torch.empty(0)))
    """For quantised decoding: `_rotation` of all positions of the largest cache so far."""

    @classmethod
    def of(cls, model: PreTrainedModel, *, quantize: bool = False, bfloat16: bool = False) -> Llama:
        """Make the forward of `model`, for which `unsupported_reason` must be None.

        Takes over the matrices one by one, so that no weight is held twice; `model` keeps only its embeddings and norms. `quantize`: decode
        steps use `QuantisedMatrix` matrices, if all of them fit, and keys and values are stored in 16 bits. `bfloat16`: prefill multiplies
        in bfloat16, except attention and head.
        """
        base, head = model.base_model, model.get_output_embeddings()
        first = base.layers[0]
        norm, eps = base.norm.weight.detach(), model.config.rms_norm_eps
        sizes = {"heads": model.config.num_attention_heads, "kv_heads": model.config.num_key_value_heads}
        sizes["head_dim"] = first.self_attn.head_dim
        matrices = (matrix for layer in base.layers for matrix in _matrices(layer))
        weight, update = split_update(head)
        quantize = (
            quantize
            and can_quantise(weight)
            and all(can_quantise(split_update(matrix)[0]) for matrix in matrices)
            and sizes["head_dim"] % PANEL == 0
        )
        if has_simd_kernels(weight):
            thread_pool.prepare(prefill.linear, prefill.norm, prefill.rotate, prefill.attend)
        decoding = None
        if quantize:
            norms = [(layer.input_layernorm.weight, layer.post_attention_layernorm.weight) for layer in base.layers]
            scale = first.self_attn.scaling
            head_norms = [tuple(norm.weight for norm in _head_norms(layer)) for layer in base.layers]
            decoding = DecodeLayers(
                quantise_layers(base.layers), norms, norm, scale=scale, eps=eps, head_norms=head_norms, **sizes
            )
        fused = not _head_norms(first) and layer_kernels.available(
            head.weight,
            heads=sizes["heads"] + 2 * sizes["kv_heads"],
            turning=sizes["heads"] + sizes["kv_heads"],
            head_dim=sizes["head_dim"],
            width=model.config.hidden_size,
            inner=model.config.intermediate_size,
            biases=(_has_bias(first.self_attn.q_proj, first.self_attn.k_proj), _has_bias(first.mlp.gate_proj)),
        )
        layers = [_fold_layer(layer, eps, bfloat16=bfloat16, fuse=fused) for layer in base.layers]
        decoding_head = QuantisedMatrix(weight, head.bias, update) if quantize else None
        whole_head, cached = Linear(head.weight, head.bias), CACHED if quantize else head.weight.dtype
        detach(head)
        if head.weight is not model.get_input_embeddings().weight:
            _drop_weight(head)
        return cls(
            **sizes, eps=eps, rotary=base.rotary_emb, norm=norm, layers=layers, head=whole_head, cached=cached,
            attend=causal, decoding=decoding, decoding_head=decoding_head, overwrites=fused,
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
        B, T, D = x.shape
        H, G, d = self.heads, self.kv_heads, self.head_dim
        if self.decoding is not None and kv is not None and at is not None and T == 1 and observer is None:
            return self.decoding(x, kv, at, *self._decode_tables(x, kv.shape[4]))
        if kv is not None and at is not None and kv.device.type == "cpu":
            # Attend to filled positions only. On a GPU that would wait for `at`, which costs more.
            kv = kv[..., : int(at.max()) + T, :]
        cursor = KVCursor(T, x.device, kv, at)
        rotation = _rotation(*self.rotary(x, cursor.positions))
        aligned = cursor.at_start or (T > SHORT and _same_position(at))
        mask = None if aligned else additive_mask(cursor.visible(), x.dtype, -torch.inf)
        # On a CPU, a contiguous copy of one layer's keys and values, which the next layer overwrites.
        scratch = x.new_empty(B, 2, G, T, d) if x.device.type == "cpu" else None
        h = x.clone(memory_format=torch.contiguous_format) if self.overwrites else x
        for index, layer in enumerate(self.layers):
            yield_point()
            heads = layer.heads(h, H + G, d, *rotation)
            queries = heads[:, :, :H].unflatten(2, (G, -1))
            pair = heads[:, :, H:].unflatten(2, (2, G)).permute(0, 2, 3, 1, 4)  # (B, 2, G, T, d)
            if cursor.at_start and scratch is not None:
                pair = scratch.copy_(pair)
            keys, values = cursor.store_pair(index, pair).to(x.dtype).unbind(1)
            if observer is not None:  # the scale is folded into the queries
                observer(index, queries.permute(0, 2, 3, 1, 4), keys)
            if keep is not None and index + 1 == len(self.layers):  # no later layer needs the other positions
                queries, h = queries[:, T - keep :], h[:, T - keep :].contiguous()
            mixed = self.attend(queries, keys, values) if mask is None else _masked(queries, keys, values, mask)
            h = layer.after(mixed, h)
        return F.rms_norm(h, (D,), self.norm, self.eps)

    def _decode_tables(self, x: Tensor, capacity: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of at least `capacity` positions for quantised decoding, computed once."""
        if len(self._decode_rotation[0]) < capacity:
            cos, sin = _rotation(*self.rotary(x, torch.arange(capacity, device=x.device)[None]))
            self._decode_rotation = cos[0, :, 0], sin[0, :, 0]
        return self._decode_rotation

    def logits(self, hidden: Tensor) -> Tensor:
        """See `Backbone.logits`."""
        return self.decoding_head(hidden) if self.decoding_head is not None and hidden.dim() == 2 else self.head(hidden)


def _same_position(at: Tensor | None) -> bool:
    """Return whether all rows continue at the same position, as `causal` needs it. On a GPU False: asking would wait for it."""
    return at is not None and at.device.type == "cpu" and bool((at == at[0]).all())


def _matrices(layer: Any) -> list[Any]:
    a, mlp = layer.self_attn, layer.mlp
    return [a.q_proj, a.k_proj, a.v_proj, a.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def _head_norms(layer: Any) -> list[Any]:
    """Return the norms over each head of queries and of keys; none if the layer has none."""
    return [layer.self_attn.q_norm, layer.self_attn.k_norm] if hasattr(layer.self_attn, "q_norm") else []


def _fold_layer(layer: Any, eps: float, *, bfloat16: bool, fuse: bool) -> Layer | layer_kernels.FusedLayer:
    matrices = _matrices(layer)
    q, k, v, o, gate, up, down = matrices
    before, between = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
    head_norms, head_norm = _head_norms(layer), None
    # A norm would undo a scale of the queries before it.
    scale = 1.0 if head_norms else layer.self_attn.scaling
    if head_norms:
        d = layer.self_attn.head_dim
        queries, keys = (
            norm.weight.expand(len(matrix.weight) // d, d) for norm, matrix in zip(head_norms, (q, k), strict=True)
        )
        head_norm = torch.cat([queries * layer.self_attn.scaling, keys])

    def folded(weight: Tensor, norm: Tensor) -> Tensor:
        wide = torch.promote_types(weight.dtype, torch.float32)
        return (weight.to(wide) * norm.to(wide)).to(weight.dtype)  # rounded once

    def bias(*stacked: Any, first: float = 1.0) -> Tensor | None:
        if not _has_bias(*stacked):
            return None
        parts = [before.new_zeros(matrix.out_features) if matrix.bias is None else matrix.bias for matrix in stacked]
        return torch.cat([parts[0] * first, *parts[1:]])

    qkv = folded(torch.cat([q.weight * scale, k.weight, v.weight]), before)
    qkv_bias = bias(q, k, v, first=scale)
    folded_layer: Layer | layer_kernels.FusedLayer
    if fuse:
        folded_layer = layer_kernels.FusedLayer(
            qkv=(qkv, qkv_bias),
            o=(o.weight, o.bias),
            both=(folded(torch.cat([gate.weight, up.weight]), between), bias(gate, up)),
            down=(down.weight, down.bias),
            eps=eps,
        )
    else:
        folded_layer = Layer(
            qkv=Linear(qkv, qkv_bias, bfloat16=bfloat16),
            o=Linear(o.weight, o.bias, bfloat16=bfloat16),
            gate=Linear(folded(gate.weight, between), gate.bias, bfloat16=bfloat16),
            up=Linear(folded(up.weight, between), up.bias, bfloat16=bfloat16),
            down=Linear(down.weight, down.bias, bfloat16=bfloat16),
            eps=eps,
            head_norm=head_norm,
        )
    for matrix in matrices:
        _drop_weight(matrix)
    return folded_layer


def _has_bias(*matrices: Any) -> bool:
    return any(matrix.bias is not None for matrix in matrices)


def _kind(matrix: nn.Module) -> type[nn.Module]:
    """Return the class of a matrix. For one with a low-rank update, whose class PyTorch derives, the original class."""
    return type(matrix) if split_update(matrix)[1] is None else type(matrix).__bases__[0]


def _drop_weight(matrix: nn.Linear) -> None:
    detach(matrix)
    matrix.weight = nn.Parameter(torch.empty_like(matrix.weight, device="meta"), requires_grad=False)


def _rotation(cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape tables of rotary positions (1 or B, T, d) to what `rotate` takes, (1 or B, T, 1, d)."""
    first, second = sin.chunk(2, dim=-1)
    return cos[:, :, None], torch.cat([-first, second], dim=-1)[:, :, None]


def _normed(x: Tensor, eps: float) -> Tensor:
    return thread_pool.norm(x, eps) if has_simd_kernels(x) else F.rms_norm(x, x.shape[-1:], None, eps)


def rotate(heads: Tensor, count: int, cos: Tensor, sin: Tensor) -> None:
    """Rotate the first `count` of `heads` (B, T, heads, d) to their positions, in place."""
    if has_simd_kernels(heads):
        thread_pool.rotate(heads, count, cos, sin)
        return
    x = heads[:, :, :count]
    turned = x.roll(x.shape[-1] // 2, dims=-1)
    x.mul_(cos).addcmul_(turned, sin)


def _masked(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Return attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over stored keys and values (B, G, C, d).

    The R heads that share keys become rows of one matrix, so that keys are not copied for them.
    """
    n, R = queries.shape[1], queries.shape[3]
    mask = mask[:, -n:].repeat_interleave(R, dim=1)[:, None]
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2).flatten(2, 3), keys, values, attn_mask=mask, scale=1.0
    )
    return mixed.unflatten(2, (n, R)).transpose(1, 2).flatten(2)


def causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return causal attention (B, n, G·R·d) of the last n queries (B, n, G, R, d) over keys and values (B, G, T, d)."""
    B, n, G, R, d = queries.shape
    T = keys.shape[2]
    if has_simd_kernels(queries) and d % PANEL == 0:
        return thread_pool.attend(queries, keys, values)
    if T <= SHORT or not has_onednn(queries):
        mask = None if n == T else causal_mask(torch.arange(T - n, T, device=keys.device)[None], T)[0]
        mixed = F.scaled_dot_product_attention(
            *(queries.flatten(2, 3).transpose(1, 2), keys, values),
            attn_mask=mask, is_causal=mask is None, scale=1.0, enable_gqa=True,
        )  # fmt: skip
        return mixed.transpose(1, 2).flatten(2)
    # The R heads that share keys become rows of one matrix; a block of queries sees only the keys up to its own end.
    queries = queries.transpose(1, 2).contiguous()
    out = queries.new_empty(B, n, G, R * d)
    block = -(-n // -(-n // BLOCK))
    future = queries.new_full((block, block), -torch.inf).triu_(1).repeat_interleave(R, dim=0)
    for row in range(B):
        for q, k, v, o in zip(queries[row], keys[row], values[row], out[row].unbind(1), strict=True):
            for start in range(0, n, block):
                size = min(block, n - start)
                seen = T - n + start + size
                scores = matmul(q[start : start + size].view(-1, d), k[:seen])
                scores[:, seen - size :] += future[: size * R, :size]
                o[start : start + size] = matmul(scores.softmax(-1), v[:seen].t()).view(size, R * d)
    return out.flatten(2)
