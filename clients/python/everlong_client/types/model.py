"""A model that the server offers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A named combination of a backbone, a memory and trained weights.

    `memory` is the mechanism (rmt, infinite, …) and `memory_trained` whether its weights were trained.
    `remembered_tokens` is how many tokens of the context the memory keeps at most; None: it keeps a compressed form of all.
    `parameters` are those of the backbone, if the server knows them. `recall_passages` is how many passages the server searches
    for a question by default, at most; 0: recall is off. `segment_length` is in tokens; `state_bytes` is the size of a session's
    memory.
    `loaded` is whether the model is in memory; the server loads others when a request names them, and then knows more than their
    name and `memory_bytes`, an estimate of what they take. Both are None for an embedding model.
    `dimensions` is the length of the vectors of an embedding model, which answers nothing and has no memory; else None. The server
    lists it last.
    """

    id: str
    memory: str | None = None
    memory_trained: bool | None = None
    remembered_tokens: int | None = None
    parameters: int | None = None
    recall_passages: int | None = None
    segment_length: int | None = None
    state_bytes: int | None = None
    fingerprint: str | None = None
    backbone: str | None = None
    description: str | None = None
    dimensions: int | None = None
    loaded: bool | None = None
    memory_bytes: int | None = None
