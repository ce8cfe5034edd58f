"""Where in a document's text its tokens stand: exact characters and bytes, found by encoding the text again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

from everlong_models.tokenizer import Tokenizer
from everlong_server.engine.reading import pieces
from everlong_server.store.passages import Passage

Span = tuple[int, int]

_LONGEST_WORD = 32
"""A span grows by so many characters at most to have whole words."""


def passages_at(
    file: IO[bytes], tokenizer: Tokenizer, document: str, text_offset: int, spans: Sequence[Span]
) -> dict[Span, Passage]:
    """The text of tokens [start, end) of the document whose bytes are in `file`, its text from `text_offset` on.

    Words are whole, and there is no white space around them. One pass over the text up to the last span, in bounded memory.
    """
    left = sorted(spans)
    found: dict[Span, Passage] = {}
    starts: dict[int, tuple[int, int]] = {}  # of a token where a span begins: the character and the byte
    tokens = chars = 0
    file.seek(text_offset)
    for piece in pieces(file, tokenizer, text_offset):
        if not left:
            break
        resume = file.tell()
        file.seek(piece.offset)
        text = file.read(piece.end - piece.offset).decode()
        file.seek(resume)
        after, byte = tokens + len(piece.tokens), piece.offset - text_offset
        if left[0][0] < after:
            at = tokenizer.spans(text)
            for start, _ in left:
                if tokens <= start < after:
                    n = _word_start(text, at[start - tokens][0])
                    starts[start] = chars + n, byte + len(text[:n].encode())
            for span in [span for span in left if span[1] <= after]:
                end_byte = byte + len(text[: _word_end(text, at[span[1] - 1 - tokens][1])].encode())
                file.seek(text_offset + starts[span[0]][1])
                found[span] = _bare(document, *starts[span[0]], file.read(end_byte - starts[span[0]][1]).decode())
                file.seek(resume)
                left.remove(span)
        tokens, chars = after, chars + len(text)
    return found


def _bare(document: str, start: int, start_byte: int, text: str) -> Passage:
    """The `text` at a character and a byte of the document, without white space around it."""
    lead = text[: len(text) - len(text.lstrip())]
    start, start_byte, text = start + len(lead), start_byte + len(lead.encode()), text.strip()
    return Passage(document, start, start + len(text), start_byte, start_byte + len(text.encode()), text)


def _word_start(text: str, at: int) -> int:
    for _ in range(_LONGEST_WORD):
        if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
            break
        at -= 1
    return at


def _word_end(text: str, at: int) -> int:
    for _ in range(_LONGEST_WORD):
        if not (0 < at < len(text) and text[at - 1].isalnum() and text[at].isalnum()):
            break
        at += 1
    return at
