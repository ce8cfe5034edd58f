"""`TurnRunner`: runs a turn, one user message and its answer, from admission to commit.

A turn is a transaction. Either the answer is complete and committed before the caller receives its end, or nothing changes.
Nothing changes if the caller disconnects, the lease is lost or the server is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from everlong_models import Grammar, SamplingParams
from everlong_server.engine.admission import admitted
from everlong_server.engine.answering.events import (
    AnswerEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
    ToolArgumentsDelta,
    ToolCallStarted,
    TurnEvents,
)
from everlong_server.engine.answering.evidence.citations import cite, cited_part
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.self_consistency import SelfConsistency
from everlong_server.engine.answering.evidence.templates import REFUSAL, Template, template_of
from everlong_server.engine.answering.grammar_errors import naming_field
from everlong_server.engine.answering.prompt import Prompt, PromptBuilder
from everlong_server.engine.answering.retrieval import SharedRetrieval
from everlong_server.engine.answering.search.rewriting import QueryRewriter
from everlong_server.engine.answering.tool_calls import CallParser
from everlong_server.engine.answering.tools import ToolUse
from everlong_server.engine.answering.turn_context import TurnContext
from everlong_server.engine.device.answer_text import TokenDelta
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest, Refusal
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.engine.snapshots import encode_snapshot
from everlong_server.errors import InvalidRequest, TooLarge
from everlong_server.observability.metrics import AnswerTimer, Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.messages import AnswerMessage, Usage
from everlong_server.store.records import new_id, now
from everlong_server.store.search.passages import Passages
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.tenants.quota import Quota, TokenCost
from everlong_server.store.texts.passage import Passage

_Generated = AsyncGenerator[TokenDelta | AnswerFinished, None]
_SHARED_TOKENS = 4
"""Number of tokens before a continuation that are decoded with it: a character or space can be split between the two."""


@dataclass(slots=True)
class Turn:
    """A running turn. `events` yields its events. `cancel` ends the answer and commits it; `fail` ends it and commits nothing."""

    id: str = field(default_factory=partial(new_id, "msg"))
    retrieval: SharedRetrieval = field(default_factory=SharedRetrieval)
    """Shared by the turns of all answers to one message."""
    alone: bool = True
    """Whether the message gets no other answer."""
    events: TurnEvents = field(init=False)
    evidence: Sequence[Passage] | None = None
    """What the search found; None before that."""
    text: str = ""
    """The answer so far."""
    standalone_question: str | None = None
    """See `AnswerMessage`; known with the first event."""
    _cancelled: bool = False
    _requests: list[AnswerRequest] = field(default_factory=list)
    _engine: Engine | None = None
    _error: Exception | None = None

    def attach(self, request: AnswerRequest, engine: Engine) -> None:
        """Attach a request that the answer needs, so that it can be cancelled. Re-raises the error if the turn has failed already."""
        self._requests.append(request)
        self._engine = engine
        if self._cancelled:  # while the prompt was made
            engine.cancel(request)
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End the answer within one decode step, with `finish_reason` "cancelled". Its text so far is committed."""
        self._cancelled = True
        if self._engine is not None:
            for request in self._requests:
                self._engine.cancel(request)

    def fail(self, error: Exception) -> None:
        """End the answer with `error`, as when the session's lease was lost."""
        self._error = error
        self.cancel()


@dataclass(slots=True)
class _Answer:
    """What the engine has generated. `finished`: None for an answer that was cancelled before its prompt was prefilled."""

    finished: AnswerFinished | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    parser: CallParser | None = None
    """Separates calls from text, if the answer may call tools."""

    def complete(self, message: AnswerMessage, params: SamplingParams) -> AnswerMessage:
        """Return the message as it is at the end of the answer."""
        return replace(
            message,
            content=self.parser.content if self.parser else self.finished.text if self.finished else "",
            tool_calls=self.parser.calls if self.parser else (),
            finish_reason=self.finished.reason if self.finished else "cancelled",
            stop_sequence=self.finished.stop if self.finished else None,
            usage=replace(message.usage, completion_tokens=self.finished.tokens if self.finished else 0),
            logprobs=self.logprobs if params.logprobs else None,
            agreement=self.finished.agreement if self.finished else None,
        )


def _prompt_usage(before: Snapshot, tokens: int) -> Usage:
    """Return the counts of a prompt of this many tokens. `before`: the snapshot that it follows."""
    return Usage(before.position + tokens, 0, before.position - len(before.open))


