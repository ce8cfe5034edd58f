"""RMT around an encoder, for classifying long texts (Bulatov et al. 2023, section 2).

Segment τ is read as [CLS] m memory tokens [SEP] segment [SEP] with attention in both directions, and the outputs at
the memory's positions replace its inputs:

    H̄_τ = Encoder([CLS ; M_τ ; SEP ; x_τ ; SEP]),   M_{τ+1} = H̄_τ[1 … m],   scores = head(H̄_last[0])

M_0 is m trained vectors. A text is cut from its end, so that the *first* segment is the short one and the last, where
the question stands and the loss is taken, is full. Gradients flow through all segments.

There is no token-by-token decoding here, thus this is no `MemoryModel`; the state is the same kind of value.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from everlong_models.errors import BackboneError, ConfigError, TokenError
from everlong_models.memories.base import MemoryConfig, check_input
from everlong_models.memories.state import MemoryState


class RMTEncoderConfig(MemoryConfig):
    """`segment_length`: tokens of text in a segment; the paper's 512 positions hold 499 beside 10 memory tokens and 3
    special ones. `memory_tokens`: m. `classes`: of the head. `cls_token`, `sep_token`: the tokenizer's ids."""

    segment_length: int = Field(499, ge=2)
    memory_tokens: int = Field(10, ge=1)
    classes: int = Field(ge=2)
    cls_token: int = Field(ge=0)
    sep_token: int = Field(ge=0)


