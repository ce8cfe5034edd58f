"""`ParsedMessages`: checks the messages of a conversation, and separates their files from their text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from everlong_models import ToolCall
from everlong_server.api.translation.files import require_file
from everlong_server.api.translation.tools import require_tool_format
from everlong_server.errors import InvalidRequest, TooLarge
from everlong_server.services import Services
from everlong_server.store.records import Message

_SAME_ROLE = "\n\n"
"""Separator of consecutive messages of one role, which the model gets as one."""

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}  # fmt: skip


def require_length(services: Services, text: str, name: str) -> None:
    """Raise `TooLarge` if `text` is longer than the limit of a message. `name`: the field with (the end of) the text."""
    limit = services.shared.settings.max_message_chars
    if len(text) > limit:
        raise TooLarge(
            f"{name} has {len(text)} characters, the limit is {limit}: upload a long text as a file", param=name
        )


class ParsedMessages:
    """Takes messages one by one. Every error names the field of the request."""

    def __init__(self, services: Services, unanswered: Sequence[ToolCall] = ()) -> None:
        """`unanswered`: calls of the answer before these messages, whose results must come first."""
        self._services = services
        self._calls = list(unanswered)
        self._results: dict[str, str] = {}
        """The results of `_calls` so far, by the id of the call."""
        self._messages: list[Message] = []
        self._documents: dict[str, str] = {}
        self._last = ""

    @property
    def unanswered(self) -> list[ToolCall]:
        """The calls of the answer before that have no result yet."""
        return [call for call in self._calls if call.id not in self._results]

    def require_user(self, role: str, name: str) -> None:
        """Raise `InvalidRequest` if a message of `role` cannot have the file in the part `name` of the request."""
        if role != "user":
            raise InvalidRequest(f"{name}: a message of the role {role} has a file: only user messages can", param=name)

    def add_file(self, file_id: str, name: str) -> None:
        """Add a file of a user's message. `name`: the field of the request."""
        self._documents.setdefault(file_id, name)

    def add_message(self, role: str, text: str, name: str) -> None:
        """Add a message. `name`: the field of the request. Raises `InvalidRequest`.

        A system message after one of the user precedes it, because models read instructions before the question. A greeting, the
        assistant's message before any other, answers an empty message of the user: chat templates begin with the user.
        """
        require_length(self._services, text, f"{name}.content")
        self._require_results(name)
        messages, self._last = self._messages, name
        speaker = _ROLES[role]
        last = messages[-1].role if messages else None
        if speaker == "assistant" and last in (None, "system"):
            messages.append(Message("user", ""))
        place = len(messages) - (speaker == "system" and last == "user")
        if place and messages[place - 1].role == speaker:
            content = _SAME_ROLE.join(part for part in (messages[place - 1].content, text) if part)
            require_length(self._services, content, f"{name}.content")
            messages[place - 1] = Message(speaker, content)
        else:
            messages.insert(place, Message(speaker, text))

    def add_calls(self, calls: Sequence[ToolCall], name: str) -> None:
        """Add calls to the answer before, or as an answer of their own. `name`: the field of the request."""
        format = require_tool_format(self._services.shared.model, name)
        known = {call.id for call in self._calls}
        for call in calls:
            if call.id in known:
                raise InvalidRequest(f"{name}: a second call with the id {call.id!r}", param=name)
            known.add(call.id)
        if self._results:
            self._require_results(name)
        last = self._messages[-1] if self._messages else None
        if last is None or last.role != "assistant":
            self.add_message("assistant", "", name)
        text = "" if self._calls else self._messages[-1].content
        lead = self._messages[-1].content + format.separator if self._calls else ""
        self._messages[-1] = Message("assistant", lead + format.answer_text(text, calls))
        self._calls += calls

    def add_result(self, call_id: str, text: str, name: str, field: str) -> None:
        """Add the result of a call of the answer before. `name`: the message in the request; `field`: its field with the id."""
        format = require_tool_format(self._services.shared.model, name)
        require_length(self._services, text, name)
        if call_id not in {call.id for call in self.unanswered}:
            raise InvalidRequest(
                f"{name}.{field}: the preceding answer has no call {call_id!r} without a result",
                param=f"{name}.{field}",
            )
        self._results[call_id], self._last = text, name
        if len(self._results) == len(self._calls):
            results = [self._results[call.id] for call in self._calls]
            self._calls, self._results = [], {}
            self.add_message("user", format.results_text(results), name)

    def _require_results(self, name: str) -> None:
        """Raise `InvalidRequest` if a call of the answer before has no result."""
        if self.unanswered:
            raise InvalidRequest(
                f"{name}: no result for the call {self.unanswered[0].id!r}: every call of an answer needs one before the next message",
                param=name,
            )

    async def finish(self, name: str) -> tuple[list[str], list[Message]]:
        """Return the documents, in their order, and the messages. `name`: the field of the request with the messages.

        A system message that no message of the user follows is answered like one. Raises `InvalidRequest` if the last message is the
        assistant's, and `NotFound` for a document that does not exist.
        """
        last, limit = self._last, self._services.shared.settings.max_session_documents
        self._require_results(last or name)
        if self._messages[-1].role == "system":
            self._messages[-1] = Message("user", self._messages[-1].content)
        if self._messages[-1].role != "user":
            raise InvalidRequest(
                f"{last}.role: the last message must be the user's, got {self._messages[-1].role}",
                param=f"{last}.role",
            )
        if not self._messages[-1].content.strip():
            raise InvalidRequest(f"{last}.content: the last message is empty", param=f"{last}.content")
        if len(self._documents) > limit:
            raise InvalidRequest(f"{name}: {len(self._documents)} files, the limit is {limit}", param=name)
        for document, field in self._documents.items():
            await require_file(self._services, document, field)
        return list(self._documents), self._messages
