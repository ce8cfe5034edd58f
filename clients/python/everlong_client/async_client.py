"""`AsyncEverlong` and the objects behind it. `make_sync.py` makes `client.py`, the blocking client, from this file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import closing
from typing import Any, Literal, Self, Unpack

import httpx

from everlong_client.async_streams import AsyncConversation, AsyncMessageStream
from everlong_client.transport import call as calls
from everlong_client.transport.async_http import AsyncTransport
from everlong_client.transport.call import Call
from everlong_client.transport.conversion import AsyncConversionWatch, ConversionProgress
from everlong_client.transport.retrying import RETRIES, new_key
from everlong_client.transport.upload import AnySource, Upload, UploadProgress
from everlong_client.transport.waiting import Waiting, document_of
from everlong_client.transport.wire import DEFAULT_TIMEOUT, DEFAULT_URL, Timeout, Wire, new_http_client
from everlong_client.types.document import Document, DocumentText, UploadedArchive
from everlong_client.types.event import Answer, Event
from everlong_client.types.format import Formats
from everlong_client.types.memory import Memory
from everlong_client.types.message import Message, Recall, Sampling
from everlong_client.types.model import Model
from everlong_client.types.search import FoundPassage, SearchFilters
from everlong_client.types.session import Session


class AsyncEverlong:
    """An asyncio client of the everlong server at `base_url`. Tasks may share it.

    `timeout` is in seconds, or an `httpx.Timeout`; None waits for ever. `retries` is the number of retries of a call that the server
    refused for now (429, 503), or whose response was lost. `http_client` replaces the HTTP client, for example to set a proxy or a
    certificate; `close` leaves it open. Every method raises the errors of `everlong_client.errors`. Raises `ValueError` if `base_url` is
    not an http or https address, if `api_key` cannot be sent in a header, or if the environment names a proxy that cannot be used.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        retries: int = RETRIES,
        http_client: httpx.AsyncClient | None = None,
    ) -> None:
        wire = Wire(base_url, api_key, timeout, retries)
        self._transport = AsyncTransport(wire, http_client or new_http_client(httpx.AsyncClient))
        self._owns_http = http_client is None
        self.documents = AsyncDocuments(self._transport)
        self.sessions = AsyncSessions(self._transport)
        self.models = AsyncModels(self._transport)

    async def search(
        self,
        query: str,
        documents: Iterable[str] = (),
        *,
        session: str | None = None,
        limit: int | None = None,
        filters: SearchFilters | None = None,
        rerank: bool | None = None,
    ) -> tuple[FoundPassage, ...]:
        """Return the passages that fit `query` best, without an answer: of the documents with these ids, or of a session's.

        `limit` is the maximum number of passages; None: 10. `rerank`: False saves a few tenths of a second and finds less.
        """
        return await self._transport.call(calls.search(query, documents, session, limit, filters, rerank))

    async def close(self) -> None:
        """Close the connections."""
        if self._owns_http:
            await self._transport.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class AsyncDocuments:
    """`client.documents`: upload documents and wait until the server has read them."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def upload(
        self,
        source: AnySource,
        filename: str | None = None,
        progress: UploadProgress | None = None,
        conversion: ConversionProgress | None = None,
        *,
        ocr_language: str | None = None,
        reuse: bool = False,
    ) -> Document:
        """Upload a document. The server starts to read it as soon as the upload is complete.

        `source` is a path, bytes, an open file, or an iterator of bytes or text. A string is always a path, never the
        text itself. The source is streamed, not loaded into memory. `progress` is called with the bytes sent so far and
        the total (None if unknown). `conversion` is called with a page and the number of pages while the server converts
        the file, such as a scan whose text it recognises. A source of known length above 8 MiB is sent in parts: if the connection is lost,
        or the server restarts within a minute, only the current part is sent again. Raises `OSError` if a path cannot
        be read. `ocr_language` is the language of text in pictures, as in the server's setting EVERLONG_OCR_LANGUAGE. `reuse`: if
        you have a document of the same file, return that one instead of a new one.
        `source` may also be an async iterator; every other source is read in a thread.
        """
        upload = Upload(source, filename, progress)
        key = new_key()
        if not upload.in_parts:
            async with AsyncConversionWatch(self._transport, key, conversion):
                return await self._transport.call(calls.upload_document(upload, key, ocr_language, reuse=reuse))
        upload_id = await self._transport.call(calls.begin_upload(upload))
        ids = []
        with closing(upload.parts()) as parts:
            while part := await asyncio.to_thread(next, parts, b""):
                ids.append(await self._transport.call(calls.add_part(upload_id, part)))
        async with AsyncConversionWatch(self._transport, key, conversion):
            document = await self._transport.call(calls.complete_upload(upload_id, ids, key, ocr_language, reuse=reuse))
        return await self.get(document)

    async def upload_archive(
        self,
        source: AnySource,
        filename: str | None = None,
        progress: UploadProgress | None = None,
        conversion: ConversionProgress | None = None,
        *,
        ocr_language: str | None = None,
    ) -> UploadedArchive:
        """Upload an archive (zip, tar) whose files become a document each; with `upload`, it becomes one document.

        The parameters are those of `upload`. The archive is sent in one request, however long it is.
        """
        upload = Upload(source, filename, progress)
        key = new_key()
        async with AsyncConversionWatch(self._transport, key, conversion):
            return await self._transport.call(calls.upload_archive(upload, key, ocr_language))

    async def wait(
        self,
        document: str,
        *,
        progress: Callable[[Document], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # asyncio.timeout would not say what is late
    ) -> Document:
        """Wait until the server has read the document. Tolerates outages of the server of up to a minute.

        `progress` is called with the document each time that it changes. Raises `ReadingFailedError` if the server
        cannot read it, and `APITimeoutError` after `timeout` seconds.
        """
        waiting = Waiting(document, progress, timeout)
        while True:
            with waiting.tolerating_outage():
                seen = await self._transport.call(calls.get_document(document), waiting.read_timeout)
                if waiting.observe(seen):
                    return seen
                if waiting.may_stream:
                    async with self._transport.stream(calls.document_events(document), waiting.read_timeout) as events:
                        async for event in events:
                            if (shown := document_of(event)) is not None and waiting.observe(shown):
                                return shown
            await asyncio.sleep(waiting.pause())

    async def formats(self) -> Formats:
        """Return the file formats that the server accepts."""
        return await self._transport.call(calls.list_formats())

    async def get(self, document: str) -> Document:
        """Return the current state of the document."""
        return await self._transport.call(calls.get_document(document))

    async def list(self, *, limit: int | None = None, after: str | None = None) -> tuple[Document, ...]:
        """Return the documents that follow the id `after`: at most `limit`, or all if that is None."""
        return await self._transport.pages(calls.list_documents(limit, after))

    async def text(self, document: str, start_byte: int = 0, end_byte: int | None = None) -> DocumentText:
        """Return a part of the document's text: at most 65,536 bytes, by default the 16,384 from `start_byte` on.

        Both ends move back to the start of a character. The part ends with the text.
        """
        return await self._transport.call(calls.document_text(document, start_byte, end_byte))

    async def delete(self, document: str) -> None:
        """Delete the document. Sessions made from it keep their memory."""
        await self._transport.call(calls.delete_document(document))


class AsyncSessions:
    """`client.sessions`: ask questions about documents."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        documents: Iterable[str] = (),
        *,
        model: str | None = None,
        recall: Recall | Literal[False] | None = None,
        messages: Iterable[Mapping[str, Any]] = (),
        title: str | None = None,
        parent: str | None = None,
    ) -> Session:
        """Create a session on the documents with these ids, in this order.

        You may ask before the documents are read: answers then rest on the search alone. `wait` waits until they are read.
        `recall` is the default for messages that do not set it. `messages` are earlier questions and answers, in turn, each with
        `role` and `content`, which the memory reads with the next question. `parent` is the session that they come from.
        """
        call = calls.create_session(documents, model, recall, messages, title, parent)
        return await self._transport.call(call)

    async def wait(
        self,
        session: str,
        *,
        progress: Callable[[Session], object] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  # asyncio.timeout would not say what is late
    ) -> Session:
        """Wait until the session has read its documents. Works like `documents.wait`."""
        waiting = Waiting(session, progress, timeout)
        while True:
            with waiting.tolerating_outage():
                seen = await self._transport.call(calls.get_session(session), waiting.read_timeout)
                if waiting.observe(seen):
                    return seen
            await asyncio.sleep(waiting.pause())

    async def get(self, session: str) -> Session:
        """Return the current state of the session."""
        return await self._transport.call(calls.get_session(session))

    async def list(
        self,
        *,
        limit: int | None = None,
        after: str | None = None,
        query: str | None = None,
        branches_of: str | None = None,
    ) -> tuple[Session, ...]:
        """Return the sessions that follow the id `after`: at most `limit`, or all if that is None.

        `query`: only those with all its words in the title, the messages or the names of the documents. `branches_of`: only this session and
        those that share an origin with it.
        """
        return await self._transport.pages(calls.list_sessions(limit, after, query, branches_of))

    async def messages(self, session: str) -> tuple[Message, ...]:
        """Return all questions and answers of the session, oldest first."""
        return await self._transport.call(calls.list_messages(session))

    async def delete(self, session: str) -> None:
        """Delete the session and its memory."""
        await self._transport.call(calls.delete_session(session))

    async def rename(self, session: str, title: str | None) -> Session:
        """Set the title, of at most 200 characters. With None the next question becomes the title."""
        return await self._transport.call(calls.rename_session(session, title))

    async def set_recall(self, session: str, recall: Recall | Literal[False] | None) -> Session:
        """Set the session's default for messages without `recall`. None restores the server's default."""
        return await self._transport.call(calls.set_recall(session, recall))

    async def fork(self, session: str) -> Session:
        """Copy the session with its memory and messages. The two sessions are independent from then on."""
        return await self._transport.call(calls.fork_session(session))

    async def memory(self, session: str) -> Memory:
        """Return what the session's memory holds, how full it is, and where its attention and space go."""
        return await self._transport.call(calls.session_memory(session))

    async def send(self, session: str, content: str, **sampling: Unpack[Sampling]) -> Message:
        """Send a message and return the whole answer. Raises `SessionBusyError` while another answer is generated."""
        return await self._transport.call(calls.send_message(session, content, sampling))

    def stream(self, session: str, content: str, **sampling: Unpack[Sampling]) -> AsyncMessageStream:
        """Send a message and return an async iterator over the answer's events.

        The message is sent when the first event is requested. Closing the stream early cancels the answer.
        """
        answer = Answer()
        events = self._events(calls.send_message(session, content, sampling, stream=True), answer)
        return AsyncMessageStream(answer, events, events.aclose)

    def connect(self, session: str) -> AsyncConversation:
        """Return a conversation over one WebSocket, whose answers can be cancelled. Use it with `async with`."""
        return AsyncConversation(self._transport.wire, session)

    async def _events(self, call: Call[Message], answer: Answer) -> AsyncGenerator[Event]:
        async with self._transport.stream(call) as events:
            async for event in events:
                yield answer.feed(event.data, event.event)
                if answer.ended:
                    return
        raise answer.truncated()


class AsyncModels:
    """`client.models`: the models that the server offers."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def list(self) -> tuple[Model, ...]:
        """Return all models."""
        return await self._transport.pages(calls.list_models())
