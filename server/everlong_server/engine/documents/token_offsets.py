"""`TokenOffsets`: where a tokenizer's tokens stand in the texts of documents, in characters and bytes, and the other way round.

A table beside a text has a place every 128 tokens from which encoding can be resumed. So what is asked for costs encoding
it, and as much as is between two places; of the rest of the text only the table is looked at, 24 bytes a place.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from everlong_models.text.tokenizer import Place, Tokenizer
from everlong_server.engine.documents.token_stream import pieces
from everlong_server.errors import Damaged, NotFound
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passages import Passage
from everlong_server.store.texts.sidecar import BuildCancelled, DocumentLookup, Sidecar

log = logging.getLogger(__name__)

Span = tuple[int, int]
Table = NDArray[np.int64]
"""A row for each place: bytes, characters and tokens of the text before it."""

_BYTE, _CHAR, _TOKEN = range(3)
_LONGEST_WORD = 32
"""A span grows by so many characters at most to have whole words."""
_BESIDE = 4 * _LONGEST_WORD
"""Tokens that so many characters have at most."""
_SUM = 32


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Some text of a document from `begin` on, and the characters of it that each of its tokens is of: (tokens, 2)."""

    begin: Place
    text: str
    spans: NDArray[np.int64]

    def covers(self, column: int, start: int, end: int) -> bool:
        """Whether all characters, or tokens, of [start, end) are in it."""
        known = len(self.spans) if column == _TOKEN else self.spans[-1, 1] if len(self.spans) else 0
        return self.begin[column] <= start and end <= self.begin[column] + known

    def placed(self, passage: Passage) -> Passage:
        """With the tokens of the document that any of its characters are in."""
        start, end = passage.start - self.begin.char, passage.end - self.begin.char
        first = bisect_right(self.spans[:, 1], start)
        last = max(first, bisect_left(self.spans[:, 0], end))
        return replace(passage, start_token=self.begin.token + first, end_token=self.begin.token + last)

    def passage(self, document: str, span: Span) -> Passage:
        """The text of the document's tokens `span`: whole words, without white space around them."""
        first, last = span[0] - self.begin.token, span[1] - 1 - self.begin.token
        start, end = _word_start(self.text, int(self.spans[first, 0])), _word_end(self.text, int(self.spans[last, 1]))
        text = self.text[start:end]
        start += len(text) - len(text.lstrip())
        text = text.strip()
        begin, byte = self.begin.char + start, self.begin.byte + len(self.text[:start].encode())
        return self.placed(Passage(document, begin, begin + len(text), byte, byte + len(text.encode()), text))


