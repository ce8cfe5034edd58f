"""`compact`: a key/value cache of fixed size that keeps some entries of every stretch of the text. It needs no training.

A segment is read after the kept entries. Then each layer and kv head chooses which of its keys and values to
keep, by the attention that they get from the segment's own queries as if the segment were repeated (as in KVzip, Kim et
al. 2025, and attention matching, Zweiger et al. 2026, whose fit of values is left out). For query i and entry j, with the
queries placed behind the segment so that every entry is visible to every query:

    score_j = √ mean_i a_ij²,    a = softmax(q k / √d)

A rank by score alone would let new segments crowd out old ones. So an entry competes by its rank within its own segment:

    quantile_j = (rank_j + u) / T,    rank 0 … T-1 by falling score,    u in [0, 1) for the segment

and the t entries with the lowest quantiles are kept. After k segments each has about t / k entries, its best ones, for any
k: u is a sequence that fills [0, 1) evenly, so where t < k the segments that keep an entry are spread over the text.

The kept keys have the positions 0 … t-1, and the segment follows them, so positions never exceed the backbone's. The
state holds keys as if at position 0. Shapes: B rows, L layers, G kv heads, t entries, d head dimension, T tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.cache import Cache
from everlong_models.backbone.precision import in_full
from everlong_models.backbone.turning import Turning
from everlong_models.errors import BackboneError, ConfigError
from everlong_models.memories.base import BackboneReader, MemoryConfig, require_positions
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart

_GOLDEN = 0.6180339887498949
"""Its multiples, modulo one, fill [0, 1) evenly."""
_PINNED, _EMPTY = -1.0, 2.0
"""Quantiles of the first tokens, which are kept for ever, and of entries not in use."""
_NOWHERE = torch.iinfo(torch.int32).max
"""The position in the text of an entry not in use: after all others. Later positions count as the one before it."""


class CompactConfig(MemoryConfig):
    """`entries`: t, how many keys and values are kept in each layer and kv head. `pinned`: how many of them are the text's
    first tokens. `queries`: how many of a segment's tokens, evenly spaced, choose by their attention."""

    segment_length: int = Field(1024, ge=2)
    entries: int = Field(1024, ge=1)
    pinned: int = Field(4, ge=0)
    queries: int = Field(128, ge=1)


class _Entries(NamedTuple):
    """n keys at position 0 and values (B, L, G, n, d), their quantiles and positions in the text (B, L, G, n)."""

    keys: Tensor
    values: Tensor
    quantile: Tensor
    position: Tensor


