"""`ResponseTurns`: answers under an id, each of which any number of others can go on from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from everlong_models import SamplingParams
from everlong_server.engine.answering.chats import ChatCheckpoint, ChatTurns
from everlong_server.engine.answering.grounding import Recall
from everlong_server.engine.answering.turn import Event, Turn, load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import Conflict, NotFound, StateUnusable, Unavailable
from everlong_server.observability.tracing import current_span
from everlong_server.store.chats import Chats
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import Message, Session, new_id, now
from everlong_server.store.responses import OPEN, Response, Responses
from everlong_server.store.tenants.quota import Quota

log = logging.getLogger(__name__)

Keep = Callable[[Response], Awaitable[None]]


@dataclass(slots=True)
class ResponseTurn:
    """A response under way. `response` has its answer once the turn's last event is there."""

    response: Response
    turn: Turn

    @property
    def events(self) -> AsyncGenerator[Event, None]:
        """The turn's."""
        return self.turn.events


class ResponseTurns:
    """Makes responses: each is the next answer of a dialogue."""

    def __init__(
        self, chat_turns: ChatTurns, engine: Engine, store: Responses, chats: Chats, jobs: Jobs, quota: Quota
    ) -> None:
        """`jobs`: those of the background."""
        self._quota = quota
        self._chat_turns = chat_turns
        self._engine = engine
        self._store = store
        self._chats = chats
        self._jobs = jobs

    async def previous(self, response_id: str) -> Response:
        """The response that another one goes on from. Raises `NotFound`, or `Conflict` for one without an answer."""
        previous = await self._store.get(response_id, with_state=True, param="previous_response_id")
        if previous.session is None:
            raise Conflict(
                f"response {response_id!r} is {previous.status}: only one that has its answer can be gone on from",
                param="previous_response_id",
                code="response_not_complete",
            )
        await self._quota.hold_on(previous.id, self._store.seconds)
        return previous

    def ask(
        self,
        previous: Response | None,
        documents: Sequence[str],
        said: Sequence[Message],
        instructions: str | None,
        params: SamplingParams,
        recall: Recall,
        *,
        background: bool,
        **more: Any,
    ) -> Response:
        """A response to be answered, stored nowhere yet. `more`: what the API wants to see again, as JSON.

        Instructions that were in force before are in the memory and not said again.
        """
        before = previous.instructions if previous is not None else None
        if instructions is not None and instructions != before:
            first, *rest = said
            if first.role == "system":
                said = [Message("system", f"{instructions}\n\n{first.content}"), *rest]
            else:
                said = [Message("system", instructions), *said]
        known = previous.documents if previous is not None else ()
        return Response(
            id=new_id("resp"),
            model=self._engine.model.fingerprint,
            created_at=now(),
            background=background,
            previous=previous.id if previous is not None else None,
            documents=(*known, *(document for document in documents if document not in known)),
            said=tuple(said),
            instructions=before if instructions is None else instructions,
            request={
                "params": params.model_dump(), "recall": [recall.passages, recall.tokens],
                "instructions": instructions, **more,
            },
            status="queued" if background else "in_progress",
            tenant=self._store.tenant,
            trace=current_span().traceparent if background else "",
        )  # fmt: skip

    async def begin(self, response: Response, previous: Response | None, keep: Keep | None) -> ResponseTurn:
        """The response under way, admitted: its first event is at hand. `keep` stores it once it has its answer.

        Raises `RateLimited` if there is no room for it; one in the background has its room since it was queued.
        """
        if keep is not None and not response.background:
            await self._quota.require_bytes(self._expected(response))
        params = SamplingParams.model_validate(response.request["params"])
        recall = Recall(*response.request["recall"])
        answering: ResponseTurn | None = None

        async def kept(message: Event, stands: Session) -> None:
            assert answering is not None
            done = response.answered(message, stands)
            if keep is not None:
                await keep(done)
            answering.response = done

        documents, said = response.documents, response.said
        behind = await self._stood(response, previous)
        if behind is None and previous is not None:
            said = (*await self._dialogue(previous), *said)
        turn = await self._chat_turns.answer(documents, said, params, recall, behind=behind, kept=kept)
        answering = ResponseTurn(response, turn)
        return answering

    async def _stood(self, response: Response, previous: Response | None) -> ChatCheckpoint | None:
        """Where `response` goes on; None if all that was said before must be read again: it is about more documents, or
        the model is another."""
        if previous is None or previous.session is None or previous.documents != response.documents:
            return None
        try:
            state = await asyncio.to_thread(load_state, previous.session, self._engine.model)
        except StateUnusable as error:
            log.info("what was said before %s is read again: %s", response.id, error)
            return None
        return ChatCheckpoint(previous.session, state, previous.question)

    async def _dialogue(self, last: Response) -> list[Message]:
        """All that was said up to the answer of `last`. Raises `Conflict` if a part of it was deleted."""
        links: list[list[Message]] = []
        before: str | None = last.id
        while before is not None:
            try:
                at = last if before == last.id else await self._store.get(before)
            except NotFound:
                raise Conflict(
                    f"what was said before has to be read again, and of it response {before!r} was deleted",
                    param="previous_response_id",
                    code="response_deleted",
                ) from None
            assert at.message is not None
            links.append([*at.said, Message("assistant", at.message["content"])])
            before = at.previous
        return [said for link in reversed(links) for said in link]

    # What is stored

    async def get(self, response_id: str) -> Response:
        """Raises `NotFound`. One that nobody will answer any more has failed."""
        response = await self._store.get(response_id)
        orphan = response.status in OPEN and response.model != self._engine.model.fingerprint
        if orphan and not await self._jobs.served(response.model):
            error = {"code": "model_not_found", "message": "no server serves the model that was asked any more"}
            await self._store.end(response_id, "failed", error)
            return await self._store.get(response_id)
        return response

    async def keep(self, response: Response) -> None:
        """Stores one that has its answer."""
        await self.count(response)
        await self._store.keep(response)

    def _expected(self, response: Response) -> int:
        """Bytes that one without its answer is going to take, at least."""
        return response.stored_bytes + self._engine.model.state_bytes

    async def count(self, response: Response) -> None:
        """Counts the bytes of one that has its answer, in place of those that were expected."""
        await self._quota.hold(response.id, response.stored_bytes, self._store.seconds, limited=False)

    async def recount(self, response_id: str) -> None:
        """Counts the bytes of one as it is stored now: none, if it is gone."""
        try:
            await self.count(await self._store.get(response_id))
        except NotFound:
            await self._quota.release(response_id)

    async def queue(self, response: Response) -> None:
        """Stores it; it is answered in the background, here or by another replica. Raises `Unavailable`, and `RateLimited` if
        there is no room for it."""
        if self._engine.draining:
            raise Unavailable("the server is shutting down", code="draining", retry_after=5)
        await self._quota.hold(response.id, self._expected(response), self._store.seconds)
        await self._store.queue(response)

    async def cancel(self, response_id: str) -> Response:
        """A background response, which is not answered any more; one that is over stays as it is. Raises `Conflict`."""
        response = await self._store.get(response_id)
        if not response.background:
            raise Conflict(
                f"response {response_id!r} was not asked for in the background: it ends with its connection",
                param="response_id",
                code="not_in_background",
            )
        await self._store.end(response_id, "cancelled")
        await self.recount(response_id)  # without the state that it was expected to have
        return await self._store.get(response_id)

    async def delete(self, response_id: str) -> None:
        """Deletes it and where the dialogue stood behind it. Raises `NotFound`."""
        response = await self._store.get(response_id)
        # First: if the rest breaks off, there is something to be deleted again.
        await self._quota.release(response_id)
        await self._store.delete(response_id)
        if response.session is not None:
            await self._chats.drop(response.session.id)
