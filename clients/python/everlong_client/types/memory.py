"""The content of a session's memory: what it holds, how full it is, and where its attention and space go."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """A span of a document's text, with its offsets.

    `start` and `end` count characters, `start_byte` and `end_byte` bytes of the UTF-8; neither counts a byte-order mark.
    `start_token` and `end_token` are the range of the model's tokens that overlap the span; None if the server did not
    send them.
    """

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    text: str
    start_token: int | None = None
    end_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryDocument:
    """The tokens of the context, from `start` to `end`, that belong to a document."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    """A part of the memory, made from the tokens `start` to `end`. It belongs to one `layer`, or to all if that is None.

    `used` of its `slots` are in use; it is a fraction if it is an effective rank. The part was last written `age` tokens
    ago. `change` is the relative change (by vector length) that the open segment would cause, or None if that has no
    meaning for this part. `bytes` and `half_life` are those of a recurrent layer: its size, and after how many tokens half of
    what a token wrote has faded.
    """

    name: str
    layer: int | None = None
    start: int
    end: int
    slots: int
    used: float
    age: int = 0
    change: float | None = None
    bytes: int | None = None
    half_life: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPhrase:
    """The tokens from `start` to `end`, their share of the memory's space, and their quoted text if it is known."""

    start: int
    end: int
    space: float
    quote: Quote | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLayer:
    """One layer of an ∞-former, in bins of equal space.

    `edges` are the token positions of the bins' edges, one more than there are bins. The closer two edges are, the more
    space the tokens between them have. `attention` is each bin's share of the open segment's attention (sum 1); None
    without an open segment. `phrases` are those with the most space, largest first.
    """

    layer: int
    edges: tuple[float, ...]
    attention: tuple[float, ...] | None = None
    phrases: tuple[MemoryPhrase, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The memory of a session. Positions count the tokens of its context: the documents, then the messages.

    `memory` is the mechanism (rmt, infinite, …). It has read `tokens` in `segments` of `segment_length`; `open` more
    tokens are in the open segment. Its size in `bytes` does not grow with the tokens read. Only an ∞-former has `layers`.
    """

    session: str
    memory: str
    tokens: int
    segments: int = 0
    segment_length: int = 0
    open: int = 0
    bytes: int = 0
    documents: tuple[MemoryDocument, ...] = ()
    parts: tuple[MemoryPart, ...] = ()
    layers: tuple[MemoryLayer, ...] = ()
