"""Reads RTF (version 1.9.1): paragraphs, tables, notes, headers and text boxes.

Footnotes and comments follow the paragraph that refers to them, footers the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.charset import FONT_CHARSETS, is_utf8
from everlong_server.engine.documents.formats.readers.html import render
from everlong_server.engine.documents.formats.readers.rich_text import equations
from everlong_server.engine.documents.formats.readers.rich_text.columns import Table
from everlong_server.engine.documents.formats.readers.rich_text.state import Sink, State
from everlong_server.engine.documents.formats.readers.rich_text.words import (
    CHARACTERS,
    DESCRIPTIONS,
    FURNITURE,
    PROPERTIES,
    QUIET,
    SIGNS,
    SILENT,
    SYSTEMS,
    TOKEN,
    TRANSPARENT,
    UNSEEN,
    WORDS,
    codec_of_page,
)
from everlong_server.engine.documents.formats.readers.shared.addresses import field_address
from everlong_server.engine.documents.formats.readers.shared.fields import Control, field_text
from everlong_server.engine.documents.formats.readers.shared.marks import (
    LINK_END,
    link_begin,
    struck,
    superscript,
    written_out,
)
from everlong_server.engine.documents.formats.readers.shared.symbols import character, is_symbol_font

_MAX_INITIAL = 20
"""Characters that the large beginning of a paragraph may have."""


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the paragraphs and tables of the file. A heading begins a section."""
    yield from blocks_of(file.read_bytes(), notes)


def blocks_of(data: bytes, notes: Notes) -> Iterator[Block]:
    """Yield the blocks of RTF; of HTML inside RTF, as in e-mail, those of the HTML."""
    yield from _Reader(data, notes).blocks()


