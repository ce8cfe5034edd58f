"""Helpers for tests of tries: a Redis with short waits, replicas, uploaded documents, and a call that fails a given number of times."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from everlong_server.engine import jobs as engine_jobs
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Job, Jobs
from everlong_server.store.records import Document, new_id, now
from everlong_server.store.redis import keys, scripts
from everlong_server.store.redis.connection import Client
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault

MODEL = "m" * 64
OUTAGE = 12
"""Number of failures of an outage: more than the tries of a job."""
TEXT = b"Alice was beginning to get very tired."


@pytest.fixture
async def redis(redis: Client, monkeypatch: pytest.MonkeyPatch) -> Client:
    for name in ("_RETRY_SECONDS", "_MAX_RETRY_SECONDS", "_GIVE_BACK_SECONDS"):
        monkeypatch.setattr(engine_jobs, name, 0.001)
    monkeypatch.setattr(scripts, "_COPY_MS", 1)
    return redis


def engine() -> Any:
    return SimpleNamespace(alive=True, draining=False, model=SimpleNamespace(name="tiny", fingerprint=MODEL))


async def replica(redis: Client, name: str = "a", stream: Callable[[str], str] = keys.jobs) -> Jobs:
    jobs = Jobs(redis, MODEL, name, 60.0, stream)
    await jobs.prepare(alone=False)
    return jobs


async def taken(jobs: Jobs) -> Job:
    job = await jobs.next(10)
    assert job is not None
    return job


def failing(times: int, error: Exception, then: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a call that raises `error` the first `times` times, and then calls `then`."""
    left = [times]

    async def call(*args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise error
        return await then(*args)

    return call


def documents(redis: Client, tenant: str | None = None) -> Documents:
    return Documents(redis, tenant, Quota(redis, tenant or "ann", Limits(), StreamSlots(redis, "a")), Vault())


async def uploaded(redis: Client, blobs: Blobs, model: str = MODEL) -> Document:
    """Create a document whose reading is queued."""
    document = Document(new_id("doc"), None, len(TEXT), 0, now(), hashlib.sha256(TEXT).hexdigest())
    writer = await blobs.create(document.id)
    await writer.write(TEXT)
    await writer.commit()
    await documents(redis, "ann").create(document, model)
    return document
