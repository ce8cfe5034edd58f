"""LaMemo (Ji et al. 2022): the memory attends to later positions, and interpolates the result with its old contexts.

The memory's M positions are refreshed once per segment. In every layer, position i of the memory attends to those
positions j > i that are new since the last refresh, the newest being the segment's first token (eqs. 7–9). The result
is merged with the position's old context, weighted by the attention mass of each (eqs. 10–11):

    C← = softmax(A(m, x̃)/√d masked where j ≤ i) V(x̃),    s← = Σ_j exp(A_ij/√d)
    C  = α·sg(C_old) + (1 − α)·C←,    α = sg(s_old)/(sg(s_old) + s←),    s' = s_old + s←

The memory position then passes through the rest of the layer with context C, like any other position, and the segment
attends causally to [m ; x], as in Transformer-XL. Both directions share all projections; relative positions are
disentangled (eq. 12; see `relative.attention`). The masses s are stored as logarithms, at least float32: s' is a
logaddexp, and α = exp(s_old − s') needs no ε.

Look-ahead windows follow one another without gap or overlap: a segment of T tokens makes T positions new, its own
T − 1 last ones and the first of the next segment. So a position's context is attention over everything between the
memory it was read with and the first token of the open segment, each key weighted once (Appendix A). No memory depends
on a later token of the open segment: it is refreshed when the segment is opened, so decoding token by token gives the
result of a parallel pass.

The state stores the memory's token ids instead of their embeddings: they are smaller, and equivalent at inference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from everlong_models.backbone.kv_cursor import KVCursor
from everlong_models.memories.relative.decoder import (
    RelativeDecoder,
    RelativeDecoderConfig,
    SegmentPass,
    filled,
    newest,
    stack_layers,
)
from everlong_models.memories.state import MemoryState


class LaMemoConfig(RelativeDecoderConfig):
    """`memory_length`: M ≥ 1. `positions`: "signed" is the paper's ablation, which did not converge there."""

    memory_length: int = 150
    positions: Literal["disentangled", "signed"] = "disentangled"


class LaMemo(RelativeDecoder):
    """LaMemo, trained from scratch.

    State, right-aligned: the memory's `tokens` (rows, M), `contexts` C (rows, M, L, H, d), `mass` log s (rows, M, L, H).
    Also `seen` (rows,), how many tokens were read, and `fresh` (rows,), how many of them in the last segment: this many
    positions are new to the memory at its next refresh.
    """

    def __init__(self, config: LaMemoConfig) -> None:
        config.at_least(memory_length=1)
        super().__init__(config, past=config.memory_length, form=config.positions)
        self.config = config

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the state before any token was read."""
        config, zeros = self.config, self._weight.new_zeros
        contexts = zeros(rows, self.past, config.layers, config.heads, config.dim)
        return MemoryState(
            {
                "tokens": zeros(rows, self.past, dtype=torch.int64),
                "contexts": contexts,
                "mass": zeros(contexts.shape[:-1], dtype=torch.promote_types(contexts.dtype, torch.float32)),
                "seen": zeros(rows, dtype=torch.int64),
                "fresh": zeros(rows, dtype=torch.int64),
            }
        )

    def _ahead(self, past: Mapping[str, Tensor], window: int) -> Tensor:
        """Return which of the last `window` positions of [memory ; first token] each of the M attends to: (B, M, window)."""
        position = torch.arange(self.past + 1 - window, self.past + 1, device=self._weight.device)
        later = position > torch.arange(self.past, device=position.device)[:, None]
        # The segment's first token is new to all positions, even to unfilled ones (which nothing attends to), so that
        # no position is left without a key.
        new = filled(past["fresh"].clamp(min=1), window)
        return later & new[:, None]

    def _run(
        self, tokens: Tensor, past: Mapping[str, Tensor], *, answer: bool = True, kv: Tensor | None = None
    ) -> SegmentPass:
        M, T = self.past, tokens.shape[1]
        window = min(self.segment_length, M)
        cursor = KVCursor(M + T, tokens.device, kv)
        behind = self.positions.keys_behind(T, M + T)
        visible = self._visible(past, torch.arange(T, device=tokens.device)[None], T)
        ahead, upcoming = self.positions.keys_ahead(M, window), self._ahead(past, window)
        near = slice(M + 1 - window, M + 1)
        line = torch.cat([self._embed(past["tokens"]).detach(), self._embed(tokens)], dim=1)  # (B, M + T, D)
        kept, refreshed = [], []
        for layer, block in self._layers():
            attention = block.attention
            q = attention.queries(line)
            k, v = cursor.store(layer, attention.keys(line), attention.values(line))
            scores = attention.scores(q[:, :, M:], k, behind, visible)
            mixed = attention.mix(scores, v)
            kept.append(self._keep(line[:, M:], mixed, scores))
            scores = attention.scores(q[:, :, :M], k[:, :, near], ahead, upcoming)
            contexts, mass = interpolate(
                past["contexts"][:, :, layer],
                past["mass"][:, :, layer],
                attention.mix(scores, v[:, :, near]),
                _mass(scores),
            )
            refreshed.append({"contexts": contexts.to(self._weight.dtype), "mass": mass})
            if answer or layer < self.last:
                line = block(line, torch.cat([contexts, mixed], dim=1))
        return SegmentPass(line[:, M:], {**past, **stack_layers(refreshed)}, {"tokens": tokens, **stack_layers(kept)})

    def _keep(self, x: Tensor, context: Tensor, scores: Tensor) -> dict[str, Tensor]:
        # A state keeps its dtype under autocast, too.
        return {"contexts": context.to(self._weight.dtype), "mass": _mass(scores)}

    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        slid = {name: newest(past[name], trace[name], lengths) for name in ("tokens", "contexts", "mass")}
        return MemoryState({**slid, "seen": past["seen"] + lengths, "fresh": lengths.clone()})


def _mass(scores: Tensor) -> Tensor:
    """Return log masses (B, T, H) of scores (B, H, T, K), at least float32."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.logsumexp(-1).mT


def interpolate(old: Tensor, old_mass: Tensor, new: Tensor, new_mass: Tensor) -> tuple[Tensor, Tensor]:
    """Merge attention over two disjoint sets of keys into attention over their union: contexts (…, d), log masses (…).

    C = α·sg(C_old) + (1 − α)·C_new with α = s_old/(s_old + s_new). A log mass is the logsumexp of the scores.
    """
    old, old_mass = old.detach(), old_mass.detach()
    mass = torch.logaddexp(old_mass, new_mass)
    alpha = (old_mass - mass).exp()[..., None]
    return (alpha * old + (1 - alpha) * new).to(new.dtype), mass
