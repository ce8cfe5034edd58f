"""`Engine`: the asynchronous interface of the device thread. Admission, streaming and cancellation of requests."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

from torch import Tensor

from everlong_models import Grammar, GrammarCompiler, GrammarError, MemoryState, MemoryView, Tool, ToolFormat
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.priority import in_background
from everlong_server.engine.device.requests import (
    AnswerFinished,
    AnswerRequest,
    MemoryViewRequest,
    PrefillRequest,
    RequestFailed,
    ScoreRequest,
)
from everlong_server.engine.device.runner import Runner
from everlong_server.engine.device.tensor_parallel import ParallelModel
from everlong_server.errors import Draining, Internal, Overloaded, Unavailable
from everlong_server.pools import Pool

T = TypeVar("T")
_DEFAULT_ANSWER_SECONDS = 10.0
"""Typical duration of an answer, before any was measured."""
_GRAMMAR_COMPILERS = Pool("everlong-grammars", 2)


class Engine:
    """One model on one device, for any number of tasks of one event loop."""

    def __init__(self, runner: Runner, *, max_queued: int) -> None:
        """`max_queued`: answers that may wait beyond `max_streams`."""
        self.model = model = runner.model
        self._runner = runner
        self._workers = model.workers if isinstance(model, ParallelModel) else None
        self._grammars = GrammarCompiler(model.tokenizer, model.memory.vocab_size)
        self._max_queued = max_queued
        self._admitted = 0
        self._in_background = 0
        self._durations: deque[float] = deque(maxlen=32)
        self._answers: set[asyncio.Queue[TokenDelta | AnswerFinished | RequestFailed]] = set()
        self.draining = False

    async def grammar(self, schema: dict[str, Any]) -> Grammar:
        """Compile a JSON schema into a grammar for answers, on a thread. A large schema takes seconds. Raises `GrammarError`."""
        return await _GRAMMAR_COMPILERS.run(self._grammars.json, schema)

    async def tool_grammar(
        self,
        format: ToolFormat,
        tools: Sequence[Tool],
        choice: Literal["auto", "none", "required"],
        *,
        parallel: bool,
        schema: dict[str, Any] | None,
    ) -> Grammar:
        """Compile a grammar for answers that may call tools, like `grammar`. The arguments: see `GrammarCompiler.tools`."""
        compile = partial(self._grammars.tools, parallel=parallel, schema=schema)
        return await _GRAMMAR_COMPILERS.run(compile, format, tools, choice)

    async def check_tools(self, tools: Sequence[Tool]) -> tuple[int, GrammarError] | None:
        """Return the number of the first tool whose schema cannot be enforced, and why; None if there is none. Compiles each schema,
        for the answer's grammar too."""

        def check() -> tuple[int, GrammarError] | None:
            for number, tool in enumerate(tools):
                try:
                    self._grammars.enforced(tool)
                except GrammarError as error:
                    return number, error
            return None

        return await _GRAMMAR_COMPILERS.run(check)

    def start(self) -> None:
        """Start the device thread."""
        self._runner.start()

    async def stop(self) -> None:
        """End the device thread after its current work, and the model's worker processes."""
        await asyncio.to_thread(self._runner.stop)
        if self._workers is not None:
            await asyncio.to_thread(self._workers.stop)

    @property
    def alive(self) -> bool:
        """Whether the device thread and the model's worker processes have not died."""
        return self._runner.dead is None and (self._workers is None or self._workers.failure is None)

    @property
    def on_cpu(self) -> bool:
        """Whether the model is on a CPU."""
        return self._runner.on_cpu

    @property
    def max_streams(self) -> int:
        """Number of answers that are generated at once."""
        return self._runner.max_streams

    @property
    def admitted(self) -> int:
        """Number of admitted answers: those being generated and those waiting."""
        return self._admitted + self._in_background

    @property
    def rows(self) -> int:
        """Number of answers that are being generated now."""
        return self._runner.rows

    @property
    def typical_seconds(self) -> float:
        """Mean duration of recent answers, without their time in the queue."""
        return sum(self._durations) / len(self._durations) if self._durations else _DEFAULT_ANSWER_SECONDS

    def require_running(self) -> None:
        """Raise `Draining` while the server is shutting down."""
        if self.draining:
            raise Draining

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit one answer for the length of the block. Raises `Overloaded` or `Unavailable` at once.

        Background answers take no place in the queue: their workers limit their number.
        """
        self.require_running()
        if not self.alive:
            raise Unavailable(
                "the engine has failed; the server must be restarted", code="engine_failed", retry_after=30
            )
        if in_background():
            self._in_background += 1
            try:
                yield
            finally:
                self._in_background -= 1
            return
        if self._admitted >= self.max_streams + self._max_queued:
            waiting = self._admitted - self.max_streams + 1
            seconds = waiting * self.typical_seconds / self.max_streams
            raise Overloaded(
                f"the server is busy: {self._admitted} answers are running or queued; the limits are {self.max_streams} running and "
                f"{self._max_queued} queued",
                retry_after=max(1, math.ceil(seconds)),
            )
        self._admitted += 1
        try:
            yield
        finally:
            self._admitted -= 1

    async def prefill(self, state: MemoryState, tokens: Tensor, owner: str = "") -> MemoryState:
        """Return the state after full segments `tokens` (n·S,), n ≥ 1. Cancelling the task stops after the current segment.

        `owner`: the tenant, for fair scheduling.
        """
        return await self._result(lambda sink: PrefillRequest(state, tokens, sink, owner=owner))

    async def memory_view(self, state: MemoryState, open: list[int], tokens_read: int, owner: str = "") -> MemoryView:
        """Return a view of `state`, which has read `tokens_read` tokens, and the `open` segment. `owner`: as in `prefill`."""
        return await self._result(lambda sink: MemoryViewRequest(state, open, tokens_read, sink, owner=owner))

    async def score(self, tokens: list[int], top: int, owner: str = "") -> list[dict[str, Any]]:
        """Return the log-probability of each of `tokens` but the first, at the beginning of a text, with the `top` likeliest.

        `owner`: as in `prefill`. Each entry is what `logprobs` returns.
        """
        state = self.model.memory.initial_state(1)
        return await self._result(lambda sink: ScoreRequest(state, tokens, top, sink, owner=owner))

    async def _result(
        self,
        make: Callable[[Callable[[T | RequestFailed], None]], PrefillRequest | MemoryViewRequest | ScoreRequest],
    ) -> T:
        """Submit the request that `make` builds around a sink, and return its result. Cancelling the task cancels it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T | RequestFailed) -> None:
            if future.done():
                return
            if isinstance(result, RequestFailed):
                future.set_exception(result.error)
            else:
                future.set_result(result)

        request = make(lambda result: self._runner.bridge.call_soon(loop, settle, result))
        request.background = in_background()
        self._runner.submit(request)
        try:
            return await future
        finally:
            request.cancelled = True
            self._runner.wake()

    async def answer(self, answer: AnswerRequest) -> AsyncGenerator[TokenDelta | AnswerFinished, None]:
        """Yield tokens as they are generated, then `AnswerFinished`. Raises the error of a failed answer.

        Closing the iterator cancels the answer within one step and drops it. To end it and keep it, call `cancel`.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[TokenDelta | AnswerFinished | RequestFailed] = asyncio.Queue()
        answer.sink = lambda event: self._runner.bridge.call_soon(loop, events.put_nowait, event)
        answer.background = in_background()
        self._runner.submit(answer)
        self._answers.add(events)
        try:
            while True:
                event = await events.get()
                if isinstance(event, RequestFailed):
                    raise event.error if isinstance(event.error, Exception) else Internal("the engine has failed")
                if isinstance(event, AnswerFinished) and not answer.auxiliary:
                    self._durations.append(event.seconds)
                yield event  # a caller that has its last event may not resume this generator
                if isinstance(event, AnswerFinished):
                    return
        finally:
            self._answers.discard(events)
            self.cancel(answer)

    def abort(self, error: Exception) -> None:
        """Fail every running answer with `error`, which its caller receives."""
        for events in self._answers:
            events.put_nowait(RequestFailed(error))

    def cancel(self, answer: AnswerRequest) -> None:
        """End the answer within one step, with the reason "cancelled". No effect on an answer that has ended."""
        answer.cancelled = True
        self._runner.wake()
