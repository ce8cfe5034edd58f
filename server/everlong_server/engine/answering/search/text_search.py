"""`TextSearch`: passages of documents for a text, without an answer."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_server.engine.admission import admitted
from everlong_server.engine.answering.search.question import passage_query
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.store.search.passages import SEARCHERS, Passages
from everlong_server.store.search.query import PassageFilter
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.passage import Passage

MAX_DOCUMENTS = 256
"""Maximum number of documents in one search. Each has two open files while it is searched."""


class TextSearch:
    """Searches one tenant's documents."""

    def __init__(self, engine: Engine, passages: Passages, token_offsets: TokenOffsets, quota: Quota) -> None:
        self._engine = engine
        self._passages = passages
        self._token_offsets = token_offsets
        self._quota = quota

    async def search(
        self,
        documents: Sequence[str],
        text: str,
        limit: int,
        only: PassageFilter | None = None,
        *,
        rerank: bool = True,
    ) -> list[Passage]:
        """Return at most `limit` passages of the documents, best first, with their token offsets, pages and sections.

        Skips deleted documents. Counts as one of the tenant's answers. Raises `Overloaded`, `Unavailable` and `RateLimited`.
        """
        async with admitted(self._engine, self._quota):
            query = await SEARCHERS.run(passage_query, text)
            found = await self._passages.rank(documents, query, limit, only, rerank=rerank)
            return await self._passages.located(await self._token_offsets.with_tokens(found))
