"""`Passages`: the text of a document in passages of about seventy words, and an index to find them by words.

The index is one SQLite file beside the text, made from the text alone: FTS5 keeps the postings and stems the words, in
bounded memory and without Python's lock. It appears under its name when it is complete, so whoever finds none makes it.
Ranking is BM25 over all documents that are searched together, so that their scores can be compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import math
import re
import sqlite3
import sys
import threading
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from everlong_server.errors import Damaged, NotFound
from everlong_server.store.records import Document
from everlong_server.store.texts import outline
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.sidecar import BuildCancelled, DocumentLookup, Sidecar

log = logging.getLogger(__name__)

# Bytes of a passage: of English 55 to 80 words; of a script with longer characters, fewer characters and as many tokens.
_SHORTEST, _LONGEST = 300, 460
_BLOCK = 1 << 20
_AT_ONCE = 512
# Greedy before it, so that a match ends with the last one. A byte of its own begins each, or all else is tried everywhere.
_END = re.compile(
    rb"(?s:.*)(?:"
    rb"[.!?](?<!\bMr.)(?<!\bMrs.)(?<!\bDr.)(?<!\bSt.)(?:[\"')\]*_]|\xe2\x80[\x99\x9d]|\xc2\xbb)*\s+"
    rb"|\n\s*\n\s*|\xe3\x80\x82|\xef\xbc[\x81\x9f]|\xe0\xa5\xa4)"
)
_SPACE = re.compile(rb"(?s:.*)\s")
_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
"""Scripts that do not tell words apart (Thai, Lao, Burmese, Khmer, Japanese, Chinese), or inflect them (Korean): each
character counts as a word."""
_PIECE = re.compile(r"\S{1,256}|\s+")

_K1 = 1.2
_BESIDE = 0.4
"""The share of each neighbour's score that a passage gets."""
_STRETCH = 4
"""So many passages in a row, but at most a quarter of all, are found as one where they have most of what is asked for: "he" and
"there" are of a sentence before (docs/lab-notes.md)."""
_HEAVIEST = 6
"""So many of the query's words, the rarest, are what a passage is measured by."""

_MAPPED = 1 << 30
"""Bytes of an index that are read where the system's cache has them, without a copy."""
_WORDS = "USING fts5(text, content='', columnsize=0, tokenize='porter unicode61')"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document. `start`, `end`: characters of the text; `start_byte`, `end_byte`: of its UTF-8.

    `start_token`, `end_token`: tokens of the text that any of its characters are in, as a model counts them; None until
    `engine.token_offsets` has told. `score`: BM25. `share`: how much of what was asked for it has, 0 … 1, rare words weighing more. `page`, `section`: where
    it begins, in a document that has these.
    """

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    text: str
    score: float = 0.0
    share: float = 0.0
    page: int | None = None
    section: str | None = None
    start_token: int | None = None
    end_token: int | None = None


class SearchMissing(Exception):
    """This Python's SQLite was built without full-text search."""


def require_search() -> str:
    """The version of SQLite. Raises `SearchMissing` if passages cannot be indexed with it."""
    with contextlib.closing(sqlite3.connect(":memory:")) as scratch:
        try:
            scratch.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
        except sqlite3.DatabaseError as error:
            raise SearchMissing(
                f"the SQLite {sqlite3.sqlite_version} of {sys.executable} cannot index passages ({error}): "
                "it takes a Python whose SQLite has FTS5, as those of python.org, Debian, conda and uv have"
            ) from error
    return sqlite3.sqlite_version


def split(file: IO[bytes], document: str = "") -> Iterator[Passage]:
    """The UTF-8 text in `file` as passages without gaps, in bounded memory. They end with a sentence where there is one,
    else with a word, else at the greatest length."""
    buffer, at, start, start_byte, more = b"", 0, 0, 0, True
    while True:
        while more and len(buffer) - at < _LONGEST:
            block = file.read(_BLOCK)
            more = bool(block)
            buffer, at = buffer[at:] + block, 0
        window = buffer[at : at + _LONGEST]
        if not window:
            return
        cut = _cut(window) if len(window) == _LONGEST else len(window)
        text = window[:cut].decode()
        end, end_byte = start + len(text), start_byte + cut
        yield Passage(document, start, end, start_byte, end_byte, text)
        at, start, start_byte = at + cut, end, end_byte


