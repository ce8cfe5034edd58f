"""`Passages`: cuts documents into passages of about seventy words, and finds passages by words.

Each document has an index in one SQLite file, a sidecar built from its text alone. FTS5 stems the words and keeps the postings, in
bounded memory and without Python's global lock. Passages are ranked by BM25 over all documents of a search together, so that
their scores can be compared.
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
from collections.abc import Collection, Iterator, Mapping, Sequence
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

# Bytes of a passage: 55 to 80 words of English. Scripts with longer characters get fewer characters, but about as many tokens.
_SHORTEST, _LONGEST = 300, 460
_BLOCK = 1 << 20
_ROWS_AT_ONCE = 512
# Ends of sentences. The greedy prefix makes a match end with the last sentence end. Each alternative begins with a literal byte;
# otherwise the regex engine would try every alternative at every position.
_SENTENCE_END = re.compile(
    rb"(?s:.*)(?:"
    rb"[.!?](?<!\bMr.)(?<!\bMrs.)(?<!\bDr.)(?<!\bSt.)(?:[\"')\]*_]|\xe2\x80[\x99\x9d]|\xc2\xbb)*\s+"
    rb"|\n\s*\n\s*|\xe3\x80\x82|\xef\xbc[\x81\x9f]|\xe0\xa5\xa4)"
)
_SPACE = re.compile(rb"(?s:.*)\s")
_UNSPACED = re.compile("([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])")
"""Scripts without spaces between words (Thai, Lao, Burmese, Khmer, Japanese, Chinese) or with inflected words (Korean): each
character is indexed as a word."""
_PIECE = re.compile(r"\S{1,256}|\s+")

_K1 = 1.2
_NEIGHBOUR_SHARE = 0.4
"""The share of each neighbour's score that is added to a passage's score."""
_STRETCH = 4
"""The best run of this many consecutive passages (at most a quarter of the results) is returned together. Pronouns such as "he" and
"there" often refer to the sentence before (docs/research/lab-notes.md)."""
_HEAVIEST = 6
"""A passage's `share` is measured against this many of the query's words, those with the largest weights."""

_MAPPED = 1 << 30
"""Bytes of an index that are memory-mapped, so that they are read from the page cache without a copy."""
_WORDS = "USING fts5(text, content='', columnsize=0, tokenize='porter unicode61')"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document. `start`, `end`: offsets in characters of the text; `start_byte`, `end_byte`: in bytes of its UTF-8.

    `start_token`, `end_token`: offsets in the model's tokens of the text, covering every token that has a character of the
    passage; None until `TokenOffsets` sets them. `score`: BM25, including the neighbours' share. `share`: the share of the query's
    words that it has, weighted by their rarity, 0 to 1. `page`, `section`: where it begins, if the document has these.
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
    """Return the version of SQLite. Raises `SearchMissing` if it cannot index passages."""
    with contextlib.closing(sqlite3.connect(":memory:")) as scratch:
        try:
            scratch.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
        except sqlite3.DatabaseError as error:
            raise SearchMissing(
                f"the SQLite {sqlite3.sqlite_version} of {sys.executable} cannot index passages ({error}): use a Python whose "
                "SQLite has FTS5, such as those of python.org, Debian, conda and uv"
            ) from error
    return sqlite3.sqlite_version


def split(file: IO[bytes], document: str = "") -> Iterator[Passage]:
    """Cut the UTF-8 text of `file` into passages without gaps, in bounded memory.

    A passage ends with a sentence if possible, else with a word, else at the maximum length.
    """
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
    for pattern, shortest in ((_SENTENCE_END, _SHORTEST), (_SENTENCE_END, _SHORTEST // 2), (_SPACE, 1)):
        if last := pattern.match(window, shortest):
            return last.end()
    cut = len(window) - 1
    while window[cut] & 0xC0 == 0x80:  # not at the beginning of a character
        cut -= 1
    return cut


class Passages:
    """Indexes and searches the passages of documents."""

    def __init__(self, blobs: Blobs, documents: DocumentLookup) -> None:
        self._blobs = blobs
        self._documents = documents
        self._sidecar = Sidecar(blobs, documents)

    async def ensure(self, document: Document) -> None:
        """Build the document's index unless it exists. Cancelling ends the build soon."""
        await self._sidecar.ensure(document, _name(document.id), partial(self._build, document))

    async def delete(self, document_id: str) -> None:
        """Delete the document's index. Does nothing if there is none."""
        await self._blobs.delete(_name(document_id))

    async def search(self, documents: Sequence[str], words: Mapping[str, float], limit: int) -> list[Passage]:
        """Return at most `limit` passages of `documents` that contain some of `words`. `words`: a weight for each.

        First comes the best run of consecutive passages of one document, all with the score of its best passage. Then come single
        passages, best first; equal ones in the order of the text. Deleted documents are skipped. Missing and damaged indexes are
        built first.
        """
        existing = []
        for document_id in documents:
            with contextlib.suppress(NotFound):
                document = await self._documents.get(document_id)
                await self.ensure(document)
                existing.append(document)
        try:
            return await asyncio.to_thread(self._search, existing, words, limit)
        except (sqlite3.DatabaseError, Damaged) as error:
            for document in existing:
                is_damaged, build = partial(self._is_damaged, document, error), partial(self._build, document)
                await self._sidecar.repair(document, _name(document.id), build, is_damaged)
        return await asyncio.to_thread(self._search, existing, words, limit)

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

    async def complete(self, documents: Sequence[str]) -> bool:
        """Whether all of `documents` exist and have an index. Only then does an empty result mean that nothing matches."""
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
        except sqlite3.OperationalError as error:  # the index cannot be written; the text is not at fault
            full = error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
            number = errno.ENOSPC if full else errno.EIO
            raise OSError(number, f"the index of document {document.id} cannot be written: {error}") from error

    def _index(self, document: Document, path: Path, stop: threading.Event) -> None:
        with (
            contextlib.closing(sqlite3.connect(path, isolation_level=None)) as index,
            self._blobs.open(document.id, document.text_offset) as file,
        ):
            # The file is used only when it is complete, so it needs no journal.
            index.execute("PRAGMA journal_mode = OFF")
            index.execute("PRAGMA synchronous = OFF")
            index.execute("PRAGMA temp_store = MEMORY")  # no text in temporary files, which nothing encrypts or deletes
            index.execute("BEGIN")
            index.execute("CREATE TABLE passages (id INTEGER PRIMARY KEY, start, end, start_byte, end_byte)")
            index.execute(f"CREATE VIRTUAL TABLE words {_WORDS}")
            index.execute("CREATE VIRTUAL TABLE places USING fts5vocab(words, 'instance')")
            passages = enumerate(split(file))
            while batch := list(islice(passages, _ROWS_AT_ONCE)):
                if stop.is_set():
                    raise BuildCancelled
                rows = ((n, p.start, p.end, p.start_byte, p.end_byte) for n, p in batch)
                index.executemany("INSERT INTO passages VALUES (?, ?, ?, ?, ?)", rows)
                index.executemany(
                    "INSERT INTO words(rowid, text) VALUES (?, ?)", ((n, plain(p.text)) for n, p in batch)
                )
            index.execute("COMMIT")

    def _search(self, documents: Sequence[Document], words: Mapping[str, float], limit: int) -> list[Passage]:
        terms = _stems(words)
        with contextlib.ExitStack() as stack:
            indexes: list[tuple[Document, Any]] = []
            for document in documents:
                with contextlib.suppress(FileNotFoundError):  # the document was deleted meanwhile
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

    def _is_damaged(self, document: Document, error: Exception) -> bool:
        """Whether the document's index is damaged. `error`: the error of the search, for the log."""
        try:
            with self._blobs.local(_name(document.id)) as path, opened(path) as index:
                index.execute(
                    "SELECT count(*) FROM passages"
                )  # fails for an empty file, which SQLite takes for an intact database
                index.execute("SELECT count(*) FROM places")
                intact = index.execute("PRAGMA quick_check").fetchone()[0] == "ok"
        except FileNotFoundError:  # the document was deleted meanwhile
            return False
        except (sqlite3.DatabaseError, Damaged):
            intact = False
        if not intact:
            log.warning("the index of document %s is damaged and is built again: %s", document.id, error)
        return not intact


