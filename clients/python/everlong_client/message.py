"""A message of the assistant, and how to ask for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

__all__ = ["Message", "Sampling", "Usage"]


class Sampling(TypedDict, total=False):
    """How an answer is sampled; what is left out, or None, is the server's choice."""

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
    server gives it, where it was asked for. `created_at` is in Unix seconds.
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
    created_at: float = 0
