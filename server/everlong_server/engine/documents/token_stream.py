"""`token_blocks`: tokenises a text file block by block, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from everlong_models.text.tokenizer import ResumePoint, Tokenizer

_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TokenBlock:
    """Tokens of the bytes [`offset`, `end`) of a text file. Encoding can be resumed at `offset` and yields the same tokens.

    `resume_points`: further positions in the block at which encoding can be resumed, counted from the start of the first block.
    """

    offset: int
    end: int
    tokens: list[int]
    resume_points: list[ResumePoint]


def token_blocks(file: IO[bytes], tokenizer: Tokenizer, offset: int) -> Iterator[TokenBlock]:
    """Yield the tokens of the UTF-8 text in `file`, whose current position is byte `offset`."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    stream = tokenizer.stream(offset)
    while True:
        start = stream.consumed
        data = file.read(_READ_BYTES)
        tokens = stream.feed(decoder.decode(data, final=not data))
        if not data:
            tokens += stream.finish()
        if tokens:
            resume_points, stream.resume_points = stream.resume_points, []
            yield TokenBlock(offset + start, offset + stream.consumed, tokens, resume_points)
        if not data:
            return
