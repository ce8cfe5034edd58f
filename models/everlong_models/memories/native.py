"""`native`: the model's own recurrent state is the memory. For models that are made with one, such as Mamba, and for hybrids.

Such a model was trained to carry its past in a state of fixed size: states of short convolutions and of a linear recurrence,

    h_t = a_t h_{t-1} + b_t x_t,    y_t = c_t h_t,

where a, b and c depend on the token. This memory reads a segment with the model's own chunked form and generates with the recurrent one;
both are the same function, up to the order of additions. Nothing needs to be trained.

Hybrids also have layers with attention to all tokens. Here those see the first `sinks` tokens, the `window` before the open segment, and
the segment (as in StreamingLLM, Xiao et al. 2023), so that state and cost stay constant. Positions count within these, so that they never
exceed what the model was trained for. Until more tokens are read than fit, the model computes exactly what it would without this memory.
Layers with a sliding window of their own keep that window.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from everlong_models.backbone.cache import Cache
from everlong_models.backbone.recurrent.model import Recurrent
from everlong_models.backbone.recurrent.state_cache import named
from everlong_models.errors import ConfigError
from everlong_models.memories.base import MemoryConfig, SegmentReader
from everlong_models.memories.state import MemoryState
from everlong_models.memories.view import MemoryPart, relative_change

PARTS = {"conv": "convolution", "recurrent": "recurrence"}
"""The names of a layer's recurrent states, for people."""


class NativeConfig(MemoryConfig):
    """`sinks`, `window`: how many first and last tokens the layers with full attention keep. Both are ignored where a model has none."""

    segment_length: int = Field(256, ge=2)
    sinks: int = Field(32, ge=0)
    window: int = Field(1024, ge=1)


