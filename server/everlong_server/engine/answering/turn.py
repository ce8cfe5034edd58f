"""`TurnRunner`: runs a turn, one user message and its answer, from admission to commit.

A turn is a transaction. Either the answer is complete and committed before the caller receives its end, or nothing changes.
Nothing changes if the caller disconnects, the lease is lost or the server is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from everlong_models import (
    EverlongModelError,
    Grammar,
    GrammarError,
    MemoryState,
    Model,
    SamplingParams,
    decode_state,
    encode_state,
)
from everlong_server.engine.answering.grounding import (
    RECENT_TOKENS,
    TEMPLATE,
    Recall,
    Template,
    evidence_view,
    search_words,
    select_passages_in_segment,
    select_passages_in_window,
    texts_lack_answer,
)
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.requests import AnswerFinished, AnswerRequest
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.errors import InvalidRequest, StateUnusable, TooLarge
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.records import Message, Session, new_id, now
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.passages import Passage, Passages

Event = dict[str, Any]
Written = dict[str, Any]
"""The fields of a session that an answer changes: state, open segment, position."""


@dataclass(slots=True)
class Turn:
    """A running turn. `events` yields what the caller is sent. `cancel` ends the answer and commits it; `fail` ends it and
    commits nothing."""

    id: str
    events: AsyncGenerator[Event, None] = field(init=False)
    _answer: AnswerRequest | None = None
    _engine: Engine | None = None
    _error: Exception | None = None

    def attach(self, answer: AnswerRequest, engine: Engine) -> None:
        """Attach the running answer, so that it can be cancelled. Re-raises the error if the turn has failed already."""
        self._answer, self._engine = answer, engine
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """End the answer within one decode step, with `finish_reason` "cancelled". Its text so far is committed."""
        if self._answer is not None and self._engine is not None:
            self._engine.cancel(self._answer)

    def fail(self, error: Exception) -> None:
        """End the answer with `error`, as when the session's lease was lost."""
        self._error = error
        self.cancel()


@dataclass(frozen=True, slots=True)
class TurnContext:
    """What a message follows: `session` as committed, its memory `state`, and `unread` messages that are not in them yet.

    `previous_question`: the user message before it. `commit`: stores the message and its answer.
    """

    session: Session
    state: MemoryState
    unread: Sequence[Message]
    previous_question: str | None
    commit: Callable[[Event, Written], Awaitable[None]]


