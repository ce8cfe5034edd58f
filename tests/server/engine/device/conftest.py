"""A tiny model for the device thread, an answer to request of it, and how that ends."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import pytest

from everlong_models import SamplingParams, load_model
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, RequestFailed


@pytest.fixture
def model(tiny_model: Path, tmp_path: Path):
    return load_model(str(tiny_model), models_dir=tmp_path)


def answer(model: Any, events: queue.Queue, tokens: int, open: list[int] | None = None) -> AnswerRequest:
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return AnswerRequest(model.memory.initial_state(1), open or [], [5, 6, 7], params, 0, events.put)


def last(events: queue.Queue) -> AnswerFinished | RequestFailed:
    while isinstance(event := events.get(timeout=30), TokenDelta):
        pass
    return event


def eager(most: int | None, *, on_cpu: bool) -> Drafting | None:
    """Guess whenever there is a guess, whatever it costs."""
    return Drafting(most, 0.0, 256) if most else None
