"""Reads Outlook messages (MS-OXMSG): a compound file with a stream for each property, and a storage for each attachment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import olefile

from everlong_server.engine.documents.formats.blocks import Block, Notes, Unreadable
from everlong_server.engine.documents.formats.readers.outlook.message import (
    BINARY,
    CONTENT_ID,
    DATA,
    DISPLAY_NAME,
    FILE_NAME,
    LONG_FILE_NAME,
    NUMBER,
    OBJECT,
    TIME,
    Attachment,
    Message,
    Properties,
)

_STREAM = re.compile(r"__substg1\.0_([0-9A-F]{4})([0-9A-F]{4})", re.IGNORECASE)
_ATTACHMENT = re.compile(r"__attach_version1\.0_#[0-9A-F]{8}", re.IGNORECASE)
_FIXED = "__properties_version1.0"
_MAX_DEPTH = 8


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield the message and its attachments."""
    try:
        with olefile.OleFileIO(file) as ole:
            message = _Storage(ole, [], notes).message()
    except (OSError, ValueError, IndexError) as error:
        raise Unreadable(f"the message is damaged ({error})") from None
    yield from message.blocks(notes)


class _Storage:
    """A storage of the file, which is the message, an attachment or a message that is one."""

    def __init__(self, ole: olefile.OleFileIO, path: list[str], notes: Notes) -> None:
        self._ole, self._path, self._notes = ole, path, notes
        inside = [each[len(path) :] for each in ole.listdir() if each[: len(path)] == path]
        self._streams = sorted({each[0] for each in inside if len(each) == 1})
        self._storages = sorted({each[0] for each in inside if len(each) > 1})

    def message(self) -> Message:
        """Return the message that the storage is."""
        # Before the properties: 32 bytes in the file's message, 24 in one that is attached.
        properties = self._properties(24 if self._path else 32)
        properties.find_code_page()
        attached = (name for name in self._storages if _ATTACHMENT.fullmatch(name))
        inner = (_Storage(self._ole, [*self._path, name], self._notes) for name in attached)
        found = (storage._attachment(properties.code_page) for storage in inner)
        return Message(properties, [each for each in found if each is not None])

    def _attachment(self, code_page: str) -> Attachment | None:
        properties = self._properties(8)
        properties.code_page = code_page
        name = properties.text(LONG_FILE_NAME, FILE_NAME, DISPLAY_NAME) or "attachment"
        inner = f"__substg1.0_{DATA:04X}{OBJECT:04X}"
        if inner in self._storages:
            storage = _Storage(self._ole, [*self._path, inner], self._notes)
            if _FIXED in storage._streams and len(self._path) < 2 * _MAX_DEPTH:
                return Attachment(name, storage.message())
            self._notes.add("it is an embedded object and was left out", part=name)
            return None
        content = properties.values.get((DATA, BINARY))
        if content is None:
            self._notes.add("the message refers to it, but does not contain it", part=name)
            return None
        return Attachment(name, content, bool(properties.text(CONTENT_ID)))

    def _properties(self, header: int) -> Properties:
        properties = Properties()
        for name in self._streams:
            if match := _STREAM.fullmatch(name):
                try:
                    value = self._ole.openstream([*self._path, name]).read()
                except OSError as error:
                    self._notes.add(f"it is damaged and was left out ({error})", part=name)
                    continue
                properties.values[int(match[1], 16), int(match[2], 16)] = value
        fixed = self._ole.openstream([*self._path, _FIXED]).read()[header:] if _FIXED in self._streams else b""
        for at in range(0, len(fixed) - 15, 16):
            kind, id = int.from_bytes(fixed[at : at + 2], "little"), int.from_bytes(fixed[at + 2 : at + 4], "little")
            if kind in (NUMBER, TIME):
                properties.values[id, kind] = fixed[at + 8 : at + 16]
        return properties
