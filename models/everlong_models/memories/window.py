"""`window`: no long-term memory. It keeps the first tokens (attention sinks) and the last tokens, as plain token ids.

This is the "no memory" baseline of the papers, and the default while no memory weights are trained. Like StreamingLLM
(Xiao et al. 2023) it keeps the first `sinks` tokens and a window of the newest. Unlike StreamingLLM it re-encodes the
window when an answer begins: the model computes exactly the backbone's attention over [sinks ; window ; open segment],
and the state is a few kilobytes of token ids instead of megabytes of keys and values. If an earlier prompt begins with the same tokens, their keys and values
are taken from it (`PrefixCache`). Reading costs nothing. An answer
that crosses a segment border continues in its cache, as in StreamingLLM, with the keys and values it already has.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.backbone.prefix_cache import PrefixCache
from everlong_models.errors import ConfigError, TokenError
from everlong_models.kernels.attention import SHORT
from everlong_models.memories.base import BackboneReader, MemoryConfig, require_positions
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart


class WindowConfig(MemoryConfig):
    """`sinks`: how many first tokens are kept for ever. `window`: how many tokens before the open segment are kept."""

    segment_length: int = Field(256, ge=2)
    sinks: int = Field(32, ge=0)
    window: int = Field(1024, ge=1)


class Window(BackboneReader):
    """Memory of the first and the last tokens.

    State: token ids `sinks` (rows, n) and `window` (rows, W), and `seen` (rows,), the number of tokens read.
    """

    def __init__(self, config: WindowConfig, backbone: Backbone) -> None:
        super().__init__()
        if config.sinks > config.segment_length:
            raise ConfigError("sinks", config.sinks, f"must be at most segment_length={config.segment_length}")
        self.capacity = config.sinks + config.window + config.segment_length
        require_positions(backbone, self.capacity, "sinks + window + segment_length", "window", config.window)
        self.config = config
        self.backbone = backbone
        self.segment_length = config.segment_length
        self.vocab_size = backbone.vocab_size

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the state before any token was read."""
        device = self.backbone.device
        return MemoryState(
            {
                "sinks": torch.zeros(rows, self.config.sinks, dtype=torch.int64, device=device),
                "window": torch.zeros(rows, self.config.window, dtype=torch.int64, device=device),
                "seen": torch.zeros(rows, dtype=torch.int64, device=device),
            }
        )

    @property
    def visible_tokens(self) -> int:
        """The window and one segment."""
        return self.config.window + self.segment_length

    @property
    def remembered_tokens(self) -> int:
        """The first tokens and the window."""
        return self.config.sinks + self.config.window

    def kept_tokens(self, state: MemoryState) -> list[int]:
        """Return the tokens of the window."""
        seen = min(max(0, int(state["seen"]) - self.config.sinks), self.config.window)
        return list(map(int, state["window"][0, self.config.window - seen :]))

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the sinks (if configured) and the window."""
        config, age = self.config, tokens.shape[1]
        first, last = min(read, config.sinks), min(max(0, read - config.sinks), config.window)
        window = MemoryPart("window", read - last, read, config.window, last, age)
        return (
            [MemoryPart("sinks", 0, first, config.sinks, first, read - first + age), window]
            if config.sinks
            else [window]
        )

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        """Return the state after `tokens` (B, T) of any length. New ids enter the window on the right; the very first also become sinks."""
        n, seen, T = self.config.sinks, state["seen"], tokens.shape[1]
        # Sinks fill up from the left; the window is right-aligned.
        position = torch.arange(n, device=tokens.device) - seen[:, None]
        fresh = torch.gather(tokens, 1, position.clamp(0, T - 1)) if n else tokens[:, :0]
        sinks = torch.where((position >= 0) & (position < T), fresh, state["sinks"])
        window = torch.cat([state["window"], tokens], dim=1)[:, -self.config.window :]
        return MemoryState({"sinks": sinks, "window": window, "seen": seen + T})

    def _context(self, state: MemoryState, newest: int, *, sinks: bool = True) -> list[Tensor]:
        """Return for each row (1, n) its sinks and at most `newest` tokens of its window. Rows differ in length."""
        rows = []
        for row in state.split():
            seen = int(row["seen"])
            first = min(seen, self.config.sinks)
            tail = min(seen - first, self.config.window, newest)
            begin = row["sinks"][:, : first if sinks else 0]
            rows.append(torch.cat([begin, row["window"][:, self.config.window - tail :]], dim=1))
        return rows

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of the backbone over [kept tokens ; tokens]."""
        self.check_segment(tokens, state)
        rows = []
        for context, row in zip(self._context(state, self.config.window), tokens.split(1), strict=True):
            hidden = self.backbone.hidden(self.backbone.embed(torch.cat([context, row], dim=1)))
            rows.append(hidden[:, context.shape[1] :])
        return self.backbone.logits(torch.cat(rows))

    @property
    def reuses_prompts(self) -> bool:
        """See `SegmentReader`."""
        return self.backbone.exact_step is not None

    @property
    def one_pass_tokens(self) -> int:
        """All segments up to the first eviction."""
        return ((self.config.sinks + self.config.window) // self.segment_length + 1) * self.segment_length

    def logits_at(self, tokens: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Run the backbone once over the whole document, and the output head only at the given positions."""
        self.check(tokens, self.initial_state(len(tokens)))
        if not 1 <= tokens.shape[1] <= self.one_pass_tokens:
            raise TokenError(f"one pass takes 1 to {self.one_pass_tokens} tokens of a document, got {tokens.shape[1]}")
        return self.backbone.logits(self.backbone.hidden(self.backbone.embed(tokens))[rows, positions])

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Encode [kept tokens ; tokens]."""
        return self.open_recent(state, tokens, None)

    def open_recent(
        self,
        state: MemoryState,
        tokens: Tensor,
        newest: int | None,
        *,
        sinks: bool = True,
        prefixes: PrefixCache | None = None,
        owner: str = "",
        kv: Tensor | None = None,
    ) -> tuple[Cache, Tensor]:
        """Encode [sinks ; `newest` tokens of the window ; tokens]. Prefills row by row: their contexts differ in length."""
        self.check_segment(tokens, state)
        kv = self.backbone.new_kv(state.rows, self.capacity) if kv is None else kv
        held = F.pad(tokens, (0, self.segment_length - tokens.shape[1]))
        contexts = self._context(state, self.config.window if newest is None else newest, sinks=sinks)
        before = [context.shape[1] for context in contexts]
        last = []
        try:
            for row, context in enumerate(contexts):
                prompt = torch.cat([context, tokens[row : row + 1]], dim=1)
                last.append(self._encode(prompt, kv[row : row + 1], prefixes, owner))
        except BaseException:
            # NaN would spoil the next row in this memory: 0 · NaN is NaN.
            kv[..., : max(before) + tokens.shape[1], :].zero_()
            raise
        cache = Cache(
            {"kv": kv, "tokens": held, "before": torch.tensor(before, device=tokens.device), **state.tensors},
            torch.full((state.rows,), tokens.shape[1], device=tokens.device),
        )
        return cache, self.backbone.logits(torch.cat(last)[:, -1])

    def _encode(self, prompt: Tensor, kv: Tensor, prefixes: PrefixCache | None, owner: str) -> Tensor:
        """Store the keys and values of `prompt` (1, n) in `kv`, and return the last hidden state (1, 1, D)."""
        count = prompt.shape[1]
        step = self.backbone.exact_step
        if count <= SHORT or step is None:
            return self.backbone.hidden(self.backbone.embed(prompt), kv=kv, keep=1)
        if prefixes is not None and (same := prefixes.same(owner, prompt[0])) is not None:
            stored, last = same
            kv[..., :count, :] = stored
            return last
        known, found = (0, None) if prefixes is None else prefixes.find(owner, prompt[0], count - SHORT - 1)
        known -= known % step
        if found is not None:
            kv[..., :known, :] = found[..., :known, :]
        # Not without `at`: a first pass attends to keys that are not rounded to 16 bits yet.
        at = torch.full((1,), known, device=prompt.device)
        hidden = self.backbone.hidden(self.backbone.embed(prompt[:, known:]), kv=kv, at=at, keep=1)
        if prefixes is not None:
            prefixes.keep(owner, prompt[0], kv, hidden)
        return hidden

    def continue_in_cache(self, cache: Cache, segment: Tensor, state: MemoryState) -> MemoryState | None:
        """Evict the oldest positions after the sinks from the cache, as StreamingLLM does, and move the rest down.

        Returns None if positions must be evicted and the backbone's keys cannot be moved, or there are no sinks.
        """
        before, sinks = int(cache["before"] + cache.lengths), self.config.sinks
        over = max(0, before - sinks - self.config.window)
        if over and not (sinks and self.backbone.can_evict):
            return None
        if over:
            self.backbone.evict(cache["kv"], sinks, over, before)
        after = self._read_segment(segment, state)
        cache["before"].fill_(before - over)
        cache.lengths.zero_()
        for name, tensor in after.tensors.items():
            cache[name].copy_(tensor)
        return after

    def close(self, cache: Cache) -> MemoryState:
        """Return the state after each row's open segment."""
        rows = []
        for row in range(cache.rows):
            before = MemoryState({name: cache[name][row : row + 1] for name in ("sinks", "window", "seen")})
            rows.append(self._read_segment(cache["tokens"][row : row + 1, : int(cache.lengths[row])], before))
        return MemoryState.stack(rows)
