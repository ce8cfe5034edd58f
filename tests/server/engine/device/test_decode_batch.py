"""Batched answers get the same logits with CUDA graphs and without."""

from __future__ import annotations

import torch

from everlong_models import SamplingParams, StepGraphs
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_server.engine.device.decode_batch import DecodeBatch
from everlong_server.engine.device.decode_rows import DecodeRows
from everlong_server.engine.device.requests import AnswerRequest
from tests.models.fake_cuda_graph import record
from tests.models.tiny import llama


def answers(memory: RMT) -> list[AnswerRequest]:
    items = []
    for id in range(4):
        open = list(range(1 + id, 3 + 2 * id))
        items.append(AnswerRequest(memory.initial_state(1), open, [], SamplingParams(), 0, lambda event: None))
        items[-1].id = id
    return items


def test_recorded_steps_give_every_answer_its_own_scores() -> None:
    memory, device = RMT(RMTConfig(segment_length=24, memory_tokens=3), llama()).eval(), torch.device("cpu")
    recorded = DecodeBatch(DecodeRows(memory, device, StepGraphs(memory.steps, record)))
    batches = [(DecodeBatch(DecodeRows(memory, device)), answers(memory)), (recorded, answers(memory))]
    with torch.no_grad():
        for batch, items in batches:
            for item in items[:3]:
                batch.add(item)
            for token in (7, 8):
                batch.step({item.id: token + item.id for item in items})
            batch.remove(items[0])
            batch.step({item.id: 9 for item in items})
            batch.add(items[3])
            batch.step({item.id: 10 + item.id for item in items})
    (_, plain), (_, replayed) = batches
    for one, other in zip(plain, replayed, strict=True):
        assert one.open == other.open
    for one, other in zip(plain[1:], replayed[1:], strict=True):
        torch.testing.assert_close(one.logits, other.logits, rtol=1e-9, atol=1e-9)
