"""`TurnRunner`: a message and its answer, from admission to what is kept. A turn is a transaction.

Either the answer is complete, and what it was said in contains it before the caller is told so; or all is as it was
before. A caller that goes away in the middle, a lost lease, a killed server: all is as it was.
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
    BESIDE,
    TEMPLATE,
    Recall,
    Template,
    choose_in_segment,
    choose_in_window,
    evidence_view,
    lacks,
    words_of,
)
from everlong_server.engine.device.engine import Engine
from everlong_server.engine.device.requests import Answer, Finished
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.errors import InvalidRequest, StateUnusable, TooLarge
from everlong_server.observability.metrics import Metrics
from everlong_server.observability.tracing import Tracing
from everlong_server.store.records import Message, Session, new_id, now
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.passages import Passage, Passages

Event = dict[str, Any]
Written = dict[str, Any]
"""What is stored of a session behind an answer: state, open segment, position."""


@dataclass(slots=True)
class Turn:
    """A message and its answer under way. `events` yields what the caller is sent; `cancel` ends the answer and keeps it,
    `lose` ends it and keeps nothing."""

    id: str
    events: AsyncGenerator[Event, None] = field(init=False)
    _answer: Answer | None = None
    _engine: Engine | None = None
    _lost: Exception | None = None

    def begun(self, answer: Answer, engine: Engine) -> None:
        """There is something to cancel now. Raises what it was lost with before."""
        self._answer, self._engine = answer, engine
        if self._lost is not None:
            raise self._lost

    def cancel(self) -> None:
        """The answer ends within one step, with `finish_reason` "cancelled"; what was said is kept."""
        if self._answer is not None and self._engine is not None:
            self._engine.cancel(self._answer)

    def lose(self, error: Exception) -> None:
        """The place is somebody else's: the answer ends with `error`."""
        self._lost = error
        self.cancel()


@dataclass(frozen=True, slots=True)
class TurnContext:
    """Where a message goes: to `session` as it stands, whose memory is `state`, behind `earlier` messages that it has
    not read yet.

    `asked`: the question before it. `keep`: makes message and answer part of the dialogue.
    """

    session: Session
    state: MemoryState
    earlier: Sequence[Message]
    asked: str | None
    keep: Callable[[Event, Written], Awaitable[None]]


def load_state(session: Session, model: Model) -> MemoryState:
    """The session's memory. Raises `StateUnusable`."""
    if session.state is None and not session.state_bytes:
        return model.memory.initial_state(1).to("cpu")
    try:
        return decode_state(session.state or b"", model.fingerprint)
    except EverlongModelError as error:
        raise StateUnusable(f"the stored state of session {session.id!r} is damaged: {error}") from error


