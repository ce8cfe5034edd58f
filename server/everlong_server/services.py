"""`Services`: the parts of a running server, put together once and passed to the API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

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
from everlong_server.store.allowance import Allowance, Limits, Slots
from everlong_server.store.attempts import Attempts
from everlong_server.store.blobs import Blobs
from everlong_server.store.chats import Chats
from everlong_server.store.connection import Client, connect
from everlong_server.store.credentials import Credentials
from everlong_server.store.documents import Documents, adopt
from everlong_server.store.jobs import Jobs
from everlong_server.store.passages import Passages
from everlong_server.store.records import DEFAULT_TENANT, now
from everlong_server.store.responses import Responses
from everlong_server.store.sessions import Sessions
from everlong_server.store.uploads import Uploads

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 3.0
_REST = 256
"""Tokens of what a model sees that a question and its answer need beside the passages, or half if it sees few."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a request may need, as one tenant has it: what others have is not there."""

    settings: Settings
    model: Model
    redis: Client
    credentials: Credentials
    allowance: Allowance
    attempts: Attempts
    blobs: Blobs
    documents: Documents
    passages: Passages
    sessions: Sessions
    chats: Chats
    uploads: Uploads
    responses: Responses
    unwatched: Jobs
    """Responses that are answered in the background."""
    engine: Engine
    conversations: Conversations
    dialogues: Dialogues
    responding: Responding
    memories: Memories
    metrics: Metrics
    began: float
    """Unix time in seconds."""
    tenant: str = DEFAULT_TENANT

    def of(self, tenant: str) -> Services:
        """The same for another tenant. Cheap: what is heavy is shared."""
        documents, sessions, chats = self.documents.of(tenant), self.sessions.of(tenant), self.chats.of(tenant)
        allowance, responses = self.allowance.of(tenant), self.responses.of(tenant)
        passages, conversations, dialogues, responding, memories = _around(
            self.settings, self.engine, self.metrics, allowance, self.blobs, documents, sessions, chats, responses,
            self.unwatched,
        )  # fmt: skip
        return replace(
            self, tenant=tenant, allowance=allowance, attempts=self.attempts.of(tenant), documents=documents,
            sessions=sessions, chats=chats, uploads=self.uploads.of(tenant), responses=responses, passages=passages,
            conversations=conversations, dialogues=dialogues, responding=responding, memories=memories,
        )  # fmt: skip

    @property
    def recall(self) -> Recall:
        """What an answer is grounded on if its question says nothing about it; the question and the answer need room."""
        settings, sight = self.settings, self.model.memory.sight
        return Recall(settings.recall_passages, min(settings.recall_tokens, max(sight // 2, sight - _REST)))


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
        quantize=settings.quantize,
        progress=progress,
    )


class NoKeys(Exception):
    """The server would be open to other machines, and nobody could use it."""


async def require_keys(settings: Settings, redis_url: str) -> None:
    """Raises `NoKeys` if requests need keys and there are none, unless it was said that they shall.

    A Redis that is away is waited for.
    """
    if not settings.asks_for_keys:
        return
    redis = connect(redis_url, settings.redis_copies)
    try:
        while True:
            try:
                await adopt(redis)
                there = await Credentials(redis).usable()
                break
            except RedisError as error:
                log.warning("redis is away, start waits: %s", error)
                await asyncio.sleep(0.5)
    finally:
        await redis.aclose()
    make = "`everlong keys create --tenant NAME` makes one"
    if not there and settings.auth is None:
        raise NoKeys(
            f"other machines can reach {settings.host} (EVERLONG_HOST), so requests need an API key, and there is none: {make}; "
            "EVERLONG_AUTH=keys starts without, and EVERLONG_AUTH=off asks nobody for a key"
        )
    if not there:
        log.warning("there is no API key yet, and without one every request is refused: %s", make)


def limits_of(settings: Settings) -> Limits:
    """What every tenant may use."""
    return Limits(
        requests=settings.tenant_requests_per_minute,
        streams=settings.tenant_streams,
        queued=settings.tenant_queued,
        bytes=settings.tenant_bytes,
        sessions=settings.tenant_sessions,
        tokens=settings.tenant_tokens_per_day,
    )


def _around(
    settings: Settings,
    engine: Engine,
    metrics: Metrics,
    allowance: Allowance,
    blobs: Blobs,
    documents: Documents,
    sessions: Sessions,
    chats: Chats,
    responses: Responses,
    unwatched: Jobs,
) -> tuple[Passages, Conversations, Dialogues, Responding, Memories]:
    """What works on one tenant's stores."""
    passages = Passages(blobs, documents)
    turns = Turns(engine, passages, metrics, allowance, max_message_chars=settings.max_message_chars)
    conversations = Conversations(turns, engine, sessions, documents, lease_seconds=settings.lease_seconds)
    dialogues = Dialogues(turns, engine, chats, documents)
    responding = Responding(dialogues, engine, responses, chats, unwatched)
    return passages, conversations, dialogues, responding, Memories(engine, conversations, sessions, documents, blobs)


@asynccontextmanager
async def running(settings: Settings, model: Model, redis_url: str, metrics: Metrics) -> AsyncIterator[Services]:
    """The services, at work inside the context. `redis_url`: of the Redis to use; one that is away is waited for."""
    replica = uuid.uuid4().hex
    async with AsyncExitStack() as stack:
        redis = connect(redis_url, settings.redis_copies)
        stack.push_async_callback(redis.aclose)
        jobs = Jobs(redis, model.fingerprint, replica, settings.lease_seconds)
        unwatched = Jobs(redis, model.fingerprint, replica, settings.lease_seconds, keys.responses)
        slots = Slots(redis, replica)
        attempts = Attempts(redis, DEFAULT_TENANT, replica, settings.idempotency_seconds, [])
        allowance = Allowance(redis, DEFAULT_TENANT, limits_of(settings), slots)
        everybodys = Documents(redis, None, allowance)
        documents = everybodys.of(DEFAULT_TENANT)
        sessions = Sessions(redis, DEFAULT_TENANT, allowance, replica, settings.lease_seconds)
        chats = Chats(redis, DEFAULT_TENANT, settings.chat_seconds)
        uploads = Uploads(redis, None)
        responses = Responses(redis, None, settings.response_seconds)
        blobs = Blobs(settings.blobs)
        alone = settings.redis_url is None
        known = partial(_known, everybodys, uploads)
        while True:
            try:
                await adopt(redis)  # before anything is written under a name of today
                await jobs.prepare(alone=alone)
                await unwatched.prepare(alone=False)
                if alone and settings.blob_url is None:  # nobody else can be uploading here
                    await blobs.sweep(known)
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
        searched, conversations, dialogues, responding, memories = _around(
            settings,
            engine,
            metrics,
            allowance,
            blobs,
            documents,
            sessions,
            chats,
            responses.of(DEFAULT_TENANT),
            unwatched,
        )
        services = Services(
            settings, model, redis, Credentials(redis), allowance, attempts, blobs, documents, searched, sessions, chats,
            uploads.of(DEFAULT_TENANT), responses.of(DEFAULT_TENANT), unwatched, engine, conversations, dialogues, responding,
            memories, metrics, now(),
        )  # fmt: skip
        background = Background(
            engine, lambda tenant: services.of(tenant).responding, responses, unwatched, settings.max_streams
        )
        tasks = [asyncio.create_task(_beat(jobs, slots, attempts, settings.lease_seconds / 3))]
        for _ in range(settings.max_readers):
            reader = Reader(
                engine, everybodys, blobs, Passages(blobs, everybodys) if settings.recall_passages else None, jobs, metrics,
                settings.checkpoint_seconds,
            )  # fmt: skip
            tasks.append(asyncio.create_task(reader.run()))
        tasks.append(asyncio.create_task(background.run()))
        tasks.append(asyncio.create_task(_expire(uploads, blobs, known, settings.upload_seconds)))

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RedisError, TimeoutError):  # the key expires by itself
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await jobs.leave()

        stack.push_async_callback(end)
        yield services


async def _beat(jobs: Jobs, slots: Slots, attempts: Attempts, seconds: float) -> None:
    while True:
        with contextlib.suppress(RedisError):  # a replica that cannot reach Redis is rightly taken for dead
            await jobs.beat()
            await slots.settle()
            await attempts.settle()
        await asyncio.sleep(seconds)


async def _known(documents: Documents, uploads: Uploads) -> set[str]:
    """All that may have blobs."""
    return await documents.ids() | await uploads.ids()


async def _expire(uploads: Uploads, blobs: Blobs, known: Callable[[], Awaitable[set[str]]], seconds: float) -> None:
    """Throws uploads away whose time is up, and after as long what a killed server has left in the blob store."""
    while True:
        try:
            for upload in await uploads.expired():
                await blobs.delete_parts(upload)
                await uploads.remove(upload)
            await blobs.sweep(known, untouched=seconds)
        except (RedisError, OSError) as error:
            log.warning("expired uploads wait: %s: %s", type(error).__name__, error)
        await asyncio.sleep(min(60.0, seconds))
