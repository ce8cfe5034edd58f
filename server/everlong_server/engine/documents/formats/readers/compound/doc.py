"""Reads Word files of 1997 to 2003, after MS-DOC: the text, footnotes, endnotes, comments, headers and text boxes.

Older files and damaged ones are read through the library kreuzberg, which reads the text alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import olefile

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks, file_in

_WORD_97 = 193
"""The first version of the format (nFib) that has this structure."""
_ENCRYPTED, _SECOND_TABLE = 0x0100, 0x0200
_COUNTS = 0x4C
"""Offset of the number of characters of each part of the text."""
_TABLES = 0x9A
"""Offset of the places and sizes of the tables."""
_FOOTNOTE_PLACES, _FOOTNOTES, _COMMENT_PLACES, _COMMENTS, _HEADERS, _PIECES, _AUTHORS = 2, 3, 4, 5, 11, 33, 36
_ENDNOTE_PLACES, _ENDNOTES = 46, 47
_FIELD = re.compile("\x13[^\x13\x14\x15]*(?:\x14([^\x13\x14\x15]*))?\x15")
"""A field without another one inside: its instructions, and the result that a reader sees."""
_PARAGRAPH = re.compile("[^\r\x0c]+[\r\x0c]?|[\r\x0c]")
_CONTROLS = str.maketrans(
    {
        "\x0b": "\n",
        "\x0c": "\r",
        "\x0e": "\r",
        "\x1e": "-",
        "\x1f": "",
        **dict.fromkeys("\0\x01\x02\x03\x04\x05\x06\x08\x13\x14\x15", ""),
    }
)


@dataclass(frozen=True, slots=True)
class _Mark:
    """A note and its place in the text. `shown`: its mark in the text, such as a number."""

    place: int
    shown: str
    text: str


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs of the file."""
    try:
        with olefile.OleFileIO(file) as ole:
            blocks = list(_Document(ole, notes).blocks())
            objects = list(_objects(ole, notes))
    except (OSError, ValueError, IndexError, struct.error):
        yield from legacy.read(file, notes, "doc")
        return
    yield from blocks
    for name, data in objects:
        yield from embedded_blocks(data, name, notes)


