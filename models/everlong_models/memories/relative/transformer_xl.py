"""Transformer-XL (Dai et al. 2019): each layer's inputs at the last M positions, kept as they were.

Layer l of segment τ+1 attends causally to its own inputs and to those that it had at the M positions before:

    C = softmax(A(x, [sg(m) ; x])/√d) V([sg(m) ; x]),    m' = the last M positions of [m ; x]

A is the shared relative-position attention. The context of a prediction grows by M positions with every layer, but a
memory never learns what came after it. With M = 0 there is no memory: a transformer that sees its segment only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everlong_models.memories.relative.decoder import LayerInputsDecoder, RelativeDecoderConfig, filled, newest
from everlong_models.memories.state import MemoryState


class TransformerXLConfig(RelativeDecoderConfig):
    """`memory_length`: M ≥ 0, which need not be the segment's length, nor the same in training and inference."""

    memory_length: int = 150


class TransformerXL(LayerInputsDecoder):
    """State: `memory` (rows, M, L, D), right-aligned, and `seen` (rows,), how many tokens were read."""

    def __init__(self, config: TransformerXLConfig) -> None:
        config.at_least(memory_length=0)
        super().__init__(config, past=config.memory_length)
        self.config = config

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Nothing seen."""
        memory = self._weight.new_zeros(rows, self.past, self.config.layers, self.config.width)
        return MemoryState({"memory": memory, "seen": memory.new_zeros(rows, dtype=torch.int64)})

    def _held(self, past: Mapping[str, Tensor]) -> Tensor:
        return filled(past["seen"], self.past)

    def _memory(self, past: Mapping[str, Tensor]) -> Tensor:
        return past["memory"]

    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        memory = newest(past["memory"], trace["memory"], lengths)
        return MemoryState({"memory": memory, "seen": past["seen"] + lengths})