class Native(SegmentReader):
    """Memory of a recurrent or hybrid model.

    State: the tensors of `Recurrent.new_tensors`, by layer, and `seen` (rows,), the number of tokens read. It depends on the tokens alone,
    bit for bit, except for tokens that the model generated one by one: there the last bits of float32 may differ.
    """

    def __init__(self, config: NativeConfig, backbone: Recurrent) -> None:
        super().__init__()
        windows = backbone.attention_windows
        if len(windows) > 1:
            raise backbone.unfit(f"its layers with attention see different numbers of tokens ({windows})")
        (own,) = windows or {None}
        self.sinks, self.window = (config.sinks, config.window) if own is None else (0, own - 1)
        self.slots = self.sinks + self.window if backbone.has_attention else 0
        if self.slots + config.segment_length > backbone.max_positions:
            raise ConfigError(
                "window", config.window, f"sinks + window + segment_length = {self.slots + config.segment_length} exceeds the model's "
                f"{backbone.max_positions} positions"
            )  # fmt: skip
        self.config = config
        self.backbone = backbone
        self.segment_length = config.segment_length
        self.vocab_size = backbone.vocab_size

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the state before any token was read."""
        seen = torch.zeros(rows, dtype=torch.int64, device=self.backbone.device)
        return MemoryState({**self.backbone.new_tensors(rows, self.slots), "seen": seen})

    @property
    def in_words(self) -> str:
        """What the memory is, and what its layers with attention see."""
        family, layers = self.backbone.family, self.backbone.layers
        recurrent = sum(bool(layout.states) for layout in layers)
        words = f"The memory is the recurrent state of {family.name} itself ({family.recurrence}, {recurrent} of {len(layers)} layers)."
        if not self.slots:
            return words
        attention, first = (
            sum(layout.keys is not None for layout in layers),
            f"the first {self.sinks} tokens, " if self.sinks else "",
        )
        return f"{words} {attention} layers with attention see {first}the last {self.window} and the open segment."

    @property
    def visible_tokens(self) -> int:
        """How many of the newest tokens the layers with attention see. Recurrent layers see all tokens, but less of older ones."""
        return self.config.window + self.segment_length

    def _tensors(self, state: MemoryState) -> dict[str, Tensor]:
        """Return a copy of the state's tensors, with room for one more segment."""
        room = self.backbone.new_tensors(state.rows, self.slots + self.segment_length)
        for name, tensor in room.items():
            (tensor[:, :, : self.slots] if tensor.shape != state[name].shape else tensor).copy_(state[name])
        return room

    def _used(self, seen: Tensor) -> Tensor:
        """Return how many slots of each row are in use (B,)."""
        return seen.clamp(max=self.slots)

    def _after(self, tensors: dict[str, Tensor], seen: Tensor, lengths: Tensor | int) -> MemoryState:
        """Return the state after a segment of `lengths` (B,) tokens, which `tensors` hold in the slots after those in use."""
        kept = self.backbone.evicted(tensors, self._used(seen) + lengths, self.sinks, self.slots)
        return MemoryState({**kept, "seen": seen + lengths})

    def _read_segment(self, tokens: Tensor, state: MemoryState) -> MemoryState:
        return self._run(tokens, state, keep=0)[1]

    def _run(self, tokens: Tensor, state: MemoryState, keep: int | None) -> tuple[Tensor, MemoryState]:
        """Read T ≥ 1 `tokens` (B, T). Return what `Recurrent.run` returns, and the state after them."""
        tensors = self._tensors(state)
        out = self.backbone.run(tokens, tensors, self._used(state["seen"]), keep=keep)
        return out, self._after(tensors, state["seen"], tokens.shape[1])

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        """Return logits (B, T, V) of the model, continuing from the state."""
        self.check_segment(tokens, state)
        return self.backbone.run(tokens, self._tensors(state), self._used(state["seen"]), keep=None)

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        """Return logits (B, S, V) and the next state of one full segment, in one pass."""
        self.check_full(tokens, state)
        return self._run(tokens, state, keep=None)

    def open(self, state: MemoryState, tokens: Tensor) -> tuple[Cache, Tensor]:
        """Read `tokens` with the chunked form, into a copy of the state."""
        self.check_segment(tokens, state)
        tensors, seen = self._tensors(state), state["seen"].clone()
        logits = self.backbone.run(tokens, tensors, self._used(seen), keep=1)
        return Cache({**tensors, "seen": seen}, torch.full_like(seen, tokens.shape[1])), logits[:, -1]

    def step(self, cache: Cache, tokens: Tensor) -> Tensor:
        """Advance each row's state by one token, with the recurrent form."""
        at = self._used(cache["seen"]) + cache.lengths
        logits = self.backbone.run(tokens[:, None], cache.tensors, at, keep=1)
        cache.lengths += 1
        return logits[:, -1]

    def close(self, cache: Cache) -> MemoryState:
        """Return each row's state as it is after its last token."""
        tensors = {name: tensor for name, tensor in cache.tensors.items() if name != "seen"}
        return self._after(tensors, cache["seen"], cache.lengths)

    def continue_in_cache(self, cache: Cache, segment: Tensor, state: MemoryState) -> MemoryState:
        """Return the state after the segment, and go on from it in the same cache."""
        after = self.close(cache)
        for name, tensor in self._tensors(after).items():
            cache[name].copy_(tensor)
        cache["seen"].copy_(after["seen"])
        cache.lengths.zero_()
        return after

    def _parts(self, state: MemoryState, tokens: Tensor, read: int) -> list[MemoryPart]:
        """Return for every layer its recurrent states, and the first and the last tokens that its attention keeps."""
        age, parts = tokens.shape[1], []
        after = self._run(tokens, state, keep=0)[1] if age else None
        first = min(read, self.sinks)
        last = min(read - first, self.window)
        for layer, layout in enumerate(self.backbone.layers):
            for name in layout.states:
                old = state[named(layer, name)]
                (change,) = [None] if after is None else relative_change(old, after[named(layer, name)])
                decay = self.backbone.half_life(layer) if name.startswith("recurrent") else None
                used = int(old.count_nonzero())
                parts.append(
                    MemoryPart(PARTS[name.rstrip("0123456789")], 0, read, old.numel(), used, age, layer, change, old.nbytes, decay)
                )  # fmt: skip
            if layout.keys is not None:
                size = sum(state[named(layer, name)].nbytes for name in ("keys", "values")) // self.slots
                if self.sinks:
                    parts.append(
                        MemoryPart("sinks", 0, first, self.sinks, first, read - first + age, layer, None, size * self.sinks)
                    )  # fmt: skip
                parts.append(
                    MemoryPart("window", read - last, read, self.window, last, age, layer, None, size * self.window)
                )
        return parts
