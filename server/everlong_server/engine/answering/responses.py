"""`ResponseTurns`: creates, answers and stores responses. Any number of others can continue from a response by its id."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everlong_models import SamplingParams
from everlong_server.engine.answering.chats import ChatCheckpoint, ChatTurns
from everlong_server.engine.answering.events import TurnEvents
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.search.store_search import StoreSearch
from everlong_server.engine.answering.tools import ToolUse
from everlong_server.engine.answering.turn import Turn
from everlong_server.engine.answering.turn_context import MOST_EXCHANGES, load_state
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import Conflict, Damaged, KeyMissing, NotFound, ServerError, StateUnusable
from everlong_server.observability.tracing import current_span
from everlong_server.store.chats import Chats
from everlong_server.store.jobs import Jobs
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Message, Session, new_id, now
from everlong_server.store.responses import OPEN, Response, Responses
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.vector_stores.file_search import FileSearch
from everlong_server.store.vector_stores.records import StoredFile

_MOST_RESPONSES = 2 * MOST_EXCHANGES
"""Earlier responses whose messages are fetched, at most. A question whose answer calls tools takes two of them."""

log = logging.getLogger(__name__)

Store = Callable[[Response], Awaitable[None]]
"""Stores an answered response."""


@dataclass(slots=True)
class ResponseTurn:
    """A response that is being answered. `response` has its answer once the turn has yielded its last event."""

    response: Response
    turn: Turn

    @property
    def events(self) -> TurnEvents:
        """The events of the turn."""
        return self.turn.events


class ResponseTurns:
    """Creates and answers responses: each is the next answer of a conversation."""

    def __init__(
        self,
        chat_turns: ChatTurns,
        engine: Engine,
        store: Responses,
        chats: Chats,
        jobs: Jobs,
        quota: Quota,
        store_search: StoreSearch,
    ) -> None:
        """`jobs`: the queue of background responses."""
        self._store_search = store_search
        self._quota = quota
        self._chat_turns = chat_turns
        self._engine = engine
        self._store = store
        self._chats = chats
        self._jobs = jobs

    async def previous(self, response_id: str) -> Response:
        """Return the response that another one continues from. Raises `NotFound`, or `Conflict` for one without an answer."""
        previous = await self._store.get(response_id, with_state=True, param="previous_response_id")
        if previous.session is None:
            raise Conflict(
                f"response {response_id!r} is {previous.status}; continue from a completed response",
                param="previous_response_id",
                code="response_not_complete",
            )
        await self._quota.extend_reservation(previous.id, self._store.seconds)
        return previous

    def create(
        self,
        previous: Response | None,
        documents: Sequence[str],
        messages: Sequence[Message],
        instructions: str | None,
        params: SamplingParams,
        recall: Recall,
        *,
        background: bool,
        tool_use: ToolUse | None = None,
        file_search: FileSearch | None = None,
        **more: Any,
    ) -> Response:
        """Return a new response without an answer, which is not stored yet. `more`: JSON that the API shows in the response.

        Instructions that are unchanged are in the memory already and not added again.
        """
        before = previous.instructions if previous is not None else None
        if instructions is not None and instructions != before:
            first, *rest = messages
            if first.role == "system":
                messages = [Message("system", f"{instructions}\n\n{first.content}"), *rest]
            else:
                messages = [Message("system", instructions), *messages]
        told = [message.content for message in messages if message.role == "system"]
        if previous is not None and instructions in (None, before):
            told = [*filter(None, [previous.system]), *told]
        known = previous.documents if previous is not None else ()
        format = self._engine.model.tools
        words = [format.question_of(m.content) if format else m.content for m in messages if m.role == "user"]
        asked = next((text for text in reversed(words) if text), previous.question if previous is not None else "")
        return Response(
            id=new_id("resp"),
            model=self._engine.model.fingerprint,
            created_at=now(),
            background=background,
            previous=previous.id if previous is not None else None,
            documents=(*known, *(document for document in documents if document not in known)),
            said=tuple(messages),
            instructions=before if instructions is None else instructions,
            request={
                "params": params.model_dump(), "recall": [recall.passages, recall.tokens],
                "instructions": instructions, **({} if tool_use is None else {"tool_use": tool_use.json()}),
                **({} if file_search is None else {"file_search": file_search.json()}),
                **({"asked": asked} if asked != messages[-1].content else {}),
                **({"system": "\n\n".join(told)} if told else {}), **more,
            },
            status="queued" if background else "in_progress",
            tenant=self._quota.tenant,
            trace=current_span().traceparent if background else "",
        )  # fmt: skip

    async def begin(self, response: Response, previous: Response | None, store: Store | None) -> ResponseTurn:
        """Start to answer the response. Its turn is admitted, and the first event is available.

        `store`: called with the answered response before the last event. Raises `RateLimited` if the tenant has no room for
        the response; a background response has reserved its room when it was queued.
        """
        if store is not None and not response.background:
            await self._quota.require_bytes(self._expected_bytes(response))
        params = SamplingParams.model_validate(response.request["params"])
        recall, files = await self._recall(response)
        response_turn: ResponseTurn | None = None

        async def on_complete(message: AnswerMessage, session: Session) -> None:
            assert response_turn is not None
            answered = response.answered(message, session)
            if store is not None:
                await store(answered)
            response_turn.response = answered

        messages, checkpoint = await self._unread(response, previous)
        turn = await self._chat_turns.answer(
            response.documents, messages, params, recall, tools=ToolUse.of(response.request.get("tool_use")),
            checkpoint=checkpoint, on_complete=on_complete, field="input", system=response.system, turn=Turn(_item_id("msg", response)),
        )  # fmt: skip
        if files is not None:
            try:
                question = turn.standalone_question or response.question
                searched = await self._store_search.call(question, files, turn.evidence or ())
            except BaseException:
                await turn.events.aclose()  # it is admitted, but nobody else knows of it yet
                raise
            response = replace(response, searched=replace(searched, id=_item_id("fs", response)))
        response_turn = ResponseTurn(response, turn)
        return response_turn

    async def count_tokens(self, response: Response, previous: Response | None) -> int:
        """Return the number of tokens of the prompt of `response`, all that was read before included. Generates and stores nothing."""
        recall, _ = await self._recall(response)
        messages, checkpoint = await self._unread(response, previous)
        return await self._chat_turns.count_tokens(
            response.documents, messages, recall, ToolUse.of(response.request.get("tool_use")),
            checkpoint=checkpoint, field="input", system=response.system,
        )  # fmt: skip

    async def _recall(self, response: Response) -> tuple[Recall, dict[str, StoredFile] | None]:
        """Return the recall of the answer, and the files of the vector stores that it searches; None without such a search."""
        recall, file_search = Recall(*response.request["recall"]), FileSearch.of(response.request.get("file_search"))
        if file_search is None:
            return recall, None
        files = await self._store_search.files(file_search.stores, file_search.filter, "tools")
        return replace(recall, also_in=tuple(files)), files

    async def _unread(
        self, response: Response, previous: Response | None
    ) -> tuple[Sequence[Message], ChatCheckpoint | None]:
        """Return the messages that must be read, and the checkpoint that they follow; None if they are the whole conversation."""
        checkpoint = await self._checkpoint(response, previous)
        if checkpoint is None and previous is not None:
            return (*await self._messages_until(previous), *response.said), None
        return response.said, checkpoint

    async def _checkpoint(self, response: Response, previous: Response | None) -> ChatCheckpoint | None:
        """Return the checkpoint that `response` continues from.

        Returns None if all messages must be read again: the response has more documents, or the model has changed.
        """
        if previous is None or previous.session is None or previous.documents != response.documents:
            return None
        try:
            state = await asyncio.to_thread(load_state, previous.session, self._engine.model)
        except StateUnusable as error:
            log.info(
                "cannot use the stored state before response %s; prefilling its earlier messages again: %s",
                response.id,
                error,
            )
            return None
        # Only the search in documents needs the earlier questions.
        searches = Recall(*response.request["recall"]).passages and (
            response.documents or response.request.get("file_search")
        )
        newest = await self._newest_messages(previous, _MOST_RESPONSES if searches else 1)
        return ChatCheckpoint(previous.session, state, newest)

    async def _newest_messages(self, last: Response, most: int) -> list[Message]:
        """Return the messages of the newest responses up to `last`, at most so many, without calls.

        Ends at a response that cannot be fetched any more: it was deleted, it has expired, or it cannot be decrypted here.
        """
        newest, error = await self._back_from(last, most)
        if isinstance(error, Damaged | KeyMissing):
            log.warning("response %s is answered without the messages of %s: %s", last.id, newest[-1].previous, error)
        format = self._engine.model.tools
        asks = format.question_of if format is not None else str
        # Results of calls alone can be left of the earliest response, whose question is in the one before it.
        first = newest[-1]
        asked = any(asks(message.content) for message in first.said if message.role == "user")
        messages = [] if asked else [Message("user", first.question)]
        for response in reversed(newest):
            messages += response.said
            if response.message is not None:
                messages.append(Message("assistant", response.message.content))
        return messages

    async def _messages_until(self, last: Response) -> list[Message]:
        """Return all messages up to the answer of `last`. Raises `Conflict` if a response among them was deleted."""
        responses, error = await self._back_from(last)
        if isinstance(error, NotFound):
            raise Conflict(
                f"cannot continue: the earlier messages must be prefilled again, but response {responses[-1].previous!r} among them was "
                "deleted: start a new conversation",
                param="previous_response_id",
                code="response_deleted",
            )
        if error is not None:
            raise error
        messages, format = list[Message](), self._engine.model.tools
        for response in reversed(responses):
            assert response.message is not None
            text = response.message.content
            if format is not None:
                text = format.answer_text(text, response.message.tool_calls)
            messages += [*response.said, Message("assistant", text)]
        return messages

    async def _back_from(self, last: Response, most: int | None = None) -> tuple[list[Response], ServerError | None]:
        """Return `last` and the responses before it, newest first (at most `most`; None: all).

        The second value is the error if an earlier response could not be fetched, else None.
        """
        responses = [last]
        while len(responses) != most and (id := responses[-1].previous) is not None:
            try:
                responses.append(await self._store.get(id))
            except (NotFound, Damaged, KeyMissing) as error:
                return responses, error
        return responses, None

    # Stored responses

    async def get(self, response_id: str) -> Response:
        """Return a response. An unanswered one whose model no server serves any more is ended as failed. Raises `NotFound`."""
        response = await self._store.get(response_id)
        orphan = response.status in OPEN and response.model != self._engine.model.fingerprint
        if orphan and not await self._jobs.has_replica_for(response.model):
            error = {"code": "model_not_found", "message": "no server serves the model of this response any more"}
            await self._store.end(response_id, "failed", error)
            return await self._store.get(response_id)
        return response

    async def keep(self, response: Response) -> None:
        """Store an answered response."""
        await self.count_bytes(response)
        await self._store.keep(response)

    def _expected_bytes(self, response: Response) -> int:
        """Return the least number of bytes that an unanswered response will take once it is answered."""
        return response.stored_bytes + self._engine.model.state_bytes

    async def count_bytes(self, response: Response) -> None:
        """Count the bytes of an answered response towards the quota, in place of the expected ones."""
        await self._quota.reserve(response.id, response.stored_bytes, self._store.seconds, limited=False)

    async def recount_bytes(self, response_id: str) -> None:
        """Count the bytes of a response as it is stored now; none if it is gone."""
        try:
            await self.count_bytes(await self._store.get(response_id))
        except NotFound:
            await self._quota.release(response_id)

    async def queue(self, response: Response) -> None:
        """Store a response and queue it to be answered in the background, by any replica.

        Raises `Unavailable`, and `RateLimited` if the tenant has no room for it.
        """
        self._engine.require_running()
        await self._quota.reserve(response.id, self._expected_bytes(response), self._store.seconds)
        await self._store.queue(response)

    async def cancel(self, response_id: str) -> Response:
        """Cancel a background response and return it. One that has ended is unchanged. Raises `Conflict` for other responses."""
        response = await self._store.get(response_id)
        if not response.background:
            raise Conflict(
                f"response {response_id!r} is not a background response: close its connection to cancel it",
                param="response_id",
                code="not_in_background",
            )
        await self._store.end(response_id, "cancelled")
        await self.recount_bytes(response_id)  # without the reserved bytes of its state
        return await self._store.get(response_id)

    async def delete(self, response_id: str) -> None:
        """Delete a response and the chat state after it. Raises `NotFound`."""
        response = await self._store.get(response_id)
        # The quota first: if deleting fails after this, the response is still there and can be deleted again.
        await self._quota.release(response_id)
        await self._store.delete(response_id)
        if response.session is not None:
            await self._chats.drop(response.session.id)


def _item_id(kind: str, response: Response) -> str:
    """Return the id of an item of a response, which has that of the response: clients refer to an item by its id alone."""
    return f"{kind}_{response.id.partition('_')[2]}"
