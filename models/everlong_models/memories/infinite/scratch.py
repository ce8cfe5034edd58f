"""∞-former as a small transformer trained from scratch, with a short-term and a long-term memory (section 4.1).

This is the paper's model of the sorting task. Each layer attends to a short-term memory of its last m inputs, to the
segment, and to its long-term memory (Eq. 12). Inputs that leave the short-term memory enter the long-term one (section
3.2). Layers are pre-norm:

    C = norm([STM ; X]),  q = W_q (norm(X) + P_X),  k = W_k (C + P),  v = W_v C
    X' = X + Attention(q, k, v) W_o + Z_LTM(q),    X'' = X' + FFN(norm(X'))

Positions P are sinusoidal, counted within [STM ; segment], and added to queries and keys only. So a cached input does
not depend on the distance at which it is read (Transformer-XL's relative positions serve the same purpose).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.errors import ConfigError
from everlong_models.kernels.attention import causal_mask
from everlong_models.kernels.yield_point import yield_point
from everlong_models.memories.infinite.long_term import Contraction, LongTermConfig, LongTermMemory, ProjectedMemory
from everlong_models.memories.infinite.pretrained import LayerTrace, LongTermReader
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart


class InfiniteScratchConfig(LongTermConfig):
    """The defaults are the paper's settings for sorting (section 4.1, appendix C.1); it does not give the width.

    `vocab_size`: 20 symbols and a separator. `short_term`: m, positions of the short-term memory.
    """

    segment_length: int = Field(1024, ge=2)
    vocab_size: int = 21
    layers: int = 3
    heads: int = 6
    width: int = 192
    short_term: int = 1024
    basis: int = 1024
    widths: tuple[float, ...] = (0.01, 0.05)
    samples: int = 1024
    ridge: float = 1.0
    tau: Contraction = 0.75
    output: Literal["zero", "random", "none"] = "random"

    def check(self) -> None:
        super().check()
        self.at_least(vocab_size=1, layers=1, heads=1)
        if self.short_term < 0:
            raise ConfigError("short_term", self.short_term, "must not be negative")
        if self.width < 1 or self.width % (2 * self.heads):
            raise ConfigError("width", self.width, f"must be a positive multiple of 2·heads = {2 * self.heads}")


class PreNormLayer(nn.Module):
    """One pre-norm layer: the projections of its attention, and its feed-forward half."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def split(self, x: Tensor) -> Tensor:
        """Split into heads: (B, T, D) → (B, H, T, d)."""
        B, T, D = x.shape
        return x.view(B, T, self.heads, D // self.heads).transpose(1, 2)

    def keys_values(self, normed: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, T, d) of normed inputs (B, T, D) at encoded `positions` (…, T, D)."""
        return self.split(self.key(normed + positions)), self.split(self.value(normed))


class InfiniteScratch(LongTermReader):
    """∞-former trained from scratch.

    State: that of `LongTermMemory`, plus `short_term` (rows, layers, m, D), the last layer inputs, right-aligned, and
    `held` (rows,), how many of them are filled. Raises `ConfigError` for invalid settings.
    """

    positions: Tensor

    def __init__(self, config: InfiniteScratchConfig, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        config.check()
        D, H = config.width, config.heads
        self.config = config
        self.segment_length = config.segment_length
        self.vocab_size = config.vocab_size
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            self.embedding = nn.Embedding(config.vocab_size, D)
            self.blocks = nn.ModuleList(PreNormLayer(D, H) for _ in range(config.layers))
            self.norm = nn.LayerNorm(D)
            self.head = nn.Linear(D, config.vocab_size)
        self.register_buffer("positions", _sinusoids(config.short_term + config.segment_length, D), persistent=False)
        self.to(dtype)
        self.memory = LongTermMemory(config, layers=config.layers, width=D, heads=H, head_dim=D // H, dtype=dtype)

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return empty memories."""
        like, config = self.head.weight, self.config
        return MemoryState(
            {
                **self.memory.empty(rows),
                "short_term": like.new_zeros(rows, config.layers, config.short_term, config.width),
                "held": torch.zeros(rows, dtype=torch.int64, device=like.device),
            }
        )

    def _signal_tokens(self, state: MemoryState, read: int) -> int:
        return read - int(state["held"])

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the signals and the short-term memory, whose inputs enter the signals later."""
        held, short_term = int(state["held"]), self.config.short_term
        signal = super()._parts(state, tokens, read)
        return (
            [*signal, MemoryPart("short_term", read - held, read, short_term, held, tokens.shape[1])]
            if short_term
            else signal
        )

    def _run_layers(
        self,
        tokens: Tensor,
        state: Mapping[str, Tensor],
        project: Callable[[int], ProjectedMemory],
        kv: Tensor | None = None,
        at: Tensor | None = None,
    ) -> LayerTrace:
        m, T = self.config.short_term, tokens.shape[1]
        # Positions count within [STM ; segment]. A pass at the start stores the short-term memory's keys, too.
        cursor = KVCursor(m + T, tokens.device, kv) if at is None else KVCursor(T, tokens.device, kv, m + at)
        positions = cursor.positions[:, -T:]  # (1 or B, T)
        capacity = m + (T if at is None else self.segment_length)
        filled = torch.arange(capacity, device=tokens.device) >= m - state["held"][:, None, None]
        visible = (filled & causal_mask(positions, capacity))[:, None]  # (B, 1, T, C)
        x = self.embedding(tokens)
        entering, densities = [], []
        for layer in range(len(self.memory)):
            yield_point()
            block = self._block(layer)
            entering.append(x)
            normed = block.norm(x)
            queries = block.split(block.query(normed + self.positions[positions]))
            attended = normed
            if at is None:  # the segment starts, right after the short-term memory
                attended = torch.cat([block.norm(state["short_term"][:, layer]), normed], dim=1)
            keys, values = cursor.store(layer, *block.keys_values(attended, self.positions[cursor.positions]))
            context = F.scaled_dot_product_attention(queries, keys, values, visible).transpose(1, 2).flatten(2)
            recalled, density = self.memory[layer].attend(project(layer), queries)
            densities.append(density)
            x = x + block.output(context) + recalled
            x = x + block.feed_forward(x)
        return LayerTrace(self.norm(x), torch.stack(entering, dim=1), densities)

    def _update(self, state: Mapping[str, Tensor], entering: Tensor, attention: Tensor | None) -> MemoryState:
        counts = set(state["held"].tolist())
        if len(counts) > 1:  # different numbers of inputs leave the short-term memory
            rows = range(entering.shape[0])
            return MemoryState.stack([self._update(*_row(row, state, entering, attention)) for row in rows])
        m, T = self.config.short_term, entering.shape[2]
        held = int(counts.pop())
        both = torch.cat([state["short_term"], entering.detach()], dim=2)
        leaving = both[:, :, m - held : T]  # empty until the short-term memory is full
        long = {name: state[name] for name in self.memory.names}
        if leaving.shape[2]:
            if self.config.source == "normed":
                normed = [self._block(layer).norm(part) for layer, part in enumerate(leaving.unbind(1))]
                leaving = torch.stack(normed, dim=1)
            long = self.memory.update(state, leaving, attention)
        now = torch.full_like(state["held"], min(m, held + T))
        return MemoryState({**long, "short_term": both[:, :, T:], "held": now})

    def _logits(self, hidden: Tensor) -> Tensor:
        return cast(Tensor, self.head(hidden))

    def _new_kv(self, rows: int) -> Tensor:
        config = self.config
        capacity = config.short_term + config.segment_length
        return self.head.weight.new_zeros(rows, config.layers, 2, config.heads, capacity, config.width // config.heads)

    def _block(self, layer: int) -> PreNormLayer:
        return cast(PreNormLayer, self.blocks[layer])


def _row(
    row: int, state: Mapping[str, Tensor], entering: Tensor, attention: Tensor | None
) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
    """Return the arguments of `_update` for one row."""
    one = slice(row, row + 1)
    return (
        {name: tensor[one] for name, tensor in state.items()},
        entering[one],
        None if attention is None else attention[one],
    )


def _sinusoids(positions: int, width: int) -> Tensor:
    """Return the sines and cosines (positions, width) of Vaswani et al. 2017, of wavelengths from 2π to 20000π."""
    frequency = torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    angle = torch.arange(positions)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)
