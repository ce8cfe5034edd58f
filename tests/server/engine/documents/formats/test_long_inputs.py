"""Reading takes linear time: a file with a hostile line is read before the limit of its conversion's CPU seconds ends the process."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from everlong_server.engine.documents.formats import conversion

HEAD = b"From: ada@x.example\nSubject: Rent\n"
FLOWED = (
    HEAD
    + b"Content-Type: text/plain; format=flowed; charset=utf-8\n\n"
    + "\N{GRINNING FACE} \n".encode()
    + b"a \n" * 1_000_000
)
"""With a character that makes Python store all of the paragraph's characters in four bytes."""
MAILBOX = (
    b"From ada@x.example Mon Jan  1 00:00:00 2024\n"
    + HEAD
    + b"\nHi\nFrom x Mon Jan 1 "
    + b"1:11 " * 40_000
    + b"\n\nBye\n"
)
SPACES = b"<html><body><pre>a" + b" " * 300_000 + b"b</pre>"


def entry(name: bytes, content: bytes) -> bytes:
    """Return a stored entry of a ZIP file whose size should follow it, but does not."""
    flag = 8
    return (
        b"PK\3\4" + struct.pack("<5H3I2H", 20, flag, zipfile.ZIP_STORED, 0, 0, 0, 0, 0, len(name), 0) + name + content
    )


ENTRIES = entry(b"a.txt", b"Words") + entry(b"", b"") * 80_000
FILES = {
    "lines of a paragraph": ("eml", FLOWED, "a a a"),
    "times in a line of a mailbox": ("eml", MAILBOX, "Bye"),
    "spaces on a page": ("html", SPACES, "b"),
    "entries of an archive": ("zip", ENTRIES, "Words"),
}


@pytest.mark.parametrize(("kind", "data", "end"), FILES.values(), ids=FILES)
@pytest.mark.long
def test_a_file_with_many(kind: str, data: bytes, end: str, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(data)
    conversion.convert(tmp_path / "in", kind, tmp_path / "out", 1 << 24)
    assert (tmp_path / "out").read_text("utf-8").endswith(end)
