"""The reader decodes and hashes large states outside the event loop's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everlong_models import MemoryState, load_model
from everlong_server.engine import snapshots
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.runner import Runner
from everlong_server.engine.documents.reading import Reader
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import reading_id
from everlong_server.store.redis.connection import Client
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.texts.blobs import Blobs
from tests.server.engine.documents.tries import documents, taken, uploaded


async def test_large_states_do_not_block_the_event_loop(
    redis: Client, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all answers would wait while a state of many megabytes is decoded or hashed."""
    where: list[threading.Thread] = []

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            where.append(threading.current_thread())
            return call(*args)

        return wrapped

    monkeypatch.setattr(snapshots, "decode_state", noted(snapshots.decode_state))
    monkeypatch.setattr(MemoryState, "digest", noted(MemoryState.digest))
    model = load_model(str(tiny_model), models_dir=tmp_path)
    engine = Engine(Runner(model, max_streams=1, reading_share=0.5, max_stall=0.1), max_queued=1)
    jobs, blobs, store = Jobs(redis, model.fingerprint, "a", 60.0), Blobs(f"file://{tmp_path}"), documents(redis)
    await jobs.prepare(alone=False)
    document = await uploaded(redis, blobs, model.fingerprint)
    token_offsets = TokenOffsets(blobs, store, model.tokenizer)
    reader = Reader(engine, store, blobs, None, token_offsets, jobs, Metrics(), Tracing(), 1.0, 1.0)
    engine.start()
    try:
        await reader.work_on(await taken(jobs))
    finally:
        await engine.stop()
    read = await store.readings.get(reading_id(model.fingerprint, (document.id,)), with_state=True)
    assert read is not None
    assert read.status == "ready"
    await reader._begin(read)
    await reader._begin(replace(read, snapshot=Snapshot(), documents=(document.id, "doc_next")))
    assert len(where) == 3
    assert threading.main_thread() not in where
