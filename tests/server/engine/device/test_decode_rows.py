"""`DecodeRows`: the keys and values of a new row are computed directly in its slot of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from everlong_models.memories.window import Window, WindowConfig
from everlong_server.engine.device.decode_rows import DecodeRows
from tests.models.tiny import llama

FIRST, LONG, SHORT = [9, 8], list(range(1, 21)), [5, 6, 7]


class Batch:
    """Rows of a small model."""

    def __init__(self) -> None:
        self.memory = Window(WindowConfig(segment_length=24, sinks=2, window=8), llama()).eval()
        self.rows = DecodeRows(self.memory, torch.device("cpu"))

    def open(self, tokens: list[int]) -> Tensor:
        return self.rows.open(self.memory.initial_state(1), tokens, None, True)

    def slot(self, row: int) -> Tensor:
        return self.rows._slots.allocated["kv"][row]

    def prefilling(self, patch: pytest.MonkeyPatch, then: Callable[[Tensor], None]) -> None:
        """Call `then` with the keys and values after each prefill."""
        hidden = self.memory.backbone.hidden

        def changed(*args: Any, kv: Tensor, **options: Any) -> Tensor:
            found = hidden(*args, kv=kv, **options)
            then(kv)
            return found

        patch.setattr(self.memory.backbone, "hidden", changed)


def with_a_free_slot() -> Batch:
    """Return a batch of one row. Its free slot holds a former, longer row, which is as long as no other."""
    batch = Batch()
    batch.open(FIRST)
    batch.open(LONG)
    batch.slot(1)[..., : len(LONG), :] = torch.nan
    batch.rows.remove(1)
    return batch


def expected(*opened: list[int]) -> tuple[Tensor, Tensor]:
    """Return the logits of the last row, and of a step after it, in new memory."""
    batch = Batch()
    logits = [batch.open(tokens) for tokens in opened]
    return logits[-1], batch.rows.step([[3]] * len(opened))[-1]


@torch.inference_mode()
def test_a_row_replaces_a_former_one_in_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, places = with_a_free_slot(), list[int]()
    batch.prefilling(monkeypatch, lambda kv: places.append(kv.data_ptr()))
    logits, stepped = expected(FIRST, SHORT)
    assert torch.equal(batch.open(SHORT), logits)
    assert places == [batch.slot(1).data_ptr()]
    assert torch.equal(batch.rows.step([[3], [3]])[-1], stepped)


@torch.inference_mode()
def test_a_failed_prefill_does_not_affect_the_next_row(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = with_a_free_slot()

    def fail(kv: Tensor) -> None:
        kv[..., : len(LONG), :] = torch.nan
        raise MemoryError("no room")

    with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
        batch.prefilling(patch, fail)
        batch.open(LONG)
    assert not batch.slot(1).isnan().any()
    logits, stepped = expected(FIRST, SHORT)
    assert torch.equal(batch.open(SHORT), logits)
    assert torch.equal(batch.rows.step([[3], [3]])[-1], stepped)


@torch.inference_mode()
@pytest.mark.parametrize("others", [1, 2])
def test_a_row_can_leave_during_a_prefill(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    batch = Batch()
    for _ in range(others + 1):
        batch.open(FIRST)
    batch.rows.remove(others)
    with monkeypatch.context() as patch:
        batch.prefilling(patch, lambda kv: batch.rows.remove(0))
        opened = batch.open(LONG)
    kept = [FIRST] * (others - 1)
    logits, stepped = expected(*kept, LONG)
    assert torch.equal(opened, logits)
    assert torch.equal(batch.rows.step([[3]] * others)[-1], stepped)
    if others > 1:
        assert not batch.slot(others)[..., : len(LONG), :].any()  # the slot that it was made in