def load_state(session: Session, model: Model) -> MemoryState:
    """Return the session's memory. Raises `StateUnusable`."""
    if session.state is None and not session.state_bytes:
        return model.memory.initial_state(1).to("cpu")
    try:
        return decode_state(session.state or b"", model.fingerprint)
    except EverlongModelError as error:
        raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error


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
        template: Template = TEMPLATE,
    ) -> None:
        self._engine = engine
        self._quota = quota
        self._passages = passages
        self._token_offsets = token_offsets
        self._metrics = metrics
        self._tracing = tracing
        self._max_message_chars = max_message_chars
        self._template = template

    async def begin(
        self,
        enter: Callable[[Turn], AbstractAsyncContextManager[TurnContext]],
        content: str,
        params: SamplingParams,
        recall: Recall,
        *,
        id: str | None = None,
    ) -> Turn:
        """Return an admitted turn, whose first event is available. Raises every refusal here, before any event.

        `enter`: returns a context manager of the message's context, such as a locked session. The turn holds it to its end.
        """
        turn = Turn(id=id or new_id("msg"))
        following = self._turn(turn, enter(turn), content, params, recall)
        first = await anext(following)

        async def events() -> AsyncGenerator[Event, None]:
            async with contextlib.aclosing(following):
                yield first
                async for event in following:
                    yield event

        turn.events = events()
        return turn

    async def _turn(
        self,
        turn: Turn,
        entering: AbstractAsyncContextManager[TurnContext],
        content: str,
        params: SamplingParams,
        recall: Recall,
    ) -> AsyncGenerator[Event, None]:
        pace = self._metrics.pace()
        self._check(content, params)
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._tracing.span("answer", gen_ai__request__model=self._engine.model.name))
            stack.enter_context(self._engine.admit())
            spent = await stack.enter_async_context(self._quota.stream(self._engine.typical_seconds))
            grammar = await self._grammar(params)
            context = await stack.enter_async_context(entering)
            session = context.session
            found, nothing_found = await self._recall(context, content, recall)
            # On a thread: this takes time in proportion to the message.
            prompt, passages, visible_kept, prompt_only = await asyncio.to_thread(
                self._prompt, context, content, found, recall, nothing_found=nothing_found
            )
            passages = await self._passages.placed(await self._token_offsets.with_tokens(passages))
            evidence = [evidence_view(passage) for passage in passages]
            seed = params.seed if params.seed is not None else secrets.randbits(53)
            answer = AnswerRequest(
                context.state,
                list(session.open),
                prompt,
                params,
                seed,
                lambda event: None,
                visible_kept,
                prompt_only,
                grammar,
                self._quota.tenant,
            )
            turn.attach(answer, self._engine)
            message: dict[str, Any] = {
                "id": turn.id, "object": "message", "role": "assistant", "session": session.id,
                "model": self._engine.model.name, "created_at": now(), "seed": seed,
            }  # fmt: skip
            yield {"type": "response.created", "response": message}
            message["evidence"] = evidence
            yield {"type": "response.evidence", "response_id": turn.id, "evidence": evidence}
            finished: AnswerFinished | None = None
            logprobs: list[dict[str, Any]] = []
            try:
                async with contextlib.aclosing(self._engine.answer(answer)) as events:
                    async for event in events:
                        if isinstance(event, AnswerFinished):
                            finished = event
                            break
                        pace.token()
                        logprobs += event.logprobs
                        if event.text or event.logprobs:
                            delta = {"type": "response.output_text.delta", "response_id": turn.id, "delta": event.text}
                            yield delta | ({"logprobs": event.logprobs} if event.logprobs else {})
            except GrammarError as error:
                raise InvalidRequest(f"json_schema: {error}", param="json_schema") from error
            except InterruptedError:  # cancelled before the prompt was prefilled: there is nothing to commit
                pass
            finally:  # charge the work of the device, even if the caller has left
                spent.tokens = answer.prompt_read + answer.generated
            if turn._error is not None:
                raise turn._error
            reused = session.position - len(session.open)
            span.set(
                gen_ai__usage__input_tokens=len(prompt),
                gen_ai__usage__output_tokens=finished.tokens if finished else 0,
                everlong__tokens__reused=reused,
                everlong__evidence=len(evidence),
                everlong__finish_reason=finished.reason if finished else "cancelled",
            )
            message |= {
                "content": finished.text if finished else "",
                "finish_reason": finished.reason if finished else "cancelled",
                "usage": {
                    "prompt_tokens": session.position + len(prompt),
                    "completion_tokens": finished.tokens if finished else 0,
                    "reused_tokens": reused,
                },
                **({"logprobs": logprobs} if params.logprobs else {}),
            }
            if finished is not None:
                await context.commit(message, await self._written(session, finished))
                pace.end()
                self._metrics.answered(finished.reason, prompt=len(prompt), generated=finished.tokens, reused=reused)
        # The lease is released before the last event, so that the caller's next message finds the session free.
        yield {"type": "response.completed", "message": message}

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

    async def _grammar(self, params: SamplingParams) -> Grammar | None:
        try:
            return None if params.json_schema is None else await self._engine.grammar(params.json_schema)
        except GrammarError as error:
            raise InvalidRequest(f"json_schema: {error}", param="json_schema") from error

    async def _recall(self, context: TurnContext, content: str, recall: Recall) -> tuple[list[Passage], bool]:
        """Return the passages of the session's documents that match the question, best first, and whether the documents lack
        the answer."""
        documents, talked = context.session.documents, bool(context.session.messages or context.unread)
        if not recall.passages or not documents:
            return [], False
        words = await asyncio.to_thread(search_words, content, context.previous_question)
        found = await self._passages.search(documents, words, recall.passages) if words else []
        lacking = await asyncio.to_thread(texts_lack_answer, content, found, talked=talked)
        return found, bool(words) and lacking and await self._passages.complete(documents)

    def _prompt(
        self, context: TurnContext, content: str, found: list[Passage], recall: Recall, *, nothing_found: bool
    ) -> tuple[list[int], list[Passage], int | None, bool]:
        """Return the prompt's tokens, the evidence, and `visible_kept` and `prompt_only` of its `AnswerRequest`."""
        memory, chat, tokenizer = self._engine.model.memory, self._engine.model.chat, self._engine.model.tokenizer
        session = context.session
        kept, open = memory.kept(context.state), session.open
        # Not without kept tokens: a text that fits into the open segment is seen whole.
        prompt_only = bool(kept) and not session.messages
        between = len(self._lead(context, from_start=prompt_only))

        def count(text: str) -> int:
            return len(tokenizer.encode(text))

        question = [*tokenizer.encode(content), *chat.ask]
        budget, window = recall.tokens, memory.sight - memory.segment_length
        if window:
            budget = min(budget, window - len(question))
            evidence, text = select_passages_in_window(
                found, [] if prompt_only else [*kept[-RECENT_TOKENS:], *open], budget, count, tokenizer.decode,
                window=window, between=between, after=len(question), template=self._template,
            )  # fmt: skip
        else:
            evidence, text = select_passages_in_segment(
                found, tokenizer.decode([*kept[-RECENT_TOKENS:], *open]) if found else "", budget, count, tokenizer.spans,
                segment=memory.segment_length, before=len(open) + between, after=len(question), template=self._template,
            )  # fmt: skip
        if nothing_found and self._engine.model.trained is None:  # an untrained memory cannot hold the answer either
            text = self._template.nothing if count(self._template.nothing) <= budget else ""
        prompt_only = prompt_only and bool(evidence or text)
        prompt = [*self._lead(context, from_start=prompt_only), *tokenizer.encode(text), *question]
        visible_kept = RECENT_TOKENS if evidence or text else None
        return prompt, evidence, visible_kept, prompt_only

    def _lead(self, context: TurnContext, *, from_start: bool) -> list[int]:
        """Return the tokens between those that the session has read and the words of the question: unread messages and the
        chat format's markers. `from_start`: as if the session had read nothing."""
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        begins = from_start or not context.session.position
        lead = chat.turn if context.session.messages else chat.head if begins else chat.separator
        tokens: list[int] = []
        for message in context.unread:
            end = {"system": chat.separator, "user": chat.ask, "assistant": chat.turn}[message.role]
            if message.role == "system" and begins and chat.system is not None:
                lead, end = chat.system
            tokens += [*lead, *encode(message.content)]
            lead = end
        return [*tokens, *lead]

    async def _written(self, session: Session, finished: AnswerFinished) -> Written:
        return {
            "state": await asyncio.to_thread(encode_state, finished.state, self._engine.model.fingerprint),
            "state_bytes": finished.state.nbytes,
            "state_digest": await asyncio.to_thread(finished.state.digest),
            "open": finished.open,
            "position": session.position + finished.prompt + finished.tokens,
        }
