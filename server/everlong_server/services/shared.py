"""`Shared`: the parts of a server that all tenants use."""

from __future__ import annotations

from dataclasses import dataclass, field

from everlong_models import Model
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.detached import DetachedAnswers
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.services.models import ServedModels
from everlong_server.settings import Settings
from everlong_server.store.batches.batches import Batches
from everlong_server.store.batches.files import BatchFiles
from everlong_server.store.chats import Chats
from everlong_server.store.documents import Documents
from everlong_server.store.idempotency import IdempotencyRecords
from everlong_server.store.jobs import Jobs, ModelQueues
from everlong_server.store.records import DEFAULT_TENANT
from everlong_server.store.redis import keys
from everlong_server.store.redis.confirmation import Confirmation
from everlong_server.store.redis.connection import Client
from everlong_server.store.responses import Responses
from everlong_server.store.search.conversations import Conversations
from everlong_server.store.search.passages import Passages
from everlong_server.store.search.vectors import VectorBuilds, Vectors
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.credentials import Credentials
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.uploads import Uploads
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.stores import VectorStores


@dataclass(frozen=True, slots=True)
class Stores:
    """All stored data. The stores in Redis have a method `of(tenant)`.

    `documents`, `uploads`, `responses` and `batches` see all tenants; `quota`, `idempotency`, `sessions`, `conversations`, `chats`, `vector_stores` and
    `batch_files` see the default one.
    """

    quota: Quota
    idempotency: IdempotencyRecords
    documents: Documents
    sessions: Sessions
    conversations: Conversations
    chats: Chats
    uploads: Uploads
    responses: Responses
    vector_stores: VectorStores
    blobs: Blobs
    reading_jobs: Jobs
    background_jobs: Jobs
    """The queue of background responses."""
    batches: Batches
    batch_files: BatchFiles
    batch_jobs: Jobs
    slots: StreamSlots

    @classmethod
    def open(cls, settings: Settings, redis: Client, fingerprint: str, replica: str) -> Stores:
        """Open the stores. `fingerprint`: of the served model; `replica`: id of this server."""
        vault = Vault.load(settings.encryption_key_file)
        slots = StreamSlots(redis, replica)
        queues = ModelQueues.open(redis, fingerprint, replica, settings.lease_seconds)
        quota = Quota(redis, DEFAULT_TENANT, tenant_limits(settings), slots)
        blobs = Blobs(settings.blobs, vault, settings.private_dir)
        sessions = Sessions(redis, DEFAULT_TENANT, quota, replica, settings.lease_seconds, vault)
        return cls(
            quota=quota,
            idempotency=IdempotencyRecords(redis, DEFAULT_TENANT, replica, settings.idempotency_seconds, [], vault),
            documents=Documents(redis, None, quota, vault),
            sessions=sessions,
            conversations=Conversations(redis, DEFAULT_TENANT, sessions, vault),
            chats=Chats(redis, DEFAULT_TENANT, settings.chat_seconds, vault),
            uploads=Uploads(redis, None, vault),
            responses=Responses(redis, None, settings.response_seconds, vault),
            vector_stores=VectorStores(redis, DEFAULT_TENANT, quota, vault),
            blobs=blobs,
            reading_jobs=queues.readings,
            background_jobs=queues.responses,
            batches=Batches(redis, None, quota, settings.batch_seconds, vault),
            batch_files=BatchFiles(redis, blobs, DEFAULT_TENANT, quota, vault),
            batch_jobs=Jobs(redis, fingerprint, replica, settings.lease_seconds, keys.batch_jobs),
            slots=slots,
        )


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of a running server that all tenants use, built once."""

    settings: Settings
    model: Model
    redis: Client
    confirmation: Confirmation
    credentials: Credentials
    stores: Stores
    engine: Engine
    token_offsets: TokenOffsets
    embedder: Embedder | None
    """Turns passages into vectors; None: documents are searched by words alone."""
    models: ServedModels
    """All models that requests can name. `model` is one of them."""
    vector_builds: VectorBuilds
    metrics: Metrics
    tracing: Tracing
    started_at: float
    """Unix time in seconds."""
    detached_answers: DetachedAnswers = field(default_factory=DetachedAnswers)

    def passages(self, documents: Documents) -> Passages:
        """Return the search in `documents`."""
        blobs, embedder = self.stores.blobs, self.embedder
        vectors = None if embedder is None else Vectors(blobs, documents, embedder, self.vector_builds)
        return Passages(blobs, documents, vectors)


def tenant_limits(settings: Settings) -> Limits:
    """Return the quotas of every tenant."""
    return Limits(
        requests=settings.tenant_requests_per_minute,
        streams=settings.tenant_streams,
        queued=settings.tenant_queued,
        bytes=settings.tenant_bytes,
        sessions=settings.tenant_sessions,
        tokens=settings.tenant_tokens_per_day,
    )
