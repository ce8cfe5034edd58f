"""Records of old PowerPoint files (MS-PPT), and the text in the shapes that they draw (MS-ODRAW)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from everlong_server.engine.documents.formats.blocks import Notes

Record = tuple[int, int, bytes]
"""The type, instance and content of a record."""
_TAGS = 0x138B
"""A record that has other ones, though its header does not say so."""
_GROUP, _SHAPE, _PROPERTIES, _MORE_PROPERTIES = 0xF003, 0xF004, 0xF00B, 0xF122
_TEXT_BOX, _CLIENT, _ANCHOR = 0xF00D, 0xF011, 0xF00F
_WIDE, _NARROW, _OUTLINE, _PLACEHOLDER = 0x0FA0, 0x0FA8, 0x0F9E, 0x0BC3
_PICTURE, _WORD_ART, _DESCRIPTION, _TABLE = 0x0104, 0x00C0, 0x0381, 0x03A0
"""Numbers of properties of shapes: the picture, the letters of WordArt, a description, the rows of a table."""
_FLAGS, _OLE_SHAPE = 0xF00A, 0x10
"""The record with the flags of a shape, and the flag of an embedded object. Its picture shows what the object holds."""
_LAST_PROMPT = 6
"""The last kind of a placeholder that is filled on slides. The others are dates, numbers, footers and headers."""
_LIST_STYLES = 0x0FAC
"""A record with the numbers and pictures before the paragraphs of a text."""
_HAS_PICTURE, _HAS_SCHEME, _IS_NUMBERED = 0x00800000, 0x01000000, 0x02000000
_LANGUAGE_SIZES = ((1, 2), (2, 2), (4, 2), (0x20, 4), (0x40, 2))
"""Flags of the language of a run, and the bytes that each adds."""
_COMPLEX = 0x8000
_MAX_DEPTH = 64


def records(data: bytes) -> Iterator[Record]:
    """Yield the records in `data`, as far as they are not cut off."""
    at = 0
    while at + 8 <= len(data):
        first, kind, size = struct.unpack_from("<HHI", data, at)
        yield kind, first >> 4, data[at + 8 : at + 8 + size]
        at += 8 + size


def walk(data: bytes, depth: int = 0) -> Iterator[Record]:
    """Yield the records in `data`, and those inside them."""
    at = 0
    while at + 8 <= len(data):
        first, kind, size = struct.unpack_from("<HHI", data, at)
        body = data[at + 8 : at + 8 + size]
        yield kind, first >> 4, body
        if (first & 15 == 15 or kind == _TAGS) and depth < _MAX_DEPTH:
            yield from walk(body, depth + 1)
        at += 8 + size


def text_of(kind: int, data: bytes) -> str | None:
    """Return the text of a record; None if it is another one."""
    if kind not in (_WIDE, _NARROW):
        return None
    text = data.decode("utf-16-le", "replace") if kind == _WIDE else data.decode("latin-1")
    return text.replace("\r", "\n").replace("\x0b", "\n").replace("\0", "").strip()


def drawn(slide: bytes, texts: Sequence[str], notes: Notes, *, is_master: bool = False) -> Iterator[str]:
    """Yield the texts of the shapes of a slide, and the descriptions of its pictures.

    `texts`: those that shapes refer to by their numbers. `is_master`: pictures and prompts are left out.
    """
    used = set[int]()
    for kind, _, body in walk(slide):
        if kind == _GROUP:  # the first contains all others
            for text in _grouped(body, texts, used, notes, is_master):
                if text and text != "*":  # the place of a number or a date
                    yield text
            break
    yield from (text for index, text in enumerate(texts) if text and index not in used)


def pictures(drawing: bytes, notes: Notes) -> Iterator[str]:
    """Yield the words of WordArt, and the descriptions of the pictures, in the shapes of an Excel sheet."""
    for kind, _, body in walk(drawing):
        if kind == _SHAPE:
            shape = list(records(body))
            properties = dict(_properties(shape))
            yield _letters(properties.get(_WORD_ART, b"")) or _picture(shape, properties, notes)


def _picture(shape: list[Record], properties: dict[int, bytes], notes: Notes) -> str:
    """Return the description of a picture, in brackets; "" for another shape."""
    is_object = any(kind == _FLAGS and data[4:5] and data[4] & _OLE_SHAPE for kind, _, data in shape)
    if _PICTURE not in properties or is_object:
        return ""
    if description := _letters(properties.get(_DESCRIPTION, b"")):
        return f"[{description}]"
    notes.left_out("pictures without a description")
    return ""


def numbered(data: bytes) -> int:
    """Return how many runs of paragraphs PowerPoint numbers, of the texts in `data`."""
    return sum(sum(_numbers(body)) for kind, _, body in walk(data) if kind == _LIST_STYLES)


def _numbers(styles: bytes) -> Iterator[bool]:
    """Yield whether each run of paragraphs is numbered (MS-PPT, 2.9.67). Their other styles are skipped."""
    at = 0
    while at + 12 <= len(styles):
        flags = int.from_bytes(styles[at : at + 4], "little")
        at += 4 + (2 if flags & _HAS_PICTURE else 0)
        yield bool(flags & _IS_NUMBERED) and styles[at : at + 2] == b"\1\0"
        at += (2 if flags & _IS_NUMBERED else 0) + (4 if flags & _HAS_SCHEME else 0)
        letters = int.from_bytes(styles[at : at + 4], "little")
        at += 8 if letters & 0x100000 else 4
        language = int.from_bytes(styles[at : at + 4], "little")
        at += 4 + sum(size for flag, size in _LANGUAGE_SIZES if language & flag)
        if language & 0x200:
            at += 4 + 4 * int.from_bytes(styles[at : at + 4], "little")


def _grouped(
    group: bytes, texts: Sequence[str], used: set[int], notes: Notes, is_master: bool, depth: int = 0
) -> Iterator[str]:
    cells: list[tuple[tuple[int, int], str]] = []
    is_table = False
    for index, (kind, _, body) in enumerate(records(group)):
        if kind == _GROUP and depth < _MAX_DEPTH:
            yield from _grouped(body, texts, used, notes, is_master, depth + 1)
        elif kind == _SHAPE:
            shape = list(records(body))
            properties = dict(_properties(shape))
            is_table = is_table or (index == 0 and _TABLE in properties)
            text = "" if is_master and _asks(shape) else _shape_text(shape, properties, texts, used)
            if not text and not is_master:
                text = _picture(shape, properties, notes)
            place = next(
                (struct.unpack("<2i", data[:8]) for inner, _, data in shape if inner == _ANCHOR and len(data) >= 8),
                (0, 0),
            )
            if is_table and any(inner == _TEXT_BOX for inner, _, _ in shape):
                cells.append(((place[1], place[0]), text))
            else:
                yield text
    rows: dict[int, list[str]] = {}
    for (top, _), text in sorted(cell for cell in cells if cell[0] != (0, 0) or cell[1]):
        rows.setdefault(top, []).append(" ".join(text.split()))
    yield "\n".join(filter(None, ("\t".join(row).rstrip() for row in rows.values())))


def _shape_text(shape: list[Record], properties: dict[int, bytes], texts: Sequence[str], used: set[int]) -> str:
    for kind, _, body in shape:
        for inner, _, data in records(body) if kind == _TEXT_BOX else ():
            if (text := text_of(inner, data)) is not None:
                return text
            if inner == _OUTLINE and len(data) >= 4 and (number := int.from_bytes(data[:4], "little")) < len(texts):
                used.add(number)
                return texts[number]
    return _letters(properties.get(_WORD_ART, b""))


def _properties(shape: list[Record]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and value of each property of a shape; of a complex one, its data."""
    for kind, count, body in shape:
        if kind not in (_PROPERTIES, _MORE_PROPERTIES):
            continue
        at = 6 * count
        for index in range(min(count, len(body) // 6)):
            name, value = struct.unpack_from("<HI", body, 6 * index)
            if name & _COMPLEX:
                yield name & 0x3FFF, body[at : at + value]
                at += value
            else:
                yield name & 0x3FFF, body[6 * index + 2 : 6 * index + 6]


def _asks(shape: list[Record]) -> bool:
    """Whether a shape of a master is the place of a title or a text, whose words ask the author to write."""
    inside = (inner for kind, _, body in shape if kind == _CLIENT for inner in records(body))
    return any(kind == _PLACEHOLDER and data[4:5] <= bytes([_LAST_PROMPT]) for kind, _, data in inside)


def _letters(data: bytes) -> str:
    return " ".join(data.decode("utf-16-le", "replace").replace("\0", "").split())
