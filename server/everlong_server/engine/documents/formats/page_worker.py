"""The process that draws one page of a PDF. `pictures.py` starts it."""

from __future__ import annotations

import ctypes
import resource
import struct
import sys
import unicodedata
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2
from pypdfium2 import raw

from everlong_server.engine.documents.formats import faults
from everlong_server.engine.documents.formats.pictures import NO_PAGE
from everlong_server.engine.documents.formats.readers.portable.ligatures import reading_order
from everlong_server.engine.documents.formats.readers.portable.turned import text_page

MAX_PIXELS = 8_000_000
_YELLOW = np.array((255, 235, 110), np.uint16)
_WORDS = 6
"""Number of words that are searched for together, if the page does not have the whole passage in one piece."""
_MARGIN = 1.0
"""Points around a marked word."""


def main(file: str, number: str, width: str, seconds: str, memory: str) -> int:
    """Write the page as PNG to the standard output, with the passage on the standard input marked. Returns the exit code."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    passage = sys.stdin.buffer.read().decode()
    document = pypdfium2.PdfDocument(Path(file))
    if not 1 <= int(number) <= len(document):
        return NO_PAGE
    if document.get_formtype() != raw.FORMTYPE_NONE:
        document.init_forms()
    page = document[int(number) - 1]
    across, down = page.get_size()
    scale = min(int(width) / across, (MAX_PIXELS / (across * down)) ** 0.5)
    pixels = page.render(scale=scale, rev_byteorder=True).to_numpy()[:, :, :3].copy()
    marked = np.zeros(pixels.shape[:2], bool)
    for left, top, right, bottom in _boxes(page, passage, (pixels.shape[1], pixels.shape[0])):
        marked[max(0, top) : bottom, max(0, left) : right] = True
    pixels[marked] = pixels[marked].astype(np.uint16) * _YELLOW // 255
    sys.stdout.buffer.write(_png(pixels))
    return 0


def _png(pixels: np.ndarray) -> bytes:
    """Encode pixels (height, width, 3) of red, green and blue."""
    height, width, _ = pixels.shape
    rows = np.zeros((height, 1 + 3 * width), np.uint8)  # each row begins with the number of its filter, 0
    rows[:, 1:] = pixels.reshape(height, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), 6)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _boxes(page: Any, passage: str, size: tuple[int, int]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the rectangles of the page's words that the passage has, in pixels."""
    textpage = text_page(page)
    letters: list[str] = []
    places: list[int] = []  # the index of each letter on the page
    shown = "".join(chr(raw.FPDFText_GetUnicode(textpage, index)) for index in range(textpage.count_chars()))
    for index in reading_order(shown, textpage):
        for letter in _letters(shown[index]):
            letters.append(letter)
            places.append(index)
    text = "".join(letters)
    for start, end in _found(text, passage):
        first, last = min(places[start:end]), max(places[start:end])
        for number in range(textpage.count_rects(first, last - first + 1)):
            left, bottom, right, top = textpage.get_rect(number)
            corners = [
                _pixel(page, size, left - _MARGIN, top + _MARGIN),
                _pixel(page, size, right + _MARGIN, bottom - _MARGIN),
            ]
            across, down = sorted(x for x, _ in corners), sorted(y for _, y in corners)
            yield across[0], down[0], across[1], down[1]


def _found(text: str, passage: str) -> Iterator[tuple[int, int]]:
    """Yield where the letters of the passage are in `text`: of the whole passage, or else of each group of its words."""
    whole = _letters(passage)
    if whole and (start := text.find(whole)) >= 0:
        yield start, start + len(whole)
        return
    words = passage.split()
    for first in range(0, len(words), _WORDS):
        group = _letters(" ".join(words[first : first + _WORDS]))
        if len(group) >= 2 * _WORDS and (start := text.find(group)) >= 0:
            yield start, start + len(group)


def _letters(text: str) -> str:
    """Return the letters and digits, in lower case: spaces, line ends and hyphens differ between a page and its text."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFKC", text).casefold()))


def _pixel(page: Any, size: tuple[int, int], x: float, y: float) -> tuple[int, int]:
    """Return the pixel at a point of the page."""
    across, down = ctypes.c_int(), ctypes.c_int()
    raw.FPDF_PageToDevice(page, 0, 0, *size, 0, x, y, across, down)
    return across.value, down.value


if __name__ == "__main__":
    faults.keep_private()
    sys.exit(main(*sys.argv[1:]))
