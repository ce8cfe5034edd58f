"""`Everlong`: the client that blocks. `async_client` is its twin; what they share is in the other files."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Literal, Self, TypeVar, Unpack

import httpx
from websockets.protocol import State
from websockets.sync.client import ClientConnection, connect

from everlong_client.errors import EverlongError
from everlong_client.transport import call as calls
from everlong_client.transport.call import Call, Page
from everlong_client.transport.retrying import RETRIES
from everlong_client.transport.sse import ServerSentEvent, SSEDecoder
from everlong_client.transport.upload import Source, Upload, UploadProgress
from everlong_client.transport.waiting import Waiting, document_of
from everlong_client.transport.wire import DEFAULT_TIMEOUT, DEFAULT_URL, Timeout, Wire, encode, new_http_client
from everlong_client.types.document import Document
from everlong_client.types.event import Answer, Event
from everlong_client.types.memory import Memory
from everlong_client.types.message import Message, Recall, Sampling
from everlong_client.types.model import Model
from everlong_client.types.session import Session

__all__ = ["Conversation", "Documents", "Everlong", "MessageStream", "Models", "Sessions"]

T = TypeVar("T")


class Everlong:
    """A client of the everlong server at `base_url`.

    `timeout` is in seconds, or an `httpx.Timeout`; None waits for ever. `retries`: how often a call is tried again whose
    answer was lost, or which the server refused for now. `http_client` replaces the HTTP client, for a
    proxy or a certificate of your own; it is left open by `close`. Safe to share between threads. Every method raises
    errors of `everlong_client.errors`. Raises `ValueError` if `base_url` is no http or https address, `api_key` no key,
    or the environment names a proxy that cannot be used.
    """

    def __init__(
        self,
        base_url: str = DEFAULT_URL,
        *,
        api_key: str | None = None,
        timeout: Timeout = DEFAULT_TIMEOUT,
        retries: int = RETRIES,
        http_client: httpx.Client | None = None,
    ) -> None:
        self._transport = _Transport(
            Wire(base_url, api_key, timeout, retries), http_client or new_http_client(httpx.Client)
        )
        self._owns_http = http_client is None
        self.documents = Documents(self._transport)
        self.sessions = Sessions(self._transport)
        self.models = Models(self._transport)

    def close(self) -> None:
        """Closes the connections."""
        if self._owns_http:
            self._transport.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Documents:
    """`client.documents`: upload texts and follow their reading."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    def upload(self, source: Source, filename: str | None = None, progress: UploadProgress | None = None) -> Document:
        """Uploads a text; the server begins to read it when it is there.

        `source` is a path (a string is one too, never the text itself), bytes, an open file, or an iterator of bytes or
        text; nothing is held in memory. `progress` is called with the bytes sent and their total, None where that is
        unknown. What is longer than 8 MiB, and of known length, goes in parts: a connection that is lost, or a server that
        restarts within a minute, costs no more than one of them. Raises `OSError` if a path cannot be read.
        """
        upload = Upload(source, filename, progress)
        if not upload.in_parts:
            return self._transport.call(calls.upload_document(upload))
        upload_id = self._transport.call(calls.begin_upload(upload))
        with closing(upload.parts()) as parts:
            ids = [self._transport.call(calls.add_part(upload_id, part)) for part in parts]
        return self.get(self._transport.call(calls.complete_upload(upload_id, ids)))

    def wait(
        self, document: str, *, progress: Callable[[Document], object] | None = None, timeout: float | None = None
    ) -> Document:
        """Waits until the document is read, through restarts of the server of up to a minute.

        `progress` is called with each new state of it. Raises `ReadingFailedError` if it cannot be read, and
        `APITimeoutError` after `timeout` seconds.
        """
        waiting = Waiting(document, progress, timeout)
        while True:
            with waiting.tolerating_outage():
                seen = self._transport.call(calls.get_document(document), waiting.read_timeout)
                if waiting.observe(seen):
                    return seen
                if waiting.may_stream:
                    with self._transport.stream(calls.document_events(document), waiting.read_timeout) as events:
                        for event in events:
                            if (shown := document_of(event)) is not None and waiting.observe(shown):
                                return shown
            time.sleep(waiting.pause())

    def get(self, document: str) -> Document:
        """The document as it is now."""
        return self._transport.call(calls.get_document(document))

    def list(self, *, limit: int | None = None, after: str | None = None) -> tuple[Document, ...]:
        """All documents, or `limit` of them, from the one after the id `after`."""
        return self._transport.pages(calls.list_documents(limit, after))

    def delete(self, document: str) -> None:
        """Deletes the document; sessions made from it keep what they know."""
        self._transport.call(calls.delete_document(document))


