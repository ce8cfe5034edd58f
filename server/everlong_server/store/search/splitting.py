"""`split`: cuts a text into passages of about seventy words. `Headings`: the headings that a passage is below."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO

from everlong_server.store.search.rows import is_row
from everlong_server.store.texts.piece import Piece

VERSION = 4
"""Version of the splitting rules. Raise it when passages change: indexes and vectors of another version are then built again."""
# Bytes of a passage: 55 to 80 words of English. Scripts with longer characters get fewer characters, but about as many tokens.
_SHORTEST, _LONGEST = 300, 460
_SHORTEST_BEFORE_HEADING = 60
_BLOCK = 1 << 20
# Ends of sentences. The greedy prefix makes a match end with the last sentence end. Each alternative begins with a literal byte;
# otherwise the regex engine would try every alternative at every position.
_SENTENCE_END = re.compile(
    rb"(?s:.*)(?:"
    rb"[.!?](?<!\bMr.)(?<!\bMrs.)(?<!\bDr.)(?<!\bSt.)(?:[\"')\]*_]|\xe2\x80[\x99\x9d]|\xc2\xbb)*\s+"
    rb"|\n\s*\n\s*|\xe3\x80\x82|\xef\xbc[\x81\x9f]|\xe0\xa5\xa4)"
)
_LINE_END = re.compile(rb"(?s:.*)\n")
_SPACE = re.compile(rb"(?s:.*)\s")
# A Markdown heading; or a short line by itself that is no sentence, as in plain text.
_HEADING = (
    rb"#{1,6}[ \t]+[^\n]*[^\s#][^\n]*(?=\n)"
    rb"|(?=[A-Z\d\xc3-\xe9])[^\n]{2,69}[^\s.,;:!?\"'*_|=)\]\xe2-\xef\x80-\xbf-][ \t]*(?=\r?\n[ \t]*\r?\n)"
)
# Headings that follow one another are not cut apart, such as a title and the author's name.
_HEADINGS_BEGIN = re.compile(rb"\n(?:(?<=\n\n)|(?<=\r\n\r\n)|(?=#))(?=" + _HEADING + rb")")
_HEADING_LINE = re.compile(rb"(?m)(?:(?<=\n\n)|(?<=\n\r\n)|\A|^(?=#))[ \t]*(" + _HEADING + rb")")
_HEADING_GOES_ON = re.compile(rb"\n(?=#{1,6}[ \t][^\n]*\Z)")
"""A Markdown heading that does not end within the window."""
_LETTER = re.compile(r"[^\W\d_]")
_PLAIN_LEVEL = 7
"""Level of a heading without a mark: below every Markdown heading."""
_MAX_HEADING = 100


def split(file: IO[bytes]) -> Iterator[Piece]:
    """Cut the UTF-8 text of `file` into pieces without gaps, in bounded memory.

    A piece ends before a heading, with a row of a table or with a sentence if possible, else with a line or a word, else at the maximum length.
    """
    buffer, at, start, start_byte, more = b"", 0, 0, 0, True
    while True:
        while more and len(buffer) - at < _LONGEST:
            block = file.read(_BLOCK)
            more = bool(block)
            buffer, at = buffer[at:] + block, 0
        window = buffer[at : at + _LONGEST]
        if not window:
            return
        cut = _cut(window, last=not more and len(window) < _LONGEST)
        text = window[:cut].decode()
        end, end_byte = start + len(text), start_byte + cut
        yield Piece(start, end, start_byte, end_byte, text)
        at, start, start_byte = at + cut, end, end_byte


def _cut(window: bytes, *, last: bool) -> int:
    """Return where the first piece of `window` ends. `last`: the text ends with it."""
    for heading in _HEADINGS_BEGIN.finditer(window, _SHORTEST_BEFORE_HEADING):
        before = window[: heading.end()].rstrip().rpartition(b"\n")[2]
        if not re.match(rb"(?:" + _HEADING + rb")", before + b"\n\n"):
            return heading.end()
    if last:
        return len(window)
    if goes_on := _HEADING_GOES_ON.search(window, _SHORTEST_BEFORE_HEADING):
        return goes_on.end()
    line = window.rfind(b"\n") + 1
    if is_row(window[:line].rstrip(b"\r\n").rpartition(b"\n")[2]):
        return line
    for pattern, shortest in (
        (_SENTENCE_END, _SHORTEST), (_SENTENCE_END, _SHORTEST // 2), (_LINE_END, _SHORTEST // 2), (_SPACE, 1),
    ):  # fmt: skip
        if found := pattern.match(window, shortest):
            return found.end()
    cut = len(window) - 1
    while window[cut] & 0xC0 == 0x80:  # not at the beginning of a character
        cut -= 1
    return cut


class Headings:
    """Follows the headings of a text from piece to piece."""

    def __init__(self) -> None:
        self._open: list[tuple[int, str]] = []

    def of(self, piece: str) -> list[str]:
        """Return the headings that the piece is below, from the outermost on, also those that it contains. Call in text order."""
        found, seen = False, {heading: None for _, heading in self._open}
        for match in _HEADING_LINE.finditer(piece.encode()):
            line = match[1].decode().strip()
            level = len(line) - len(line.lstrip("#")) or _PLAIN_LEVEL
            heading = line.strip("# \t")[:_MAX_HEADING]
            if not _LETTER.search(heading):
                continue
            self._open = [entry for entry in self._open if entry[0] < level]
            if not found and not piece[: len(piece.encode()[: match.start()].decode())].strip():
                seen = {heading: None for _, heading in self._open}  # nothing of the section before is in the piece
            found = True
            self._open.append((level, heading))
            seen[heading] = None
        return list(seen)
