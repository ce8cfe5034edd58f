"""Augment training by extrapolating how a memory drifts over many more segments than a document has.

Every segment changes the memory a little. Information may survive the few segments of training and still be lost after
forty, and no loss shows it. So the change that two segments without facts made to a memory is added again, times a
random factor, and the document continues from there. What would be lost over many segments is then lost within the
document, where training can correct it. Two segments, not one, because a memory may alternate between two forms.

This goes beyond the papers; docs/research/lab-notes.md has the measurements.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everlong_lab.train.recipe import DriftRecipe
from everlong_models.memories.state import MemoryState

_LAG = 2


class DriftAugmentation:
    """A callback for `unroll`: it receives the memory between two segments and returns the memory to continue from.

    `idle` (B, segments): segments without anything that must be remembered. `random`: chooses rows, positions and factors.
    """

    def __init__(self, how: DriftRecipe, idle: Tensor, random: np.random.Generator) -> None:
        rows, segments = idle.shape
        self._limit = how.limit
        index, factor = np.full(rows, -1), random.uniform(0, how.segments / _LAG, rows)
        for row, quiet in enumerate(idle.tolist()):
            candidates = [end for end in range(_LAG, segments) if all(quiet[end - _LAG + 1 : end + 1])]
            if candidates and random.random() < how.share:
                index[row] = random.choice(candidates)
        self._index, self._factor = torch.from_numpy(index), torch.from_numpy(factor)
        self._recent: list[Tensor] = []

    def __call__(self, index: int, state: MemoryState) -> MemoryState:
        """Return the memory to continue from after segment `index` (from 0): `state` with some rows moved."""
        memory = state["memory"]
        self._recent.append(memory.detach())
        if index < _LAG:
            return state
        factor = torch.where(self._index == index, self._factor, 0.0).to(memory)
        change = factor[:, None, None] * (memory.detach() - self._recent.pop(0))
        size, most = (x.square().mean((1, 2), keepdim=True).sqrt() for x in (change, self._limit * memory.detach()))
        return MemoryState({**state.tensors, "memory": memory + change * (most / size.clamp_min(1e-9)).clamp_max(1)})