class Sessions:
    """`client.sessions`: ask about documents."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    def create(
        self,
        documents: Iterable[str] = (),
        *,
        model: str | None = None,
        recall: Recall | Literal[False] | None = None,
    ) -> Session:
        """Begins a session on the documents with these ids, in this order.

        With more than one document `wait` for it before asking. `recall`: of messages that say nothing of it. Raises `DocumentNotReadyError` if one is not read yet.
        """
        return self._transport.call(calls.create_session(documents, model, recall))

    def wait(
        self, session: str, *, progress: Callable[[Session], object] | None = None, timeout: float | None = None
    ) -> Session:
        """Waits until the session has read its documents, as `documents.wait` does."""
        waiting = Waiting(session, progress, timeout)
        while True:
            with waiting.tolerating_outage():
                seen = self._transport.call(calls.get_session(session), waiting.read_timeout)
                if waiting.observe(seen):
                    return seen
            time.sleep(waiting.pause())

    def get(self, session: str) -> Session:
        """The session as it is now."""
        return self._transport.call(calls.get_session(session))

    def list(self, *, limit: int | None = None, after: str | None = None) -> tuple[Session, ...]:
        """All sessions, or `limit` of them, from the one after the id `after`."""
        return self._transport.pages(calls.list_sessions(limit, after))

    def delete(self, session: str) -> None:
        """Deletes the session and its memory."""
        self._transport.call(calls.delete_session(session))

    def rename(self, session: str, title: str | None) -> Session:
        """Gives the session another title, of at most 200 characters; None: the next question gives it one."""
        return self._transport.call(calls.rename_session(session, title))

    def set_recall(self, session: str, recall: Recall | Literal[False] | None) -> Session:
        """What messages that say nothing of `recall` are grounded on; None: what the server does by itself."""
        return self._transport.call(calls.set_recall(session, recall))

    def fork(self, session: str) -> Session:
        """A new session that remembers what this one does; from here on they go their own ways."""
        return self._transport.call(calls.fork_session(session))

    def memory(self, session: str) -> Memory:
        """What the session's memory holds, how full it is, and what it gives attention and space to."""
        return self._transport.call(calls.session_memory(session))

    def send(self, session: str, content: str, **sampling: Unpack[Sampling]) -> Message:
        """Asks, and waits for the whole answer. Raises `SessionBusyError` while another is being written."""
        return self._transport.call(calls.send_message(session, content, sampling))

    def stream(self, session: str, content: str, **sampling: Unpack[Sampling]) -> MessageStream:
        """Asks, and returns the answer's events as they come.

        The question is sent when the first event is asked for. Closing the stream early cancels the answer.
        """
        answer = Answer()
        events = self._events(calls.send_message(session, content, sampling, stream=True), answer)
        return MessageStream(answer, events, events.close)

    def connect(self, session: str) -> Conversation:
        """A conversation over one WebSocket, whose answers can be cancelled; use it with `with`."""
        return Conversation(self._transport.wire, session)

    def _events(self, call: Call[Message], answer: Answer) -> Generator[Event]:
        with self._transport.stream(call) as events:
            for event in events:
                yield answer.feed(event.data, event.event)
                if answer.ended:
                    return
        raise answer.truncated()


class Models:
    """`client.models`: what the server offers."""

    def __init__(self, transport: _Transport) -> None:
        self._transport = transport

    def list(self) -> tuple[Model, ...]:
        """All models."""
        return self._transport.pages(calls.list_models())


