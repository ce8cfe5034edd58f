"""Drift augmentation, compared with its definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from everlong_lab.train.drift import DriftAugmentation
from everlong_lab.train.recipe import DriftRecipe
from everlong_models.memories.state import MemoryState

SEGMENTS = 7


def memories(rows: int) -> list[torch.Tensor]:
    """Return a sequence of memories that change by about a tenth of their size at every segment."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(rows, 2, 8, generator=generator)
    return [first + 0.1 * torch.randn(first.shape, generator=generator) for _ in range(SEGMENTS)]


def moved(how: DriftRecipe, idle: torch.Tensor, seed: int = 0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the memories after every segment, and what was added to them."""
    line = memories(len(idle))
    drift = DriftAugmentation(how, idle, np.random.default_rng(seed))
    return line, [drift(index, MemoryState({"memory": memory}))["memory"] - memory for index, memory in enumerate(line)]


def test_what_two_idle_segments_changed_is_added_at_one_place_of_a_document():
    idle = torch.ones(64, SEGMENTS, dtype=torch.bool)
    idle[:, -1] = idle[:, 1] = False  # so that the first two idle ones in a row are segments 2 and 3
    line, added = moved(DriftRecipe(segments=40, share=1, limit=1e9), idle)
    places = []
    for row in range(64):
        (at,) = [index for index in range(SEGMENTS) if added[index][row].any()]
        places.append(at)
        change = line[at][row] - line[at - 2][row]
        far = (added[at][row] * change).sum() / change.square().sum()
        torch.testing.assert_close(added[at][row], far * change)
        assert 0 <= far <= 20
    assert set(places) == {3, 4, 5}


def test_segments_that_say_something_are_no_drift():
    idle = torch.zeros(4, SEGMENTS, dtype=torch.bool)
    idle[:, ::2] = True
    _, added = moved(DriftRecipe(segments=40, share=1), idle)
    assert not any(change.any() for change in added)


def test_the_share_of_documents_and_the_limit_of_the_change():
    idle = torch.ones(400, SEGMENTS, dtype=torch.bool)
    line, added = moved(DriftRecipe(segments=1e6, share=0.5, limit=0.25), idle)
    changed = torch.stack([change.flatten(1).any(1) for change in added])
    assert 0.4 < changed.any(0).float().mean() < 0.6
    sizes = [
        change.square().mean((1, 2)).sqrt() / memory.square().mean((1, 2)).sqrt()
        for change, memory in zip(added, line, strict=True)
    ]
    torch.testing.assert_close(torch.stack(sizes)[changed], torch.full((int(changed.sum()),), 0.25), rtol=1e-3, atol=0)


def test_the_same_random_numbers_move_the_same():
    idle = torch.ones(8, SEGMENTS, dtype=torch.bool)
    first, again, other = (moved(DriftRecipe(segments=40), idle, seed)[1] for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_gradient_is_that_of_the_memory_as_it_was():
    idle = torch.ones(3, SEGMENTS, dtype=torch.bool)
    line = [memory.requires_grad_() for memory in memories(3)]
    drift = DriftAugmentation(DriftRecipe(segments=40, share=1), idle, np.random.default_rng(0))
    after = [drift(index, MemoryState({"memory": memory}))["memory"] for index, memory in enumerate(line)]
    gradients = torch.autograd.grad(torch.stack(after).sum(), line)
    assert all(torch.equal(gradient, torch.ones_like(gradient)) for gradient in gradients)


@pytest.mark.parametrize("segments", [1, 2])
def test_documents_too_short_for_it_are_left_alone(segments):
    drift = DriftAugmentation(
        DriftRecipe(segments=40, share=1), torch.ones(4, segments, dtype=torch.bool), np.random.default_rng(0)
    )
    for index in range(segments):
        state = MemoryState({"memory": torch.randn(4, 2, 8)})
        assert drift(index, state) is state