class _Reader:
    def __init__(self, data: bytes, notes: Notes) -> None:
        self._data = data
        self._notes = notes
        self._body = Sink("body")
        self._state = State(self._body)
        self._stack: list[State] = []
        self._codec = "cp1252"
        self._fonts: dict[int, tuple[str, str]] = {}
        """Name and encoding of each font."""
        self._levels: dict[int, int] = {}
        self._style = self._level = -1
        self._is_initial = False
        """Whether the paragraph is the large first letter of the next one."""
        self._form = Control()
        self._is_utf8 = not data.isascii() and is_utf8(
            data
        )  # RTF is ASCII, but some programs write other texts into it
        self._is_html = b"\\fromhtml1" in data[:4096]
        self._bytes = bytearray()
        self._skipping = 0
        self._starred = False
        self._table = Table()
        self._pending: list[Block] = []
        self._footers: dict[str, None] = {}
        self._shown = set[str]()
        self._count = 0
        self._author = self._property = ""
        self._section: str | None = None
        """The current heading."""

    def blocks(self) -> Iterator[Block]:
        """Yield the text."""
        place = 0
        while match := TOKEN.match(self._data, place):
            place = match.end()
            if match["text"] is not None:
                self._text(match["text"], "utf-8" if self._is_utf8 else "")
            elif match["hex"] is not None:
                self._text(bytes([int(match["hex"], 16)]))
            elif match["brace"] is not None:
                self._flush()
                self._skipping = 0
                yield from self._group(is_open=match["brace"] == b"{")
            elif match["sign"] is not None:
                yield from self._sign(match["sign"])
            elif match["word"] is not None:
                number = None if match["number"] is None else int(match["number"])
                word = match["word"].decode()
                if word == "bin":
                    place += max(0, number or 0)
                else:
                    yield from self._word(word, number)
        self._flush()
        while self._stack:
            yield from self._group(is_open=False)
        yield from self._row() if self._table.cells else ()
        yield Block(self._table.take_text())
        if self._is_html:
            yield from render(self._body.text(), self._notes)
        else:
            yield from self._paragraph()
            yield from (Block(f"[Footer] {text}") for text in self._footers)

    # Tokens

    def _sign(self, sign: bytes) -> Iterator[Block]:
        if sign == b"*":
            self._starred = True
        elif sign in b"\r\n":
            yield from self._word("par", None)
        elif self._skipping:
            self._skipping -= 1
        else:
            self._add(SIGNS.get(sign, ""))

    def _text(self, data: bytes, codec: str = "") -> None:
        """Collect bytes of an encoding, by default that of the current font."""
        dropped, self._skipping = min(self._skipping, len(data)), max(0, self._skipping - len(data))
        if self._state.properties == "fonttbl":
            name, codec = self._fonts.get(self._state.font, ("", ""))
            self._fonts[self._state.font] = name + data.decode("latin-1"), codec
        elif self._state.hidden and data.strip():
            self._left_out(self._state.hidden)
        elif self._state.listens and codec and not data.isascii():
            self._add(data.decode(codec)[dropped:])
        elif self._state.listens:
            self._bytes += data[dropped:]

    def _left_out(self, things: str) -> None:
        with self._notes.at(part=self._section):
            self._notes.left_out(things)

    def _flush(self) -> None:
        """Decode the collected bytes."""
        data, self._bytes = bytes(self._bytes), bytearray()
        if not data or not self._state.listens:
            return
        name, codec = self._fonts.get(self._state.font, ("", ""))
        name = name.rstrip(";").strip()
        if is_symbol_font(name) and self._state.sink.kind not in ("sn", "sv"):
            self._add("".join(character(name, code) or "" for code in data))
        else:
            self._add(data.decode(codec or self._codec, "replace"))

    def _add(self, text: str) -> None:
        self._flush()
        state = self._state
        if state.listens and not state.hidden and not state.markup:
            if self._is_html:
                text = escape(text, quote=False) if state.sink.kind == "body" else text
            else:
                text = superscript(text) if state.is_raised else text
                text = struck(text) if state.is_struck else text
            state.sink.parts.append(text)

    def _group(self, *, is_open: bool) -> Iterator[Block]:
        if is_open:
            self._stack.append(self._state)
        elif self._stack:
            state, self._state = self._state, self._stack.pop()
            if state.sink is not self._state.sink and state.sink.kind in equations.PARTS:
                equations.write_part(state.sink, self._state.sink)
            elif state.sink is not self._state.sink:
                yield from self._finish(state.sink)
            elif state.is_link and not self._state.is_link:
                state.sink.parts.append(LINK_END)
        self._starred = False

    def _word(self, word: str, number: int | None) -> Iterator[Block]:
        starred, self._starred = self._starred, False
        value = 1 if number is None else number
        state = self._state
        if word == "u":
            self._add(self._unicode(value & 0xFFFF))
            self._skipping = state.skip
            return
        if self._skipping and word in CHARACTERS:
            self._skipping -= 1
            return
        self._flush()
        if word in WORDS or word in QUIET or word in SILENT or word in PROPERTIES:
            self._begin(word)
        elif starred and word not in TRANSPARENT:
            self._state = replace(state, listens=False, silent=True)
        elif word == "ud":
            self._state = replace(state, listens=not state.silent)
        elif word in CHARACTERS:
            self._add(CHARACTERS[word])
        elif word in ("par", "sect", "page", "column", "row", "cell"):
            yield from self._end(word)
        else:
            self._set(word, value)

    def _unicode(self, code: int) -> str:
        name = self._fonts.get(self._state.font, ("", ""))[0].rstrip(";").strip()
        return (character(name, code) or "") if 0xF000 <= code <= 0xF0FF and is_symbol_font(name) else chr(code)

    def _set(self, word: str, value: int) -> None:
        """Apply a control word that changes a property."""
        state = self._state
        match word:
            case "uc":
                self._state = replace(state, skip=min(max(value, 0), 9))
            case "f":
                self._state = replace(state, font=value)
            case "fcharset" | "cpg" if state.properties == "fonttbl":
                codec = FONT_CHARSETS.get(value, "") if word == "fcharset" else codec_of_page(value)
                self._fonts[state.font] = self._fonts.get(state.font, ("", ""))[0], codec
            case "ansicpg":
                self._codec = codec_of_page(value)
            case _ if word in SYSTEMS:
                self._codec = SYSTEMS[word]
            case "super" | "up" | "sub" | "dn" | "nosupersub":
                self._state = replace(state, is_raised=word in ("super", "up") and value > 0)
            case _ if word in UNSEEN:
                self._state = replace(state, hidden=UNSEEN[word] if value else "")
                is_plain = word == "plain"
                self._state = replace(
                    self._state, is_raised=state.is_raised and not is_plain, is_struck=state.is_struck and not is_plain
                )
            case "strike" | "striked":
                self._state = replace(state, is_struck=bool(value))
            case "pard":
                self._level = self._style = -1
                self._is_initial = False
                self._state = replace(state, in_table=False)
            case "intbl":
                self._state = replace(state, in_table=True)
            case "htmlrtf":
                self._state = replace(state, markup=bool(value))
            case _:
                self._set_of_paragraph(word, value)

    def _set_of_paragraph(self, word: str, value: int) -> None:
        """Apply a control word of a paragraph or a form control."""
        match word:
            case "s":
                self._style = value
            case "outlinelevel" if self._state.properties == "stylesheet":
                self._levels[self._style] = value
            case "outlinelevel":
                self._level = value
            case "dropcapli":
                self._is_initial = True
            case "trowd" if self._is_body:
                self._table.define_row()
            case "cellx" if self._is_body:
                self._table.define_cell(value)
            case "ffres" | "ffdefres":
                self._form.choose(value)

    # Destinations

    def _begin(self, word: str) -> None:
        """Begin a destination, which ends with its group."""
        state = self._state
        if state.silent:
            return
        if word in SILENT:
            self._state = replace(state, listens=False, silent=True)
        elif word in PROPERTIES:
            self._state = replace(state, listens=False, properties=word)
        elif word in QUIET:
            self._state = replace(state, listens=False)
            if word in ("pict", "object"):
                self._left_out("pictures" if word == "pict" else "embedded objects")
        else:
            self._state = replace(
                state,
                sink=Sink(word),
                listens=True,
                hidden="",
                markup=False,
                is_raised=False,
                is_struck=False,
                is_link=False,
            )

    def _finish(self, sink: Sink) -> Iterator[Block]:
        """Use the text of a destination that has ended."""
        text, outer = written_out(sink.text()).strip(), self._state.sink
        match sink.kind:
            case "htmltag":
                outer.parts.append(sink.text())
            case "sn":
                self._property = text
            case "sv":
                if self._property in DESCRIPTIONS and text:
                    self._body.parts.append(f"[{' '.join(text.split())}]")
            case "ffl" | "fldinst" as part:
                outer.parts.append(self._of_field(part, text))
            case "atnauthor":
                self._author = text
            case "annotation" if text:
                label = f"Comment by {self._author}" if self._author else "Comment"
                self._pending.append(Block(f"[{label}] {text}"))
                self._author = ""
            case "footnote":
                self._count += 1
                outer.parts.append(f"[{self._count}]")
                self._notes.add("footnotes follow the paragraphs that refer to them")
                self._pending.append(Block(f"[Footnote {self._count}] {text}"))
            case "shptxt" | "dptxbxtext":
                outer.parts.append(f"\n{text}\n")
            case kind if kind in FURNITURE and text and text not in self._shown:
                self._shown.add(text)
                if kind.startswith("header"):
                    yield Block(f"[Header] {text}")
                else:
                    self._footers[text] = None

    def _of_field(self, part: str, text: str) -> str:
        """Return what a field shows, by its instruction. Keeps the options of a list, which precede it."""
        if part == "ffl":
            self._form.options.append(text)
            return ""
        if text.startswith("FORM"):
            return self._form.take_text(text)
        if not self._is_html and (address := field_address(text)):
            self._state = replace(self._state, is_link=True)  # of the group with the instruction and the result
            return link_begin(address)
        return field_text(text, self._fonts.get(self._state.font, ("", ""))[0].rstrip(";").strip())

    # Paragraphs

    def _end(self, word: str) -> Iterator[Block]:
        """End a paragraph, a cell or a row."""
        state = self._state
        if not state.listens or state.markup:
            return
        if self._is_html or state.sink is not self._body:
            state.sink.parts.append("\n")
        elif word == "cell":
            self._table.cells.append(self._take_text())
        elif word == "row":
            yield from self._row()
        elif state.in_table and word == "par":
            self._body.parts.append("\n")
        elif not (self._is_initial and len(self._body.text().strip()) <= _MAX_INITIAL):
            yield from self._paragraph()

    def _take_text(self) -> str:
        text = written_out(self._body.text()).strip()
        self._body.parts.clear()
        return text

    @property
    def _is_body(self) -> bool:
        return self._state.listens and self._state.sink is self._body

    def _row(self) -> Iterator[Block]:
        """End a row. Notes on it end the table, so that they follow the row."""
        self._table.end_row()
        if self._pending:
            yield Block(self._table.take_text())
            yield from self._notes_on_it()

    def _paragraph(self) -> Iterator[Block]:
        yield Block(self._table.take_text())
        text = self._take_text()
        level = self._level if self._level >= 0 else self._levels.get(self._style, -1)
        section = " ".join(text.split()) if text and 0 <= level < 9 else None
        self._section = section or self._section
        yield Block(text, section=section)
        yield from self._notes_on_it()

    def _notes_on_it(self) -> Iterator[Block]:
        pending, self._pending = self._pending, []
        yield from pending
