"""A text's tokens, piece by piece."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from everlong_models.text.tokenizer import Place, Tokenizer

_BLOCK = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens of a text, and its bytes: at `offset` encoding can be resumed to get them again.

    `places`: others of that kind in it, counted from where the first piece begins.
    """

    offset: int
    end: int
    tokens: list[int]
    resume_points: list[Place]


def token_blocks(file: IO[bytes], tokenizer: Tokenizer, offset: int) -> Iterator[TokenBlock]:
    """The tokens of the UTF-8 text in `file`, which stands at byte `offset`, in bounded memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    stream = tokenizer.stream()
    while True:
        start = stream.consumed
        block = file.read(_BLOCK)
        tokens = stream.feed(decoder.decode(block, final=not block))
        if not block:
            tokens += stream.finish()
        if tokens:
            places, stream.places = stream.places, []
            yield TokenBlock(offset + start, offset + stream.consumed, tokens, places)
        if not block:
            return
