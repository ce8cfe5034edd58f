"""The requests that a `Runner` takes (answers, prefills, memory views, scores) and the events that it passes to their sinks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from everlong_models import AnswerProbe, Grammar, MemoryState, MemoryView, Sampler, SamplingParams, SegmentReader
from everlong_models.generate.prompt_lookup import PromptLookup
from everlong_models.generate.sampling import CallStart
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.device.answer_text import AnswerText, TokenDelta, logprobs


@dataclass(frozen=True, slots=True)
class AnswerFinished:
    """The end of an answer.

    `tokens`: number of the answer's tokens, without the end-of-text token and a loop that was cut. `state`, `open`: memory
    and open segment after these tokens. `prompt`: number of prompt tokens. `seconds`: time since the device started the answer.
    `stop`: the stop string that ended it. `drafted`: number of guessed tokens that were decoded; `accepted`: of those that were right.
    `agreement`: see `AnswerMessage`; the engine leaves it None.
    """

    reason: str
    text: str
    state: MemoryState
    open: list[int]
    tokens: int
    prompt: int
    seconds: float
    stop: str | None = None
    drafted: int = 0
    accepted: int = 0
    agreement: float | None = None


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """The request failed with `error`, and no other event follows."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Refusal:
    """The answer if `probe` finds that the evidence in the prompt holds none. `tokens`: its tokens and the end-of-text token, if there is one."""

    tokens: Sequence[int]
    probe: AnswerProbe


Sink = Callable[[TokenDelta | AnswerFinished | RequestFailed], None]


