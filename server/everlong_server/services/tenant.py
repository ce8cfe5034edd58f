"""`Services`: everything that a request of one tenant needs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace

from everlong_server.engine.answering.chats import ChatTurns
from everlong_server.engine.answering.completions import Completions
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import template_of
from everlong_server.engine.answering.memory_view import MemoryViews
from everlong_server.engine.answering.responses import ResponseTurns
from everlong_server.engine.answering.search.store_search import StoreSearch
from everlong_server.engine.answering.search.text_search import TextSearch
from everlong_server.engine.answering.sessions import SessionTurns
from everlong_server.engine.answering.turn import TurnRunner
from everlong_server.engine.batches.tenant_batches import TenantBatches
from everlong_server.engine.documents.ingest import Ingest
from everlong_server.engine.documents.inline import wait_until_read
from everlong_server.engine.documents.multipart_uploads import MultipartUploads
from everlong_server.engine.embeddings import TextEmbeddings
from everlong_server.errors import StateUnusable
from everlong_server.services.shared import Shared
from everlong_server.store.documents import Documents
from everlong_server.store.idempotency import IdempotencyRecords
from everlong_server.store.records import Session
from everlong_server.store.search.conversations import Conversations
from everlong_server.store.search.passages import Passages
from everlong_server.store.sessions import Sessions
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.vector_stores.stores import VectorStores

_QUESTION_TOKENS = 256
"""Tokens of the model's context that recall leaves free for the question and its answer (half of a short context)."""


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that a request of one tenant needs. Objects of other tenants cannot be reached through its stores."""

    shared: Shared
    """The parts of the server with the model of these services."""
    held: AsyncExitStack
    """Keeps the models that the request uses loaded, until it ends."""
    tenant: str
    quota: Quota
    idempotency: IdempotencyRecords
    documents: Documents
    passages: Passages
    sessions: Sessions
    conversations: Conversations
    vector_stores: VectorStores
    ingest: Ingest
    multipart_uploads: MultipartUploads
    session_turns: SessionTurns
    chat_turns: ChatTurns
    response_turns: ResponseTurns
    completions: Completions
    memory_views: MemoryViews
    search: TextSearch
    store_search: StoreSearch
    embeddings: TextEmbeddings
    batches: TenantBatches

    @property
    def recall(self) -> Recall:
        """The server's default recall. Leaves part of the model's context free for the question and the answer."""
        settings, visible_tokens = self.shared.settings, self.shared.model.memory.visible_tokens
        wanted = settings.recall_tokens or template_of(self.shared.model).tokens
        tokens = min(wanted, max(visible_tokens // 2, visible_tokens - _QUESTION_TOKENS))
        return Recall(settings.recall_passages, tokens)

    async def with_model(self, name: str | None) -> Services:
        """Return these services with the model `name` (None: the one that they have), which stays loaded until the request ends.

        Waits while it is loaded. Raises `NotFound`, and `Unavailable` if it cannot be loaded or does not fit into memory.
        """
        if name in (None, self.shared.model.name):
            return self
        return tenant_services(await self.shared.models.acquire(name, self.held), self.tenant, self.held)

    async def with_model_of(self, session: Session) -> Services:
        """Return these services with the session's model. Raises `StateUnusable` if the server does not serve it, and `Unavailable`."""
        models = self.shared.models
        if all(session.model_name != model.name for model in models.all):
            raise StateUnusable(
                f"session {session.id!r} was created with model {session.model_name!r} (fingerprint {session.model[:12]}…); "
                f"this server serves {models.names}: create a new session", param="session_id",
            )  # fmt: skip
        return await self.with_model(session.model_name)

    async def wait_for_memory(self, documents: Sequence[str], *, inline: bool = False) -> None:
        """Return once these services' model has read the documents, if the client cannot see how far it is. Raises `ServerError`.

        Documents show only the progress of the first model. `inline`: the request has the content of a file, not the id.
        """
        if documents and (inline or self.shared is not self.shared.models.first):
            await wait_until_read(self.ingest, documents)

    def holding(self, held: AsyncExitStack) -> Services:
        """Return these services for work that ends with `held`, such as one message of a WebSocket."""
        return replace(self, held=held)


def tenant_services(shared: Shared, tenant: str, held: AsyncExitStack | None = None) -> Services:
    """Build the services of a tenant. Cheap: tenants share the engine and the connections.

    `held`: keeps the models that a request uses loaded; None: the services use only the model of `shared`.
    """
    settings, stores, engine, token_offsets = shared.settings, shared.stores, shared.engine, shared.token_offsets
    quota, documents, sessions = stores.quota.of(tenant), stores.documents.of(tenant), stores.sessions.of(tenant)
    chats, passages = stores.chats.of(tenant), shared.passages(documents)
    turns = TurnRunner(
        engine, passages, token_offsets, shared.metrics, shared.tracing, quota,
        max_message_chars=settings.max_message_chars,
    )  # fmt: skip
    session_turns = SessionTurns(
        turns, engine, sessions, documents, shared.metrics, lease_seconds=settings.lease_seconds
    )
    chat_turns = ChatTurns(turns, engine, chats, documents)
    ingest = Ingest(
        engine,
        shared.redis,
        stores.blobs,
        documents,
        quota,
        chats,
        passages,
        token_offsets,
        settings.max_document_bytes,
        settings.language,
    )
    search, vector_stores = TextSearch(engine, passages, token_offsets, quota), stores.vector_stores.of(tenant)
    store_search = StoreSearch(vector_stores, search, passages)
    return Services(
        shared=shared,
        held=held or AsyncExitStack(),
        tenant=tenant,
        quota=quota,
        idempotency=stores.idempotency.of(tenant),
        documents=documents,
        passages=passages,
        sessions=sessions,
        conversations=stores.conversations.of(tenant),
        vector_stores=vector_stores,
        ingest=ingest,
        multipart_uploads=MultipartUploads(ingest, stores.uploads.of(tenant), settings.upload_seconds),
        session_turns=session_turns,
        chat_turns=chat_turns,
        response_turns=ResponseTurns(
            chat_turns, engine, stores.responses.of(tenant), chats, stores.background_jobs, quota, store_search
        ),
        completions=Completions(engine, quota, shared.metrics, shared.tracing),
        memory_views=MemoryViews(engine, session_turns, sessions, documents, token_offsets, quota),
        search=search,
        store_search=store_search,
        embeddings=TextEmbeddings(shared.embedder, engine, quota, shared.metrics),
        batches=TenantBatches(
            engine, stores.batches.of(tenant), stores.batch_files.of(tenant), stores.blobs, stores.batch_jobs, quota,
            settings.max_batch_bytes,
        ),
    )  # fmt: skip
