"""Reads PowerPoint files of 1997 to 2003, after MS-PPT: a page for each slide, with its shapes, speaker notes and comments.

Files that are damaged are read through the library kreuzberg, which does not tell slides and masters apart.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import olefile

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers import legacy
from everlong_server.engine.documents.formats.readers.compound.embedded import embedded_blocks
from everlong_server.engine.documents.formats.readers.compound.shapes import (
    Record,
    drawn,
    numbered,
    records,
    text_of,
    walk,
)

_STREAM, _USER = "PowerPoint Document", "Current User"
_DUAL = "PP97_DUALSTORAGE"
"""The storage of a file that PowerPoint 95 can open, too, with the streams of later versions."""
_OLDER = b"\3\0\0\0\xff\xff\0\0"
"""The first bytes of the stream in PowerPoint 95."""
_ENCRYPTED = 0xF3D1C4DF
_EDIT, _DIRECTORY, _LIST, _SLIDE_PLACE, _NOTES_ATOM, _SLIDE_ATOM, _SHOW = (
    0x0FF5,
    0x1772,
    0x0FF0,
    0x03F3,
    0x03F1,
    0x03EF,
    0x03F9,
)
_COMMENT, _STRING, _FURNITURE, _OBJECT = 0x2EE0, 0x0FBA, 0x0FD9, 0x0FC3
_SLIDES, _MASTERS, _NOTES = 0, 1, 2
_HIDDEN = 4
_COMPRESSED = 1
_MAX_OBJECT = 64 << 20


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the slides in their order."""
    try:
        with olefile.OleFileIO(file) as ole:
            folder = [_DUAL] if ole.exists(f"{_DUAL}/{_STREAM}") else []
            if not folder and (not ole.exists(_STREAM) or ole.openstream(_STREAM).read(8) == _OLDER):
                raise Unreadable("the file is older than PowerPoint 97: save it as .pptx")
            stream, user = (ole.openstream([*folder, name]).read() for name in (_STREAM, _USER))
        presentation = _Presentation(stream, user, notes)
        blocks = list(presentation.blocks())
        objects = list(presentation.objects())
    except (OSError, ValueError, IndexError, KeyError, struct.error):
        yield from legacy.read(file, notes, "ppt")
        return
    yield from blocks
    for data in objects:
        yield from embedded_blocks(data, "object", notes)


