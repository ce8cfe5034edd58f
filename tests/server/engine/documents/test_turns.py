"""Documents take turns: one whose turn is over yields to others, even while its index is being built."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everlong_server.observability.metrics import Metrics
from everlong_server.process.loading import load
from everlong_server.services import Services, run_services, tenant_services
from everlong_server.settings import Settings
from everlong_server.store.records import DEFAULT_TENANT, Document, new_id, now, reading_id
from everlong_server.store.redis.connection import connect
from everlong_server.store.search.passages import Passages
from tests.tinymodel import STORY


async def upload(services: Services, text: str) -> Document:
    document = Document(new_id("doc"), None, len(text.encode()), 0, now())
    writer = await services.shared.stores.blobs.create(document.id)
    await writer.write(text.encode())
    await writer.commit()
    await services.documents.create(document, services.shared.model.fingerprint)
    return document


async def status(services: Services, document: Document) -> str:
    reading = await services.documents.readings.get(reading_id(services.shared.model.fingerprint, [document.id]))
    assert reading is not None
    return reading.status


async def until_ready(services: Services, document: Document) -> None:
    async with asyncio.timeout(120):
        while await status(services, document) != "ready":
            await asyncio.sleep(0.02)


@pytest.mark.long
async def test_a_slow_index_delays_its_own_document_only(
    redis_url: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis = connect(redis_url)
    await redis.flushdb()
    await redis.aclose()
    settings = Settings(
        model=str(tiny_model), data_dir=tmp_path, max_readers=1, turn_seconds=0.0, checkpoint_seconds=0.0, threads=1
    )
    ensure, go, slow = Passages.ensure, asyncio.Event(), ""
    asked: list[str] = []

    async def waiting(self: Passages, document: Document) -> bool:
        asked.append(document.id)
        if document.id == slow:
            await go.wait()
        return await ensure(self, document)

    monkeypatch.setattr(Passages, "ensure", waiting)
    model = load(settings, lambda message: None)
    async with run_services(settings, model, redis_url, Metrics()) as shared:
        services = tenant_services(shared, DEFAULT_TENANT)
        first = await upload(services, STORY.read_text()[:20_000])
        slow = first.id
        second = await upload(services, STORY.read_text()[:400])
        await until_ready(services, second)
        assert await status(services, first) != "ready"
        assert asked.count(first.id) >= 1
        go.set()
        await until_ready(services, first)
        assert await services.passages.all_indexed([first.id, second.id])
