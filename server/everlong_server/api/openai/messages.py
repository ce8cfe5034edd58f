"""`ParsedMessages`: what a caller says in messages of several shapes, as documents and as what is said."""

from __future__ import annotations

from typing import Literal

from everlong_server.errors import InvalidRequest, NotFound, TooLarge
from everlong_server.services import Services
from everlong_server.store.records import Message

_SAME_ROLE = "\n\n"
"""Between messages of one role that follow each other: to the model they are one."""

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant",
}  # fmt: skip


def require_model(services: Services, name: str) -> None:
    """Raises `NotFound` for a model that is not served here."""
    model = services.model.name
    if name != model:
        raise NotFound(f"no model {name!r}; this server serves {model!r}", param="model", code="model_not_found")


def require_length(services: Services, text: str, name: str) -> None:
    """Raises `TooLarge` for a text that is longer than a message may be. `name`: the field that it stands in, or ends in."""
    limit = services.settings.max_message_chars
    if len(text) > limit:
        raise TooLarge(
            f"{name} has {len(text)} characters, the limit is {limit}: upload a long text as a file", param=name
        )


class ParsedMessages:
    """Takes messages one by one. Every error names the request's field."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._said: list[Message] = []
        self._documents: dict[str, str] = {}
        self._last = ""

    def add_file(self, role: str, file_id: str, name: str, field: str) -> None:
        """A file in a message of `role`, in the part `name` of the request, whose `field` says which."""
        if role != "user":
            raise InvalidRequest(f"{name}: a file in a message of the {role}; the user's can have files", param=name)
        self._documents.setdefault(file_id, name + field)

    def add_message(self, role: str, text: str, name: str) -> None:
        """The message `name` of the request."""
        require_length(self._services, text, f"{name}.content")
        said, self._last = self._said, name
        who = _ROLES[role]
        before = said[-1] if said else None
        if before is not None and before.role == who:
            content = _SAME_ROLE.join(part for part in (before.content, text) if part)
            require_length(self._services, content, f"{name}.content")
            said[-1] = Message(who, content)
        elif before is not None and who == "system":
            raise InvalidRequest(f"{name}.role: instructions stand before everything else", param=f"{name}.role")
        elif who == "assistant" and (before is None or before.role == "system"):
            raise InvalidRequest(f"{name}.role: a dialogue begins with the user", param=f"{name}.role")
        else:
            said.append(Message(who, text))

    async def finish(self, name: str) -> tuple[list[str], list[Message]]:
        """The documents in the order in which they were named, and what was said, in the field `name` of the request."""
        last, limit = self._last, self._services.settings.max_session_documents
        if self._said[-1].role != "user":
            raise InvalidRequest(
                f"{last}.role: the last message is the {self._said[-1].role}'s, not the user's", param=f"{last}.role"
            )
        if not self._said[-1].content:
            raise InvalidRequest(f"{last}.content: there is nothing to answer", param=f"{last}.content")
        if len(self._documents) > limit:
            raise InvalidRequest(f"{name}: {len(self._documents)} files, the limit is {limit}", param=name)
        for document, field in self._documents.items():
            try:
                await self._services.documents.get(document)
            except NotFound:
                raise NotFound(f"{field}: no file {document[:64]!r}", param=field, code="file_not_found") from None
        return list(self._documents), self._said
