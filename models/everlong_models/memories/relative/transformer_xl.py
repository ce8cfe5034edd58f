"""Transformer-XL (Dai et al. 2019): a memory of each layer's inputs at the last M positions.

Layer l of segment τ+1 attends causally to its own inputs and to its inputs at the M positions before:

    C = softmax(A(x, [sg(m) ; x])/√d) V([sg(m) ; x]),    m' = the last M positions of [m ; x]

A is the shared relative-position attention. The context of a prediction grows by M positions per layer, but a memory is
never updated by later tokens. With M = 0 there is no memory: the transformer sees its segment only.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from everlong_models.memories.relative.decoder import LayerInputsDecoder, RelativeDecoderConfig, newest
from everlong_models.memories.state import MemoryState


class TransformerXLConfig(RelativeDecoderConfig):
    """`memory_length`: M ≥ 0. It may differ from the segment's length, and between training and inference."""

    memory_length: int = 150


class TransformerXL(LayerInputsDecoder):
    """Transformer-XL, trained from scratch.

    State: `memory` (rows, M, L, D), right-aligned, and `seen` (rows,), how many tokens were read.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        config.at_least(memory_length=0)
        super().__init__(config, past=config.memory_length)
        self.config = config

    def initial_state(self, rows: int = 1) -> MemoryState:
        """Return the state before any token was read."""
        memory = self._weight.new_zeros(rows, self.past, self.config.layers, self.config.width)
        return MemoryState({"memory": memory, "seen": memory.new_zeros(rows, dtype=torch.int64)})

    def _memory(self, past: Mapping[str, Tensor]) -> Tensor:
        return past["memory"]

    def _next(self, past: Mapping[str, Tensor], trace: Mapping[str, Tensor], lengths: Tensor) -> MemoryState:
        memory = newest(past["memory"], trace["memory"], lengths)
        return MemoryState({"memory": memory, "seen": past["seen"] + lengths})
