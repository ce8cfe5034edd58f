"""`TokenOffsets`: converts between token offsets and character or byte offsets in the texts of documents.

A sidecar file of each text holds resume points: positions, about every 128 tokens, from which encoding can be resumed. So a
query encodes the requested text and at most the text between two resume points. Of the rest it uses only the table,
24 bytes for each resume point.
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

from everlong_models.text.tokenizer import ResumePoint, Tokenizer
from everlong_server.engine.documents.token_stream import token_blocks
from everlong_server.errors import Damaged, NotFound
from everlong_server.store.records import Document
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from everlong_server.store.texts.sidecar import BuildCancelled, DocumentLookup, Sidecar

log = logging.getLogger(__name__)

Span = tuple[int, int]
Table = NDArray[np.int64]
"""A row for each resume point: the number of bytes, characters and tokens of the text before it."""

_BYTE, _CHAR, _TOKEN = range(3)
_LONGEST_WORD = 32
"""Maximum number of characters that a span is extended by at each end, so that it has whole words."""
_MARGIN = 4 * _LONGEST_WORD
"""Maximum number of tokens in this many characters (a character has at most four)."""
_CHECKSUM_BYTES = 32


@dataclass(frozen=True, slots=True)
class _EncodedText:
    """Encoded text of a document from `begin` on. `spans` (tokens, 2): start and end of each token, in characters from `begin`."""

    begin: ResumePoint
    text: str
    spans: NDArray[np.int64]

    def covers(self, column: int, start: int, end: int) -> bool:
        """Return whether the text has all characters (`_CHAR`) or tokens (`_TOKEN`) of [start, end)."""
        length = len(self.spans) if column == _TOKEN else self.spans[-1, 1] if len(self.spans) else 0
        return self.begin[column] <= start and end <= self.begin[column] + length

    def with_tokens(self, passage: Passage) -> Passage:
        """Return the passage with its range of tokens: those that have any of its characters."""
        start, end = passage.start - self.begin.char, passage.end - self.begin.char
        first = bisect_right(self.spans[:, 1], start)
        last = max(first, bisect_left(self.spans[:, 0], end))
        return replace(passage, start_token=self.begin.token + first, end_token=self.begin.token + last)

    def passage(self, document: str, span: Span) -> Passage:
        """Return the text of the tokens `span`, extended to whole words, without surrounding white space."""
        first, last = span[0] - self.begin.token, span[1] - 1 - self.begin.token
        start = _word_edge(self.text, int(self.spans[first, 0]), -1)
        end = _word_edge(self.text, int(self.spans[last, 1]), 1)
        text = self.text[start:end]
        start += len(text) - len(text.lstrip())
        text = text.strip()
        begin, byte = self.begin.char + start, self.begin.byte + len(self.text[:start].encode())
        return self.with_tokens(Passage(document, begin, begin + len(text), byte, byte + len(text.encode()), text))


class TokenOffsets:
    """Token offsets of one tokenizer in the documents of all tenants.

    A tokenizer that cannot resume encoding (see `Tokenizer.streams`) encodes the whole text for each query. The results for
    the last two documents are cached.
    """

    def __init__(self, blobs: Blobs, documents: DocumentLookup, tokenizer: Tokenizer) -> None:
        self._blobs = blobs
        self._documents = documents
        self._tokenizer = tokenizer
        self._sidecar = Sidecar(blobs, documents)
        self._digest = tokenizer.digest()[:16]
        self._encode_whole = lru_cache(maxsize=2)(self._encode)

    async def ensure(self, document: Document, resume_points: array[int] | None = None) -> None:
        """Create the document's table, unless it exists or the document does not.

        `resume_points`: the table's rows, flattened; None encodes the text to find them. A table that cannot be written is
        logged, and created when it is needed.
        """
        if not self._tokenizer.streams:
            return
        try:
            await self._sidecar.ensure(document, self._name(document.id), partial(self._make, document, resume_points))
        except OSError as error:
            log.warning("the token offsets of document %s could not be written: %s", document.id, error)

    async def delete(self, document_id: str) -> None:
        """Delete the document's tables of all tokenizers. No error if there are none."""
        await self._blobs.delete_all(f"{document_id}.tokens.*")

    async def with_tokens(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return `passages` with their token ranges. Passages of documents that no longer exist are returned unchanged."""
        located: dict[Passage, Passage] = {}
        for document_id in dict.fromkeys(passage.document for passage in passages):
            own = [passage for passage in passages if passage.document == document_id]
            try:
                document = await self._documents.get(document_id)
                table = await self._table(document)
                located |= zip(own, await asyncio.to_thread(self._with_tokens, document, table, own), strict=True)
            except (NotFound, OSError) as reason:
                log.info("passages of document %s have no token offsets: %s", document_id, reason)
        return [located.get(passage, passage) for passage in passages]

    async def passages(self, document: Document, spans: Sequence[Span]) -> dict[Span, Passage]:
        """Return the text of each span [start, end) of tokens, extended to whole words, without surrounding white space.

        Leaves out spans that the document does not have. Returns nothing if the document is gone.
        """
        try:
            table = await self._table(document)
            return await asyncio.to_thread(self._passages, document, table, spans)
        except FileNotFoundError:
            return {}

    def _with_tokens(self, document: Document, table: Table, passages: Sequence[Passage]) -> list[Passage]:
        located, encoded = {}, None
        with self._blobs.open(document.id) as file:
            for passage in sorted(passages, key=lambda passage: passage.start):
                if encoded is None or not encoded.covers(_CHAR, passage.start, passage.end):
                    encoded = self._encode_range(file, document, table, _CHAR, passage.start, passage.end)
                located[passage] = encoded.with_tokens(passage)
        return [located[passage] for passage in passages]

    def _passages(self, document: Document, table: Table, spans: Sequence[Span]) -> dict[Span, Passage]:
        passages, encoded = {}, None
        with self._blobs.open(document.id) as file:
            for span in sorted(spans):
                start, end = max(0, span[0] - _MARGIN), span[1] + _MARGIN  # to extend the span to whole words
                if encoded is None or not encoded.covers(_TOKEN, start, end):
                    encoded = self._encode_range(file, document, table, _TOKEN, start, end)
                if encoded.covers(_TOKEN, *span):
                    passages[span] = encoded.passage(document.id, span)
        return passages

    def _encode_range(
        self, file: IO[bytes], document: Document, table: Table, column: int, start: int, end: int
    ) -> _EncodedText:
        """Encode text that has all characters or tokens of [start, end), as far as the document has them."""
        if not self._tokenizer.streams:
            return self._encode_whole(document)
        first, last = bisect_right(table[:, column], start) - 1, bisect_left(table[:, column], end)
        begin = ResumePoint(*(int(count) for count in table[first]))
        file.seek(document.text_offset + begin.byte)
        data = b""
        while True:
            # The last tokens may depend on the text after them: read on until the range is covered.
            whole = last >= len(table)
            to = document.bytes if whole else int(table[last, _BYTE])
            data += file.read(to - begin.byte - len(data))
            text = data.decode()
            spans = np.array(
                self._tokenizer.spans(text, whole=whole, at=document.text_offset + begin.byte), np.int64
            ).reshape(-1, 2)
            encoded = _EncodedText(begin, text, spans)
            if whole or encoded.covers(column, start, end):
                return encoded
            last += max(1, last - first)  # doubled, so that the work stays linear

    def _encode(self, document: Document) -> _EncodedText:
        with self._blobs.open(document.id, document.text_offset) as file:
            text = file.read().decode()
        return _EncodedText(ResumePoint(0, 0, 0), text, np.array(self._tokenizer.spans(text), np.int64).reshape(-1, 2))

    async def _table(self, document: Document) -> Table:
        """Return the document's table, and create it if it is missing or damaged. Raises `OSError`."""
        if not self._tokenizer.streams:
            return np.zeros((0, 3), np.int64)
        await self.ensure(document)
        try:
            return await asyncio.to_thread(self._load, document)
        except Damaged as error:
            log.warning("%s; creating them again", error)
            await self._blobs.delete(self._name(document.id))
            await self.ensure(document)
        return await asyncio.to_thread(self._load, document)

    def _load(self, document: Document) -> Table:
        with self._blobs.open(self._name(document.id)) as file:
            data = file.read()
        if hashlib.sha256(data[_CHECKSUM_BYTES:]).digest() != data[:_CHECKSUM_BYTES]:
            raise Damaged(f"the stored token offsets of document {document.id} are damaged")
        return np.frombuffer(data, "<i8", offset=_CHECKSUM_BYTES).reshape(-1, 3)

    def _make(self, document: Document, resume_points: array[int] | None, path: Path, stop: threading.Event) -> None:
        if resume_points is None:
            resume_points = array("q")
            with self._blobs.open(document.id, document.text_offset) as file:
                for block in token_blocks(file, self._tokenizer, document.text_offset):
                    if stop.is_set():
                        raise BuildCancelled
                    resume_points.extend(chain.from_iterable(block.resume_points))
        rows = np.array(resume_points, "<i8").tobytes()
        path.write_bytes(hashlib.sha256(rows).digest() + rows)

    def _name(self, document_id: str) -> str:
        return f"{document_id}.tokens.{self._digest}"


def _word_edge(text: str, at: int, step: int) -> int:
    """Return the end of the word around `at`, or with a `step` of -1 instead of 1 its start."""
    for _ in range(_LONGEST_WORD):
        if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
            break
        at += step
    return at
