"""RMT, the Recurrent Memory Transformer, in its decoder form (Bulatov et al. 2022; 2023, section 2).

Segment t is read as [M_t ; x_1 … x_S ; M_t] under the ordinary causal mask and ordinary positions; the final hidden
states of the last m positions are the memory of segment t+1:

    H = Transformer([M_t ; E(x) ; M_t]),   M_{t+1} = update(H[-m:])

`form` selects `update`. "raw" is the paper's: the hidden states themselves. Hidden states of pretrained backbones
(after the final norm) are far larger than their embeddings. Two forms beyond the paper keep an untrained memory harmless:
"norm" brings each vector to embedding scale (RMS norm times a learned scale), and "zero" adds a zero-initialised
projection to M_0.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.errors import ConfigError
from everlong_models.memories.base import BackboneReader, MemoryConfig, require_positions
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart, effective_rank, relative_change


class RMTConfig(MemoryConfig):
    """`memory_tokens`: m. `form`: how hidden states become the next memory (see the module docstring). `noise`: in training,
    Gaussian noise with this standard deviation, relative to the memory's RMS, is added to every new memory; the model
    learns to damp small errors."""

    memory_tokens: int = Field(16, ge=1)
    form: Literal["raw", "norm", "zero"] = "raw"
    noise: float = Field(0.0, ge=0)


class RMT(BackboneReader):
    """Recurrent Memory Transformer around `backbone`. State: `memory` (rows, m, D)."""

    def __init__(self, config: RMTConfig, backbone: Backbone) -> None:
        super().__init__()
        S, m = config.segment_length, config.memory_tokens
        if m >= S:
            raise ConfigError("memory_tokens", m, f"must be smaller than segment_length={S}")
        require_positions(backbone, S + 2 * m, "segment_length + 2·memory_tokens", "segment_length", S)
        self.config = config
        self.backbone = backbone
        self.segment_length = S
        self.vocab_size = backbone.vocab_size
        scale = backbone.embedding_std()
        noise = torch.randn(m, backbone.width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        self.memory = nn.Parameter((noise * scale).to(backbone.dtype).to(backbone.device))
        if config.form == "norm":
            self.scale = nn.Parameter(torch.full((backbone.width,), scale).to(self.memory))
        elif config.form == "zero":
            self.projection = nn.Parameter(torch.zeros(backbone.width, backbone.width).to(self.memory))

    @property
    def graph_capturable(self) -> bool:
        """See `SegmentReader`."""
        return self.backbone.optimized

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return M_0 in every row."""
        return MemoryState({"memory": self.memory.expand(rows, -1, -1)})

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the m vectors as one part: every segment rewrites them all."""
        old, change = state["memory"], None
        if tokens.shape[1] and read:
            (change,) = relative_change(old, self.close(self.open(state, tokens)[0])["memory"])
        used = float(effective_rank(old[0])) if read else 0.0
        return [MemoryPart("memory", 0, read, self.config.memory_tokens, used, tokens.shape[1], change=change)]

    def _update(self, hidden: Tensor) -> MemoryState:
        """Return M_{t+1} from the final hidden states (B, m, D) of the write positions."""
        if self.training and self.config.noise:
            size = hidden.detach().square().mean(-1, keepdim=True).sqrt()
            hidden = hidden + self.config.noise * size * torch.randn_like(hidden)
        if self.config.form == "norm":
            hidden = F.rms_norm(hidden, (hidden.shape[-1],)) * self.scale
        elif self.config.form == "zero":
            hidden = self.memory + F.linear(hidden, self.projection)
        return MemoryState({"memory": hidden})

    def _with_memory_tokens(self, tokens: Tensor, memory: Tensor) -> Tensor:
        """Return [read tokens ; segment ; write tokens], (B, m + T + m, D)."""
        return torch.cat([memory, self.backbone.embed(tokens), memory], dim=1)

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        memory = state["memory"]
        return self._update(self.backbone.hidden(self._with_memory_tokens(tokens, memory), keep=memory.shape[1]))

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of one segment. Leaves out the write tokens: they follow the segment and cannot change it."""
        self.check_segment(tokens, state)
        memory = state["memory"]
        hidden = self.backbone.hidden(torch.cat([memory, self.backbone.embed(tokens)], dim=1))
        return self.backbone.logits(hidden[:, memory.shape[1] :])

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return logits (B, S, V) and M_{t+1} of one full segment, in one pass."""
        self.check_full(tokens, state)
        memory = state["memory"]
        m = memory.shape[1]
        hidden = self.backbone.hidden(self._with_memory_tokens(tokens, memory))
        return self.backbone.logits(hidden[:, m:-m]), self._update(hidden[:, -m:])

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Prefill [M_t ; tokens]. The cache keeps M_t for the write at the segment's end."""
        self.check_segment(tokens, state)
        memory = state["memory"]
        m = memory.shape[1]
        kv = self.backbone.new_kv(state.rows, self.segment_length + 2 * m)
        x = torch.cat([memory, self.backbone.embed(tokens)], dim=1)
        hidden = self.backbone.hidden(x, kv=kv, keep=1)
        lengths = torch.full((state.rows,), tokens.shape[1], device=tokens.device)
        cache = Cache({"kv": kv, "memory": memory.clone(), "before": torch.full_like(lengths, m)}, lengths)
        return cache, self.backbone.logits(hidden[:, -1])

    def close(self, cache: Cache) -> MemoryState:
        """Run the m write tokens after each row's segment and build the memory from their hidden states."""
        memory = cache["memory"]
        # A copy: the caller may continue decoding, and the write tokens must not stay in its cache.
        hidden = self.backbone.hidden(memory, kv=cache["kv"].clone(), at=cache.lengths + memory.shape[1])
        return self._update(hidden)
