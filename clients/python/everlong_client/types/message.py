"""A message of the assistant, and how to ask for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

__all__ = ["Evidence", "Message", "Recall", "Sampling", "Usage"]


class Recall(TypedDict, total=False):
    """At most how many passages of the documents are put before a question, and how many tokens they may take."""

    passages: int
    tokens: int


class Sampling(TypedDict, total=False):
    """How an answer is sampled, and what it is grounded on; what is left out, or None, is the server's choice."""

    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool | None
    top_logprobs: int | None
    recall: Recall | Literal[False] | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A passage that an answer was given, word for word: characters `start` to `end` of the document, or bytes of its
    UTF-8; a byte-order mark does not count. `start_token` to `end_token`: the tokens of the document's text, as the model
    counts them, that any of its characters are in; None where the server did not tell. The higher the `score`, the more it has of what was asked for. `page` (of a
    PDF) or `section` (a heading): where it begins."""

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    text: str
    score: float = 0
    page: int | None = None
    section: str | None = None
    start_token: int | None = None
    end_token: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens that an answer took. `reused_tokens` were in the memory already and were not read again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """An answer.

    `finish_reason` is stop, length or cancelled. `seed` repeats the answer if it is sent again. `logprobs` is as the
    server gives it, where it was asked for. `evidence` is the best first. `created_at` is in Unix seconds.
    """

    id: str
    role: str = "assistant"
    content: str
    finish_reason: str | None = None
    usage: Usage = Usage()
    seed: int | None = None
    session: str | None = None
    model: str | None = None
    logprobs: Any = None
    evidence: tuple[Evidence, ...] = ()
    created_at: float = 0
