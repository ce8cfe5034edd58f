"""The background tasks of a server: heartbeat, readers, background responses, deletion of expired uploads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from everlong_server.engine.answering.background import BackgroundResponses
from everlong_server.engine.batches.input_file import Limits
from everlong_server.engine.batches.run import Ask
from everlong_server.engine.batches.worker import BatchSettings, BatchWorker
from everlong_server.engine.documents.reading import Reader
from everlong_server.services.shared import Shared, Stores
from everlong_server.services.tenant import tenant_services
from everlong_server.store.backup.running import is_running
from everlong_server.store.redis.connection import Client
from everlong_server.store.store_id import existing_owners, has_matching_store_id
from everlong_server.tasks import cancel

log = logging.getLogger(__name__)

Work = Callable[[], Coroutine[Any, Any, None]]

_LEAVE_TIMEOUT = 3.0
_RESTART_DELAY = 1.0


@asynccontextmanager
async def background_tasks(shared: Shared) -> AsyncIterator[None]:
    """Run the background tasks for the duration of the context, then leave the group of replicas."""
    settings = shared.settings
    works: list[Work] = [
        lambda: _heartbeat(shared, settings.lease_seconds / 3),
        *model_works(shared),
        lambda: _warm_up(shared),
        lambda: _expire_uploads(shared.redis, shared.stores, settings.upload_seconds),
        shared.models.run,
    ]
    try:
        async with running(works):
            yield
    finally:
        await shared.models.close()
        with contextlib.suppress(RedisError, TimeoutError):  # the keys expire by themselves
            async with asyncio.timeout(_LEAVE_TIMEOUT):
                await shared.stores.reading_jobs.deregister()
                for queues in shared.models.queues:
                    await queues.readings.deregister()


@asynccontextmanager
async def running(works: Sequence[Work]) -> AsyncIterator[None]:
    """Run `works` for the duration of the context."""
    tasks = [asyncio.create_task(run_forever(work)) for work in works]
    try:
        yield
    finally:
        await cancel(*tasks)


def model_works(shared: Shared) -> list[Work]:
    """Return the background work of one model: its readings and background responses."""
    readers = shared.settings.max_readers or (2 if shared.engine.on_cpu else 64)
    return [_reader(shared, readers).run, _background_responses(shared).run]


def _reader(shared: Shared, max_jobs: int) -> Reader:
    settings, stores = shared.settings, shared.stores
    passages = shared.passages(stores.documents) if settings.recall_passages else None
    return Reader(
        shared.engine, stores.documents, stores.blobs, passages, shared.token_offsets, stores.reading_jobs, shared.metrics,
        shared.tracing, settings.checkpoint_seconds, settings.turn_seconds, max_jobs,
    )  # fmt: skip


def _background_responses(shared: Shared) -> BackgroundResponses:
    return BackgroundResponses(
        shared.engine,
        lambda tenant: tenant_services(shared, tenant).response_turns,
        shared.stores.responses,
        shared.stores.background_jobs,
        shared.tracing,
        shared.metrics,
        shared.engine.max_streams,
    )


def batch_worker(shared: Shared, ask: Ask) -> BatchWorker:
    """Return the worker that answers batches. `ask`: answers one of their requests."""
    settings, stores, engine = shared.settings, shared.stores, shared.engine
    streams = settings.tenant_streams or engine.max_streams + 1
    return BatchWorker(
        engine, shared.redis, stores.batches, stores.batch_files, stores.blobs, stores.batch_jobs, shared.metrics, shared.tracing,
        BatchSettings(
            Limits(settings.max_batch_lines, settings.max_body_bytes),
            max(1, min(engine.max_streams, streams - 1)),  # leaves the tenant a place for other answers
            settings.turn_seconds,
        ),
        ask,
    )  # fmt: skip


async def run_forever(work: Work) -> None:
    """Run `work` for as long as the server runs. Starts it again after an unexpected error."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("a background task failed; restarting it")
            await asyncio.sleep(_RESTART_DELAY)


async def _heartbeat(shared: Shared, seconds: float) -> None:
    """Renew this replica's lease and report the queues, every `seconds`."""
    stores, metrics = shared.stores, shared.metrics
    while True:
        with contextlib.suppress(RedisError):  # other replicas rightly treat a replica that cannot reach Redis as dead
            await stores.reading_jobs.heartbeat()
            await shared.models.announce()
            with metrics.redis_seconds.time():
                await shared.redis.ping()
            readings, responses = await shared.models.queued()
            metrics.queued.labels("readings").set(await stores.reading_jobs.length() + readings)
            metrics.queued.labels("responses").set(await stores.background_jobs.length() + responses)
            metrics.queued.labels("batches").set(await stores.batch_jobs.length())
            await stores.slots.release_pending()
            await stores.idempotency.release_pending()
        await asyncio.sleep(seconds)


async def _warm_up(shared: Shared) -> None:
    """Load the embedder and its reranker before the first question needs them."""
    embedder = shared.embedder
    if embedder is None:
        return
    await asyncio.to_thread(embedder.embed, [""])
    if embedder.reranker is not None:
        await asyncio.to_thread(embedder.reranker.scores, "", [""], [[]])


async def _expire_uploads(redis: Client, stores: Stores, seconds: float) -> None:
    """Delete expired uploads, and blobs that a killed server left behind once they are as old."""
    while True:
        try:
            running = await is_running(redis)  # a backup may still copy the files
            for upload in [] if running else await stores.uploads.expired():
                await stores.blobs.delete_parts(upload)
                await stores.uploads.remove(upload)
            if not running and await has_matching_store_id(redis, stores.blobs):
                await stores.blobs.sweep(partial(existing_owners, redis), untouched=seconds)
        except (RedisError, OSError) as error:
            log.warning("could not delete expired uploads, will retry: %s: %s", type(error).__name__, error)
        await asyncio.sleep(min(60.0, seconds))
