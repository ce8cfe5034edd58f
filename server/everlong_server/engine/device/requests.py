"""What is handed to the `Runner`, and what it hands back: answers, documents to be read, looks at a memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from everlong_models import Grammar, MemoryState, MemoryView, Sampler, SamplingParams
from everlong_server.engine.device.detokeniser import Detokeniser


@dataclass(frozen=True, slots=True)
class TokenDelta:
    """A generated token: the text that it completes (often empty), and its log-probabilities if asked for."""

    text: str
    logprobs: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The end of an answer. `tokens`: all that was generated, without the end-of-text token.

    `state`, `open`: the memory and the open segment behind the answer; `prompt`: tokens of the prompt. `seconds`: since the
    device began with it.
    """

    reason: str
    text: str
    state: MemoryState
    open: list[int]
    tokens: int
    prompt: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The answer or the reading broke off."""

    error: BaseException


Sink = Callable[[TokenDelta | AnswerFinished | RequestFailed], None]


@dataclass(slots=True, eq=False)
class AnswerRequest:
    """An answer to be generated: behind `state` and the open segment, the prompt.

    `visible_kept`: of the tokens that the state holds as they are, the answer looks at so many; None: at all. What comes into
    the state meanwhile is looked at besides. `prompt_only`: where the state keeps tokens, the answer looks at its prompt and at
    nothing before it; what is in `open` goes into the state with the segment all the same. `grammar`: what the answer may be.
    `owner`: the tenant whose turn it takes.
    """

    state: MemoryState
    open: list[int]
    prompt: list[int]
    params: SamplingParams
    seed: int
    sink: Sink
    visible_kept: int | None = None
    prompt_only: bool = False
    grammar: Grammar | None = None
    owner: str = ""
    id: int = -1
    cancelled: bool = False
    # What follows is the runner's own.
    hidden_open: int = 0
    """Tokens of `open` that it does not look at, the first."""
    context: list[int] = field(default_factory=list)
    """What `repetition_penalty` looks at beside what is generated: all tokens that the answer looks at when it begins."""
    started: float | None = None
    """When the device began with it."""
    at: int = 0
    """Tokens of the prompt that were read."""
    sampler: Sampler | None = None
    logits: Tensor | None = None
    """(V,), for the token to come."""
    generated: int = 0
    detokeniser: Detokeniser | None = None

    def commit_segment(self, state: MemoryState, segment: int) -> None:
        """Its open segment, of `segment` tokens, has gone into `state`."""
        if self.visible_kept is not None:
            self.visible_kept += segment - self.hidden_open
        self.state, self.open, self.hidden_open = state, [], 0


@dataclass(slots=True, eq=False)
class PrefillRequest:
    """Full segments (n·S,) to be read behind `state`."""

    state: MemoryState
    tokens: Tensor
    sink: Callable[[MemoryState | RequestFailed], None]
    owner: str = ""
    id: int = -1
    cancelled: bool = False
    at: int = 0


@dataclass(slots=True, eq=False)
class MemoryViewRequest:
    """A view of `state`, which has read `read` tokens, and of the open segment."""

    state: MemoryState
    open: list[int]
    tokens_read: int
    sink: Callable[[MemoryView | RequestFailed], None]
    owner: str = ""
    id: int = -1
    cancelled: bool = False


Request = AnswerRequest | PrefillRequest | MemoryViewRequest
