"""The Compressive Transformer (Rae et al. 2020): positions that leave Transformer-XL's memory enter a compressed memory.

Keys are [compressed ; memory ; segment], with consecutive positions. When the M positions of the memory overflow, its
oldest positions leave it in groups of c, and each group becomes one position of the compressed memory:

    z = Conv_c(m_leaving)  (over time, kernel and stride c, one convolution a layer)

The convolutions learn from the attention-reconstruction loss alone: in every layer, content attention over z must give
the same result as over m_leaving,

    ℒ = Σ_l ‖ a_l(h, m_leaving) − a_l(h, Conv_c(m_leaving)) ‖²,    a_l(h, m) = softmax(hW_qᵀ(mW_kᵀ)ᵀ/√d) mW_vᵀ,

where h, m and the projections are detached (sg), so that the model does not learn worse memories that are easier to
compress. The language-model loss does not reach the convolutions, since states are detached between segments.

In the paper, S and M are multiples of c; here they need not be. After n tokens ⌈(n − M)/c⌉ groups have left, whatever
the lengths of the segments were. The memory holds the rest, from M − c + 1 to M positions.
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
    """Positions `leaving` (B, c·G, L, D) the memory and their `compressed` form (B, G, L, D).

    Only the first `groups` (B,) groups of each row are valid.
    """

    leaving: Tensor
    compressed: Tensor
    groups: Tensor


class Compressive(LayerInputsDecoder):
    """Compressive Transformer, trained from scratch.

    State: `memory` (rows, M, L, D) and `compressed` (rows, C, L, D), both right-aligned, and `seen` (rows,), tokens read.
    """

    learns_without_targets = True  # the convolutions learn from the positions that leave, whatever is predicted

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
        """Return the state before any token was read."""
        config, zeros = self.config, self._weight.new_zeros
        return MemoryState(
            {
                "memory": zeros(rows, config.memory_length, config.layers, config.width),
                "compressed": zeros(rows, config.compressed_length, config.layers, config.width),
                "seen": zeros(rows, dtype=torch.int64),
            }
        )

    def _groups(self, seen: Tensor) -> Tensor:
        """Return how many groups have left the memory after `seen` (B,) tokens."""
        c = self.config.compression_rate
        return (seen - self.config.memory_length + c - 1).clamp(min=0).div(c, rounding_mode="floor")

    def _in_memory(self, seen: Tensor) -> Tensor:
        """Return how many positions are in the memory after `seen` (B,) tokens."""
        return seen - self.config.compression_rate * self._groups(seen)

    def _filled_past(self, past: Mapping[str, Tensor]) -> Tensor:
        seen = past["seen"]
        compressed = filled(self._groups(seen), self.config.compressed_length)
        return torch.cat([compressed, filled(self._in_memory(seen), self.config.memory_length)], dim=1)

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the compressed memory (groups of c tokens) and the uncompressed last positions."""
        config, age, c = self.config, tokens.shape[1], self.config.compression_rate
        groups = int(self._groups(state["seen"]))
        stored, left = min(groups, config.compressed_length), c * groups
        return [
            MemoryPart("compressed", left - c * stored, left, config.compressed_length, stored, age),
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
        """Compress the positions that leave the memory when the first `lengths` (B,) positions of `trace` enter it."""
        M, c, seen = self.config.memory_length, self.config.compression_rate, past["seen"]
        line = torch.cat([past["memory"], trace["memory"].detach()], dim=1)  # (B, M + T, L, D)
        most = c * -(-trace["memory"].shape[1] // c)
        rows = torch.arange(seen.shape[0], device=seen.device)[:, None]
        oldest = (M - self._in_memory(seen))[:, None] + torch.arange(most, device=seen.device)
        leaving = line[rows, oldest.clamp(max=line.shape[1] - 1)]
        compressed = [conv(leaving[:, :, layer].mT).mT for layer, conv in enumerate(self.compress)]
        groups = self._groups(seen + lengths) - self._groups(seen)
        return CompressedGroups(leaving, torch.stack(compressed, dim=2), groups)

    def training_segment(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> TrainingSegment:
        """Run `segment` in one pass over 1 ≤ T ≤ S tokens; the auxiliary loss is that of attention reconstruction.

        A row's loss is the mean square over queries, heads and features, summed over layers; 0 while its memory fills.
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
        """Return ℒ (B,) of each row, with the layers' `inputs` (B, T, L, D) as queries."""
        c, G = self.config.compression_rate, compressed_groups.compressed.shape[1]
        # A row without leaving groups has no key, which some attention kernels turn into NaN. Let it see all keys, and
        # multiply its loss by zero.
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
    """Return a(h, m) (B, H, T, d): content attention of `h` (B, T, D) over `memory` (B, K, D).

    `visible` (B, K): which positions of the memory exist. The layer's weights are detached.
    """
    attention = block.attention
    q = attention.split(F.linear(h, attention.query.weight.detach()))
    k = attention.split(F.linear(memory, attention.key.weight.detach()))
    v = attention.split(F.linear(memory, attention.value.weight.detach()))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=visible[:, None, None])
