"""A ZIP file whose end is missing keeps its own files, also beside files that are ZIP files themselves."""

from __future__ import annotations

import io
import random
import struct
import zipfile
from collections.abc import Callable

import pytest

from tests import files
from tests.server.engine.documents.formats.reading import notes_of, read, text_of

CUT = "the end of the file is missing or damaged; what was found before it was read"
INNER = files.word(("Normal", "Inner words"))


class Pipe(io.RawIOBase):
    """A file in which a program cannot go back, so that it writes the size of an entry after it."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        self.data += data
        return len(data)


def plain(name: str, data: bytes, packed: zipfile.ZipFile) -> None:
    packed.writestr(name, data)


def large(name: str, data: bytes, packed: zipfile.ZipFile) -> None:
    with packed.open(name, "w", force_zip64=True) as entry:
        entry.write(data)


def stored(last: bytes, write: Callable[[str, bytes, zipfile.ZipFile], None] = plain, *, piped: bool = False) -> bytes:
    """Return a ZIP file of uncompressed files: a text, a Word file, and a text of these bytes."""
    pipe, out = Pipe(), io.BytesIO()
    with zipfile.ZipFile(pipe if piped else out, "w") as packed:
        for name, data in (("1.txt", b"First words"), ("2.docx", INNER), ("3.txt", last)):
            write(name, data, packed)
    return bytes(pipe.data) if piped else out.getvalue()


TEXTS = ["[File] 1.txt", "First words", "[File] 2.docx", "Inner words", "[File] 3.txt"]
WRITTEN = {
    "sizes before the files": stored(b"third " * 2000),
    "sizes after the files": stored(b"third " * 2000, piped=True),
    "sizes of large files": stored(b"third " * 2000, large),
    "farther from the end than a directory is looked for": stored(random.Random(1).randbytes(60_000).hex().encode()),
}


@pytest.mark.parametrize("whole", WRITTEN.values(), ids=WRITTEN)
def test_a_cut_archive_with_a_stored_office_file(whole: bytes) -> None:
    cut = whole[:-4000]
    assert text_of(cut, "a.zip").split("\n\n")[:5] == TEXTS
    assert CUT in notes_of(cut, "a.zip")


def test_a_cut_archive_that_ends_with_a_stored_office_file() -> None:
    whole = stored(b"third")
    cut = whole[: whole.index(INNER) + len(INNER)]
    text, notes = read(cut, "a.zip")
    assert text.split("\n\n") == TEXTS[:4]
    assert [note.text for note in notes] == [CUT]


@pytest.mark.parametrize("size", [3, 7, 1 << 20])
def test_a_damaged_size_costs_no_other_file(size: int) -> None:
    data = bytearray(files.zipped({"1.txt": "First", "2.txt": "Second", "3.txt": "Third"}))
    struct.pack_into("<I", data, 18, size)
    text = text_of(bytes(data[: data.index(b"PK\1\2")]), "a.zip")
    assert text.endswith("[File] 2.txt\n\nSecond\n\n[File] 3.txt\n\nThird")


def test_an_archive_that_is_cut_in_a_stored_office_file_has_no_files_of_that() -> None:
    whole = stored(b"third")
    text = text_of(whole[: whole.index(INNER) + len(INNER) - 100], "a.zip")
    assert text.split("\n\n") == TEXTS[:4]


def test_a_file_with_a_password_is_noted() -> None:
    data = bytearray(files.zipped({"open.txt": "Open words", "secret.txt": "Secret words"}))
    local, central = data.index(b"secret.txt") - 30, data.rindex(b"secret.txt") - 46
    data[local + 6] |= 1
    data[central + 8] |= 1
    assert text_of(bytes(data), "a.zip") == "[File] open.txt\n\nOpen words"
    assert notes_of(bytes(data), "a.zip") == ["secret.txt: it is protected by a password and was left out"]


def test_the_files_of_an_archive_come_in_the_order_of_their_numbers() -> None:
    names = [
        "Home/Plan 2.txt",
        "Home.txt",
        "log10.txt",
        "log2.txt",
        "log.txt",
        "Home/Plan 10.txt",
        "2024-01-09/a.txt",
        "2024-01-10/a.txt",
    ]
    order = [
        "2024-01-09/a.txt",
        "2024-01-10/a.txt",
        "Home.txt",
        "Home/Plan 2.txt",
        "Home/Plan 10.txt",
        "log.txt",
        "log2.txt",
        "log10.txt",
    ]
    text = text_of(files.zipped(dict.fromkeys(names, "words")))
    assert text.split("\n\n")[::2] == [f"[File] {name}" for name in order]