class MessageStream:
    """The events of one answer, to iterate over; `message` is the complete answer once they have ended.

    Iterating raises `StreamError` if the answer fails. Use it with `with`, or call `close`: that cancels an answer that
    is not complete.
    """

    def __init__(self, answer: Answer, events: Iterator[Event], close: Callable[[], None]) -> None:
        self._answer = answer
        self._events = events
        self.close = close

    @property
    def message(self) -> Message:
        """The complete answer. Raises `StreamError` while there is none."""
        return self._answer.message

    def __iter__(self) -> Iterator[Event]:
        return self._events

    def __next__(self) -> Event:
        return next(self._events)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Conversation:
    """A session's WebSocket: one answer after the other. It is opened when it is first needed, and anew after an error.

    Whatever is missing of an answer when the next question is sent is cancelled and skipped.
    """

    def __init__(self, wire: Wire, session: str) -> None:
        self._wire = wire
        self._call = calls.session_socket(session)
        self._exit = ExitStack()
        self._socket: ClientConnection | None = None
        self._answer = Answer.finished()

    def send(self, content: str, **sampling: Unpack[Sampling]) -> MessageStream:
        """Asks, and returns the answer's events as they come; closing them early cancels the answer."""
        self._cancel_and_skip(self._answer)
        with self._errors():
            socket = self._open()
            socket.send(encode(calls.message_create(content, sampling)))
        self._answer = answer = Answer()
        return MessageStream(answer, self._events(socket, answer), lambda: self._cancel_and_skip(answer))

    def cancel(self) -> None:
        """Cancels the answer that is being written, if one is; its events then end with what there is of it.

        May be called from another thread than the one that takes the events.
        """
        if self._socket is not None and not self._answer.ended:
            with self._errors():
                self._socket.send(encode({"type": "response.cancel"}))

    def close(self) -> None:
        """Closes the connection; the server cancels an answer that is not complete."""
        self._socket, self._answer = None, Answer.finished()
        self._exit.close()

    def __enter__(self) -> Self:
        with self._errors():
            self._open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> ClientConnection:
        if self._socket is not None and self._socket.state is not State.OPEN:  # the server has closed it meanwhile
            self.close()
        retrying = self._wire.retrying(self._call, None)
        while self._socket is None:
            try:
                with self._wire.socket_errors():
                    self._socket = self._exit.enter_context(connect(**self._wire.socket(self._call)))
            except EverlongError as error:
                time.sleep(retrying.pause(error))
        return self._socket

    def _events(self, socket: ClientConnection, answer: Answer) -> Iterator[Event]:
        while not answer.ended:
            with self._errors():
                frame = socket.recv()
            yield answer.feed(frame)

    def _cancel_and_skip(self, answer: Answer) -> None:
        if self._socket is not None and not answer.ended:
            self.cancel()
            for _ in self._events(self._socket, answer):
                pass

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            with self._wire.socket_errors():
                yield
        except EverlongError:
            self.close()
            raise


class _Transport:
    """Sends calls and reads their answers."""

    def __init__(self, wire: Wire, http: httpx.Client) -> None:
        self.wire = wire
        self.http = http

    def call(self, call: Call[T], read_timeout: float | None = None) -> T:
        retrying = self.wire.retrying(call, read_timeout)
        while True:
            body = iter(call.body) if call.body is not None else None
            try:
                with self.wire.http_errors():
                    response = self.http.send(self.wire.request(self.http, call, body, read_timeout, retrying.headers))
                return self.wire.result(call, response)
            except EverlongError as error:
                if retrying.already_done(error):
                    return call.parse(None)
                time.sleep(retrying.pause(error))

    def pages(self, first: Call[Page[T]]) -> tuple[T, ...]:
        items: tuple[T, ...] = ()
        call: Call[Page[T]] | None = first
        while call is not None:
            page = self.call(call)
            items += page.items
            call = page.next
        return items

    @contextmanager
    def stream(self, call: Call[T], read_timeout: float | None = None) -> Iterator[Iterator[ServerSentEvent]]:
        response = self._open_stream(call, read_timeout)
        try:
            self.wire.check_stream(response)
            yield self._server_sent_events(response)
        finally:
            response.close()

    def _open_stream(self, call: Call[T], read_timeout: float | None) -> httpx.Response:
        """A successful answer of which nothing was read yet."""
        retrying = self.wire.retrying(call, read_timeout)
        while True:
            try:
                with self.wire.http_errors():
                    response = self.http.send(
                        self.wire.request(self.http, call, None, read_timeout, retrying.headers), stream=True
                    )
                    if response.is_success:
                        return response
                    try:
                        response.read()
                    finally:
                        response.close()
                self.wire.check(response)
            except EverlongError as error:
                time.sleep(retrying.pause(error))

    def _server_sent_events(self, response: httpx.Response) -> Iterator[ServerSentEvent]:
        decoder = SSEDecoder()
        with self.wire.http_errors(streaming=True):
            for chunk in response.iter_bytes():
                yield from decoder.feed(chunk)
