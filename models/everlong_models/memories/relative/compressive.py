"""The Compressive Transformer (Rae et al. 2020): what leaves Transformer-XL's memory is compressed_groups into a second one.

Keys are [compressed ; memory ; segment], their positions counted one by one. When the M positions of the memory
overflow, its oldest leave it in groups of c, and each group becomes one position of the compressed memory:

    z = Conv_c(m_leaving)  (over time, kernel and stride c, one convolution a layer)

The convolutions learn from the attention-reconstruction loss alone: for every layer, what content attention finds in z
must be what it finds in m_leaving,

    ℒ = Σ_l ‖ a_l(h, m_leaving) − a_l(h, Conv_c(m_leaving)) ‖²,    a_l(h, m) = softmax(hW_qᵀ(mW_kᵀ)ᵀ/√d) mW_vᵀ,

where h, m and the projections are stopped (sg), so that nothing is remembered worse for being easier to compress. The
language-model loss does not reach the convolutions, as states are stopped between segments.

The papers' S and M are multiples of c. Others do as well: after n tokens ⌈(n − M)/c⌉ groups have left, whatever the
lengths of the segments were, and the memory holds the rest, at least M − c + 1 and at most M positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.errors import ConfigError
from everlong_models.memories.base import TrainingSegment
from everlong_models.memories.relative.decoder import (
    LayerInputsDecoder,
    PostNormLayer,
    RelativeDecoderConfig,
    detached,
    filled,
    newest,
)
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart


class CompressiveConfig(RelativeDecoderConfig):
    """`memory_length`: M ≥ c. `compressed_length`: C ≥ 1 positions of the second memory. `compression_rate`: c ≥ 1."""

    memory_length: int = 150
    compressed_length: int = 150
    compression_rate: int = 4


class CompressedGroups(NamedTuple):
    """`leaving` (B, c·G, L, D) and its compression (B, G, L, D), of which the first `groups` (B,) are real."""

    leaving: Tensor
    compressed: Tensor
    groups: Tensor


class Compressive(LayerInputsDecoder):
    """State, right-aligned: `memory` (rows, M, L, D) and `compressed` (rows, C, L, D). And `seen` (rows,), tokens read."""

    learns_without_targets = True  # the convolutions learn from what leaves, whatever is predicted meanwhile

    def __init__(self, config: CompressiveConfig) -> None:
        config.at_least(compression_rate=1, compressed_length=1)
        if config.memory_length < config.compression_rate:
            limit = f"must be at least compression_rate={config.compression_rate}"
            raise ConfigError("memory_length", config.memory_length, limit)
        super().__init__(config, past=config.compressed_length + config.memory_length)
        self.config = config
        width, rate = config.width, config.compression_rate
        self.compress = nn.ModuleList(nn.Conv1d(width, width, rate, stride=rate) for _ in self.blocks)

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Nothing seen."""
        config, zeros = self.config, self._weight.new_zeros
        return MemoryState(
            {
                "memory": zeros(rows, config.memory_length, config.layers, config.width),
                "compressed": zeros(rows, config.compressed_length, config.layers, config.width),
                "seen": zeros(rows, dtype=torch.int64),
            }
        )

    def _groups(self, seen: Tensor) -> Tensor:
        """How many groups have left the memory after `seen` (B,) tokens."""
        c = self.config.compression_rate
        return (seen - self.config.memory_length + c - 1).clamp(min=0).div(c, rounding_mode="floor")

    def _in_memory(self, seen: Tensor) -> Tensor:
        """How many positions are in the memory after `seen` (B,) tokens."""
        return seen - self.config.compression_rate * self._groups(seen)

    def _held(self, past: Mapping[str, Tensor]) -> Tensor:
        seen = past["seen"]
        compressed = filled(self._groups(seen), self.config.compressed_length)
        return torch.cat([compressed, filled(self._in_memory(seen), self.config.memory_length)], dim=1)

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Groups of c tokens each, and behind them the last positions as they were."""
        config, age, c = self.config, tokens.shape[1], self.config.compression_rate
        groups = int(self._groups(state["seen"]))
        held, left = min(groups, config.compressed_length), c * groups
        return [
            MemoryPart("compressed", left - c * held, left, config.compressed_length, held, age),
            MemoryPart("memory", left, read, config.memory_length, read - left, age),
        ]

    def _memory(self, past: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([past["compressed"], past["memory"]], dim=1)

    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        return self._push(past, trace, lengths, self._compress(past, trace, lengths))

    @staticmethod
    def _push(
        past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor, compressed_groups: CompressedGroups
    ) -> MemoryState:
        return MemoryState(
            {
                "memory": newest(past["memory"], trace["memory"].detach(), lengths),
                "compressed": newest(
                    past["compressed"], compressed_groups.compressed.detach(), compressed_groups.groups
                ),
                "seen": past["seen"] + lengths,
            }
        )

    def _compress(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> CompressedGroups:
        """Compresses what leaves the memory when the first `lengths` (B,) positions of `trace` enter it."""
        M, c, seen = self.config.memory_length, self.config.compression_rate, past["seen"]
        line = torch.cat([past["memory"], trace["memory"].detach()], dim=1)  # (B, M + T, L, D)
        room = c * -(-trace["memory"].shape[1] // c)
        rows = torch.arange(seen.shape[0], device=seen.device)[:, None]
        oldest = (M - self._in_memory(seen))[:, None] + torch.arange(room, device=seen.device)
        leaving = line[rows, oldest.clamp(max=line.shape[1] - 1)]
        compressed = [conv(leaving[:, :, layer].mT).mT for layer, conv in enumerate(self.compress)]
        groups = self._groups(seen + lengths) - self._groups(seen)
        return CompressedGroups(leaving, torch.stack(compressed, dim=2), groups)

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """`segment` in one pass, over 1 ≤ T ≤ S tokens, and the attention-reconstruction loss of what it pushed out.

        A row's loss is, added over layers, the mean square over queries, heads and features; 0 while its memory fills.
        """
        self.check_segment(tokens, state)
        run = self._run(tokens, detached(state))
        if lengths is None:
            lengths = torch.full((state.rows,), tokens.shape[1], device=tokens.device)
        compressed_groups = self._compress(run.past, run.trace, lengths)
        loss = self._reconstruction(run.trace["memory"].detach(), compressed_groups)
        return TrainingSegment(
            self._logits(run.hidden), self._push(run.past, run.trace, lengths, compressed_groups), loss
        )

    def _reconstruction(self, inputs: Tensor, compressed_groups: CompressedGroups) -> Tensor:
        """ℒ (B,) of each row for the layers' `inputs` (B, T, L, D) as queries."""
        c, G = self.config.compression_rate, compressed_groups.compressed.shape[1]
        # A row of which nothing left has no key to attend to, which not every kernel survives: it may see all, for nothing.
        some = compressed_groups.groups > 0
        real = (torch.arange(G, device=some.device) < compressed_groups.groups[:, None]) | ~some[:, None]
        total = inputs.new_zeros(len(inputs))
        for layer, block in self._layers():
            h = inputs[:, :, layer]
            wanted = recall(block, h, compressed_groups.leaving[:, :, layer], real.repeat_interleave(c, dim=1))
            found = recall(block, h, compressed_groups.compressed[:, :, layer], real)
            total = total + (wanted - found).square().mean(dim=(1, 2, 3)) * some
        return total


def recall(block: PostNormLayer, h: Tensor, memory: Tensor, visible: Tensor) -> Tensor:
    """a(h, m): what `h` (B, T, D) finds in `memory` (B, K, D) by content alone, (B, H, T, d).

    `visible` (B, K): which positions of the memory exist. The layer's weights are stopped.
    """
    attention = block.attention
    q = attention.split(F.linear(h, attention.query.weight.detach()))
    k = attention.split(F.linear(memory, attention.key.weight.detach()))
    v = attention.split(F.linear(memory, attention.value.weight.detach()))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None])
