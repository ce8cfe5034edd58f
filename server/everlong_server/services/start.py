"""`run_services`: starts the parts of a server and stops them."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from redis.exceptions import RedisError

from everlong_models import Model
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.services.background import background_tasks
from everlong_server.services.replica_lock import ReplicaLock
from everlong_server.services.shared import Shared, Stores
from everlong_server.settings import Settings
from everlong_server.store.records import now
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.search.vectors import VectorBuilds, load_embedder
from everlong_server.store.store_id import existing_owners, has_matching_store_id
from everlong_server.store.tenants.credentials import Credentials

log = logging.getLogger(__name__)


@asynccontextmanager
async def run_services(
    settings: Settings, model: Model, redis_url: str, metrics: Metrics, tracing: Tracing | None = None
) -> AsyncIterator[Shared]:
    """Start the services and stop them when the context ends. Waits until the Redis at `redis_url` can be reached."""
    async with AsyncExitStack() as stack:
        redis = connect(redis_url, settings.redis_copies)
        stack.push_async_callback(redis.aclose)
        replica = uuid.uuid4().hex
        stores = Stores.open(settings, redis, model.fingerprint, replica)
        lock = stack.enter_context(ReplicaLock(settings.data_dir.expanduser().absolute(), replica))
        await _prepare(settings, redis, stores, lock)
        engine = _start_engine(settings, model, metrics)
        stack.push_async_callback(engine.stop)
        shared = Shared(
            settings=settings,
            model=model,
            redis=redis,
            confirmation=Confirmation(redis),
            credentials=Credentials(redis),
            stores=stores,
            engine=engine,
            embedder=load_embedder(settings.embeddings, "cpu" if engine.on_cpu else "cuda")
            if settings.recall_passages
            else None,
            vector_builds=VectorBuilds(),
            token_offsets=TokenOffsets(stores.blobs, stores.documents, model.tokenizer),
            metrics=metrics,
            tracing=tracing or Tracing(),
            started_at=now(),
        )
        await stack.enter_async_context(background_tasks(shared))
        yield shared


async def _prepare(settings: Settings, redis: Client, stores: Stores, lock: ReplicaLock) -> None:
    """Prepare the stored data. Retries until Redis can be reached."""
    embedded = settings.redis_url is None
    while True:
        try:
            await lock.end_leases_of_the_dead(redis)
            await stores.reading_jobs.prepare(alone=embedded)
            await stores.background_jobs.prepare(alone=False)
            await stores.batch_jobs.prepare(alone=False)
            # With an embedded Redis no other server can be uploading. A remote blob store may be down, which must not
            # prevent the start.
            if embedded and settings.blob_url is None and await has_matching_store_id(redis, stores.blobs):
                await stores.blobs.sweep(partial(existing_owners, redis))
            return
        except RedisError as error:
            log.warning("waiting for Redis: %s", error)
            await asyncio.sleep(0.5)


def _start_engine(settings: Settings, model: Model, metrics: Metrics) -> Engine:
    """Start the engine and report it in the metrics."""
    engine = Engine(
        model,
        on_step=metrics.record_step,
        max_streams=settings.max_streams,
        max_queued=settings.max_queued,
        reading_share=settings.reading_share,
        max_stall=settings.max_decode_stall_ms / 1e3,
        reading_rows=settings.reading_rows,
        graphs=settings.cuda_graphs,
    )
    engine.start()
    metrics.watch_engine(lambda: engine.admitted, lambda: engine.rows, model.state_bytes)
    return engine