def _cut(window: bytes) -> int:
    for pattern, shortest in ((_END, _SHORTEST), (_END, _SHORTEST // 2), (_SPACE, 1)):
        if last := pattern.match(window, shortest):
            return last.end()
    cut = len(window) - 1
    while window[cut] & 0xC0 == 0x80:  # inside a character
        cut -= 1
    return cut


class Passages:
    """The passages of all documents."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup) -> None:
        self._blobs = blobs
        self._documents = documents
        self._beside = Sidecar(blobs, documents)

    async def ensure(self, document: Document) -> None:
        """Makes the document's index unless it is there, or the document is not. Cancelling ends it soon."""
        await self._beside.ensure(document, _name(document.id), partial(self._build, document))

    async def delete(self, document_id: str) -> None:
        """Removes the document's index; no error if there is none."""
        await self._blobs.delete(_name(document_id))

    async def search(self, documents: Sequence[str], words: Mapping[str, float], limit: int) -> list[Passage]:
        """At most `limit` passages of `documents` that have some of `words`, by how much these weigh.

        First the stretch of a document that has most, all of it with the score of its best passage; then single ones, the best
        first, equals in the order of the text. Documents that were deleted have none. A missing index is made, a damaged one
        once again.
        """
        there = []
        for document_id in documents:
            with contextlib.suppress(NotFound):
                document = await self._documents.get(document_id)
                await self.ensure(document)
                there.append(document)
        try:
            return await asyncio.to_thread(self._search, there, words, limit)
        except (sqlite3.DatabaseError, Damaged) as error:
            for document in there:
                damaged, build = partial(self._damaged, document, error), partial(self._build, document)
                await self._beside.mend(document, _name(document.id), build, damaged)
        return await asyncio.to_thread(self._search, there, words, limit)

    async def located(self, passages: Sequence[Passage]) -> list[Passage]:
        """`passages` with the page and the section that each begins in, where its document has these."""
        there: dict[str, list[outline.OutlineEntry]] = {}
        for document_id in {passage.document for passage in passages}:
            with contextlib.suppress(NotFound):
                document = await self._documents.get(document_id)
                there[document_id] = (
                    await asyncio.to_thread(outline.load, self._blobs, document_id) if document.format else []
                )
        found = [(passage, outline.at(there.get(passage.document, ()), passage.start)) for passage in passages]
        return [replace(passage, page=mark.page, section=mark.section) if mark else passage for passage, mark in found]

    async def complete(self, documents: Sequence[str]) -> bool:
        """Whether all of `documents` can be searched: what is not found then is not there."""
        for document_id in documents:
            try:
                await self._documents.get(document_id)
            except NotFound:
                return False
            if not await asyncio.to_thread(self._blobs.exists, _name(document_id)):
                return False
        return True

    def _build(self, document: Document, path: Path, stop: threading.Event) -> None:
        try:
            self._index(document, path, stop)
        except sqlite3.OperationalError as error:  # it cannot write: that is no fault of the text
            full = error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
            number = errno.ENOSPC if full else errno.EIO
            raise OSError(number, f"the index of document {document.id} cannot be written: {error}") from error

    def _index(self, document: Document, path: Path, stop: threading.Event) -> None:
        with (
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index,
            self._blobs.open(document.id, document.text_offset) as file,
        ):
            # The file counts only when it is complete: until then there is nothing to journal.
            index.execute("PRAGMA journal_mode = OFF")
            index.execute("PRAGMA synchronous = OFF")
            index.execute("PRAGMA temp_store = MEMORY")  # no part of a text lies where nobody looks for it
            index.execute("BEGIN")
            index.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, start, end, start_byte, end_byte)")
            index.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
            index.execute("CREATE VIRTUAL TABLE places USING fts5vocab(words, 'instance')")
            passages = enumerate(split(file))
            while some := list(islice(passages, _AT_ONCE)):
                if stop.is_set():
                    raise BuildCancelled
                rows = ((n, p.start, p.end, p.start_byte, p.end_byte) for n, p in some)
                index.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
                index.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", ((n, plain(p.text)) for n, p in some))
            index.execute("COMMIT")

    def _search(self, documents: Sequence[Document], words: Mapping[str, float], limit: int) -> list[Passage]:
        terms = _stems(words)
        with contextlib.ExitStack() as stack:
            indexes: list[tuple[Document, Any]] = []
            for document in documents:
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    path = stack.enter_context(self._blobs.local(_name(document.id)))
                    indexes.append((document, stack.enter_context(opened(path))))
            ranked = _rank([index for _, index in indexes], terms, limit)
            found = []
            for score, share, which, n in ranked:
                document, index = indexes[which]
                start, end, start_byte, end_byte = index.execute(
                    "SELECT start, end, start_byte, end_byte FROM passages WHERE id = ?", (n,)
                ).fetchone()
                with (
                    contextlib.suppress(FileNotFoundError),
                    self._blobs.open(document.id, document.text_offset + start_byte) as file,
                ):
                    text = file.read(end_byte - start_byte).decode()
                    found.append(Passage(document.id, start, end, start_byte, end_byte, text, score, share))
        return found

    def _damaged(self, document: Document, error: Exception) -> bool:
        """Whether the document's index cannot be read, as an `error` suggests."""
        try:
            with self._blobs.local(_name(document.id)) as path, opened(path) as index:
                index.execute("SELECT count(*) FROM passages")  # an empty file is a database, and whole
                index.execute("SELECT count(*) FROM places")
                sound = index.execute("PRAGMA quick_check").fetchone()[0] == "ok"
        except FileNotFoundError:  # deleted meanwhile
            return False
        except (sqlite3.DatabaseError, Damaged):
            sound = False
        if not sound:
            log.warning("the index of document %s is damaged and made again: %s", document.id, error)
        return not sound


def opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """An index to search in, which nobody changes any more."""
    index = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    index.execute(f"PRAGMA mmap_size = {_MAPPED}")
    return contextlib.closing(index)


def _rank(indexes: Sequence[Any], terms: Mapping[str, float], limit: int) -> list[tuple[float, float, int, int]]:
    """The best stretch's passages, then the best others: score, share, number of the index, number of the passage."""
    if not indexes:
        return []
    sizes = [index.execute("SELECT max(id) + 1 FROM passages").fetchone()[0] or 0 for index in indexes]
    first = np.cumsum([0, *sizes])  # passages of all indexes are counted through
    scores, shares = np.zeros(first[-1], np.float32), np.zeros(first[-1], np.float32)
    weights = []
    for term, weight in terms.items():
        places = [_places(index, term) + first[n] for n, index in enumerate(indexes)]
        where, count = np.unique(np.concatenate(places), return_counts=True)
        idf = weight * math.log(1 + (first[-1] - len(where) + 0.5) / (len(where) + 0.5))
        weights.append(idf)
        scores[where] += idf * count * (_K1 + 1) / (count + _K1)
        shares[where] += idf
    shares /= sum(sorted(weights)[-_HEAVIEST:]) or 1
    found = np.flatnonzero(scores)
    scores = _with_neighbours(scores, first)
    together = _stretch(scores, first, max(1, min(_STRETCH, limit // 4))) if len(found) else []
    scores[together] = max(scores[together], default=0)
    others = found[np.argsort(-scores[found], kind="stable")]
    best = np.array([*together, *others[~np.isin(others, together)]][:limit], np.int64)
    which = np.searchsorted(first, best, side="right") - 1
    return [
        (round(float(scores[i]), 3), min(1.0, float(shares[i])), int(w), int(i - first[w]))
        for i, w in zip(best, which, strict=True)
    ]


def _stretch(scores: NDArray[np.float32], first: NDArray[np.int64], length: int) -> list[int]:
    """The `length` passages in a row, of one document, that have most: the best of them, and on from there."""
    most, at = 0.0, range(0)
    for start, end in pairwise(first.tolist()):
        if size := min(length, end - start):
            sums = sliding_window_view(scores[start:end], size).sum(axis=1)
            if sums.max() > most:
                most, begin = float(sums.max()), start + int(sums.argmax())
                at = range(begin, begin + size)
    peak = max(at, key=lambda n: scores[n])
    return sorted(at, key=lambda n: (abs(n - peak), -scores[n]))


def _with_neighbours(scores: NDArray[np.float32], first: NDArray[np.int64]) -> NDArray[np.float32]:
    """`scores` with a part of what stands next to each passage: who is spoken of is often named a passage before."""
    before, after = np.zeros_like(scores), np.zeros_like(scores)
    before[1:], after[:-1] = scores[:-1], scores[1:]
    before[first[:-1][np.diff(first) > 0]] = 0  # documents are no neighbours
    after[first[1:][np.diff(first) > 0] - 1] = 0
    return scores + _BESIDE * (before + after)


def _places(index: Any, term: str) -> NDArray[np.int64]:
    """The numbers of the passages that have `term`, as often as they have it."""
    # As one string: a row each would cost three times as much.
    row = index.execute("SELECT group_concat(doc) FROM places WHERE term = ?", (term,)).fetchone()
    return np.fromstring(row[0] or "", np.int64, sep=",")


def _stems(words: Mapping[str, float]) -> dict[str, float]:
    """`words` as the index has them."""
    stems: dict[str, float] = {}
    with contextlib.closing(sqlite3.connect(":memory:")) as scratch:
        scratch.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
        scratch.execute("CREATE VIRTUAL TABLE places USING fts5vocab(words, 'instance')")
        scratch.executemany("INSERT INTO words(rowid, text) VALUES (?, ?)", enumerate(map(plain, words)))
        weights = list(words.values())
        for term, n in scratch.execute("SELECT term, doc FROM places ORDER BY doc, term"):
            stems[term] = max(stems.get(term, 0.0), weights[n])
    return stems


def plain(text: str) -> str:
    """`text` as its words are looked for: composed (NFC), with white space around each character that counts as a word."""
    if text.isascii():
        return text
    # In pieces, as a thousand accents on one letter would take a thousand times as long as on a thousand letters.
    composed = "".join(unicodedata.normalize("NFC", piece) for piece in _PIECE.findall(text))
    return _UNSPACED.sub(r" \1 ", composed)


def _name(document_id: str) -> str:
    return f"{document_id}.passages"
