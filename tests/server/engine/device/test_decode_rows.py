"""`DecodeRows`: the keys and values of a new row are computed directly in its slot of the batch."""

from __future__ import annotations

import pytest
import torch

from everlong_models.memories.window import Window, WindowConfig
from everlong_server.engine.device.decode_rows import DecodeRows
from tests.models.tiny import llama


def test_a_row_made_in_a_slot_is_like_one_in_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Window(WindowConfig(segment_length=24, sinks=2, window=8), llama()).eval()
    state, long, short = memory.initial_state(1), list(range(1, 21)), [5, 6, 7]
    used, new = DecodeRows(memory, torch.device("cpu")), DecodeRows(memory, torch.device("cpu"))
    with torch.inference_mode():
        for rows in (used, new):
            rows.open(state, [9, 8], None, True)
        used.open(state, long, None, True)
        used.remove(1)

        def fails(*_: object, kv: torch.Tensor, **__: object) -> torch.Tensor:
            kv.fill_(torch.nan)
            raise MemoryError("no room")

        with monkeypatch.context() as patch, pytest.raises(MemoryError, match="no room"):
            patch.setattr(memory.backbone, "hidden", fails)
            used.open(state, long, None, True)
        opened = [rows.open(state, short, None, True) for rows in (used, new)]
        stepped = [rows.step([[3], [4]]) for rows in (used, new)]
    assert torch.equal(*opened)
    assert torch.equal(*stepped)
