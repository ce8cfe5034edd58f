"""An answer of the assistant, its evidence and usage, and the options of a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict


class Recall(TypedDict, total=False):
    """The maximum number of passages that are put before a message, and the maximum number of their tokens."""

    passages: int
    tokens: int


class Sampling(TypedDict, total=False):
    """The sampling parameters and the recall of an answer. The server chooses those that are missing or None.

    `continue_answer`: extend the last answer, whose `finish_reason` was "length", instead of answering the message: True, or its id,
    which the server refuses if another answer is the last one.
    """

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
    stop_repetition: bool | None
    logit_bias: Mapping[str, float] | None
    logprobs: bool | None
    top_logprobs: int | None
    recall: Recall | Literal[False] | None
    instructions: str | None
    on_disconnect: Literal["cancel", "finish"] | None
    continue_answer: bool | str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """A passage of a document that the model was given for an answer, word for word.

    `start` and `end` count characters of the document, `start_byte` and `end_byte` bytes of its UTF-8; neither counts a
    byte-order mark. `start_token` and `end_token` are the range of the model's tokens that overlap the passage; None if
    the server did not send them. A higher `score` is a better match. `page` (of a PDF) or `section` (a heading) is where
    the passage starts.
    """

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
class Citation:
    """A sentence of an answer, `content[start:end]`, rests on `document_start` to `document_end` of a document.

    All offsets count characters. `evidence` is the position of the passage in the answer's evidence, from 0. `page` and
    `section` are where the cited part begins, if the document has these.
    """

    start: int
    end: int
    evidence: int
    document: str
    document_start: int
    document_end: int
    filename: str | None = None
    page: int | None = None
    section: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """The tokens of an answer. `reused_tokens` were in the memory already and were not read again."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """An answer. Among the messages of a session, also a question, with `role` "user".

    `finish_reason` is stop, length, repetition (the answer began to loop, and was cut there) or cancelled. Sending `seed`
    again reproduces the answer. `logprobs` has the server's format, and is None unless requested. `evidence` is sorted, best
    first; `citations` are in the order of the answer's sentences. `created_at` is in Unix seconds. `memory_progress`: the share of
    the documents that was read, if they were still being read and the answer rests on its evidence alone. `standalone_question`: the
    question as it was searched for and answered, if it referred to the conversation and was rewritten. `agreement`: how similar
    the other answers of a vote are to this one on average, 0 to 1; None without a vote.
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
    citations: tuple[Citation, ...] = ()
    memory_progress: float | None = None
    standalone_question: str | None = None
    agreement: float | None = None
    created_at: float = 0
