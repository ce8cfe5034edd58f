"""What the reader of a file format returns: blocks of text, and notes on what is not in the text."""

from __future__ import annotations

import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from everlong_server.store.texts.notes import Note

DAMAGED_ENTRY = (zipfile.BadZipFile, zlib.error, OSError, EOFError, NotImplementedError, ValueError, RuntimeError)
"""What `zipfile` raises for an entry that is damaged, encrypted or compressed in an unknown way."""
MAX_NOTES = 100
_MAX_LENGTH = 200
_MAX_DEPTH = 4
_MAX_PLACES, _MAX_LIST = 1000, 90
"""At most this many places are counted for one kind of thing, and a note lists them in this many characters."""
_Place = tuple[int | None, str | None]
"""A page and a part of the file; None where it is not known."""
_UNKNOWN: _Place = (None, None)


@dataclass(frozen=True, slots=True)
class Block:
    """Text, and the page or section that it begins. Without both, the text continues the block before.

    `joined`: no blank line separates it from the block before.
    """

    text: str
    page: int | None = None
    section: str | None = None
    joined: bool = False


def printable(name: str) -> str:
    """Return a name with a space in place of each run of white space and other characters that cannot be shown."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in name).split())


class Unreadable(Exception):
    """The file has no readable text; the message says why."""


class PictureReader(Protocol):
    """Recognises text in pictures."""

    def read(self, picture: Callable[[], Any], notes: Notes, *, page: int | None = None) -> str:
        """Return the text of a picture, and add a note."""


class Notes:
    """Collects the notes of one conversion, at most `MAX_NOTES`.

    `read_nested`: reads a file inside the file, such as an attachment; returns None for a format that is not supported.
    `recogniser`: None if text in pictures cannot be recognised here. `on_page`: called with the number of each page before it
    is read, counted from 1, and the number of pages.
    """

    def __init__(
        self,
        read_nested: Callable[[Path, str, Notes], Iterator[Block] | None],
        recogniser: PictureReader | None = None,
        on_page: Callable[[int, int], object] = lambda page, pages: None,
    ) -> None:
        self._read_nested = read_nested
        self._recogniser = recogniser
        self.on_page = on_page
        self._notes: dict[Note, None] = {}
        self._left_out: dict[str, Counter[_Place]] = {}
        self._place = _UNKNOWN
        self._more = 0
        self._depth = 0

    def add(self, text: str, *, page: int | None = None, part: str | None = None) -> None:
        """Add a note. A note that exists already is not added again."""
        note = Note(text[:_MAX_LENGTH], page, part[:_MAX_LENGTH] if part else None)
        if len(self._notes) < MAX_NOTES:
            self._notes[note] = None
        else:
            self._more += note not in self._notes

    @contextmanager
    def at(self, *, page: int | None = None, part: str | None = None) -> Iterator[None]:
        """Note for this page or part what is left out meanwhile. A part inside another has both names, such as "mail.eml, Sheet 1"."""
        outer = self._place
        self._place = page, ", ".join(filter(None, [outer[1], part]))[:_MAX_LENGTH] or None
        try:
            yield
        finally:
            self._place = outer

    def left_out(self, things: str, count: int = 1) -> None:
        """Count things that are not in the text, at the current place. `things`: a plural, such as "pictures"."""
        things = things[:_MAX_LENGTH]
        if count and (things in self._left_out or len(self._left_out) < MAX_NOTES):
            counts = self._left_out.setdefault(things, Counter())
            counts[self._place if self._place in counts or len(counts) < _MAX_PLACES else _UNKNOWN] += count
        else:
            self._more += count

    def recognised(
        self, picture: Callable[[], Any], *, page: int, what: str = "the page is a picture without text"
    ) -> str:
        """Return the text of a page that is a picture, with a note on it. `picture`: returns a `PIL.Image`. `what`: why it has none."""
        if self._recogniser is not None:
            return self._recogniser.read(picture, self, page=page)
        self.add(
            f"{what}; its text is recognised if pip install 'everlong[ocr]' is run on the server",
            page=page,
        )
        return ""

    def nested(self, data: bytes, name: str, kind: str | None = None) -> Iterator[Block]:
        """Yield the blocks of a file inside the file. What cannot be read becomes a note.

        `kind`: what the file is, such as "Attachment"; then it begins a section.
        """
        name = printable(name) or "a file without a name"
        if self._depth == _MAX_DEPTH:
            self.add(f"it is a file inside {_MAX_DEPTH} files and was left out", part=name)
            return
        self._depth += 1
        try:
            with tempfile.TemporaryDirectory() as folder, self.at(part=name):
                file = Path(folder, "nested")
                file.write_bytes(data)
                blocks = self._read_nested(file, name, self)
                if blocks is None:
                    self.add("its format is not supported; it was left out", part=name)
                    return
                is_blank, noted = True, len(self._notes)
                for block in blocks:
                    if kind is not None and block.text:
                        yield Block(f"[{kind}] {name}", section=name)
                        kind = None
                    is_blank = is_blank and not block.text
                    yield block
                if is_blank and noted == len(self._notes):
                    self.add("there is no text in it", part=name)
        except Unreadable as error:
            self.add(f"it was left out: {error}", part=name)
        finally:
            self._depth -= 1

    def all(self) -> list[Note]:
        """Return the notes, with one more for each kind of thing that was left out."""
        notes = [*self._notes, *(_left_out(things, counts) for things, counts in self._left_out.items())]
        return [*notes, Note(f"{self._more} more notes")] if self._more else notes


def _left_out(things: str, counts: Counter[_Place]) -> Note:
    """Return the note on one kind of things, with their page or part, or a list of these."""
    if len(counts) == 1:
        return Note(f"left out: {things} ({counts.total()})", *next(iter(counts)))
    parts: dict[str | None, set[int | None]] = {}
    for page, part in counts:
        parts.setdefault(part, set()).add(page)
    common = next(iter(parts)) if len(parts) == 1 else None
    places = [
        " ".join(filter(None, ["" if part == common else part, _page_list([page for page in pages if page])]))
        for part, pages in parts.items()
    ]
    places += ["elsewhere"] if None in parts.get(common, ()) else []
    listed = "; ".join(filter(None, places))
    if len(listed) > _MAX_LIST:
        cut = listed[:_MAX_LIST]
        listed = f"{cut[: max(cut.rfind(','), cut.rfind(';'))]}, …"
    return Note(f"left out: {things} ({counts.total()}: {listed})", None, common)


def _page_list(pages: Collection[int]) -> str:
    """Return the pages as words, such as "pages 2, 4-6"."""
    runs: list[list[int]] = []
    for page in sorted(pages):
        if runs and page == runs[-1][1] + 1:
            runs[-1][1] = page
        else:
            runs.append([page, page])
    words = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return f"page{'s' if len(pages) > 1 else ''} {words}" if words else ""
