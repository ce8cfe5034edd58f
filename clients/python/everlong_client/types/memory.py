"""What a session's memory holds, how full it is, and what it gives attention and space to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Memory", "MemoryDocument", "MemoryLayer", "MemoryPart", "MemoryPhrase", "Quote"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Quote:
    """Words of a document: characters `start` to `end` of it, or bytes of its UTF-8; a byte-order mark does not count.
    `start_token` to `end_token`: the tokens of its text, as the model counts them, that any of its characters are in; None
    where the server did not tell."""

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
    """The tokens of the context from `start` to `end` that are a document's."""

    document: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPart:
    """A part of the memory, of one `layer` or, with None, of all, made of the tokens from `start` to `end`.

    `used` of its `slots` hold something: a fraction where that is an effective rank. It was last written `age` tokens
    ago. `change` is the share of its length by which the open segment would change it; None where that says nothing.
    """

    name: str
    layer: int | None = None
    start: int
    end: int
    slots: int
    used: float
    age: int = 0
    change: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryPhrase:
    """The tokens from `start` to `end`, their share of the memory's space, and their words where these are known."""

    start: int
    end: int
    space: float
    quote: Quote | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLayer:
    """One layer of an ∞-former, in bins of equal space.

    `edges` are the positions in tokens at the bins' borders, one more than bins: the closer two are, the more space the
    tokens between them have. `attention` is what each bin gets of the open segment's attention, 1 in all; None without
    an open segment. `phrases` have the most space, the largest first.
    """

    layer: int
    edges: tuple[float, ...]
    attention: tuple[float, ...] | None = None
    phrases: tuple[MemoryPhrase, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The memory of a session. Positions are tokens of its context: documents and dialogue.

    `memory` is the mechanism. `tokens` were read into it, in `segments` of `segment_length`; `open` more are in the open
    segment. It has so many `bytes` however much it has read. `layers` are there for an ∞-former.
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
