"""Reads Word files of 1991 to 2003: the text, footnotes, endnotes, comments, headers and text boxes.

Files since Word 97 are described in MS-DOC. Those of Word 6 and 95 have the same parts in other places, and texts in the
encodings of their fonts. Of Word 2 files, only the text is read. Damaged files are read through the library kreuzberg, which
reads the text alone.
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
from everlong_server.engine.documents.formats.charset import FONT_CHARSETS, best_encoding
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.compound.doc_lists import Lists, Piece, Tables
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks, embedded_files, storages

_WORD_6, _WORD_97 = 100, 193
"""The first versions of the format (nFib)."""
_COMPLEX, _ENCRYPTED, _SECOND_TABLE, _WIDE = 0x0004, 0x0100, 0x0200, 0x1000
_FOOTNOTE_PLACES, _FOOTNOTES, _COMMENT_PLACES, _COMMENTS, _HEADERS, _FONTS, _PIECES, _AUTHORS = (
    2,
    3,
    4,
    5,
    11,
    15,
    33,
    36,
)
_ENDNOTE_PLACES, _ENDNOTES = 46, 47
_STYLES, _PARAGRAPHS, _LISTS, _LIST_REFERENCES = 1, 13, 73, 74
_MAC = 0x0100


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where a version of the format has its numbers: the number of characters of each part of the text, the places and sizes
    of the tables, and those after the number of `_ENDNOTE_PLACES`. `comment`: number of bytes that describe a comment."""

    counts: int
    tables: int
    later_tables: int
    comment: int


