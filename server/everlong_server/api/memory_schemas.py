"""The view of a session's memory as pydantic models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from everlong_server.api.schemas import Wire


class Quote(Wire):
    """A part of a document's text, with the same offsets as `Evidence`."""

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    start_token: int
    end_token: int
    text: str


class MemoryPart(Wire):
    """A part of a memory, in one `layer`, or in all layers if `layer` is null."""

    name: str
    layer: int | None
    start: int = Field(description="first token of the context that the part was computed from")
    end: int = Field(description="token after the last that the part was computed from")
    slots: int = Field(description="capacity, in tokens, positions, vectors, functions or associations")
    used: float = Field(
        description="slots in use; for a part that is not written slot by slot, its effective rank (a fraction)"
    )
    age: int = Field(description="tokens since the part was last written")
    change: float | None = Field(
        description="relative change (of the norm) that the open segment would cause if it ended now; null if the part "
        "stores tokens unchanged or there is no open segment"
    )
    bytes: int | None = Field(description="size of the part; null for memories whose parts do not differ in it")
    half_life: float | None = Field(
        description="tokens after which half of what a token wrote has faded, for the median channel of a recurrent layer; null for "
        "parts without such a decay"
    )


class MemoryPhrase(Wire):
    """A run of context tokens that takes much of the memory."""

    start: int
    end: int
    space: float = Field(description="share of the memory that the tokens take, 0 to 1")
    quote: Quote | None = Field(
        description="text of the tokens; null outside documents, and if the document was deleted"
    )


class MemoryLayer(Wire):
    """One layer of an ∞-former's memory: a continuous signal, in bins that take equal shares of the memory."""

    layer: int
    edges: list[float] = Field(
        description="context positions, in tokens, of the bins' borders, one more than bins; the closer two borders, the "
        "more memory each token between them takes"
    )
    attention: list[float] | None = Field(
        description="share of the open segment's attention that each bin gets, sums to 1; null without an open segment"
    )
    phrases: list[MemoryPhrase] = Field(description="phrases that take the most memory, largest first")


class MemoryDocument(Wire):
    """The tokens of the context that belong to a document."""

    document: str
    start: int
    end: int


class SessionMemory(Wire):
    """The content and the use of a session's memory. All positions count tokens of the context: documents and messages."""

    session: str
    object: Literal["session.memory"] = "session.memory"
    memory: str
    tokens: int = Field(description="tokens read into the memory")
    segments: int = Field(description="full segments read into the memory")
    segment_length: int
    open: int = Field(description="tokens of the open segment, which are not in the memory yet")
    bytes: int = Field(description="size of the memory, which does not depend on the length of the context")
    documents: list[MemoryDocument]
    parts: list[MemoryPart]
    layers: list[MemoryLayer] = Field(description="layers of an ∞-former; empty for other memories")
