"""The server's HTTP calls: the request to send, and how to parse the response. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from everlong_client.errors import UnexpectedAnswerError
from everlong_client.transport.upload import Upload
from everlong_client.types.document import Document, DocumentText, UploadedArchive
from everlong_client.types.format import Formats
from everlong_client.types.memory import Memory
from everlong_client.types.message import Message, Recall, Sampling
from everlong_client.types.model import Model
from everlong_client.types.record import from_json
from everlong_client.types.search import FoundPassage, SearchFilters
from everlong_client.types.session import Session

T = TypeVar("T")

MAX_PAGE_SIZE = 100  # items of a list in one response


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request, and `parse`, which turns the response's JSON into the result."""

    method: str
    path: str
    parse: Callable[[Any], T]
    params: Mapping[str, str | int] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    body: Upload | None = None
    part: bytes | None = None
    """Sent as the field `data` of a form."""
    key: str | None = None
    """The `Idempotency-Key` of a POST; None: a random one."""
    waits_for_restart: bool = False
    """Whether to retry for as long as a restart of the server may take, instead of a fixed number of times."""


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, and the call for the next page; None at the end."""

    items: tuple[T, ...]
    next: Call[Page[T]] | None


def path(*parts: str) -> str:
    """Return `/v1/` and the escaped parts. Raises `ValueError` for an empty part, which would name another resource."""
    if not all(parts):
        raise ValueError("an id must not be empty")
    # Ids are ASCII. An id that is not valid Unicode gets a 404, like every other unknown id.
    return "/v1/" + "/".join(quote(part, safe="", errors="replace") for part in parts)


def upload_document(upload: Upload, key: str, ocr_language: str | None, *, reuse: bool) -> Call[Document]:
    """POST /v1/documents. Returns the document, which is not read yet unless it is a reused one."""
    headers = {"Content-Type": "text/plain"}
    if upload.total is not None:
        headers["Content-Length"] = str(upload.total)
    params = _without_none(filename=upload.filename or None, ocr_language=ocr_language, reuse="true" if reuse else None)
    return Call("POST", path("documents"), _parse_one(Document), params=params, headers=headers, body=upload, key=key)


def upload_archive(upload: Upload, key: str, ocr_language: str | None) -> Call[UploadedArchive]:
    """POST /v1/documents/archive. Returns a document for each file in the archive."""
    headers = {"Content-Type": "application/octet-stream"}
    if upload.total is not None:
        headers["Content-Length"] = str(upload.total)
    params = _without_none(filename=upload.filename or None, ocr_language=ocr_language)
    return Call(
        "POST", path("documents", "archive"), _parse_archive, params=params, headers=headers, body=upload, key=key
    )


def begin_upload(upload: Upload) -> Call[str]:
    """POST /v1/uploads: start an upload in parts. Returns its id."""
    facts = {
        "bytes": upload.total, "filename": upload.filename or "text", "mime_type": "text/plain", "purpose": "user_data"
    }  # fmt: skip
    return Call("POST", path("uploads"), _parse_id, json=facts, waits_for_restart=True)


def add_part(upload: str, part: bytes) -> Call[str]:
    """POST /v1/uploads/{id}/parts. Returns the part's id."""
    return Call("POST", path("uploads", upload, "parts"), _parse_id, part=part, waits_for_restart=True)


def complete_upload(upload: str, parts: Iterable[str], key: str, ocr_language: str | None, *, reuse: bool) -> Call[str]:
    """POST /v1/uploads/{id}/complete. Returns the document's id."""

    def parse(data: Any) -> str:
        return _parse_id(data["file"] if isinstance(data, dict) else data)

    json = _without_none(part_ids=list(parts), ocr_language=ocr_language)
    return Call(
        "POST", path("uploads", upload, "complete"), parse, params={"reuse": "true"} if reuse else {}, json=json,
        waits_for_restart=True, key=key,
    )  # fmt: skip


def conversion(key: str) -> Call[tuple[int, int] | None]:
    """GET /v1/conversion. Returns the page that is being converted and the number of pages; None if there are none."""

    def parse(data: Any) -> tuple[int, int] | None:
        try:
            return None if data["page"] is None else (int(data["page"]), int(data["pages"]))
        except (TypeError, KeyError, ValueError) as error:
            raise UnexpectedAnswerError("expected a conversion") from error

    return Call("GET", path("conversion"), parse, headers={"Idempotency-Key": key})


def list_formats() -> Call[Formats]:
    """GET /v1/formats."""
    return Call("GET", path("formats"), _parse_one(Formats))


def get_document(document: str) -> Call[Document]:
    """GET /v1/documents/{id}."""
    return Call("GET", path("documents", document), _parse_one(Document))


def document_text(document: str, start_byte: int, end_byte: int | None) -> Call[DocumentText]:
    """GET /v1/documents/{id}/text."""
    params = _without_none(start_byte=start_byte, end_byte=end_byte)
    return Call("GET", path("documents", document, "text"), _parse_one(DocumentText), params=params)


def list_documents(limit: int | None, after: str | None) -> Call[Page[Document]]:
    """GET /v1/documents: at most `limit` documents (None: all), newest first, starting after the id `after`."""
    return _list(Document, "documents", limit, after)


def delete_document(document: str) -> Call[None]:
    """DELETE /v1/documents/{id}."""
    return Call("DELETE", path("documents", document), _parse_nothing)


def document_events(document: str) -> Call[None]:
    """GET /v1/documents/{id}/events, as server-sent events."""
    return Call("GET", path("documents", document, "events"), _parse_nothing)