def opened(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Open a complete index for searching. It is never changed, so it needs no locks."""
    index = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
    index.execute(f"PRAGMA mmap_size = {_MAPPED}")
    return contextlib.closing(index)


def _rank(indexes: Sequence[Any], terms: Mapping[str, float], limit: int) -> list[tuple[float, float, int, int]]:
    """Return the passages of the best run, then the best others: score, share, number of the index, number in the index."""
    if not indexes:
        return []
    sizes = [index.execute("SELECT max(id) + 1 FROM passages").fetchone()[0] or 0 for index in indexes]
    first = np.cumsum([0, *sizes])  # numbers the passages of all indexes consecutively
    scores, shares = np.zeros(first[-1], np.float32), np.zeros(first[-1], np.float32)
    weights = []
    for term, weight in terms.items():
        occurrences = [_occurrences(index, term) + first[n] for n, index in enumerate(indexes)]
        having, count = np.unique(np.concatenate(occurrences), return_counts=True)
        idf = weight * math.log(1 + (first[-1] - len(having) + 0.5) / (len(having) + 0.5))
        weights.append(idf)
        scores[having] += idf * count * (_K1 + 1) / (count + _K1)
        shares[having] += idf
    shares /= sum(sorted(weights)[-_HEAVIEST:]) or 1
    matching = np.flatnonzero(scores)
    scores = _with_neighbours(scores, first)
    run = _best_run(scores, first, max(1, min(_STRETCH, limit // 4))) if len(matching) else []
    scores[run] = max(scores[run], default=0)
    others = matching[np.argsort(-scores[matching], kind="stable")]
    best = np.array([*run, *others[~np.isin(others, run)]][:limit], np.int64)
    which = np.searchsorted(first, best, side="right") - 1
    return [
        (round(float(scores[i]), 3), min(1.0, float(shares[i])), int(w), int(i - first[w]))
        for i, w in zip(best, which, strict=True)
    ]


def _best_run(scores: NDArray[np.float32], first: NDArray[np.int64], length: int) -> list[int]:
    """Return the `length` consecutive passages of one document with the highest total score, ordered outwards from the best."""
    highest, run = 0.0, range(0)
    for start, end in pairwise(first.tolist()):
        if size := min(length, end - start):
            sums = sliding_window_view(scores[start:end], size).sum(axis=1)
            if sums.max() > highest:
                highest, begin = float(sums.max()), start + int(sums.argmax())
                run = range(begin, begin + size)
    peak = max(run, key=lambda n: scores[n])
    return sorted(run, key=lambda n: (abs(n - peak), -scores[n]))


def _with_neighbours(scores: NDArray[np.float32], first: NDArray[np.int64]) -> NDArray[np.float32]:
    """Add to each score a share of the neighbours' scores: a person is often named in the passage before."""
    before, after = np.zeros_like(scores), np.zeros_like(scores)
    before[1:], after[:-1] = scores[:-1], scores[1:]
    before[first[:-1][np.diff(first) > 0]] = 0  # no neighbours across documents
    after[first[1:][np.diff(first) > 0] - 1] = 0
    return scores + _NEIGHBOUR_SHARE * (before + after)


def _occurrences(index: Any, term: str) -> NDArray[np.int64]:
    """Return the passage number of each occurrence of `term`."""
    # As one string: fetching one row per occurrence takes three times as long.
    row = index.execute("SELECT group_concat(doc) FROM places WHERE term = ?", (term,)).fetchone()
    return np.fromstring(row[0] or "", np.int64, sep=",")


def _stems(words: Mapping[str, float]) -> dict[str, float]:
    """Return the index's stems of `words`, each with the largest weight of its words."""
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
    """Normalise a text for indexing: compose it (NFC), and put spaces around each character that is indexed as a word."""
    if text.isascii():
        return text
    # In pieces, since normalising takes quadratic time for many accents on one letter.
    composed = "".join(unicodedata.normalize("NFC", piece) for piece in _PIECE.findall(text))
    return _UNSPACED.sub(r" \1 ", composed)


def _name(document_id: str) -> str:
    return f"{document_id}.passages"
