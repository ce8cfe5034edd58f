"""`Services`: the parts of a running server, built once and passed to the API."""

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

_LEAVE_TIMEOUT = 3.0
_RESTART_DELAY = 1.0
_QUESTION_TOKENS = 256
"""Tokens of the model's context that recall leaves free for the question and its answer (half of a short context)."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a request of one tenant needs. Objects of other tenants cannot be reached through it."""

    settings: Settings
    model: Model
    redis: Client
    credentials: Credentials
    quota: Quota
    idempotency: IdempotencyRecords
    blobs: Blobs
    documents: Documents
    passages: Passages
    sessions: Sessions
    chats: Chats
    uploads: Uploads
    responses: Responses
    background_jobs: Jobs
    """The queue of background responses."""
    engine: Engine
    token_offsets: TokenOffsets
    session_turns: SessionTurns
    chat_turns: ChatTurns
    response_turns: ResponseTurns
    memory_views: MemoryViews
    metrics: Metrics
    tracing: Tracing
    started_at: float
    """Unix time in seconds."""
    tenant: str = DEFAULT_TENANT

    def of(self, tenant: str) -> Services:
        """Return the services of another tenant. Cheap: tenants share the engine and the connections."""
        documents, sessions, chats = self.documents.of(tenant), self.sessions.of(tenant), self.chats.of(tenant)
        quota, responses = self.quota.of(tenant), self.responses.of(tenant)
        passages, session_turns, chat_turns, response_turns, memory_views = _around(
            self.settings, self.engine, self.metrics, self.tracing, quota, self.blobs, documents, sessions, chats, responses,
            self.background_jobs, self.token_offsets,
        )  # fmt: skip
        return replace(
            self, tenant=tenant, quota=quota, idempotency=self.idempotency.of(tenant), documents=documents,
            sessions=sessions, chats=chats, uploads=self.uploads.of(tenant), responses=responses, passages=passages,
            session_turns=session_turns, chat_turns=chat_turns, response_turns=response_turns, memory_views=memory_views,
        )  # fmt: skip

    @property
    def recall(self) -> Recall:
        """The server's default recall. Leaves part of the model's context free for the question and the answer."""
        settings, sight = self.settings, self.model.memory.sight
        return Recall(settings.recall_passages, min(settings.recall_tokens, max(sight // 2, sight - _QUESTION_TOKENS)))


class NoKeys(Exception):
    """Requests need an API key, and there is none."""


async def require_keys(settings: Settings, redis_url: str) -> None:
    """Create the administrator's key if `settings` name a file for it. Waits until Redis can be reached.

    Raises `NoKeys` if requests need an API key because other machines can reach the server, and no key exists. Only logs a
    warning if the setting `auth` requires keys explicitly.
    """
    if settings.admin_key_file is not None:
        secret = read_api_key(settings.admin_key_file)
        try:
            await _wait_for_redis(
                redis_url, settings, lambda redis: Credentials(redis).ensure(secret, by="EVERLONG_ADMIN_KEY_FILE")
            )
        except KeyTaken as error:
            raise NoKeys(f"EVERLONG_ADMIN_KEY_FILE: {error}") from None
    if not settings.asks_for_keys:
        return
    usable = await _wait_for_redis(redis_url, settings, lambda redis: Credentials(redis).usable())
    create = "`everlong keys create --tenant NAME` creates one"
    if not usable and settings.auth is None:
        raise NoKeys(
            f"other machines can reach {settings.host} (EVERLONG_HOST), so requests need an API key, and there is none: {create}; "
            "EVERLONG_AUTH=keys starts the server without a key, and EVERLONG_AUTH=off requires none"
        )
    if not usable:
        log.warning("there is no API key yet, so every request is refused: %s", create)


def read_api_key(file: Path) -> str:
    """Return the API key in the file. Raises `NoKeys` if the file cannot be read or holds no key."""
    setting = f"--admin-key-file (EVERLONG_ADMIN_KEY_FILE)={str(file)!r}"
    try:
        secret = file.expanduser().read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoKeys(f"{setting}: {getattr(error, 'strerror', None) or 'the file is not ASCII'}") from None
    if not is_secret(secret):
        raise NoKeys(f"{setting}: the file does not hold an API key; `everlong keys secret` prints one")
    return secret


async def require_vault(settings: Settings, redis_url: str) -> None:
    """Check that the encryption keys in `settings` match the stored data. Waits until Redis can be reached.

    Raises `VaultError` if the data is encrypted with other keys, if it is encrypted and no keys are set, or the reverse.
    """
    vault = Vault.load(settings.encryption_key_file)

    async def check(redis: Client) -> None:
        if (mark := await redis.get(keys.VAULT)) is None and vault:
            empty = not await anything(redis)
            vault.require(None, empty=empty)
            await redis.set(keys.VAULT, vault.mark(), nx=True)  # the first of several starting servers wins
            mark = await redis.get(keys.VAULT)
        vault.require(mark, empty=False)

    await _wait_for_redis(redis_url, settings, check)


async def _wait_for_redis(redis_url: str, settings: Settings, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of `ask`. Retries until Redis can be reached."""
    redis = connect(redis_url, settings.redis_copies)
    try:
        while True:
            try:
                await adopt(redis)  # renames keys that earlier versions wrote
                return await ask(redis)
            except RedisError as error:
                log.warning("waiting for Redis: %s", error)
                await asyncio.sleep(0.5)
    finally:
        await redis.aclose()


def limits_of(settings: Settings) -> Limits:
    """Return the quotas of every tenant."""
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
    background_jobs: Jobs,
    token_offsets: TokenOffsets,
) -> tuple[Passages, SessionTurns, ChatTurns, ResponseTurns, MemoryViews]:
    """Build the parts that work on one tenant's stores."""
    passages = Passages(blobs, documents)
    turns = TurnRunner(
        engine, passages, token_offsets, metrics, tracing, quota, max_message_chars=settings.max_message_chars
    )  # fmt: skip
    session_turns = SessionTurns(turns, engine, sessions, documents, metrics, lease_seconds=settings.lease_seconds)
    chat_turns = ChatTurns(turns, engine, chats, documents)
    response_turns = ResponseTurns(chat_turns, engine, responses, chats, background_jobs, quota)
    memory_views = MemoryViews(engine, session_turns, sessions, documents, token_offsets, quota)
    return passages, session_turns, chat_turns, response_turns, memory_views


@asynccontextmanager
async def run_services(
    settings: Settings, model: Model, redis_url: str, metrics: Metrics, tracing: Tracing | None = None
) -> AsyncIterator[Services]:
    """Start the services and stop them when the context ends. Waits until the Redis at `redis_url` can be reached."""
    tracing = tracing or Tracing()
    replica, vault = uuid.uuid4().hex, Vault.load(settings.encryption_key_file)
    async with AsyncExitStack() as stack:
        redis = connect(redis_url, settings.redis_copies)
        stack.push_async_callback(redis.aclose)
        jobs = Jobs(redis, model.fingerprint, replica, settings.lease_seconds)
        background_jobs = Jobs(redis, model.fingerprint, replica, settings.lease_seconds, keys.responses)
        slots = StreamSlots(redis, replica)
        idempotency = IdempotencyRecords(redis, DEFAULT_TENANT, replica, settings.idempotency_seconds, [], vault)
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
                await adopt(redis)  # first: renames keys that earlier versions wrote
                await jobs.prepare(alone=alone)
                await background_jobs.prepare(alone=False)
                # With an embedded Redis no other server can be uploading. A remote blob store may be down, which must not
                # prevent the start.
                if alone and settings.blob_url is None and await paired(redis, blobs):
                    await blobs.sweep(partial(known, redis))
                break
            except RedisError as error:
                log.warning("waiting for Redis: %s", error)
                await asyncio.sleep(0.5)
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
        stack.push_async_callback(engine.stop)
        metrics.watch_engine(lambda: engine.answering, lambda: engine.rows, model.state_bytes)
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
            background_jobs,
            token_offsets,
        )
        services = Services(
            settings, model, redis, Credentials(redis), quota, idempotency, blobs, documents, searched, sessions, chats,
            uploads.of(DEFAULT_TENANT), responses.of(DEFAULT_TENANT), background_jobs, engine, token_offsets, session_turns, chat_turns,
            response_turns, memory_views, metrics, tracing, now(),
        )  # fmt: skip
        background = BackgroundResponses(
            engine,
            lambda tenant: services.of(tenant).response_turns,
            responses,
            background_jobs,
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
            asyncio.create_task(_run_forever(work))
            for work in (
                lambda: _heartbeat(
                    redis, jobs, background_jobs, slots, idempotency, metrics, settings.lease_seconds / 3
                ),
                *[lambda: reader().run()] * (settings.max_readers or (2 if engine.on_cpu else 64)),
                background.run,
                lambda: _expire_uploads(redis, uploads, blobs, settings.upload_seconds),
            )
        ]

        async def end() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(RedisError, TimeoutError):  # the key expires by itself
                async with asyncio.timeout(_LEAVE_TIMEOUT):
                    await jobs.leave()

        stack.push_async_callback(end)
        yield services


async def _run_forever(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `work` for as long as the server runs. Starts it again after an unexpected error."""
    while True:
        try:
            await work()
            return
        except Exception:
            log.exception("a background task failed and is restarted")
            await asyncio.sleep(_RESTART_DELAY)


async def _heartbeat(
    redis: Client,
    jobs: Jobs,
    background_jobs: Jobs,
    slots: StreamSlots,
    idempotency: IdempotencyRecords,
    metrics: Metrics,
    seconds: float,
) -> None:
    while True:
        with contextlib.suppress(RedisError):  # other replicas rightly treat a replica that cannot reach Redis as dead
            await jobs.beat()
            with metrics.redis_seconds.time():
                await redis.ping()
            metrics.queued.labels("readings").set(await jobs.length())
            metrics.queued.labels("responses").set(await background_jobs.length())
            await slots.settle()
            await idempotency.settle()
        await asyncio.sleep(seconds)


async def _expire_uploads(redis: Client, uploads: Uploads, blobs: Blobs, seconds: float) -> None:
    """Delete expired uploads, and blobs that a killed server left behind once they are as old."""
    while True:
        try:
            for upload in await uploads.expired():
                await blobs.delete_parts(upload)
                await uploads.remove(upload)
            if await paired(redis, blobs):
                await blobs.sweep(partial(known, redis), untouched=seconds)
        except (RedisError, OSError) as error:
            log.warning("could not delete expired uploads, will retry: %s: %s", type(error).__name__, error)
        await asyncio.sleep(min(60.0, seconds))
