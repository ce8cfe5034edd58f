"""LaMemo (Ji et al. 2022): a memory that looks ahead, at what came after it, and interpolates with what it knew.

The memory's M positions are refreshed once a segment. In every layer, position i of the memory attends to positions
j > i among those that are new since the last refresh, the newest being the segment's first token (eqs. 7–9), and the
result is merged with the position's old context by the mass of attention behind each (eqs. 10–11):

    C← = softmax(A(m, x̃)/√d masked where j ≤ i) V(x̃),    s← = Σ_j exp(A_ij/√d)
    C  = α·sg(C_old) + (1 − α)·C←,    α = sg(s_old)/(sg(s_old) + s←),    s' = s_old + s←

C then takes the memory position through the rest of the layer like any other, and the segment attends causally to
[m ; x], as in Transformer-XL. All projections are shared by both directions, relative positions are disentangled
(eq. 12; see `relative`). The s are kept as logarithms, in float32 or better: s' by logaddexp, and α = exp(s_old − s')
needs no ε.

Windows follow one another without gap or overlap: a segment of T tokens makes T positions new, its own T − 1 last and
the first of the next. So a position's context is attention over everything between the memory that it was read with and
the first token of the open segment, each key weighed once (Appendix A). No memory depends on a later token of the open
segment: it is refreshed when the segment is opened, and decoding token by token is the parallel result.

The state keeps the memory's tokens instead of their embeddings, which are the same at inference and smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from everlong_models.memories.relative.decoder import (
    RelativeDecoder,
    RelativeDecoderConfig,
    SegmentPass,
    filled,
    newest,
    stack_layers,
    store,
)
from everlong_models.memories.state import MemoryState


class LaMemoConfig(RelativeDecoderConfig):
    """`memory_length`: M ≥ 1. `positions`: "signed" is the paper's ablation, which it could not train to converge."""

    memory_length: int = 150
    positions: Literal["disentangled", "signed"] = "disentangled"


class LaMemo(RelativeDecoder):
    """State, right-aligned: the memory's `tokens` (rows, M), `contexts` C (rows, M, L, H, d), `mass` log s (rows, M, L, H).

    And `seen` (rows,), how many tokens were read; `fresh` (rows,), how many of them in the last segment, which is how
    many positions will be new to the memory at its next refresh.
    """

    def __init__(self, config: LaMemoConfig) -> None:
        config.at_least(memory_length=1)
        super().__init__(config, past=config.memory_length, form=config.positions)
        self.config = config

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Nothing seen."""
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

    def _held(self, past: Mapping[str, Tensor]) -> Tensor:
        return filled(past["seen"], self.past)

    def _ahead(self, past: Mapping[str, Tensor], window: int) -> Tensor:
        """Which of the last `window` positions of [memory ; first token] each of the M may look at: (B, M, window)."""
        position = torch.arange(self.past + 1 - window, self.past + 1, device=self._weight.device)
        later = position > torch.arange(self.past, device=position.device)[:, None]
        # The segment's first token is new to everyone, even to positions that are not filled and that nobody sees: no
        # position is left without anything to attend to.
        new = filled(past["fresh"].clamp(min=1), window)
        return later & new[:, None]

    def _run(
        self, tokens: Tensor, past: Mapping[str, Tensor], *, answer: bool = True, kv: Tensor | None = None
    ) -> SegmentPass:
        M, T = self.past, tokens.shape[1]
        window = min(self.segment_length, M)
        behind = self.positions.keys_behind(T, M + T)
        visible = self._visible(past, torch.arange(T, device=tokens.device)[None], T)
        ahead, upcoming = self.positions.keys_ahead(M, window), self._ahead(past, window)
        near = slice(M + 1 - window, M + 1)
        line = torch.cat([self._embed(past["tokens"]).detach(), self._embed(tokens)], dim=1)  # (B, M + T, D)
        kept, refreshed = [], []
        for layer, block in self._layers():
            attention = block.attention
            q, k, v = attention.queries(line), attention.keys(line), attention.values(line)
            if kv is not None:
                store(kv, layer, k, v)
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
        # Under autocast, too, a state keeps its type.
        return {"contexts": context.to(self._weight.dtype), "mass": _mass(scores)}

    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        slid = {name: newest(past[name], trace[name], lengths) for name in ("tokens", "contexts", "mass")}
        return MemoryState({**slid, "seen": past["seen"] + lengths, "fresh": lengths.clone()})


def _mass(scores: Tensor) -> Tensor:
    """Log masses (B, T, H) of scores (B, H, T, K), in float32 at least."""
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    return scores.logsumexp(-1).mT


def interpolate(old: Tensor, old_mass: Tensor, new: Tensor, new_mass: Tensor) -> tuple[Tensor, Tensor]:
    """Attention over two disjoint sets of keys as attention over their union: contexts (…, d) and log masses (…).

    C = α·sg(C_old) + (1 − α)·C_new with α = s_old/(s_old + s_new); a mass is the log of the sum of exponentials.
    """
    old, old_mass = old.detach(), old_mass.detach()
    mass = torch.logaddexp(old_mass, new_mass)
    alpha = (old_mass - mass).exp()[..., None]
    return (alpha * old + (1 - alpha) * new).to(new.dtype), mass
