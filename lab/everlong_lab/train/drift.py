"""`DriftAugmentation`: memories moved on as far as they would drift in many more segments than a document has.

What a memory holds may outlast the few segments of training and still be gone after forty: every segment moves it a
little, and no loss shows it. So what two segments in which there was nothing to remember have changed in a memory is
added to it once more, times a random number, and the document goes on from there: what is lost in the long run is lost
within the document, where it can be learnt. Two segments and not one, as a memory may alternate between two forms.

Beyond the papers; docs/lab-notes.md has the measurements.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from everlong_lab.train.recipe import DriftRecipe
from everlong_models.memories.state import MemoryState

_LAG = 2


class DriftAugmentation:
    """What `unroll` calls between the segments of documents, to go on with the memory that it returns.

    `idle` (B, segments): where nothing is said that must be remembered. `random`: what the rows, places and distances
    are drawn from.
    """

    def __init__(self, how: DriftRecipe, idle: Tensor, random: np.random.Generator) -> None:
        rows, segments = idle.shape
        self._limit = how.limit
        at, far = np.full(rows, -1), random.uniform(0, how.segments / _LAG, rows)
        for row, quiet in enumerate(idle.tolist()):
            places = [index for index in range(_LAG, segments) if all(quiet[index - _LAG + 1 : index + 1])]
            if places and random.random() < how.share:
                at[row] = random.choice(places)
        self._at, self._far = torch.from_numpy(at), torch.from_numpy(far)
        self._before: list[Tensor] = []

    def __call__(self, index: int, state: MemoryState) -> MemoryState:
        """The memory to go on with after segment `index`, counted from 0: `state`, with some of its rows moved."""
        memory = state["memory"]
        self._before.append(memory.detach())
        if index < _LAG:
            return state
        far = torch.where(self._at == index, self._far, 0.0).to(memory)
        change = far[:, None, None] * (memory.detach() - self._before.pop(0))
        size, most = (x.square().mean((1, 2), keepdim=True).sqrt() for x in (change, self._limit * memory.detach()))
        return MemoryState({**state.tensors, "memory": memory + change * (most / size.clamp_min(1e-9)).clamp_max(1)})
