"""`run_services`: starts the parts of a server and stops them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial

from redis.exceptions import RedisError

from everlong_models import Model
from everlong_server.engine.device.device_lock import DeviceLock
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.runner import Runner
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.services.background import background_tasks, model_works, running
from everlong_server.services.models import ModelSource, ServedModels
from everlong_server.services.replica_lock import ReplicaLock
from everlong_server.services.shared import Shared, Stores
from everlong_server.settings import Settings
from everlong_server.store.jobs import ModelQueues
from everlong_server.store.records import now
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.search.vectors import VectorBuilds, load_embedder
from everlong_server.store.store_id import existing_owners, has_matching_store_id
from everlong_server.store.tenants.credentials import Credentials

log = logging.getLogger(__name__)


@asynccontextmanager
async def run_services(
    settings: Settings,
    model: Model,
    redis_url: str,
    metrics: Metrics,
    tracing: Tracing | None = None,
    others: ModelSource | None = None,
) -> AsyncIterator[Shared]:
    """Start the services and stop them when the context ends. Waits until the Redis at `redis_url` can be reached.

    `others`: the models that can be loaded besides `model`; None: there are none.
    """
    async with AsyncExitStack() as stack:
        redis = connect(redis_url, settings.redis_copies)
        stack.push_async_callback(redis.aclose)
        replica = uuid.uuid4().hex
        stores = Stores.open(settings, redis, model.fingerprint, replica)
        lock = stack.enter_context(ReplicaLock(settings.data_dir.expanduser().absolute(), replica))
        device_lock = DeviceLock()
        models = ServedModels(
            others, redis, metrics,
            lambda model: ModelQueues.open(redis, model, f"{replica}-{model[:8]}", settings.lease_seconds),
            partial(_serve_other, device_lock),
        )  # fmt: skip
        await _prepare(settings, redis, stores, models, lock)
        engine = _start_engine(settings, model, metrics, device_lock)
        stack.push_async_callback(engine.stop)
        stack.push_async_callback(models.close)
        metrics.watch_engines(lambda: models.admitted, lambda: models.rows, model.state_bytes)
        shared = Shared(
            settings=settings,
            model=model,
            redis=redis,
            confirmation=Confirmation(redis),
            credentials=Credentials(redis),
            stores=stores,
            engine=engine,
            models=models,
            embedder=load_embedder(settings.embeddings, "cpu" if engine.on_cpu else "cuda")
            if settings.recall_passages
            else None,
            vector_builds=VectorBuilds(),
            token_offsets=TokenOffsets(stores.blobs, stores.documents, model.tokenizer),
            metrics=metrics,
            tracing=tracing or Tracing(),
            started_at=now(),
        )
        await models.start(shared, settings.model or model.name)
        await stack.enter_async_context(background_tasks(shared))
        yield shared


async def _prepare(settings: Settings, redis: Client, stores: Stores, models: ServedModels, lock: ReplicaLock) -> None:
    """Prepare the stored data. Retries until Redis can be reached."""
    embedded = settings.redis_url is None
    while True:
        try:
            await lock.end_leases_of_the_dead(redis)
            await stores.reading_jobs.prepare(alone=embedded)
            await stores.background_jobs.prepare(alone=False)
            await models.announce()
            await stores.batch_jobs.prepare(alone=False)
            # With an embedded Redis no other server can be uploading. A remote blob store may be down, which must not
            # prevent the start.
            if embedded and settings.blob_url is None and await has_matching_store_id(redis, stores.blobs):
                await stores.blobs.sweep(partial(existing_owners, redis))
            return
        except RedisError as error:
            log.warning("waiting for Redis: %s", error)
            await asyncio.sleep(0.5)


@asynccontextmanager
async def _serve_other(
    device_lock: DeviceLock, shared: Shared, model: Model, queues: ModelQueues
) -> AsyncIterator[Shared]:
    """Serve a model besides the first one. Yields the parts of the server with it."""
    engine = _start_engine(shared.settings, model, shared.metrics, device_lock)
    try:
        await queues.prepare()
        stores = replace(shared.stores, reading_jobs=queues.readings, background_jobs=queues.responses)
        token_offsets = TokenOffsets(stores.blobs, stores.documents, model.tokenizer)
        other = replace(shared, model=model, engine=engine, stores=stores, token_offsets=token_offsets)
        async with running(model_works(other)):
            yield other
    finally:
        await engine.stop()


def _start_engine(settings: Settings, model: Model, metrics: Metrics, device_lock: DeviceLock) -> Engine:
    runner = Runner(
        model,
        max_streams=settings.max_streams,
        reading_share=settings.reading_share,
        max_stall=settings.max_decode_stall_ms / 1e3,
        reading_rows=settings.reading_rows,
        graphs=settings.cuda_graphs,
        draft_tokens=settings.draft_tokens,
        on_step=metrics.record_step,
        device_lock=device_lock,
    )
    engine = Engine(runner, max_queued=settings.max_queued)
    engine.start()
    return engine