_LAYOUT_97 = _Layout(0x4C, 0x9A, 0x9A + 8 * _ENDNOTE_PLACES, 30)
_LAYOUT_6 = _Layout(0x34, 0x58, 0x1D2, 20)
_FIELD = re.compile("\x13([^\x13\x14\x15]*)(?:\x14([^\x13\x14\x15]*))?\x15")
"""A field without another one inside: its instructions, and the result that a reader sees."""
_GUIDE = re.compile(r"\s*EQ\b.*\\up\s*\d*\s*\(([^()]*)\)\s*[,;](.*)\)\s*", re.DOTALL)
"""The instructions of a field that is a word with its pronunciation above it."""
_MAX_GUIDE = 1000
_EQUATION = re.compile(r"\s*EQ\s")
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
    """A note and its place in the text. `shown`: its mark in the text, such as a number. `text`: "" for the number of a list."""

    place: int
    shown: str
    text: str


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs of the file."""
    try:
        if not olefile.isOleFile(file):
            blocks, objects = list(_Document(file.read_bytes(), None, notes).blocks()), []
        else:
            with olefile.OleFileIO(file) as ole:
                blocks = list(_Document(ole.openstream("WordDocument").read(), ole, notes).blocks())
                objects = list(embedded_files(ole, storages(ole, "ObjectPool"), notes))
    except (OSError, ValueError, IndexError, struct.error):
        yield from legacy.read(file, notes, "doc")
        return
    yield from blocks
    for name, data in objects:
        yield from embedded_blocks(data, name, notes)


class _Document:
    def __init__(self, stream: bytes, ole: olefile.OleFileIO | None, notes: Notes) -> None:
        """`stream`: the main one of the file. `ole`: the file; None if the stream is all of it.

        Raises `ValueError`, `IndexError`, `struct.error` or `OSError` for a damaged file, and `Unreadable`.
        """
        self._notes = notes
        self._stream = stream
        self._version, flags = struct.unpack_from("<2xH6xH", stream)
        if flags & _ENCRYPTED:
            raise Unreadable("the file is encrypted; upload it without a password")
        self._is_old = self._version < _WORD_97
        self._layout = _LAYOUT_6 if self._is_old else _LAYOUT_97
        if self._is_old:
            self._table = stream
        elif ole is None:
            raise ValueError("its tables are missing")
        else:
            self._table = ole.openstream("1Table" if flags & _SECOND_TABLE else "0Table").read()
        if self._version < _WORD_6:
            notes.add("footnotes, headers and comments of files of Word 2 are not read; save it as .docx to keep them")
        self._pieces: list[Piece] = []
        counts = struct.unpack_from("<8I", stream, self._layout.counts)
        is_in_pieces = flags & _COMPLEX if self._is_old else True
        text = self._text(sum(counts) + 1, flags) if is_in_pieces else self._text_in_one(sum(counts), flags)
        if len(text) < counts[0]:
            raise ValueError("its text is damaged")
        parts = []
        for count in counts:
            parts.append(text[:count])
            text = text[count:]
        self._main, self._footnotes, self._headers, _, self._comments, self._endnotes, self._boxes, _ = parts

    def _text_in_one(self, count: int, flags: int) -> str:
        """Return the characters of all parts of an old file that was saved as a whole."""
        begin, end = struct.unpack_from("<2I", self._stream, 0x18)
        is_wide = flags & _WIDE and end - begin >= 2 * count
        data = self._stream[begin : begin + count * (2 if is_wide else 1)]
        return _wide(data) if is_wide else self._decoded(data)

    def _text(self, count: int, flags: int) -> str:
        """Return the characters of all parts. They are in pieces of the file, of which each has one encoding."""
        clx = self._entry(_PIECES)
        at = 0
        while clx[at] == 1:  # changes of formatting
            at += 3 + struct.unpack_from("<H", clx, at + 1)[0]
        size = struct.unpack_from("<I", clx, at + 1)[0]
        pieces = clx[at + 5 : at + 5 + size]
        number = (len(pieces) - 4) // 12
        places = struct.unpack_from(f"<{number + 1}I", pieces)
        text, narrow = [], []
        for index, (start, end) in enumerate(pairwise(places)):
            length = min(end, count) - start
            if length <= 0:
                break
            place = struct.unpack_from("<I", pieces, 4 * (number + 1) + 8 * index + 2)[0]
            if self._is_old and not flags & _WIDE:
                narrow.append(self._stream[place : place + length])
            elif place & 0x40000000:
                begin = (place & 0x3FFFFFFF) // 2
                self._pieces.append(Piece(start, end, begin, 1))
                text.append(self._stream[begin : begin + length].decode("cp1252", "replace"))
            else:
                self._pieces.append(Piece(start, end, place, 2))
                text.append(_wide(self._stream[place : place + 2 * length]))
        return self._decoded(b"".join(narrow)) if narrow else "".join(text)

    def _decoded(self, data: bytes) -> str:
        """Return text of an old file, which is in the encodings of its fonts; all of it in the likeliest of these."""
        if struct.unpack_from("<H", self._stream, 0x14)[0] == _MAC:
            return data.decode("mac_roman")
        fonts, at, encodings = self._entry(_FONTS), 2, list[str]()
        while at + 5 < len(fonts):
            encodings += filter(None, [FONT_CHARSETS.get(fonts[at + 4])])
            at += fonts[at] + 1
        other = re.search(rb"[\x80-\xff]", data)
        if not encodings or other is None or self._version < _WORD_6:
            return data.decode("cp1252", "replace")
        sample = data[max(0, other.start() - 64) :][: 1 << 18]
        best = best_encoding(sample, ["cp1252", *dict.fromkeys(encodings)], encodings[0]) or "cp1252"
        return "".join(_padded(data.decode(best, "replace"), best))

    def _entry(self, index: int) -> bytes:
        start, size = self._place(index)
        return self._table[start : start + size]

    def _place(self, index: int) -> tuple[int, int]:
        """Return the start and the size of a table."""
        if self._version < _WORD_6:
            return 0, 0
        start = self._layout.tables + 8 * index
        if index >= _ENDNOTE_PLACES:
            start = self._layout.later_tables + 8 * (index - _ENDNOTE_PLACES)
        start, size = struct.unpack_from("<2I", self._stream, start)
        return start, size

    def _numbers(self) -> list[_Mark]:
        """Return the numbers and bullets of lists. Older files have them in another form."""
        if self._is_old:
            return []
        pages, styles, named, references = map(self._entry, (_PARAGRAPHS, _STYLES, _LISTS, _LIST_REFERENCES))
        levels = self._table[sum(self._place(_LISTS)) :]
        try:
            lists = Lists(self._stream, self._pieces, Tables(pages, styles, named, levels, references))
            return [_Mark(place, f"{label} ", "") for place, label in lists.labels(self._main)]
        except (IndexError, struct.error):
            self._notes.add("the list numbers are damaged and were left out")
            return []

    def _marks(self, places: int, ends: int, text: str, kind: str, size: int) -> Iterator[_Mark]:
        """Yield the notes of one kind. `size`: number of bytes that describe each."""
        table, bounds = self._entry(places), self._entry(ends)
        number = max(0, len(table) - 4) // (4 + size)
        starts = struct.unpack(f"<{len(bounds) // 4}I", bounds[: len(bounds) // 4 * 4])
        for index, place in enumerate(struct.unpack_from(f"<{number}I", table)):
            note = self._clean(text[starts[index] : starts[index + 1]]).strip() if index + 1 < len(starts) else ""
            if note:
                details = table[4 * (number + 1) + size * index :][:size]
                label = self._comment_label(details) if kind == "Comment" else f"{kind} {index + 1}"
                yield _Mark(place, "" if kind == "Comment" else f"[{index + 1}]", f"[{label}] {note}")

    def _comment_label(self, details: bytes) -> str:
        if self._is_old:
            return "Comment"
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
        notes = sorted(
            [
                *self._marks(_FOOTNOTE_PLACES, _FOOTNOTES, self._footnotes, "Footnote", 2),
                *self._marks(_ENDNOTE_PLACES, _ENDNOTES, self._endnotes, "Endnote", 2),
                *self._marks(_COMMENT_PLACES, _COMMENTS, self._comments, "Comment", self._layout.comment),
            ],
            key=lambda mark: mark.place,
        )
        self._notes.left_out("pictures and drawings", self._main.count("\x01") + self._main.count("\x08"))
        if notes:
            self._notes.add("footnotes, endnotes and comments follow the paragraphs that refer to them")
        marks = sorted([*self._numbers(), *notes], key=lambda mark: mark.place)[::-1]
        for match in _PARAGRAPH.finditer(self._main):
            start, end = match.span()
            here = []
            while marks and marks[-1].place < end:
                here.append(marks.pop())
            paragraph, at = "", start
            for mark in here:
                paragraph += self._main[at : mark.place] + mark.shown
                at = max(at, mark.place)
            yield Block(self._clean(paragraph + self._main[at:end]).strip())
            yield from (Block(mark.text) for mark in here if mark.text)
        for text in filter(None, map(str.strip, self._clean(self._boxes).split("\n\n"))):
            yield Block(text)
        yield from (Block(f"[Footer] {text}") for text in footers)

    def _furniture(self) -> tuple[list[str], list[str]]:
        """Return the headers and footers, each once. Each section has six, after six separators of notes.

        In old files, a section has only those that it uses, so all are returned as headers.
        """
        table = self._entry(_HEADERS)
        bounds = struct.unpack(f"<{len(table) // 4}I", table[: len(table) // 4 * 4])
        found: tuple[dict[str, None], dict[str, None]] = {}, {}
        for index, (start, end) in enumerate(pairwise(bounds if self._is_old else bounds[6:])):
            if text := self._clean(self._headers[start:end]).strip():
                found[index % 6 in (2, 3, 5) and not self._is_old][text] = None
        return list(found[0]), list(found[1])

    def _clean(self, text: str) -> str:
        """Return text without control characters: the results of fields, and tables as rows with tabs."""
        for _ in range(8):  # fields inside fields
            text, count = _FIELD.subn(self._shown, text)
            if not count:
                break
        text = text.translate(_CONTROLS)
        if "\x07" in text:  # the end of a cell, and of a row after the end of its last cell
            text = text.replace("\r", "\n").replace("\x07\x07", "\r").replace("\x07", "\t").replace("\r", "\n")
        return text.replace("\r", "\n").encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _shown(self, field: re.Match[str]) -> str:
        """Return what a reader sees of a field."""
        guide = None if field[2] or len(field[1]) > _MAX_GUIDE else _GUIDE.fullmatch(field[1])
        if guide is None and not field[2] and _EQUATION.match(field[1]):
            self._notes.left_out("equations in fields")
        return f"{guide[2]}({guide[1]})" if guide else field[2] or ""


def _wide(data: bytes) -> str:
    """Return text in two bytes for each character. Half of a pair of surrogates counts as a character."""
    return "".join(map(chr, struct.unpack(f"<{len(data) // 2}H", data[: len(data) // 2 * 2])))


def _padded(text: str, encoding: str) -> Iterator[str]:
    """Yield the characters, and for those of two bytes a NUL, so that places in the text are those of its bytes."""
    for character in text:
        yield character
        if not character.isascii() and len(character.encode(encoding, "replace")) == 2:
            yield "\0"