def create_session(
    documents: Iterable[str],
    model: str | None,
    recall: Recall | Literal[False] | None,
    messages: Iterable[Mapping[str, Any]] = (),
    title: str | None = None,
    parent: str | None = None,
) -> Call[Session]:
    """POST /v1/sessions."""
    # A string is an iterable of its letters, too; a single id is meant.
    ids = [documents] if isinstance(documents, str) else list(documents)
    past = [dict(message) for message in messages] or None
    fields = _without_none(documents=ids, model=model, recall=recall, messages=past, title=title, parent=parent)
    return Call("POST", path("sessions"), _parse_one(Session), json=fields)


def get_session(session: str) -> Call[Session]:
    """GET /v1/sessions/{id}."""
    return Call("GET", path("sessions", session), _parse_one(Session))


def list_sessions(
    limit: int | None, after: str | None, query: str | None = None, branches_of: str | None = None
) -> Call[Page[Session]]:
    """GET /v1/sessions: as `list_documents`, of all sessions or those that match."""
    return _list(Session, "sessions", limit, after, _without_none(query=query, branches_of=branches_of))


def list_messages(session: str) -> Call[tuple[Message, ...]]:
    """GET /v1/sessions/{id}/messages: all questions and answers, oldest first."""
    return Call("GET", path("sessions", session, "messages"), _parse_rows(Message, "messages"))


def delete_session(session: str) -> Call[None]:
    """DELETE /v1/sessions/{id}."""
    return Call("DELETE", path("sessions", session), _parse_nothing)


def rename_session(session: str, title: str | None) -> Call[Session]:
    """PATCH /v1/sessions/{id}."""
    return Call("PATCH", path("sessions", session), _parse_one(Session), json={"title": title})


def set_recall(session: str, recall: Recall | Literal[False] | None) -> Call[Session]:
    """PATCH /v1/sessions/{id}."""
    return Call("PATCH", path("sessions", session), _parse_one(Session), json={"recall": recall})


def fork_session(session: str) -> Call[Session]:
    """POST /v1/sessions/{id}/fork. Returns the copy."""
    return Call("POST", path("sessions", session, "fork"), _parse_one(Session))


def session_socket(session: str) -> Call[None]:
    """GET /v1/sessions/{id}/stream, which is upgraded to a WebSocket."""
    return Call("GET", path("sessions", session, "stream"), _parse_nothing)


def session_memory(session: str) -> Call[Memory]:
    """GET /v1/sessions/{id}/memory."""
    return Call("GET", path("sessions", session, "memory"), _parse_one(Memory))


def send_message(session: str, content: str, sampling: Sampling, *, stream: bool = False) -> Call[Message]:
    """POST /v1/sessions/{id}/messages. Returns the whole answer, or with `stream` its events."""
    fields = _without_none(content=content, stream=stream or None, **sampling)
    return Call("POST", path("sessions", session, "messages"), _parse_one(Message), json=fields)


def message_create(content: str, sampling: Sampling) -> dict[str, Any]:
    """Return the WebSocket frame that corresponds to `send_message`."""
    return _without_none(type="message.create", content=content, **sampling)


def search(
    query: str,
    documents: Iterable[str],
    session: str | None,
    limit: int | None,
    filters: SearchFilters | None,
    rerank: bool | None,
) -> Call[tuple[FoundPassage, ...]]:
    """POST /v1/search."""
    ids = [documents] if isinstance(documents, str) else list(documents)
    json = _without_none(
        query=query, documents=ids or None, session=session, limit=limit, filters=filters, rerank=rerank
    )
    return Call("POST", path("search"), _parse_rows(FoundPassage, "passages"), json=json)


def list_models() -> Call[Page[Model]]:
    """GET /v1/models."""
    return _list(Model, "models")


def _parse_one(cls: type[T]) -> Callable[[Any], T]:
    return lambda data: from_json(cls, data)


def _parse_rows(cls: type[T], name: str) -> Callable[[Any], tuple[T, ...]]:
    def parse(data: Any) -> tuple[T, ...]:
        try:
            return tuple(from_json(cls, row) for row in data["data"])
        except (TypeError, KeyError) as error:
            raise UnexpectedAnswerError(f"expected a list of {name}") from error

    return parse


def _parse_id(data: Any) -> str:
    try:
        return str(data["id"])
    except (TypeError, KeyError) as error:
        raise UnexpectedAnswerError("expected an object with an id") from error


def _parse_archive(data: Any) -> UploadedArchive:
    fields = data | {"documents": data.get("data")} if isinstance(data, dict) else data
    return from_json(UploadedArchive, fields)


def _parse_nothing(data: object) -> None:
    return None


def _list(
    cls: type[T],
    name: str,
    limit: int | None = None,
    after: str | None = None,
    filters: Mapping[str, str] | None = None,
) -> Call[Page[T]]:
    def parse(data: Any) -> Page[T]:
        try:
            items = tuple(from_json(cls, row) for row in data["data"])
            more, last = data.get("has_more", False), data["data"][-1]["id"] if items else None
        except (TypeError, KeyError, AttributeError) as error:
            raise UnexpectedAnswerError(f"expected a list of {name}") from error
        left = None if limit is None else limit - len(items)
        follow = more and last is not None and (left is None or left > 0)
        return Page(items[:limit], _list(cls, name, left, last, filters) if follow else None)

    size = None if limit is None else min(limit, MAX_PAGE_SIZE)
    return Call("GET", path(name), parse, params={**(filters or {}), **_without_none(limit=size, after=after)})


def _without_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