@dataclass(slots=True, eq=False, kw_only=True)
class _Scheduled:
    """What the scheduler knows of a request. `owner`: the tenant. `background`: the request waits for all others."""

    owner: str = ""
    background: bool = False
    id: int = -1
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class AnswerRequest(_Scheduled):
    """A request to prefill `prompt` after `state` and the open segment, and to generate an answer.

    `visible_kept`: the answer attends to this many of the newest tokens that the state keeps; None: to all of them. Tokens
    that enter the state while the request runs are always attended to. `attended_before`: if set, the answer attends only to
    its prompt and to this many tokens before it, whether they are in the state or in `open`, and `visible_kept` does not count. Ignored if
    the state keeps no tokens. The tokens in `open` still become part of the state with their segment.
    `sink`: `Engine.answer` sets its own. `grammar`: constrains the answer. `text_before`: the last tokens of a text that the
    answer continues. `refusal`: the answer if the evidence in the prompt lacks one; None generates an answer in any case.
    `auxiliary`: it prepares another answer, so it does not count as one in the engine's `typical_seconds`. `call_start`: finds calls of
    tools in the answer, in which stop strings have no effect; None: it has none.
    """

    state: MemoryState
    open: list[int]
    prompt: list[int]
    params: SamplingParams
    seed: int
    sink: Sink = lambda event: None
    visible_kept: int | None = None
    attended_before: int | None = None
    grammar: Grammar | None = None
    text_before: Sequence[int] = ()
    refusal: Refusal | None = None
    auxiliary: bool = False
    call_start: CallStart | None = None
    # The fields below belong to the runner.
    hidden_open: int = 0
    """Number of leading tokens of `open` that the answer does not attend to."""
    context: list[int] = field(default_factory=list)
    """All tokens that the answer attends to when it begins. `repetition_penalty` counts them and the generated tokens."""
    started: float | None = None
    """Time at which the device started the request, by `time.perf_counter`."""
    prompt_read: int = 0
    """Number of prompt tokens that are prefilled."""
    sampler: Sampler | None = None
    logits: Tensor | None = None
    """Logits (V,) of the next token."""
    lookup: PromptLookup | None = None
    """Guesses the next tokens; None: they are not guessed."""
    ahead: deque[tuple[int, Tensor]] = field(default_factory=deque)
    """The guesses behind the newest token, each with the logits (V,) after it: the cache has them, `open` does not yet."""
    drafted: int = 0
    """Number of guesses that were decoded."""
    accepted: int = 0
    """Number of those that were right."""
    forced: deque[int] = field(default_factory=deque)
    """The next tokens, which are not sampled: the rest of the refusal."""
    generated: int = 0
    """Number of generated tokens, with those of a loop that was cut."""
    text: AnswerText | None = None
    dropped: int = 0
    """Number of generated tokens that the answer does not keep."""
    committed: list[tuple[MemoryState, list[int]]] = field(default_factory=list)
    """States, and the segments that followed them, that hold tokens which may turn out to be a loop. Oldest first."""

    @property
    def computed_tokens(self) -> int:
        """Number of tokens that the device has prefilled and generated for the request."""
        return self.prompt_read + self.generated

    def commit_segment(self, state: MemoryState, segment: int) -> None:
        """Replace the state by `state`, which includes the open segment of `segment` tokens, and empty the open segment."""
        if self.text is not None:
            self.committed = _covering([*self.committed, (self.state, self.open)], self.text.held)
        if self.visible_kept is not None:
            self.visible_kept += segment - self.hidden_open
        self.state, self.open, self.hidden_open = state, [], 0

    def hide_earlier_tokens(self, own: int) -> None:
        """Restrict the answer to its prompt and the `own` tokens before it, before anything is prefilled."""
        self.visible_kept, self.hidden_open = max(0, own - len(self.open)), max(0, len(self.open) - own)

    def collect_context(self, kept: list[int]) -> None:
        """Set `context`, before segments of the prompt become part of the state. `kept`: the tokens that the state keeps."""
        visible = len(kept) if self.visible_kept is None else min(self.visible_kept, len(kept))
        self.context = [*kept[len(kept) - visible :], *self.open[self.hidden_open :], *self.prompt]

    def open_prompt(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """Move the rest of the prompt to the open segment, and prepare to sample tokens."""
        self.open, self.prompt_read = self.open + self.prompt[self.prompt_read :], len(self.prompt)
        self.sampler = Sampler(self.params, self.seed, self.context, vocab_size, self.grammar)
        constrained = self.grammar is not None and not self.grammar.free_text
        may_loop = self.params.ignore_eos or constrained or not self.params.stop_repetition
        self.text = AnswerText(
            tokenizer, self.params, may_loop=may_loop, before=self.text_before, call_start=self.call_start
        )

    def next_token(self, sampled: int) -> int:
        """Return the token that comes next: the next one of the refusal, otherwise `sampled`."""
        return self.forced.popleft() if self.forced else sampled

    def ends_with(self, token: int, eos_ids: Collection[int]) -> bool:
        """Record that `token` comes next, and return whether it ends the answer without being a part of it."""
        assert self.sampler is not None
        self.sampler.accept(token)
        # Even under `ignore_eos`, a grammar may allow nothing but the end.
        ends = not self.params.ignore_eos or self.grammar is not None
        return token in self.params.stop_token_ids or (ends and token in eos_ids)

    def accept(self, token: int) -> str | None:
        """Count a token, and emit the tokens that are not held back any more. Returns the reason if the answer ends with it."""
        assert self.text is not None
        assert self.logits is not None
        self.generated += 1
        if self.lookup is not None:
            self.lookup.feed(token)
        for delta in self.text.feed(token, self.logits):
            self.sink(delta)
        if self.text.stopped or (self.grammar is not None and self.grammar.finished):
            return "stop"
        if self.text.looping:
            return "repetition"
        return "length" if self.generated >= self.params.max_tokens else None

    def take_guess(self, token: int) -> bool:
        """Return whether the sampled `token` is the next guess. Then it is decoded already: `logits` become those after it."""
        if not self.ahead or self.ahead[0][0] != token:
            self.ahead.clear()
            return False
        _, self.logits = self.ahead.popleft()
        self.open.append(token)
        self.accepted += 1
        return True

    def emit_held(self) -> None:
        """Emit the text that is held back."""
        assert self.text is not None
        for delta in self.text.finish():
            self.sink(delta)

    def drop_held(self, *, unread: int) -> None:
        """Take the tokens that are held back out of the answer and its memory, so that both agree with the emitted text.

        They are a loop, or the end of a cancelled answer: had it continued, or if it is generated again after a server was
        lost, other text follows. `unread`: number of them that are in neither the open segment nor the state.
        """
        assert self.text is not None
        self.dropped = self.text.drop_held()
        count = self.dropped - unread
        while count > len(self.open):
            count -= len(self.open)
            self.state, self.open = self.committed.pop()
        self.open = self.open[: len(self.open) - count]

    def finished(self, reason: str) -> AnswerFinished:
        """Return the end of the answer, with its state on the CPU."""
        assert self.text is not None
        return AnswerFinished(
            reason, self.text.text, self.state.to("cpu"), list(self.open), self.generated - self.dropped, len(self.prompt),
            time.perf_counter() - (self.started or 0.0), self.text.stop_string, self.drafted, self.accepted,
        )  # fmt: skip


def _covering(committed: list[tuple[MemoryState, list[int]]], held: int) -> list[tuple[MemoryState, list[int]]]:
    """Return the newest of the states whose segments have the last `held` tokens. A state can take megabytes."""
    count = 0
    while held > 0 and count < len(committed):
        count += 1
        held -= len(committed[-count][1])
    return committed[len(committed) - count :]


@dataclass(slots=True, eq=False)
class PrefillRequest(_Scheduled):
    """A request to prefill full segments `tokens` (n·S,) after `state`."""

    state: MemoryState
    tokens: Tensor
    sink: Callable[[MemoryState | RequestFailed], None]
    tokens_read: int = 0
    """Number of tokens that are prefilled."""


@dataclass(slots=True, eq=False)
class MemoryViewRequest(_Scheduled):
    """A request for a view of `state`, which has read `tokens_read` tokens, and of the open segment."""

    state: MemoryState
    open: list[int]
    tokens_read: int
    sink: Callable[[MemoryView | RequestFailed], None]


@dataclass(slots=True, eq=False)
class ScoreRequest(_Scheduled):
    """A request for the log-probability of each of the `tokens` after those before it, and of the `top` likeliest ones."""

    state: MemoryState
    tokens: list[int]
    top: int
    sink: Callable[[list[dict[str, Any]] | RequestFailed], None]
    # The fields below belong to the runner.
    tokens_read: int = 0
    next: Tensor | None = None
    """Logits (V,) of the next token."""
    scores: list[dict[str, Any]] = field(default_factory=list)
    """As `logprobs` returns them: one for each token but the first."""

    def read(self, memory: SegmentReader, tokenizer: Tokenizer, state: MemoryState) -> bool:
        """Score the next segment, which follows `state`, and return whether all tokens are scored."""
        part = self.tokens[self.tokens_read : self.tokens_read + memory.segment_length]
        segment = torch.tensor([part], dtype=torch.int64, device=state.device)
        if len(part) == memory.segment_length:
            logits, self.state = memory.segment(segment, state)
        else:
            logits = memory.forward(segment, state)
        for position, token in enumerate(part):
            before = self.next if position == 0 else logits[0, position - 1]
            if before is not None:
                self.scores.append(logprobs(tokenizer, before, token, self.top))
        self.next, self.tokens_read = logits[0, -1].clone(), self.tokens_read + len(part)
        return self.tokens_read >= len(self.tokens)


Request = AnswerRequest | PrefillRequest | MemoryViewRequest | ScoreRequest