class Compact(BackboneReader):
    """Memory of chosen keys and values.

    State: `keys`, `values` (rows, L, G, t, d) in 16 bits (in float64 for a backbone of float64), `quantile` (float32) and
    `position` (int32) (rows, L, G, t), and `seen` (rows,), the number of tokens read. Entries are in the order of the text.
    """

    def __init__(self, config: CompactConfig, backbone: Backbone) -> None:
        super().__init__()
        if config.pinned >= config.entries:
            raise ConfigError("pinned", config.pinned, f"must be smaller than entries={config.entries}")
        self.capacity = config.entries + config.segment_length
        require_positions(backbone, self.capacity, "entries + segment_length", "entries", config.entries)
        self.config = config
        self.backbone = backbone
        self.segment_length = config.segment_length
        self.vocab_size = backbone.vocab_size
        self._turning = Turning(backbone)

    @torch.no_grad()
    def optimize(self) -> None:
        """Raise `BackboneError` unless every layer shows its queries. Those of Falcon show theirs only once the backbone is optimised."""
        b, shown = self.backbone, set[int]()
        x, at = (
            torch.zeros(1, 1, b.width, dtype=b.dtype, device=b.device),
            torch.zeros(1, dtype=torch.int64, device=b.device),
        )
        b.hidden(x, kv=b.new_kv(1, 1), at=at, observer=lambda layer, queries, keys: shown.add(layer))
        if len(shown) < b.layers:
            raise BackboneError(
                f"{type(b.model).__name__}: this memory needs the queries of every layer, and cannot read those of this "
                "architecture; use the memory `window`"
            )

    @property
    def remembered_tokens(self) -> int:
        """The entries of one layer and kv head; each chooses its own."""
        return self.config.entries

    @property
    def _stored(self) -> torch.dtype:
        dtype = self.backbone.dtype
        return torch.float16 if dtype == torch.float32 else dtype

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the state before any token was read."""
        b, device = self.backbone, self.backbone.device
        shape = (rows, b.layers, b.kv_heads, self.config.entries)
        return MemoryState(
            {
                "keys": torch.zeros(*shape, b.head_dim, dtype=self._stored, device=device),
                "values": torch.zeros(*shape, b.head_dim, dtype=self._stored, device=device),
                "quantile": torch.full(shape, _EMPTY, dtype=torch.float32, device=device),
                "position": torch.full(shape, _NOWHERE, dtype=torch.int32, device=device),
                "seen": torch.zeros(rows, dtype=torch.int64, device=device),
            }
        )

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return the entries, which are as many in every layer and head."""
        t = self.config.entries
        return [MemoryPart("entries", 0, read, t, min(read, t), tokens.shape[1])]

    def _used(self, state: MemoryState) -> Tensor:
        """Return how many entries of each row are in use (B,)."""
        return state["seen"].clamp(max=self.config.entries)

    def _context(self, state: MemoryState, room: int) -> Tensor:
        """Return a key/value tensor with the kept entries at their positions and `room` for more."""
        t, L = self.config.entries, self.backbone.layers
        kv = self.backbone.new_kv(state.rows, t + room)
        at = torch.arange(t, device=kv.device)[None]
        keys, values = self.backbone.own_heads(state["keys"]), self.backbone.own_heads(state["values"])
        for layer in range(L):
            kv[:, layer, 0, :, :t] = self._turning.turn(layer, keys[:, layer], at).to(kv.dtype)
            kv[:, layer, 1, :, :t] = values[:, layer].to(kv.dtype)
        return kv

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        return self._run(tokens, state, keep=1)[1]

    def _run(self, tokens: Tensor, state: MemoryState, keep: int | None = None) -> tuple[Tensor, MemoryState]:
        """Read T ≥ 1 `tokens` (B, T). Return the final hidden states of the last `keep` tokens, and the state after them."""
        T, used = tokens.shape[1], self._used(state)
        kv = self._context(state, T)
        scores: dict[int, Tensor] = {}

        def observer(layer: int, queries: Tensor, keys: Tensor) -> None:
            scores[layer] = self._score(layer, queries, keys, used)

        hidden = self.backbone.hidden(self.backbone.embed(tokens), kv=kv, at=used, keep=keep, observer=observer)
        score = torch.stack([scores[layer] for layer in range(self.backbone.layers)], dim=1)  # (B, L, G, T)
        with in_full(kv.device):
            return hidden, self._choose(state, self._fresh(kv, score, state), T)

    def _score(self, layer: int, queries: Tensor, keys: Tensor, used: Tensor) -> Tensor:
        """Return the mean square attention (B, G, T) that a segment's tokens get from its own queries.

        `queries` (B, G, R, T, d), `keys` (B, G, C, d): kept ones, the segment's from `used` (B,) on, then unused slots.
        """
        _, G, R, T, _ = queries.shape
        n = min(T, self.config.queries)
        chosen = torch.arange(1, n + 1, device=keys.device) * T // n - 1  # the last token among them
        queries = queries[..., chosen, :].flatten(1, 2)
        behind = torch.full((1, n), T, device=keys.device)
        queries = self._turning.turn(layer, queries, behind).to(keys.dtype).unflatten(1, (G, R))
        slots = used[:, None] + torch.arange(T, device=keys.device)
        unused = None
        if len(used) == 1 and keys.device.type == "cpu":  # on a GPU this would wait for `used`
            keys = keys[:, :, : int(used) + T]
        else:
            unused = torch.arange(keys.shape[2], device=keys.device) > slots[:, -1:]  # (B, C)
        found = []
        for head in range(G):  # one at a time: all scores together take hundreds of megabytes
            logits = queries[:, head].flatten(1, 2) @ keys[:, head].mT  # (B, R·n, C)
            if unused is not None:
                logits = logits.masked_fill_(unused[:, None], -torch.inf)
            attention = logits.softmax(-1, dtype=torch.promote_types(keys.dtype, torch.float32))
            found.append(attention.square_().mean(1).gather(1, slots))
        return torch.stack(found, dim=1)

    def _fresh(self, kv: Tensor, score: Tensor, state: MemoryState) -> _Entries:
        """Return a segment's own entries: its keys and values in `kv`, with their `score` (B, L, G, T)."""
        T, seen, device = score.shape[-1], state["seen"], kv.device
        slots = self._used(state)[:, None] + torch.arange(T, device=device)  # (B, T)
        rows = torch.arange(len(slots), device=device)[:, None]
        own = kv.movedim(4, 1)[rows, slots].movedim(1, 4)  # (B, L, 2, G, T, d)
        keys = torch.stack([self._turning.turn(n, own[:, n, 0], -slots) for n in range(own.shape[1])], dim=1)
        rank = score.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        offset = (seen.double() / self.segment_length * _GOLDEN).frac()[:, None, None, None]
        position = (seen[:, None] + torch.arange(T, device=device)).clamp(max=_NOWHERE - 1).int()
        position = position[:, None, None].expand_as(rank)
        quantile = ((rank + offset) / T).float().masked_fill(position < self.config.pinned, _PINNED)
        return _Entries(self._rounded(keys), self._rounded(own[:, :, 1]), quantile, position)

    def _rounded(self, x: Tensor) -> Tensor:
        largest = torch.finfo(self._stored).max
        return x.clamp(-largest, largest).to(self._stored)

    def _choose(self, state: MemoryState, fresh: _Entries, T: int) -> MemoryState:
        """Return the state after T tokens: the entries with the lowest quantiles, in the order of the text."""
        old = {name: self.backbone.own_heads(state[name]) for name in _Entries._fields}
        both = _Entries(*(torch.cat([old[name], new], dim=3) for name, new in fresh._asdict().items()))
        kept = both.quantile.argsort(dim=-1, stable=True)[..., : self.config.entries].sort().values
        kept = kept.gather(-1, both.position.gather(-1, kept).argsort(dim=-1, stable=True))  # (B, L, G, t)
        wide = kept[..., None].expand(*kept.shape, self.backbone.head_dim)
        chosen = _Entries(
            both.keys.gather(3, wide),
            both.values.gather(3, wide),
            both.quantile.gather(3, kept),
            both.position.gather(3, kept),
        )
        entries = {name: self.backbone.all_heads(tensor) for name, tensor in chosen._asdict().items()}
        return MemoryState({**entries, "seen": state["seen"] + T})

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of the backbone over [kept entries ; tokens]."""
        self.check_segment(tokens, state)
        kv = self._context(state, tokens.shape[1])
        return self.backbone.logits(self.backbone.hidden(self.backbone.embed(tokens), kv=kv, at=self._used(state)))

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return logits (B, S, V) and the next memory of one full segment, in one pass."""
        self.check_full(tokens, state)
        hidden, after = self._run(tokens, state)
        return self.backbone.logits(hidden), after

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Prefill `tokens` after the kept entries."""
        self.check_segment(tokens, state)
        kv, before = self._context(state, self.segment_length), self._used(state)
        hidden = self.backbone.hidden(self.backbone.embed(tokens), kv=kv, at=before, keep=1)
        held = F.pad(tokens, (0, self.segment_length - tokens.shape[1]))
        cache = Cache(
            {"kv": kv, "tokens": held, "before": before, **{name: state[name].clone() for name in state}},
            torch.full((state.rows,), tokens.shape[1], device=tokens.device),
        )
        return cache, self.backbone.logits(hidden[:, -1])

    def close(self, cache: Cache) -> MemoryState:
        """Read each row's open segment: decoding keeps no queries, by which entries are chosen."""
        names = ("keys", "values", "quantile", "position", "seen")
        states = MemoryState({name: cache[name] for name in names}).split()
        closed = [
            self._read_segment(cache["tokens"][row : row + 1, : int(cache.lengths[row])], state)
            for row, state in enumerate(states)
        ]
        with in_full(self.backbone.device):
            return MemoryState.stack(closed)