def _objects(ole: olefile.OleFileIO, notes: Notes) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of embedded files."""
    for storage in sorted({tuple(path[:2]) for path in ole.listdir() if path[0] == "ObjectPool" and len(path) > 2}):
        try:
            found = file_in(ole, storage)
        except (OSError, ValueError):  # it is damaged
            found = None
        if found is None:
            notes.left_out("embedded objects")
        else:
            yield found[1] or storage[-1], found[0]


class _Document:
    def __init__(self, ole: olefile.OleFileIO, notes: Notes) -> None:
        """Raises `ValueError`, `IndexError`, `struct.error` or `OSError` for a file that is damaged or too old, and `Unreadable`."""
        self._notes = notes
        self._stream = ole.openstream("WordDocument").read()
        version, flags = struct.unpack_from("<2xH6xH", self._stream)
        if version < _WORD_97:
            raise ValueError("it is older than Word 97")
        if flags & _ENCRYPTED:
            raise Unreadable("the file cannot be read: it is encrypted; upload it without a password")
        self._table = ole.openstream("1Table" if flags & _SECOND_TABLE else "0Table").read()
        counts = struct.unpack_from("<8I", self._stream, _COUNTS)
        text = self._text(sum(counts) + 1)
        if len(text) < counts[0]:
            raise ValueError("its text is damaged")
        parts = []
        for count in counts:
            parts.append(text[:count])
            text = text[count:]
        self._main, self._footnotes, self._headers, _, self._comments, self._endnotes, self._boxes, _ = parts

    def _text(self, count: int) -> str:
        """Return the characters of all parts. They are in pieces of the file, of which each has one encoding."""
        clx = self._entry(_PIECES)
        at = 0
        while clx[at] == 1:  # changes of formatting
            at += 3 + struct.unpack_from("<H", clx, at + 1)[0]
        size = struct.unpack_from("<I", clx, at + 1)[0]
        pieces = clx[at + 5 : at + 5 + size]
        number = (len(pieces) - 4) // 12
        places = struct.unpack_from(f"<{number + 1}I", pieces)
        text = []
        for index, (start, end) in enumerate(pairwise(places)):
            length = min(end, count) - start
            if length <= 0:
                break
            place = struct.unpack_from("<I", pieces, 4 * (number + 1) + 8 * index + 2)[0]
            if place & 0x40000000:
                begin = (place & 0x3FFFFFFF) // 2
                text.append(self._stream[begin : begin + length].decode("cp1252", "replace"))
            else:
                # Half of a pair of surrogates counts as a character.
                data = self._stream[place : place + 2 * length]
                text.append("".join(map(chr, struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2]))))
        return "".join(text)

    def _entry(self, index: int) -> bytes:
        start, size = struct.unpack_from("<2I", self._stream, _TABLES + 8 * index)
        return self._table[start : start + size]

    def _marks(self, places: int, ends: int, text: str, kind: str, size: int) -> Iterator[_Mark]:
        """Yield the notes of one kind. `size`: number of bytes that describe each."""
        table, bounds = self._entry(places), self._entry(ends)
        number = max(0, len(table) - 4) // (4 + size)
        starts = struct.unpack(f"<{len(bounds) // 4}I", bounds[: len(bounds) // 4 * 4])
        for index, place in enumerate(struct.unpack_from(f"<{number}I", table)):
            note = _clean(text[starts[index] : starts[index + 1]]).strip() if index + 1 < len(starts) else ""
            if note:
                details = table[4 * (number + 1) + size * index :][:size]
                label = self._comment_label(details) if kind == "Comment" else f"{kind} {index + 1}"
                yield _Mark(place, "" if kind == "Comment" else f"[{index + 1}]", f"[{label}] {note}")

    def _comment_label(self, details: bytes) -> str:
        owners, names, at = self._entry(_AUTHORS), [], 0
        while at + 2 <= len(owners):
            end = at + 2 + 2 * struct.unpack_from("<H", owners, at)[0]
            names.append(owners[at + 2 : end].decode("utf-16-le", "replace"))
            at = end
        index = struct.unpack_from("<H", details, 20)[0]
        return f"Comment by {names[index]}" if index < len(names) else "Comment"

    def blocks(self) -> Iterator[Block]:
        """Yield the text, with each note after the paragraph that refers to it."""
        headers, footers = self._furniture()
        yield from (Block(f"[Header] {text}") for text in headers)
        marks = sorted(
            [
                *self._marks(_FOOTNOTE_PLACES, _FOOTNOTES, self._footnotes, "Footnote", 2),
                *self._marks(_ENDNOTE_PLACES, _ENDNOTES, self._endnotes, "Endnote", 2),
                *self._marks(_COMMENT_PLACES, _COMMENTS, self._comments, "Comment", 30),
            ],
            key=lambda mark: mark.place,
        )
        self._notes.left_out("pictures and drawings", self._main.count("\x01") + self._main.count("\x08"))
        if marks:
            self._notes.add("footnotes, endnotes and comments follow the paragraphs that refer to them")
        for match in _PARAGRAPH.finditer(self._main):
            start, end = match.span()
            here = [mark for mark in marks if mark.place < end]
            marks = marks[len(here) :]
            paragraph, at = "", start
            for mark in here:
                paragraph += self._main[at : mark.place] + mark.shown
                at = max(at, mark.place)
            yield Block(_clean(paragraph + self._main[at:end]).strip())
            yield from (Block(mark.text) for mark in here)
        for text in filter(None, map(str.strip, _clean(self._boxes).split("\n\n"))):
            yield Block(text)
        yield from (Block(f"[Footer] {text}") for text in footers)

    def _furniture(self) -> tuple[list[str], list[str]]:
        """Return the headers and footers, each once. Each section has six, after six separators of notes."""
        table = self._entry(_HEADERS)
        bounds = struct.unpack(f"<{len(table) // 4}I", table[: len(table) // 4 * 4])
        found: tuple[dict[str, None], dict[str, None]] = {}, {}
        for index, (start, end) in enumerate(pairwise(bounds[6:])):
            if text := _clean(self._headers[start:end]).strip():
                found[index % 6 in (2, 3, 5)][text] = None
        return list(found[0]), list(found[1])


def _clean(text: str) -> str:
    """Return text without control characters: the results of fields, and tables as rows with tabs."""
    for _ in range(8):  # fields inside fields
        text, count = _FIELD.subn(lambda found: found[1] or "", text)
        if not count:
            break
    text = text.translate(_CONTROLS)
    if "\x07" in text:  # the end of a cell, and of a row after the end of its last cell
        text = text.replace("\r", "\n").replace("\x07\x07", "\r").replace("\x07", "\t").replace("\r", "\n")
    return text.replace("\r", "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace")