class _Presentation:
    """The records of a file. It has several versions of some, of which the newest counts."""

    def __init__(self, stream: bytes, user: bytes, notes: Notes) -> None:
        """Raises `ValueError`, `KeyError` or `struct.error` for a damaged file, and `Unreadable`."""
        self._stream, self._notes = stream, notes
        token, edit = struct.unpack_from("<2I", user, 12)
        if token == _ENCRYPTED:
            raise Unreadable("the file is encrypted; upload it without a password")
        self._places: dict[int, int] = {}
        root, seen = 0, set[int]()
        while edit and edit not in seen:
            seen.add(edit)
            kind, _, body = self._at(edit)
            if kind != _EDIT:
                raise ValueError("its last edit is missing")
            edit, directory, document = struct.unpack_from("<3I", body, 8)
            if len(body) >= 32:  # it names the key
                raise Unreadable("the file is encrypted; upload it without a password")
            root = root or document
            self._add_places(self._at(directory)[2])
        self._root = self._of(root)[2]
        self._document = list(records(self._root))

    def _at(self, place: int) -> Record:
        first, kind, size = struct.unpack_from("<HHI", self._stream, place)
        return kind, first >> 4, self._stream[place + 8 : place + 8 + size]

    def _of(self, id: int) -> Record:
        """Return the record with an id of the directory."""
        return self._at(self._places[id])

    def _add_places(self, directory: bytes) -> None:
        at = 0
        while at + 4 <= len(directory):
            first = int.from_bytes(directory[at : at + 4], "little")
            id, count = first & 0xFFFFF, first >> 20
            for index, place in enumerate(struct.unpack_from(f"<{count}I", directory, at + 4)):
                self._places.setdefault(id + index, place)
            at += 4 + 4 * count

    def _listed(self, kind: int) -> Iterator[tuple[bytes, list[str]]]:
        """Yield the slides, masters or pages of notes in their order, each with the texts that the list has of it."""
        for name, instance, body in self._document:
            if name != _LIST or instance != kind:
                continue
            slides: list[tuple[int, list[str]]] = []
            for inner, _, data in records(body):
                if inner == _SLIDE_PLACE:
                    slides.append((int.from_bytes(data[:4], "little"), []))
                elif slides and (text := text_of(inner, data)) is not None:
                    slides[-1][1].append(text)
            for id, texts in slides:
                if id in self._places:
                    yield self._of(id)[2], texts
                else:
                    self._notes.add("a slide is not in the file")

    def blocks(self) -> Iterator[Block]:
        """Yield the slides."""
        spoken = dict(self._speaker_notes())
        number = 0
        for number, (slide, texts) in enumerate(self._listed(_SLIDES), 1):
            with self._notes.at(page=number):
                parts = [*drawn(slide, texts, self._notes), *_comments(slide)]
                self._notes.left_out("list numbers", numbered(slide))
            atom = next((data for kind, _, data in records(slide) if kind == _SLIDE_ATOM), bytes(24))
            show = next((data for kind, _, data in records(slide) if kind == _SHOW), b"")
            if len(show) > 11 and int.from_bytes(show[10:12], "little") & _HIDDEN:
                self._notes.add("the slide is hidden", page=number)
            if said := spoken.get(int.from_bytes(atom[16:20], "little")):
                parts.append(f"[Speaker notes] {said}")
            parts += self._footers(slide)
            if not parts:
                self._notes.add("the slide has no text", page=number)
            yield Block("\n\n".join(parts), page=number)
        if not number:
            raise ValueError("it has no slides")
        self._notes.left_out("list numbers", numbered(self._root))
        background = [
            text for master, _ in self._listed(_MASTERS) for text in drawn(master, [], self._notes, is_master=True)
        ]
        yield from (Block(f"[On each slide] {text}") for text in dict.fromkeys(background))

    def _speaker_notes(self) -> Iterator[tuple[int, str]]:
        """Yield the id of each page of notes, and its text."""
        for name, instance, body in self._document:
            if name == _LIST and instance == _NOTES:
                for inner, _, data in records(body):
                    id, place = (int.from_bytes(data[at : at + 4], "little") for at in (12, 0))
                    if inner == _SLIDE_PLACE and place in self._places:
                        yield id, "\n".join(drawn(self._of(place)[2], [], self._notes))

    def _footers(self, slide: bytes) -> Iterator[str]:
        """Yield the header and footer that a slide has of its own."""
        for kind, _, body in records(slide):
            for inner, instance, data in records(body) if kind == _FURNITURE else ():
                if inner == _STRING and instance in (1, 2) and (text := _string(data)):
                    yield f"[{'Header' if instance == 1 else 'Footer'}] {text}"

    def objects(self) -> Iterator[bytes]:
        """Yield the embedded files."""
        for kind, _, body in walk(self._root):
            if kind != _OBJECT or len(body) < 20 or int.from_bytes(body[4:8], "little") != 0:  # linked
                continue
            place = self._places.get(int.from_bytes(body[16:20], "little"))
            _, instance, data = self._at(place) if place is not None else (0, 0, b"")
            if instance == _COMPRESSED:
                try:
                    data = zlib.decompressobj().decompress(data[4:], _MAX_OBJECT)
                except zlib.error:
                    data = b""
            if data:
                yield data
            else:
                self._notes.left_out("embedded objects that are not in the file")


def _comments(slide: bytes) -> Iterator[str]:
    for kind, _, body in walk(slide):
        if kind == _COMMENT:
            strings = {instance: _string(data) for inner, instance, data in records(body) if inner == _STRING}
            if text := strings.get(1):
                author = strings.get(0)
                yield f"[Comment{f' by {author}' if author else ''}] {text}"


def _string(data: bytes) -> str:
    return " ".join(data.decode("utf-16-le", "replace").split())