class TurnRunner:
    """Begins turns."""

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
        """A turn that has been admitted: its first event is at hand. Every refusal is raised here, before any event.

        `enter`: gives the place where `content` is said, which is the turn's as long as the context lasts.
        """
        turn = Turn(id=id or new_id("msg"))
        rest = self._turn(turn, enter(turn), content, params, recall)
        first = await anext(rest)

        async def events() -> AsyncGenerator[Event, None]:
            async with contextlib.aclosing(rest):
                yield first
                async for event in rest:
                    yield event

        turn.events = events()
        return turn

    async def _turn(
        self,
        turn: Turn,
        entered: AbstractAsyncContextManager[TurnContext],
        content: str,
        params: SamplingParams,
        recall: Recall,
    ) -> AsyncGenerator[Event, None]:
        pace = self._metrics.pace()
        self._check(content, params)
        async with AsyncExitStack() as stack:
            span = stack.enter_context(self._tracing.span("answer", gen_ai__request__model=self._engine.model.name))
            stack.enter_context(self._engine.admit())
            spent = await stack.enter_async_context(self._quota.stream(self._engine.usual_seconds))
            grammar = await self._grammar(params)
            place = await stack.enter_async_context(entered)
            session = place.session
            found, lacking = await self._recall(place, content, recall)
            # Work that takes long in proportion to the message is not for the event loop.
            prompt, rests, newest, alone = await asyncio.to_thread(
                self._prompt, place, content, found, recall, lacking=lacking
            )
            rests = await self._passages.placed(await self._token_offsets.placed(rests))
            evidence = [evidence_view(passage) for passage in rests]
            seed = params.seed if params.seed is not None else secrets.randbits(53)
            answer = Answer(
                place.state,
                list(session.open),
                prompt,
                params,
                seed,
                lambda event: None,
                newest,
                alone,
                grammar,
                self._quota.tenant,
            )
            turn.begun(answer, self._engine)
            message: dict[str, Any] = {
                "id": turn.id, "object": "message", "role": "assistant", "session": session.id,
                "model": self._engine.model.name, "created_at": now(), "seed": seed,
            }  # fmt: skip
            yield {"type": "response.created", "response": message}
            message["evidence"] = evidence
            yield {"type": "response.evidence", "response_id": turn.id, "evidence": evidence}
            finished: Finished | None = None
            logprobs: list[dict[str, Any]] = []
            try:
                async with contextlib.aclosing(self._engine.answer(answer)) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            finished = event
                            break
                        pace.token()
                        logprobs += event.logprobs
                        if event.text or event.logprobs:
                            delta = {"type": "response.output_text.delta", "response_id": turn.id, "delta": event.text}
                            yield delta | ({"logprobs": event.logprobs} if event.logprobs else {})
            except GrammarError as error:
                raise InvalidRequest(f"json_schema: {error}", param="json_schema") from error
            except InterruptedError:  # cancelled before the prompt was read: there is nothing to keep
                pass
            finally:  # what the device has done is charged, though the caller left before the first word
                spent.tokens = answer.at + answer.generated
            if turn._lost is not None:
                raise turn._lost
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
                await place.keep(message, await self._written(session, finished))
                pace.end()
                self._metrics.answered(finished.reason, prompt=len(prompt), generated=finished.tokens, reused=reused)
        # The lease is back before the caller hears of the end, so that its next message finds the session free.
        yield {"type": "response.completed", "message": message}

    def _check(self, content: str, params: SamplingParams) -> None:
        """Raises what is wrong with a message, whatever its session."""
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

    async def _recall(self, place: TurnContext, content: str, recall: Recall) -> tuple[list[Passage], bool]:
        """The passages of the session's documents that a question is about, the best first; and whether these documents
        lack what is asked for."""
        documents, talked = place.session.documents, bool(place.session.messages or place.earlier)
        if not recall.passages or not documents:
            return [], False
        words = await asyncio.to_thread(words_of, content, place.asked)
        found = await self._passages.search(documents, words, recall.passages) if words else []
        lacking = await asyncio.to_thread(lacks, content, found, talked=talked)
        return found, bool(words) and lacking and await self._passages.complete(documents)

    def _prompt(
        self, place: TurnContext, content: str, found: list[Passage], recall: Recall, *, lacking: bool
    ) -> tuple[list[int], list[Passage], int | None, bool]:
        """The message's tokens, the passages that its answer can rest on, and what it looks at besides (`Answer.newest`,
        `Answer.alone`)."""
        memory, chat, tokenizer = self._engine.model.memory, self._engine.model.chat, self._engine.model.tokenizer
        session = place.session
        kept, open = memory.kept_tokens(place.state), session.open
        alone = bool(kept) and not session.messages  # a text that fits into the open segment is seen whole
        between = len(self._before(place, anew=alone))

        def count(text: str) -> int:
            return len(tokenizer.encode(text))

        question = [*tokenizer.encode(content), *chat.ask]
        budget, window = recall.tokens, memory.visible_tokens - memory.segment_length
        if window:
            budget = min(budget, window - len(question))
            evidence, text = choose_in_window(
                found, [] if alone else [*kept[-BESIDE:], *open], budget, count, tokenizer.decode, window=window,
                between=between, after=len(question), template=self._template,
            )  # fmt: skip
        else:
            evidence, text = choose_in_segment(
                found, tokenizer.decode([*kept[-BESIDE:], *open]) if found else "", budget, count, tokenizer.spans,
                segment=memory.segment_length, before=len(open) + between, after=len(question), template=self._template,
            )  # fmt: skip
        if lacking and self._engine.model.trained is None:  # without a trained memory, what they lack nothing holds
            text = self._template.nothing if count(self._template.nothing) <= budget else ""
        alone = alone and bool(evidence or text)
        prompt = [*self._before(place, anew=alone), *tokenizer.encode(text), *question]
        newest = BESIDE if evidence or text else None
        return prompt, evidence, newest, alone

    def _before(self, place: TurnContext, *, anew: bool) -> list[int]:
        """What stands between all that the session has read and the words of the question; `anew`: as if it were nothing."""
        chat, encode = self._engine.model.chat, self._engine.model.tokenizer.encode
        begins = anew or not place.session.position
        lead = chat.turn if place.session.messages else chat.head if begins else chat.separator
        tokens: list[int] = []
        for said in place.earlier:
            behind = {"system": chat.separator, "user": chat.ask, "assistant": chat.turn}[said.role]
            if said.role == "system" and begins and chat.system is not None:
                lead, behind = chat.system
            tokens += [*lead, *encode(said.content)]
            lead = behind
        return [*tokens, *lead]

    async def _written(self, session: Session, finished: Finished) -> Written:
        return {
            "state": await asyncio.to_thread(encode_state, finished.state, self._engine.model.fingerprint),
            "state_bytes": finished.state.nbytes,
            "state_digest": await asyncio.to_thread(finished.state.digest),
            "open": finished.open,
            "position": session.position + finished.prompt + finished.tokens,
        }