class TokenOffsets:
    """Of the tokens of one tokenizer, in the documents of all tenants.

    One that cannot be resumed (`Tokenizer.streams`) encodes the whole text for each answer; of the last two documents
    what comes of it is kept.
    """

    def __init__(self, blobs: Blobs, documents: DocumentLookup, tokenizer: Tokenizer) -> None:
        self._blobs = blobs
        self._documents = documents
        self._tokenizer = tokenizer
        self._beside = Sidecar(blobs, documents)
        self._digest = tokenizer.digest()[:16]
        self._whole = lru_cache(maxsize=2)(self._encoded)

    async def keep(self, document: Document, places: array[int] | None = None) -> None:
        """Makes the document's table unless it is there, or the document is not. `places`: its rows; None: not known.

        One that cannot be kept is made when it is needed.
        """
        if not self._tokenizer.streams:
            return
        try:
            await self._beside.ensure(document, self._name(document.id), partial(self._make, document, places))
        except OSError as error:
            log.warning("where the tokens of document %s stand could not be kept: %s", document.id, error)

    async def delete(self, document_id: str) -> None:
        """Removes the document's tables, those of other tokenizers too; no error if there is none."""
        await self._blobs.delete_all(f"{document_id}.tokens.*")

    async def placed(self, passages: Sequence[Passage]) -> list[Passage]:
        """`passages` with their tokens, as far as their documents are there."""
        placed: dict[Passage, Passage] = {}
        for document_id in dict.fromkeys(passage.document for passage in passages):
            own = [passage for passage in passages if passage.document == document_id]
            try:
                document = await self._documents.get(document_id)
                table = await self._table(document)
                placed |= zip(own, await asyncio.to_thread(self._placed, document, table, own), strict=True)
            except (NotFound, OSError) as reason:
                log.info("tokens of document %s are not told: %s", document_id, reason)
        return [placed.get(passage, passage) for passage in passages]

    async def passages(self, document: Document, spans: Sequence[Span]) -> dict[Span, Passage]:
        """The text of the document's tokens [start, end), in whole words and without white space around them. Nothing of
        what it has not, or if it is gone."""
        try:
            table = await self._table(document)
            return await asyncio.to_thread(self._passages, document, table, spans)
        except FileNotFoundError:
            return {}

    def _placed(self, document: Document, table: Table, passages: Sequence[Passage]) -> list[Passage]:
        placed, stretch = {}, None
        with self._blobs.open(document.id) as file:
            for passage in sorted(passages, key=lambda passage: passage.start):
                if stretch is None or not stretch.covers(_CHAR, passage.start, passage.end):
                    stretch = self._stretch(file, document, table, _CHAR, passage.start, passage.end)
                placed[passage] = stretch.placed(passage)
        return [placed[passage] for passage in passages]

    def _passages(self, document: Document, table: Table, spans: Sequence[Span]) -> dict[Span, Passage]:
        found, stretch = {}, None
        with self._blobs.open(document.id) as file:
            for span in sorted(spans):
                start, end = max(0, span[0] - _BESIDE), span[1] + _BESIDE  # words begin before tokens, and end behind
                if stretch is None or not stretch.covers(_TOKEN, start, end):
                    stretch = self._stretch(file, document, table, _TOKEN, start, end)
                if stretch.covers(_TOKEN, *span):
                    found[span] = stretch.passage(document.id, span)
        return found

    def _stretch(
        self, file: IO[bytes], document: Document, table: Table, column: int, start: int, end: int
    ) -> _Stretch:
        """Text that has all characters, or tokens, of [start, end), as far as the document has them."""
        if not self._tokenizer.streams:
            return self._whole(document)
        first, last = bisect_right(table[:, column], start) - 1, bisect_left(table[:, column], end)
        begin = Place(*(int(count) for count in table[first]))
        file.seek(document.text_offset + begin.byte)
        data = b""
        while True:
            # What a token is may depend on what follows it: more is read until that is known.
            whole = last >= len(table)
            to = document.bytes if whole else int(table[last, _BYTE])
            data += file.read(to - begin.byte - len(data))
            text = data.decode()
            spans = np.array(self._tokenizer.spans(text, whole=whole), np.int64).reshape(-1, 2)
            stretch = _Stretch(begin, text, spans)
            if whole or stretch.covers(column, start, end):
                return stretch
            last += max(1, last - first)  # doubled, so that the work stays linear

    def _encoded(self, document: Document) -> _Stretch:
        with self._blobs.open(document.id, document.text_offset) as file:
            text = file.read().decode()
        return _Stretch(Place(0, 0, 0), text, np.array(self._tokenizer.spans(text), np.int64).reshape(-1, 2))

    async def _table(self, document: Document) -> Table:
        """The document's table, which is made if it is missing or damaged. Raises `OSError`."""
        if not self._tokenizer.streams:
            return np.zeros((0, 3), np.int64)
        await self.keep(document)
        try:
            return await asyncio.to_thread(self._load, document)
        except Damaged as error:
            log.warning("%s: it is made again", error)
            await self._blobs.delete(self._name(document.id))
            await self.keep(document)
        return await asyncio.to_thread(self._load, document)

    def _load(self, document: Document) -> Table:
        with self._blobs.open(self._name(document.id)) as file:
            data = file.read()
        if hashlib.sha256(data[_SUM:]).digest() != data[:_SUM]:
            raise Damaged(f"where the tokens of document {document.id} stand is damaged")
        return np.frombuffer(data, "<i8", offset=_SUM).reshape(-1, 3)

    def _make(self, document: Document, places: array[int] | None, path: Path, stop: threading.Event) -> None:
        if places is None:
            places = array("q")
            with self._blobs.open(document.id, document.text_offset) as file:
                for piece in pieces(file, self._tokenizer, document.text_offset):
                    if stop.is_set():
                        raise BuildCancelled
                    places.extend(chain.from_iterable(piece.places))
        rows = np.array(places, "<i8").tobytes()
        path.write_bytes(hashlib.sha256(rows).digest() + rows)

    def _name(self, document_id: str) -> str:
        return f"{document_id}.tokens.{self._digest}"


def _word_start(text: str, at: int) -> int:
    for _ in range(_LONGEST_WORD):
        if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
            break
        at -= 1
    return at


def _word_end(text: str, at: int) -> int:
    for _ in range(_LONGEST_WORD):
        if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
            break
        at += 1
    return at
