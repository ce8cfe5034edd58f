"""`Services`: the parts of a running server, put together once and passed to the API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import torch
from redis.exceptions import RedisError

from everlong_models import Model, load_model
from everlong_models.loading import Progress
from everlong_server.engine.background import Background
from everlong_server.engine.conversation import Conversations
from everlong_server.engine.dialogue import Dialogues
from everlong_server.engine.engine import Engine
from everlong_server.engine.grounding import Recall
from everlong_server.engine.memories import Memories
from everlong_server.engine.reading import Reader
from everlong_server.engine.responses import Responding
from everlong_server.engine.turn import Turns
from everlong_server.metrics import Metrics
from everlong_server.settings import Settings
from everlong_server.store import keys
from everlong_server.store.blobs import Blobs
from everlong_server.store.chats import Chats
from everlong_server.store.connection import Client, connect
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Jobs
from everlong_server.store.passages import Passages
from everlong_server.store.records import now
from everlong_server.store.responses import Responses
from everlong_server.store.sessions import Sessions
from everlong_server.store.uploads import Uploads

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a request may need."""

    settings: Settings
    model: Model
    redis: Client
    blobs: Blobs
    documents: Documents
    passages: Passages
    sessions: Sessions
    chats: Chats
    uploads: Uploads
    engine: Engine
    conversations: Conversations
    dialogues: Dialogues
    responding: Responding
    memories: Memories
    metrics: Metrics
    began: float
    """Unix time in seconds."""

    @property
    def recall(self) -> Recall:
        """What an answer is grounded on if its question says nothing about it; the question and the answer need room."""
        settings = self.settings
        return Recall(settings.recall_passages, min(settings.recall_tokens, self.model.memory.sight // 2))


def load(settings: Settings, progress: Progress) -> Model:
    """The model that `settings` name. Blocking: seconds, and half a minute the first time."""
    if settings.threads:
        torch.set_num_threads(settings.threads)
    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return load_model(
        settings.model,
        models_dir=settings.models_dir.expanduser(),
        memory=settings.memory,
        options=settings.memory_options,
        device=device,
        progress=progress,
    )


@asynccontextmanager
async def running(settings: Settings, model: Model, redis_url: str, metrics: Metrics) -> AsyncIterator[Services]:
    """The services, at work inside the context. `redis_url`: of the Redis to use; one that is away is waited for."""
    replica = uuid.uuid4().hex
    async with AsyncExitStack() as stack:
        redis = connect(redis_url)
        stack.push_async_callback(redis.aclose)
        jobs = Jobs(redis, model.fingerprint, replica, settings.lease_seconds)
        unwatched = Jobs(redis, model.fingerprint, replica, settings.lease_seconds, keys.responses)
        documents = Documents(redis)
        sessions = Sessions(redis, replica, settings.lease_seconds)
        chats = Chats(redis, settings.chat_seconds)
        uploads = Uploads(redis)
        blobs = Blobs(settings.blobs)
        passages = Passages(blobs, documents)
        alone = settings.redis_url is None
        while True:
            try:
                await jobs.prepare(alone=alone)
                await unwatched.prepare(alone=False)
                if alone and settings.blob_url is None:  # nobody else can be uploading here
                    await blobs.sweep(await documents.ids() | await uploads.ids())
                break
            except RedisError as error:
                log.warning("redis is away, start waits: %s", error)
                await asyncio.sleep(0.5)
        engine = Engine(
            model,
            max_streams=settings.max_streams,
            max_queued=settings.max_queued,
            reading_share=settings.reading_share,
        )
        engine.start()
        stack.push_async_callback(engine.stop)
        metrics.answering.set_function(lambda: engine.answering)
        turns = Turns(engine, passages, metrics, max_message_chars=settings.max_message_chars)
        conversations = Conversations(turns, engine, sessions, documents, lease_seconds=settings.lease_seconds)
        dialogues = Dialogues(turns, engine, chats, documents)
        responses = Responses(redis, settings.response_seconds)
        responding = Responding(dialogues, engine, responses, chats, unwatched)
        background = Background(engine, responding, responses, unwatched, settings.max_streams)
        tasks = [asyncio.create_task(_beat(jobs, settings.lease_seconds / 3))]
        for _ in range(settings.max_readers):
            reader = Reader(
                engine, documents, blobs, passages if settings.recall_passages else None, jobs, metrics,
                settings.checkpoint_seconds,
            )  # fmt: skip
            tasks.append(asyncio.create_task(reader.run()))
        tasks.append(asyncio.create_task(background.run()))
        tasks.append(asyncio.create_task(_expire(uploads, blobs, min(60.0, settings.upload_seconds))))

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RedisError):  # the key expires by itself
                await jobs.leave()

        stack.push_async_callback(end)
        memories = Memories(engine, conversations, sessions, documents, blobs)
        yield Services(
            settings, model, redis, blobs, documents, passages, sessions, chats, uploads, engine, conversations, dialogues, responding,
            memories, metrics, now(),
        )  # fmt: skip


async def _beat(jobs: Jobs, seconds: float) -> None:
    while True:
        with contextlib.suppress(RedisError):  # a replica that cannot reach Redis is rightly taken for dead
            await jobs.beat()
        await asyncio.sleep(seconds)


async def _expire(uploads: Uploads, blobs: Blobs, seconds: float) -> None:
    """Throws uploads away whose time is up."""
    while True:
        try:
            for upload in await uploads.expired():
                await blobs.delete_parts(upload)
                await uploads.remove(upload)
        except (RedisError, OSError) as error:
            log.warning("expired uploads wait: %s: %s", type(error).__name__, error)
        await asyncio.sleep(seconds)
