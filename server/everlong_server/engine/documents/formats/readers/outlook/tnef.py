"""Reads winmail.dat (MS-OXTNEF): the text of an Outlook message, and its attachments."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.readers.outlook.message import (
    ANSI,
    BINARY,
    BODY,
    CODE_PAGE,
    CONTENT_ID,
    DATA,
    DISPLAY_NAME,
    FILE_NAME,
    LONG_FILE_NAME,
    NUMBER,
    OBJECT,
    SUBJECT,
    UNICODE,
    Attachment,
    Message,
    Properties,
)

MAGIC = b"\x78\x9f\x3e\x22"
_PROPERTIES, _CODE_PAGE, _BEGIN, _ATTACHMENT = 0x9003, 0x9007, 0x9002, 0x9005
"""Ids of attributes: properties of the message, its code page, the beginning of an attachment, properties of that."""
_TEXTS = {0x8004: SUBJECT, 0x800C: BODY}
_OF_FILE = {0x8010: (DISPLAY_NAME, ANSI), 0x800F: (DATA, BINARY)}
"""Attributes that are one property each, of the message or of an attachment."""
_SIZES = {2: 4, 3: 4, 4: 4, 5: 8, 6: 8, 7: 8, 10: 4, 11: 4, 20: 8, 64: 8, 72: 16}
"""Bytes of the values that have a fixed size, by their type."""
_MAX_DEPTH = 4


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the message and its attachments."""
    yield from _message(file.read_bytes(), notes, 0).blocks(notes)


def _message(data: bytes, notes: Notes, depth: int) -> Message:
    message = Message(Properties(), [])
    files: list[Properties] = []
    at = 6
    while at + 9 <= len(data):
        id, size = struct.unpack_from("<xHxxI", data, at)
        value = data[at + 9 : at + 9 + size]
        at += 11 + size  # with a checksum
        if id == _CODE_PAGE and len(value) >= 4:
            message.properties.values[CODE_PAGE, NUMBER] = value[:4]
            message.properties.find_code_page()
        elif id in _TEXTS:
            message.properties.values[_TEXTS[id], ANSI] = value
        elif id == _PROPERTIES:
            message.properties.values.update(_mapi(value, notes))
        elif id == _BEGIN:
            files.append(Properties())
        elif id == _ATTACHMENT and files:
            files[-1].values.update(_mapi(value, notes))
        elif id in _OF_FILE and files:
            files[-1].values[_OF_FILE[id]] = value
    for each in files:
        each.code_page = message.properties.code_page
        name = each.text(LONG_FILE_NAME, DISPLAY_NAME, FILE_NAME) or "attachment"
        inner = each.values.get((DATA, OBJECT), b"")[16:]
        if inner.startswith(MAGIC) and depth < _MAX_DEPTH:
            message.attachments.append(Attachment(name, _message(inner, notes, depth + 1)))
        elif (content := each.values.get((DATA, BINARY))) is not None:
            message.attachments.append(Attachment(name, content, bool(each.text(CONTENT_ID))))
        else:
            notes.add("it is an embedded object and was left out", part=name)
    return message


def _mapi(data: bytes, notes: Notes) -> dict[tuple[int, int], bytes]:
    """Return the properties in a list of them, as far as it is not damaged."""
    found: dict[tuple[int, int], bytes] = {}
    try:
        at = 4
        for _ in range(struct.unpack_from("<I", data)[0]):
            kind, id = struct.unpack_from("<HH", data, at)
            at += 4
            if id >= 0x8000:  # with a name
                is_text, size = struct.unpack_from("<II", data, at + 16)
                at += 24 + (size + -size % 4 if is_text else 0)
            count = 1
            if kind & 0x1000 or kind in (ANSI, UNICODE, BINARY, OBJECT):
                count = struct.unpack_from("<I", data, at)[0]
                at += 4
            for _ in range(count):
                size = _SIZES.get(kind & 0xFFF, 0)
                if not size:
                    size = struct.unpack_from("<I", data, at)[0]
                    at += 4
                if at + size > len(data):
                    raise ValueError
                found.setdefault((id, kind), data[at : at + size])
                at += size + -size % 4
    except (struct.error, ValueError):
        notes.add("some properties of the message are damaged")
    return found
