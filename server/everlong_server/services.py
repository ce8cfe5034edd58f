"""`Services`: the parts of a running server, put together once and passed to the API."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from redis.exceptions import RedisError

from everlong_models import Model
from everlong_server.engine.answering.background import BackgroundResponses
from everlong_server.engine.answering.chats import ChatTurns
from everlong_server.engine.answering.grounding import Recall
from everlong_server.engine.answering.memory_view import MemoryViews
from everlong_server.engine.answering.responses import ResponseTurns
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn import TurnRunner
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.reading import Reader
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.settings import Settings
from everlong_server.store.chats import Chats
from everlong_server.store.documents import Documents, adopt
from everlong_server.store.idempotency import IdempotencyRecords
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import DEFAULT_TENANT, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.responses import Responses
from everlong_server.store.rotation import anything
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.credentials import Credentials, KeyTaken, is_secret
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.pairing import known, paired
from everlong_server.store.texts.passages import Passages
from everlong_server.store.uploads import Uploads
from everlong_server.store.vault import Vault

T = TypeVar("T")

log = logging.getLogger(__name__)

_LEAVE_SECONDS = 3.0
_AGAIN_SECONDS = 1.0
_REST = 256
"""Tokens of what a model sees that a question and its answer need beside the passages, or half if it sees few."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a request may need, as one tenant has it: what others have is not there."""

    settings: Settings
    model: Model
    redis: Client
    credentials: Credentials
    quota: Quota
    attempts: IdempotencyRecords
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
    token_offsets: TokenOffsets
    session_turns: SessionTurns
    chat_turns: ChatTurns
    response_turns: ResponseTurns
    memory_views: MemoryViews
    metrics: Metrics
    tracing: Tracing
    began: float
    """Unix time in seconds."""
    tenant: str = DEFAULT_TENANT

    def of(self, tenant: str) -> Services:
        """The same for another tenant. Cheap: what is heavy is shared."""
        documents, sessions, chats = self.documents.of(tenant), self.sessions.of(tenant), self.chats.of(tenant)
        quota, responses = self.quota.of(tenant), self.responses.of(tenant)
        passages, session_turns, chat_turns, response_turns, memory_views = _around(
            self.settings, self.engine, self.metrics, self.tracing, quota, self.blobs, documents, sessions, chats, responses,
            self.unwatched, self.token_offsets,
        )  # fmt: skip
        return replace(
            self, tenant=tenant, quota=quota, attempts=self.attempts.of(tenant), documents=documents,
            sessions=sessions, chats=chats, uploads=self.uploads.of(tenant), responses=responses, passages=passages,
            session_turns=session_turns, chat_turns=chat_turns, response_turns=response_turns, memory_views=memory_views,
        )  # fmt: skip

    @property
    def recall(self) -> Recall:
        """What an answer is grounded on if its question says nothing about it; the question and the answer need room."""
        settings, sight = self.settings, self.model.memory.visible_tokens
        return Recall(settings.recall_passages, min(settings.recall_tokens, max(sight // 2, sight - _REST)))


class NoKeys(Exception):
    """The server would be open to other machines, and nobody could use it."""


async def require_keys(settings: Settings, redis_url: str) -> None:
    """Makes the administrator's key, if `settings` name one. Raises `NoKeys` if requests need keys and there are none,
    unless it was said that they shall.

    A Redis that is away is waited for.
    """
    if settings.admin_key_file is not None:
        secret = key_in(settings.admin_key_file)
        try:
            await _answered(
                redis_url, settings, lambda redis: Credentials(redis).ensure(secret, by="EVERLONG_ADMIN_KEY_FILE")
            )
        except KeyTaken as error:
            raise NoKeys(f"EVERLONG_ADMIN_KEY_FILE: {error}") from None
    if not settings.asks_for_keys:
        return
    there = await _answered(redis_url, settings, lambda redis: Credentials(redis).usable())
    make = "`everlong keys create --tenant NAME` makes one"
    if not there and settings.auth is None:
        raise NoKeys(
            f"other machines can reach {settings.host} (EVERLONG_HOST), so requests need an API key, and there is none: {make}; "
            "EVERLONG_AUTH=keys starts without, and EVERLONG_AUTH=off asks nobody for a key"
        )
    if not there:
        log.warning("there is no API key yet, and without one every request is refused: %s", make)


def key_in(file: Path) -> str:
    """The API key in the file. Raises `NoKeys`."""
    said = f"--admin-key-file (EVERLONG_ADMIN_KEY_FILE)={str(file)!r}"
    try:
        secret = file.expanduser().read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoKeys(f"{said}: {getattr(error, 'strerror', None) or 'it is not ASCII'}") from None
    if not is_secret(secret):
        raise NoKeys(f"{said}: there is no API key in it; `everlong keys secret` prints one")
    return secret


async def require_vault(settings: Settings, redis_url: str) -> None:
    """Raises `VaultError` if what is stored is not encrypted with the keys that `settings` name, or is and should not be.

    A Redis that is away is waited for.
    """
    vault = Vault.load(settings.encryption_key_file)

    async def check(redis: Client) -> None:
        if (mark := await redis.get(keys.VAULT)) is None and vault:
            empty = not await anything(redis)
            vault.require(None, empty=empty)
            await redis.set(keys.VAULT, vault.mark(), nx=True)  # of two servers that start, one is the first
            mark = await redis.get(keys.VAULT)
        vault.require(mark, empty=False)

    await _answered(redis_url, settings, check)


async def _answered(redis_url: str, settings: Settings, ask: Callable[[Client], Awaitable[T]]) -> T:
    """What `ask` gets from Redis, as soon as that is there."""
    redis = connect(redis_url, settings.redis_copies)
    try:
        while True:
            try:
                await adopt(redis)  # what earlier versions have stored is looked at under its names of today
                return await ask(redis)
            except RedisError as error:
                log.warning("redis is away, start waits: %s", error)
                await asyncio.sleep(0.5)
    finally:
        await redis.aclose()


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
    tracing: Tracing,
    quota: Quota,
    blobs: Blobs,
    documents: Documents,
    sessions: Sessions,
    chats: Chats,
    responses: Responses,
    unwatched: Jobs,
    token_offsets: TokenOffsets,
) -> tuple[Passages, SessionTurns, ChatTurns, ResponseTurns, MemoryViews]:
    """What works on one tenant's stores."""
    passages = Passages(blobs, documents)
    turns = TurnRunner(
        engine, passages, token_offsets, metrics, tracing, quota, max_message_chars=settings.max_message_chars
    )  # fmt: skip
    session_turns = SessionTurns(turns, engine, sessions, documents, metrics, lease_seconds=settings.lease_seconds)
    chat_turns = ChatTurns(turns, engine, chats, documents)
    response_turns = ResponseTurns(chat_turns, engine, responses, chats, unwatched, quota)
    memory_views = MemoryViews(engine, session_turns, sessions, documents, token_offsets, quota)
    return passages, session_turns, chat_turns, response_turns, memory_views


@asynccontextmanager
async def running(
    settings: Settings, model: Model, redis_url: str, metrics: Metrics, tracing: Tracing | None = None
) -> AsyncIterator[Services]:
    """The services, at work inside the context. `redis_url`: of the Redis to use; one that is away is waited for."""
    tracing = tracing or Tracing()
    replica, vault = uuid.uuid4().hex, Vault.load(settings.encryption_key_file)
    async with AsyncExitStack() as stack:
        redis = connect(redis_url, settings.redis_copies)
        stack.push_async_callback(redis.aclose)
        jobs = Jobs(redis, model.fingerprint, replica, settings.lease_seconds)
        unwatched = Jobs(redis, model.fingerprint, replica, settings.lease_seconds, keys.responses)
        slots = StreamSlots(redis, replica)
        attempts = IdempotencyRecords(redis, DEFAULT_TENANT, replica, settings.idempotency_seconds, [], vault)
        quota = Quota(redis, DEFAULT_TENANT, limits_of(settings), slots)
        everybodys = Documents(redis, None, quota, vault)
        documents = everybodys.of(DEFAULT_TENANT)
        sessions = Sessions(redis, DEFAULT_TENANT, quota, replica, settings.lease_seconds, vault)
        chats = Chats(redis, DEFAULT_TENANT, settings.chat_seconds, vault)
        uploads = Uploads(redis, None, vault)
        responses = Responses(redis, None, settings.response_seconds, vault)
        blobs = Blobs(settings.blobs, vault, settings.private_dir)
        alone = settings.redis_url is None
        while True:
            try:
                await adopt(redis)  # before anything is written under a name of today
                await jobs.prepare(alone=alone)
                await unwatched.prepare(alone=False)
                # Nobody else can be uploading here; and a blob store elsewhere may be away, which is no reason not to start.
                if alone and settings.blob_url is None and await paired(redis, blobs):
                    await blobs.sweep(partial(known, redis))
                break
            except RedisError as error:
                log.warning("redis is away, start waits: %s", error)
                await asyncio.sleep(0.5)
        engine = Engine(
            model,
            on_step=metrics.stepped,
            max_streams=settings.max_streams,
            max_queued=settings.max_queued,
            reading_share=settings.reading_share,
            max_stall=settings.max_decode_stall_ms / 1e3,
            reading_rows=settings.reading_rows,
            graphs=settings.cuda_graphs,
        )
        engine.start()
        stack.push_async_callback(engine.stop)
        metrics.follow(lambda: engine.answering, lambda: engine.rows, model.state_bytes)
        token_offsets = TokenOffsets(blobs, everybodys, model.tokenizer)
        searched, session_turns, chat_turns, response_turns, memory_views = _around(
            settings,
            engine,
            metrics,
            tracing,
            quota,
            blobs,
            documents,
            sessions,
            chats,
            responses.of(DEFAULT_TENANT),
            unwatched,
            token_offsets,
        )
        services = Services(
            settings, model, redis, Credentials(redis), quota, attempts, blobs, documents, searched, sessions, chats,
            uploads.of(DEFAULT_TENANT), responses.of(DEFAULT_TENANT), unwatched, engine, token_offsets, session_turns, chat_turns,
            response_turns, memory_views, metrics, tracing, now(),
        )  # fmt: skip
        background = BackgroundResponses(
            engine,
            lambda tenant: services.of(tenant).response_turns,
            responses,
            unwatched,
            tracing,
            metrics,
            engine.max_streams,
        )

        def reader() -> Reader:
            passages = Passages(blobs, everybodys) if settings.recall_passages else None
            return Reader(
                engine, everybodys, blobs, passages, token_offsets, jobs, metrics, tracing, settings.checkpoint_seconds,
                settings.turn_seconds,
            )  # fmt: skip

        tasks = [
            asyncio.create_task(_lasting(work))
            for work in (
                lambda: _beat(redis, jobs, unwatched, slots, attempts, metrics, settings.lease_seconds / 3),
                *[lambda: reader().run()] * (settings.max_readers or (2 if engine.on_cpu else 64)),
                background.run,
                lambda: _expire(redis, uploads, blobs, settings.upload_seconds),
            )
        ]

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RedisError, TimeoutError):  # the key expires by itself
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await jobs.leave()

        stack.push_async_callback(end)
        yield services


async def _lasting(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Work that goes on for as long as the server; broken off by what nobody thought of, it begins again."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("work in the background broke off, and begins again")
            await asyncio.sleep(_AGAIN_SECONDS)


async def _beat(
    redis: Client,
    jobs: Jobs,
    unwatched: Jobs,
    slots: StreamSlots,
    attempts: IdempotencyRecords,
    metrics: Metrics,
    seconds: float,
) -> None:
    while True:
        with contextlib.suppress(RedisError):  # a replica that cannot reach Redis is rightly taken for dead
            await jobs.beat()
            with metrics.redis_seconds.time():
                await redis.ping()
            metrics.queued.labels("readings").set(await jobs.length())
            metrics.queued.labels("responses").set(await unwatched.length())
            await slots.settle()
            await attempts.settle()
        await asyncio.sleep(seconds)


async def _expire(redis: Client, uploads: Uploads, blobs: Blobs, seconds: float) -> None:
    """Throws uploads away whose time is up, and after as long what a killed server has left in the blob store."""
    while True:
        try:
            for upload in await uploads.expired():
                await blobs.delete_parts(upload)
                await uploads.remove(upload)
            if await paired(redis, blobs):
                await blobs.sweep(partial(known, redis), untouched=seconds)
        except (RedisError, OSError) as error:
            log.warning("expired uploads wait: %s: %s", type(error).__name__, error)
        await asyncio.sleep(min(60.0, seconds))