class RMTEncoder(nn.Module):
    """Recurrent Memory Transformer around `backbone`, a BERT-like encoder. State: `memory` (rows, m, D).

    Shapes: B rows, T tokens of one segment, N tokens of a text, S = `segment_length`, D width. Rows of a batch may have
    different lengths, given as `lengths` (B,); what stands behind a row's length is never looked at, and a row of
    length 0 keeps its memory. Raises `BackboneError` for a model that is no encoder with inputs as wide as its outputs.
    """

    def __init__(self, config: RMTEncoderConfig, backbone: PreTrainedModel) -> None:
        super().__init__()
        base = backbone.base_model
        table = base.get_input_embeddings().weight
        S, m, width = config.segment_length, config.memory_tokens, base.config.hidden_size
        if base.config.is_encoder_decoder or any(getattr(module, "is_causal", False) for module in base.modules()):
            raise BackboneError(f"{type(base).__name__} is not an encoder: its attention does not look both ways")
        if table.shape[1] != width:
            raise BackboneError(
                f"{type(base).__name__} embeds in {table.shape[1]} dimensions and puts out {width}: its outputs cannot "
                "be fed back as a memory"
            )
        if m >= S:
            raise ConfigError("memory_tokens", m, f"must be smaller than segment_length={S}")
        # RoBERTa's kind counts positions from behind the padding index.
        offset = getattr(getattr(base, "embeddings", None), "padding_idx", -1) + 1
        positions = base.config.max_position_embeddings - offset
        if S + m + 3 > positions:
            raise ConfigError(
                "segment_length", S, f"segment_length + memory_tokens + 3 = {S + m + 3} exceeds the backbone's "
                f"{positions} positions"
            )  # fmt: skip
        self.vocab_size: int = table.shape[0]
        for name in ("cls_token", "sep_token"):
            if getattr(config, name) >= self.vocab_size:
                raise ConfigError(name, getattr(config, name), f"must be below the vocabulary's {self.vocab_size}")
        self.config = config
        self.backbone = base
        self.segment_length = S
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(m, width, generator=generator, dtype=torch.float64) * float(table.detach().float().std())
        self.memory = nn.Parameter(noise.to(table))
        self.head = nn.Linear(width, config.classes).to(table)
        nn.init.normal_(self.head.weight, std=0.02, generator=torch.Generator(table.device).manual_seed(0))
        nn.init.zeros_(self.head.bias)

    def initial_state(self, rows: int = 1) -> MemoryState:
        """M_0 in every row."""
        return MemoryState({"memory": self.memory.expand(rows, -1, -1)})

    def read(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> MemoryState:
        """The memory after one segment, `tokens` (B, T ≤ S) with 0 ≤ `lengths` ≤ T; default T.

        Raises `TokenError` or `StateError` for what does not fit this model.
        """
        tokens, lengths = self._checked(tokens, state, lengths, self.segment_length)
        return self._read(tokens, state, lengths)

    def classify(self, tokens: Tensor, state: MemoryState, lengths: Tensor | None = None) -> Tensor:
        """Scores (B, classes) at [CLS] of the last segment, `tokens` (B, T ≤ S) with 1 ≤ `lengths` ≤ T; default T."""
        tokens, lengths = self._checked(tokens, state, lengths, self.segment_length, least=1)
        return self._classify(tokens, state, lengths)

    def forward(self, tokens: Tensor, lengths: Tensor | None = None, *, checkpointed: bool = False) -> Tensor:
        """Scores (B, classes) of whole texts, `tokens` (B, N) with 1 ≤ `lengths` ≤ N; default N.

        `checkpointed`: activations of one segment at a time are kept for the gradient; the others are computed again.
        """
        state = self.initial_state(tokens.shape[0])
        tokens, lengths = self._checked(tokens, state, lengths, None, least=1)
        *before, (last, last_lengths) = self._cut(tokens, lengths)
        for segment, held in before:
            if checkpointed:
                state = checkpoint(self._read, segment, state, held, use_reentrant=False)
            else:
                state = self._read(segment, state, held)
        return self._classify(last, state, last_lengths)

    def _cut(self, tokens: Tensor, lengths: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """The segments of texts (B, N) as (B, T ≤ S) with their lengths, counted from each text's end.

        The last segments of all rows come together; a shorter text begins later and has length 0 until then.
        """
        S = self.segment_length
        for behind in reversed(range(-(-int(lengths.max()) // S))):
            end = (lengths - behind * S).clamp_min(0)
            start = (end - S).clamp_min(0)
            held = end - start
            index = start[:, None] + torch.arange(int(held.max()), device=tokens.device)
            yield tokens.gather(1, index.clamp_max(tokens.shape[1] - 1)), held

    def _read(self, tokens: Tensor, state: MemoryState, lengths: Tensor) -> MemoryState:
        # Rows without text take no part, so that nothing of them, not even a gradient, passes through the encoder.
        rows = lengths.nonzero()[:, 0]
        if not len(rows):
            return state
        memory = state["memory"]
        hidden = self._encode(tokens[rows], memory[rows], lengths[rows])
        return MemoryState({"memory": memory.index_copy(0, rows, hidden[:, 1 : 1 + memory.shape[1]])})

    def _classify(self, tokens: Tensor, state: MemoryState, lengths: Tensor) -> Tensor:
        scores: Tensor = self.head(self._encode(tokens, state["memory"], lengths)[:, 0])
        return scores

    def _encode(self, tokens: Tensor, memory: Tensor, lengths: Tensor) -> Tensor:
        """The encoder's outputs (B, 1 + m + 1 + T + 1, D); those behind a row's second [SEP] mean nothing."""
        B, T = tokens.shape
        embed = self.backbone.get_input_embeddings()
        cls, sep = torch.tensor([[self.config.cls_token], [self.config.sep_token]], device=tokens.device)
        closed = torch.cat([tokens, sep.expand(B, 1)], dim=1).scatter(1, lengths[:, None], sep.expand(B, 1))
        x = torch.cat([embed(cls.expand(B, 1)), memory, embed(sep.expand(B, 1)), embed(closed)], dim=1)
        frame = memory.shape[1] + 2
        attended = torch.arange(frame + T + 1, device=tokens.device) <= frame + lengths[:, None]
        hidden: Tensor = self.backbone(inputs_embeds=x, attention_mask=attended.long()).last_hidden_state
        return hidden

    def _checked(
        self, tokens: Tensor, state: MemoryState, lengths: Tensor | None, longest: int | None, least: int = 0
    ) -> tuple[Tensor, Tensor]:
        """`tokens` with [SEP] for whatever padding was used, and `lengths`, both known to fit."""
        if tokens.dim() != 2:
            raise TokenError(f"tokens have the shape (rows, tokens), got {tuple(tokens.shape)}")
        rows, width = tokens.shape
        if width < 1 or (longest is not None and width > longest):
            raise TokenError(f"expected 1 to {longest or 'any number of'} tokens a row, got {width}")
        lengths = torch.full((rows,), width, device=tokens.device) if lengths is None else lengths.to(torch.int64)
        if lengths.shape != (rows,) or not bool(((lengths >= least) & (lengths <= width)).all()):
            raise TokenError(f"lengths must be {rows} numbers from {least} to {width}, got {lengths.tolist()}")
        tokens = tokens.masked_fill(
            torch.arange(width, device=tokens.device) >= lengths[:, None], self.config.sep_token
        )
        with torch.no_grad():
            like = self.initial_state(1)
        check_input(tokens, state, like, self.vocab_size)
        return tokens, lengths