class TurnRunner:
    """Starts turns."""

    def __init__(
        self,
        engine: Engine,
        passages: Passages,
        token_offsets: TokenOffsets,
        metrics: Metrics,
        tracing: Tracing,
        quota: Quota,
        *,
        max_message_chars: int,
        template: Template | None = None,
    ) -> None:
        self._engine = engine
        self._quota = quota
        self._passages = passages
        self._token_offsets = token_offsets
        self._metrics = metrics
        self._tracing = tracing
        self._max_message_chars = max_message_chars
        template = template or template_of(engine.model)
        self._rewrites = template.gap is not None
        """Whether the model rewrites questions. One that answers from whole passages is too small."""
        self._prompts = PromptBuilder(engine, passages, template)

    async def begin(
        self,
        enter: Callable[[Turn], AbstractAsyncContextManager[TurnContext]],
        content: str,
        params: SamplingParams,
        recall: Recall,
        *,
        turn: Turn | None = None,
        tools: ToolUse | None = None,
    ) -> Turn:
        """Return an admitted turn, whose first event is available. Raises every refusal here, before any event.

        `enter`: returns a context manager of the message's context, such as a locked session. The turn holds it to its end. `turn`: the turn to
        begin, so that the caller can cancel it meanwhile; None: a new one.
        """
        turn = turn or Turn()
        following = self._turn(turn, enter(turn), content, params, recall, tools)
        turn.events = TurnEvents(await anext(following), following)
        return turn

    async def count_tokens(
        self,
        entering: AbstractAsyncContextManager[TurnContext],
        content: str,
        recall: Recall,
        tools: ToolUse | None = None,
    ) -> int:
        """Return the number of tokens of a turn's prompt, including all that its session has read. Generates no answer."""
        self._check(content, SamplingParams())
        async with AsyncExitStack() as stack:
            cost = await stack.enter_async_context(admitted(self._engine, self._quota))
            context = await stack.enter_async_context(entering)
            shown, rewriter = tools.shown if tools else (), self._rewriter(Turn(), cost)
            prompt = await self._prompts.prompt(context, content, recall, shown, rewriter=rewriter)
            return _prompt_usage(context.session.snapshot, len(prompt.tokens)).prompt_tokens

    async def _turn(
        self,
        turn: Turn,
        entering: AbstractAsyncContextManager[TurnContext],
        content: str,
        params: SamplingParams,
        recall: Recall,
        tools: ToolUse | None,
    ) -> AsyncGenerator[AnswerEvent, None]:
        """Yield the turn's events."""
        pace = self._metrics.answer_timer()
        self._check(content, params)
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._tracing.span("answer", gen_ai__request__model=self._engine.model.name))
            usage = await stack.enter_async_context(admitted(self._engine, self._quota))
            stack.enter_context(
                naming_field("tools" if tools is not None and params.json_schema is None else "json_schema")
            )
            grammar = await self._grammar(params, tools)
            context = await stack.enter_async_context(entering)
            if context.continued is not None:
                prompt = await asyncio.to_thread(self._prompts.continuation, context, recall)
                turn.text, turn.evidence = context.continued.content, prompt.evidence
                evidence = prompt.evidence
            else:
                shown = tools.shown if tools else ()
                prompt = await self._prompts.prompt(
                    context, content, recall, shown, may_decline=grammar is None,
                    rewriter=self._rewriter(turn, usage), shared=turn.retrieval,
                )  # fmt: skip
                turn.evidence = evidence = await self._located(prompt.evidence)
            turn.standalone_question = prompt.standalone
            format = self._engine.model.tools
            parser = CallParser(format, tools.callable, turn.id) if tools and tools.shown and format else None
            request = self._request(context, prompt, params, grammar, parser)
            turn.attach(request, self._engine)
            message = AnswerMessage(
                turn.id, context.session.id, self._engine.model.name, now(), request.seed, evidence,
                usage=_prompt_usage(context.session.snapshot, len(prompt.tokens)), memory_progress=context.memory_progress,
                standalone_question=prompt.standalone,
            )  # fmt: skip
            yield ResponseCreated(message)
            yield ResponseEvidence(turn.id, evidence)
            if context.added:
                turn.text += context.added
                yield TextDelta(turn.id, context.added, [])
            answer, generated = _Answer(parser=parser), self._generate(turn, context, prompt, request, usage)
            try:
                async with contextlib.aclosing(self._deltas(turn, generated, answer, pace)) as deltas:
                    async for delta in deltas:
                        yield delta
            finally:  # charge the work of the device, even if the caller has left
                usage.tokens += request.computed_tokens
            if turn._error is not None:
                raise turn._error
            message = answer.complete(message, params)
            if context.continued is not None:
                message = message.joined_to(context.continued, context.added)
            message = await self._cited(prompt.question, message)
            span.set(
                gen_ai__usage__input_tokens=len(request.prompt),
                gen_ai__usage__output_tokens=message.usage.completion_tokens,
                everlong__tokens__reused=message.usage.reused_tokens,
                everlong__evidence=len(evidence),
                everlong__question__rewritten=prompt.standalone is not None,
                everlong__finish_reason=message.finish_reason,
            )
            if answer.finished is not None:
                await self._commit(context, message, answer.finished, prompt.context_start)
                pace.end()
        # The lease is released before the last event, so that the caller's next message finds the session free.
        yield ResponseCompleted(message)

    def _rewriter(self, turn: Turn, cost: TokenCost) -> QueryRewriter | None:
        """Return what rewrites the question of the turn; None if the model cannot."""
        if not self._rewrites:
            return None
        begin = partial(turn.attach, engine=self._engine)
        return QueryRewriter(self._engine, self._quota.tenant, self._metrics, cost, begin)

    async def _located(self, passages: Sequence[Passage]) -> list[Passage]:
        """Return the passages with their token offsets, pages and sections."""
        return await self._passages.located(await self._token_offsets.with_tokens(passages))

    async def _cited(self, question: str, message: AnswerMessage) -> AnswerMessage:
        """Return the complete answer with the citations of its sentences, their file names, pages and sections."""
        found = await asyncio.to_thread(cite, question, message.content, message.evidence)
        names = await self._passages.filenames({citation.document for citation in found})
        parts = await self._passages.located([cited_part(citation, message.evidence) for citation in found])
        citations = [
            replace(citation, filename=names.get(citation.document), page=part.page, section=part.section)
            for citation, part in zip(found, parts, strict=True)
        ]
        return replace(message, citations=citations)

    def _request(
        self,
        context: TurnContext,
        prompt: Prompt,
        params: SamplingParams,
        grammar: Grammar | None = None,
        parser: CallParser | None = None,
    ) -> AnswerRequest:
        """Return the request to the engine. Without a seed in `params`, it has a random one."""
        open, model = list(context.session.snapshot.open), self._engine.model
        refusal = None
        if prompt.probe is not None:
            tokens = [*model.tokenizer.encode(REFUSAL), *model.tokenizer.eos_ids[:1]]
            refusal = Refusal(tokens, prompt.probe)
        return AnswerRequest(
            context.state,
            open,
            prompt.tokens,
            params,
            params.seed if params.seed is not None else secrets.randbits(53),
            visible_kept=prompt.visible_kept,
            attended_before=prompt.attended_before,
            grammar=grammar,
            text_before=[] if context.continued is None else [*open, *prompt.tokens][-_SHARED_TOKENS:],
            refusal=refusal,
            owner=self._quota.tenant,
            call_start=None if parser is None else parser.call_start,
        )

    def _generate(
        self, turn: Turn, context: TurnContext, prompt: Prompt, request: AnswerRequest, cost: TokenCost
    ) -> _Generated:
        """Generate the answer. If the evidence may lack it, generate several, and take the one most similar to the others."""
        if prompt.probe is None or not turn.alone or not SelfConsistency.applies(request.params):
            return self._engine.answer(request)
        make = partial(self._request, context, replace(prompt, probe=None))
        begin = partial(turn.attach, engine=self._engine)
        return SelfConsistency(self._engine, prompt.question, make, begin, cost, self._metrics).answer(request)

    async def _deltas(
        self, turn: Turn, generated: _Generated, answer: _Answer, pace: AnswerTimer
    ) -> AsyncGenerator[TextDelta | ToolCallStarted | ToolArgumentsDelta, None]:
        """Generate the answer and yield its deltas. `answer` collects its log-probabilities and its end."""
        try:
            async with contextlib.aclosing(generated) as events:
                async for event in events:
                    if isinstance(event, AnswerFinished):
                        answer.finished = event
                        break
                    pace.token()
                    answer.logprobs += event.logprobs
                    if answer.parser is not None:
                        for delta in answer.parser.feed(event.text, event.logprobs):
                            turn.text += delta.text if isinstance(delta, TextDelta) else ""
                            yield delta
                    elif event.text or event.logprobs:
                        turn.text += event.text
                        yield TextDelta(turn.id, event.text, event.logprobs)
            if answer.parser is not None and (rest := answer.parser.finish()):
                yield TextDelta(turn.id, rest, [])
        except InterruptedError:  # cancelled before the prompt was prefilled: there is nothing to commit
            pass

    async def _commit(
        self, context: TurnContext, message: AnswerMessage, finished: AnswerFinished, context_start: int | None
    ) -> None:
        """Store the message and its answer, and count them."""
        read = context.session.snapshot.position + finished.prompt + finished.tokens
        fingerprint = self._engine.model.fingerprint
        snapshot = await encode_snapshot(finished.state, fingerprint, finished.open, read, context_start=context_start)
        await context.commit(message, snapshot)
        self._metrics.record_answer(
            finished.reason,
            prompt=finished.prompt,
            generated=finished.tokens,
            reused=message.usage.reused_tokens,
            drafted=finished.drafted,
            accepted=finished.accepted,
        )

    def _check(self, content: str, params: SamplingParams) -> None:
        """Raise what is wrong with a message, independent of its session."""
        if len(content) > self._max_message_chars:
            raise TooLarge(
                f"content has {len(content)} characters, the limit is {self._max_message_chars}: "
                "upload a long text as a document", param="content",
            )  # fmt: skip
        vocabulary = self._engine.model.memory.vocab_size
        for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            for token in tokens:
                if token >= vocabulary:
                    raise InvalidRequest(
                        f"{name}: token id {token} is not below the vocabulary's {vocabulary}", param=name
                    )

    async def _grammar(self, params: SamplingParams, tools: ToolUse | None) -> Grammar | None:
        format = self._engine.model.tools
        if tools is not None and format is not None:
            return await self._engine.tool_grammar(
                format, tools.callable, tools.choice, parallel=tools.parallel, schema=params.json_schema
            )
        return None if params.json_schema is None else await self._engine.grammar(params.json_schema)
