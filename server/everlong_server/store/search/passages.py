"""`Passages`: cuts documents into passages of about seventy words, and finds passages by words and by meaning.

Each document has an index of words, a sidecar built from its text alone: FTS5 keeps the terms of each passage and of the headings above it.
Its vectors follow in the background; until then, the search is by words. Passages of all documents of a search are ranked together.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from everlong_models.text.reranker import Reranker
from everlong_server.errors import Damaged, NotFound
from everlong_server.pools import Pool
from everlong_server.store.records import Document
from everlong_server.store.search import sentences, word_index
from everlong_server.store.search.choosing import WHOLE, Chosen, choose, choose_in_part, has_few_pages, shown_whole
from everlong_server.store.search.numbered import NamedPart, named_part
from everlong_server.store.search.overview import Overview, overview, samples
from everlong_server.store.search.query import PassageFilter, Query
from everlong_server.store.search.ranking import Indexed, Ints, Ranking, accepted, rank
from everlong_server.store.search.reranking import CANDIDATES, reranked_passages
from everlong_server.store.search.vectors import Vectors
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from everlong_server.store.texts.sidecar import DocumentLookup, Sidecar

log = logging.getLogger(__name__)
SEARCHERS = Pool("everlong-search", 4)
"""Threads of searches without an answer. Such a search continues after its client has disconnected; answers do not wait for it."""


@dataclass(frozen=True, slots=True)
class Found:
    """`passages`: what a search found, in the order in which to take them. `overview`: of the documents, if the query is about the whole
    text; None otherwise. `doubtful`: the search would say that the texts have nothing about the query. `english`, `few_pages`: all of the
    texts are English; they have a few pages together."""

    passages: list[Passage]
    overview: Overview | None = None
    doubtful: bool = False
    english: bool = False
    few_pages: bool = False


_T = TypeVar("_T")
_Search = Callable[[Sequence[Document], NDArray[np.float32] | None, list[Document]], _T]
"""Searches documents for the vector of a query, and adds those with damaged vectors to the list."""
_Threads = Callable[..., Awaitable[_T]]
"""Runs a function with its arguments on a thread."""


class Passages:
    """Indexes and searches the passages of documents."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup, vectors: Vectors | None = None) -> None:
        """`vectors`: None to search by words alone."""
        self._blobs = blobs
        self._documents = documents
        self._sidecar = Sidecar(blobs, documents)
        self._vectors = vectors

    async def ensure(self, document: Document) -> None:
        """Build the document's index of words unless it exists, and begin to build its vectors. Cancelling ends the build soon."""
        await self._sidecar.ensure(document, _name(document.id), partial(word_index.build, self._blobs, document))
        if self._vectors is not None:
            self._vectors.begin(document)

    async def vectors_progress(self, document_id: str) -> float | None:
        """Return the share of the document that can be searched by meaning, 0 to 1; None: it is searched by words alone."""
        return None if self._vectors is None else await self._vectors.progress(document_id)

    async def delete(self, document_id: str) -> None:
        """Delete the document's index and vectors. Does nothing if there are none."""
        if self._vectors is not None:
            self._vectors.stop(document_id)
        await self._blobs.delete(_name(document_id))
        await self._blobs.delete_all(f"{document_id}.vectors.*")

    async def find(self, documents: Sequence[str], query: Query, limit: int, *, by_sentences: bool = False) -> Found:
        """Return at most `limit` passages of `documents` for the query. No passage: the documents have nothing about it.

        The reranker orders them, or their sentences. `by_sentences`: return the sentences of these passages, each as a passage. If the
        query is about the whole text, or a part with a number, such as "chapter 6": the beginnings of passages that cover it, and the
        best ones. Of the passages for any other question that names a part, most are from there.

        Deleted documents are skipped. Missing and damaged indexes are built first. Missing and damaged vectors are built in the background:
        until then, the search in their document is by words alone.
        """
        return await self._searched(
            documents, query.text, partial(self._search, query, limit, by_sentences), asyncio.to_thread
        )

    async def rank(
        self,
        documents: Sequence[str],
        query: Query,
        limit: int,
        only: PassageFilter | None = None,
        *,
        rerank: bool = True,
    ) -> list[Passage]:
        """Return at most `limit` passages of `documents`, best first, whether or not they are about the query.

        `score` is the passage's relevance: 1 if it is first in the order of the search and in the reranker's. `only`: which passages to
        consider. `rerank`: whether the reranker orders the best ones. Treats deleted documents, and missing and damaged indexes and
        vectors, as `find` does.
        """
        search = partial(self._rank, query, limit, only, rerank)
        return await self._searched(documents, query.text, search, SEARCHERS.run)

    async def _searched(self, documents: Sequence[str], text: str, search: _Search[_T], threads: _Threads[_T]) -> _T:
        """Return what `search` finds in those of `documents` that exist, with their indexes. `text`: of the query."""
        existing = []
        for document_id in documents:
            with contextlib.suppress(NotFound):
                document = await self._documents.get(document_id)
                await self.ensure(document)
                existing.append(document)
        vector = None
        if self._vectors is not None and existing:
            vector = await self._vectors.of_query(text)
        try:
            return await self._found(existing, vector, search, threads)
        except (sqlite3.DatabaseError, Damaged) as error:
            for document in existing:
                build = partial(word_index.build, self._blobs, document)
                await self._sidecar.repair(
                    document, _name(document.id), build, partial(self._is_damaged, document, error)
                )
        return await self._found(existing, vector, search, threads)

    async def _found(
        self, documents: Sequence[Document], vector: NDArray[np.float32] | None, search: _Search[_T],
        threads: _Threads[_T],
    ) -> _T:  # fmt: skip
        """Search the documents, whose indexes exist, and have damaged vectors built again."""
        damaged: list[Document] = []
        found = await threads(search, documents, vector, damaged)
        for document in damaged:
            if self._vectors is not None:
                await self._vectors.rebuild(document)
        return found

    async def located(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return `passages` with the page and section that each begins in, if its document has these."""
        outlines: dict[str, list[outline.OutlineEntry]] = {}
        for document_id in {passage.document for passage in passages}:
            with contextlib.suppress(NotFound):
                document = await self._documents.get(document_id)
                outlines[document_id] = (
                    await asyncio.to_thread(outline.load, self._blobs, document_id) if document.format else []
                )
        entries = [outline.at(outlines.get(passage.document, ()), passage.start) for passage in passages]
        return [
            replace(passage, page=entry.page, section=entry.section) if entry else passage
            for passage, entry in zip(passages, entries, strict=True)
        ]

    async def filenames(self, documents: Collection[str]) -> dict[str, str | None]:
        """Return the file names of those of `documents` that exist."""
        names = {}
        for document_id in documents:
            with contextlib.suppress(NotFound):
                names[document_id] = (await self._documents.get(document_id)).filename
        return names

    async def shown_whole(self, documents: Sequence[str]) -> bool:
        """Whether a question gets all of `documents` that exist, because they are so short."""
        existing: list[Document] = []
        for document_id in documents:
            with contextlib.suppress(NotFound):
                existing.append(await self._documents.get(document_id))
            if not shown_whole(existing):  # a search can have hundreds of documents
                return False
        return True

    async def all_indexed(self, documents: Sequence[str]) -> bool:
        """Whether all of `documents` exist and have an index. Only then does an empty result mean that nothing matches."""
        for document_id in documents:
            try:
                await self._documents.get(document_id)
            except NotFound:
                return False
            if not await asyncio.to_thread(self._blobs.exists, _name(document_id)):
                return False
        return True

    def _search(
        self, query: Query, limit: int, by_sentences: bool, documents: Sequence[Document],
        vector: NDArray[np.float32] | None, damaged: list[Document],
    ) -> Found:  # fmt: skip
        """Search the documents. Adds those with damaged vectors to `damaged`. Blocks."""
        similarity = None if vector is None or self._vectors is None else partial(self._vectors.similarity, vector)
        with contextlib.ExitStack() as stack:
            searched, parts = self._parts(documents, stack, damaged)
            named = named_part(query, parts)
            ranking = rank(parts, query.words, vector, query.figures)
            reranker = self._reranker(parts)
            score_sentences = None if reranker is None else partial(reranker.scores, query.text)
            candidates = limit if score_sentences is None or by_sentences else max(limit, CANDIDATES)
            chosen = self._chosen(query, vector, parts, ranking, named, limit, candidates)

            def read(numbers: Sequence[int]) -> list[Passage]:
                return _numbered([p for n in numbers if (p := self._passage(n, searched, parts, ranking)) is not None])

            if chosen.cover:
                found = read(chosen.in_turns(limit, best=1 if by_sentences else None))
                if by_sentences:
                    # Sentences of more passages tell more of a text than whole passages. Its first passages name its subject.
                    best = found[: len(chosen.best[:1])]
                    found = [p if p in best or p.start < sentences.TITLE else sentences.first(p) for p in found]
                return Found(found, self._overview(searched, parts, ranking.first, named))
            found = read(chosen.best)
            by_document = {document.id: part for document, part in zip(searched, parts, strict=True)}
            if found and by_sentences:
                where = next(n for n, document in enumerate(searched) if document.id == found[0].document)
                start, end = ranking.first[where : where + 2]
                own = () if named is None else named.within(start, end)
                beginning = self._passage(int([*own, start][0]), searched, parts, ranking)
                how = (similarity, by_document, beginning, score_sentences, partial(self._header, searched, parts))
                found = sentences.ordered(found, query.words, *how, query.figures)
            elif score_sentences is not None:
                order = reranked_passages(found, by_document, score_sentences)
                found = _numbered([found[n] for n, _ in order[:limit]])
        english = all(part.language == "en" for part in parts)
        return Found(found, None, chosen.doubtful, english, has_few_pages(parts))

    def _reranker(self, parts: Sequence[Indexed]) -> Reranker | None:
        """Return the reranker, if it can read any of the documents: it knows the languages that have vectors."""
        readable = any(part.vectors is not None for part in parts)
        return self._vectors.reranker if self._vectors is not None and readable else None

    def _chosen(
        self, query: Query, vector: NDArray[np.float32] | None, parts: Sequence[Indexed], ranking: Ranking,
        named: NamedPart | None, limit: int, best: int,
    ) -> Chosen:  # fmt: skip
        whole = 0.0
        if vector is not None and self._vectors is not None:
            vector = vector if named is None else self._vectors.of_text(named.question)
            whole = self._vectors.nearest(vector, WHOLE)
            if named is None and query.alone is not None:  # the question before can be about the whole text
                whole = min(whole, self._vectors.nearest(self._vectors.of_text(query.alone), WHOLE))
        if named is None:
            return choose(query, parts, ranking, limit, whole, best)
        without_name = rank(parts, query.words, vector, query.figures)
        return choose_in_part(query, parts, ranking, limit, best, named, without_name, whole)

    def _overview(
        self, documents: Sequence[Document], parts: Sequence[Indexed], first: Ints, named: NamedPart | None
    ) -> Overview:
        of_part = [named.within(*of) - of[0] if named else None for of in pairwise(first)]
        shown = [found for found in zip(documents, parts, of_part, strict=True) if found[2] is None or len(found[2])]

        def texts() -> Iterator[str]:
            for each, part, own in shown:
                with contextlib.suppress(FileNotFoundError), self._blobs.open(each.id, each.text_offset) as file:
                    for start_byte, size in word_index.stretches(part.index, own):
                        yield from samples(file, each.text_offset + start_byte, size)

        return overview((document.filename for document, *_ in shown), texts(), named.name if named else None)

    def _rank(
        self, query: Query, limit: int, only: PassageFilter | None, rerank: bool, documents: Sequence[Document],
        vector: NDArray[np.float32] | None, damaged: list[Document],
    ) -> list[Passage]:  # fmt: skip
        """Rank the passages of the documents, as `_search` does. Blocks."""
        with contextlib.ExitStack() as stack:
            searched, parts = self._parts(documents, stack, damaged)
            ranking = rank(parts, query.words, vector, query.figures)
            relevance = ranking.relevance
            if only is not None:
                relevance = np.where(accepted(parts, only), relevance, 0)
            reranker = self._reranker(parts) if rerank else None
            found, scores = list[Passage](), list[float]()
            for n in np.argsort(-relevance, kind="stable")[: limit if reranker is None else max(limit, CANDIDATES)]:
                passage = self._passage(int(n), searched, parts, ranking) if relevance[n] > 0 else None
                if passage is not None:
                    found.append(passage)
                    scores.append(float(relevance[n]))
            order = list(enumerate(scores))
            if reranker is not None:
                by_document = {document.id: part for document, part in zip(searched, parts, strict=True)}
                order = reranked_passages(found, by_document, partial(reranker.scores, query.text))[:limit]
        return [replace(found[n], score=round(score, 4)) for n, score in order]

    def _parts(
        self, documents: Sequence[Document], stack: contextlib.ExitStack, damaged: list[Document]
    ) -> tuple[list[Document], list[Indexed]]:
        """Return the documents that still exist, and the part of a search that each is. `stack` keeps their files."""
        searched: list[Document] = []
        parts: list[Indexed] = []
        for document in documents:
            with contextlib.suppress(FileNotFoundError):  # the document was deleted meanwhile
                path = stack.enter_context(self._blobs.local(_name(document.id)))
                parts.append(self._part(document, stack.enter_context(word_index.opened(path)), stack, damaged))
                searched.append(document)
        return searched, parts

    def _passage(
        self, n: int, documents: Sequence[Document], parts: Sequence[Indexed], ranking: Ranking
    ) -> Passage | None:
        """Return a ranked passage by its number, without its score; None if the document was deleted meanwhile."""
        which = int(np.searchsorted(ranking.first, n, side="right")) - 1
        passage = self._read(documents[which], *word_index.place_of(parts[which].index, int(n - ranking.first[which])))
        similarity = round(float(ranking.similarities[n]), 4) if parts[which].vectors is not None else None
        share, figures = round(float(ranking.shares[n]), 3), float(ranking.figures[n])
        return passage and replace(passage, share=share, similarity=similarity, figures=figures)

    def _header(self, documents: Sequence[Document], parts: Sequence[Indexed], sentence: Passage) -> Passage | None:
        """Return the row that names the columns of the table that a sentence is in; None if it is in none."""
        where = next(n for n, document in enumerate(documents) if document.id == sentence.document)
        found = word_index.header_at(parts[where].index, sentence.start)
        return None if found is None else self._read(documents[where], *found)

    def _read(self, document: Document, start: int, end: int, start_byte: int, end_byte: int) -> Passage | None:
        """Return a part of a document, in characters and bytes, as a passage; None if the document was deleted meanwhile."""
        try:
            with self._blobs.open(document.id, document.text_offset + start_byte) as file:
                text = file.read(end_byte - start_byte).decode()
        except FileNotFoundError:
            return None
        return Passage(document.id, start, end, start_byte, end_byte, text)

    def _part(self, document: Document, index: Any, stack: contextlib.ExitStack, damaged: list[Document]) -> Indexed:
        """Return the document's part of a search, for which `stack` keeps its files. Damaged vectors are left out."""
        word_index.check_layout(index)
        size, end = index.execute("SELECT id + 1, end_byte FROM passages ORDER BY id DESC LIMIT 1").fetchone() or (0, 0)
        language = index.execute("SELECT language FROM document").fetchone()[0]
        vectors = None
        if self._vectors is not None:
            try:
                vectors = stack.enter_context(self._vectors.of(document.id, size))
            except Damaged as error:
                log.warning("the vectors of document %s are damaged and are built again: %s", document.id, error)
                damaged.append(document)
        load = partial(outline.load, self._blobs, document.id) if document.format else tuple
        return Indexed(index, size, end, language, vectors, load)

    def _is_damaged(self, document: Document, error: Exception) -> bool:
        """Whether the document's index is damaged. `error`: the error of the search, for the log."""
        with contextlib.suppress(FileNotFoundError), self._blobs.local(_name(document.id)) as path:
            if not word_index.is_intact(path):
                log.warning("the index of document %s is damaged and is built again: %s", document.id, error)
                return True
        return False  # intact, or the document was deleted meanwhile


def _numbered(passages: Sequence[Passage]) -> list[Passage]:
    """Return the passages, each with 1 ÷ its place as its score."""
    return [replace(passage, score=round(1 / place, 3)) for place, passage in enumerate(passages, 1)]


def _name(document_id: str) -> str:
    return f"{document_id}.passages"
