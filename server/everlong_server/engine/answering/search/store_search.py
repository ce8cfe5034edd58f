"""`StoreSearch`: passages of the documents in vector stores, for one or more queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everlong_server.engine.answering.search.text_search import MAX_DOCUMENTS, TextSearch
from everlong_server.errors import InvalidRequest, missing_in
from everlong_server.store.records import new_id
from everlong_server.store.search.passages import Passages
from everlong_server.store.texts.passage import Passage
from everlong_server.store.vector_stores.file_search import SearchCall, SearchResult
from everlong_server.store.vector_stores.filters import accepts
from everlong_server.store.vector_stores.records import StoredFile
from everlong_server.store.vector_stores.stores import MAX_FILES, VectorStores


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found in a file of a vector store."""

    file: StoredFile
    passage: Passage


class StoreSearch:
    """Searches one tenant's vector stores."""

    def __init__(self, stores: VectorStores, search: TextSearch, passages: Passages) -> None:
        self._passages = passages
        self._stores = stores
        self._search = search

    async def files(
        self, store_ids: Sequence[str], filter: Mapping[str, Any] | None, param: str
    ) -> dict[str, StoredFile]:
        """Return the files of the stores that pass `filter`, by document id. A document's first reference counts.

        Raises `NotFound`, and `InvalidRequest` if there are more than one search takes. `param`: the field that names the stores.
        """
        files: dict[str, StoredFile] = {}
        for store_id in store_ids:
            with missing_in(param):
                page, _ = await self._stores.files(store_id, MAX_FILES)
            for file in page:
                if file.document not in files and accepts(filter, file.attributes):
                    files[file.document] = file
        if len(files) > MAX_DOCUMENTS:
            raise InvalidRequest(
                f"{param}: {len(files)} files would be searched, the limit is {MAX_DOCUMENTS}: name fewer vector stores, or filter",
                param=param,
            )
        return files

    async def search(
        self, files: dict[str, StoredFile], queries: Sequence[str], limit: int, threshold: float, *, rerank: bool = True
    ) -> list[Hit]:
        """Return at most `limit` passages of the files, best first, with a score of at least `threshold`.

        A passage that several queries find has the best of its scores. Raises the errors of `TextSearch.search`.
        """
        best: dict[tuple[str, int], Passage] = {}
        for query in queries if files else ():
            for passage in await self._search.search(list(files), query, limit, rerank=rerank):
                place = (passage.document, passage.start)
                if place not in best or best[place].score < passage.score:
                    best[place] = passage
        found = sorted(best.values(), key=lambda passage: -passage.score)
        return [Hit(files[each.document], each) for each in found if each.score >= threshold][:limit]

    async def call(self, question: str, files: Mapping[str, StoredFile], evidence: Sequence[Passage]) -> SearchCall:
        """Return the search that an answer to `question` rests on: which passages of `files` are among its evidence."""
        shown = [passage for passage in evidence if passage.document in files]
        names = await self._passages.filenames({passage.document for passage in shown})
        results = [
            SearchResult(
                passage.document,
                names.get(passage.document),
                passage.score,
                passage.text,
                files[passage.document].attributes,
            )
            for passage in shown
        ]
        return SearchCall(new_id("fs"), (question,), tuple(results))
