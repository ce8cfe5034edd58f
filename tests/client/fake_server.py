"""A fake server with everlong's API. Names of documents and texts of questions select how it behaves.

Each request for a document advances it by a quarter. A document named `stuck` does not advance, `broken` fails,
`unheard` has an event stream that breaks at once, `buffered` has one that is silent and never ends, `deleted` is deleted
when its events are followed, `large` and `pdf` are refused. The answer to the question `hang` runs until it is
cancelled, `deaf` ignores cancellation, `die` loses the connection, `cut` ends early, `fail` ends with an error event,
`full` sends an error event and closes the connection, `busy` is refused.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, StreamingResponse

ANSWER = "Ωmega — the narrator is «Ishmael». 🐋"


@dataclass
class Fake:
    """The fake server's state, and the requests that it received."""

    api_key: str | None = None
    documents: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    uploads: list[tuple[bytes, dict[str, str]]] = field(default_factory=list)
    ocr_languages: list[str | None] = field(default_factory=list)
    """The language of the text in pictures that each upload asked for."""
    questions: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    """The evidence and the citations of every answer."""
    finish_reason: str = "stop"
    """Why every answer ended."""
    asked_about: list[str] = field(default_factory=list)
    """The documents of the last session."""
    conversions: dict[str, int] = field(default_factory=dict)
    """How often the progress of each upload's conversion was asked for."""
    event_streams: int = 0
    refused_sockets: int = 0
    """How many of the next handshakes are refused with 503."""
    cancelling: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def poll(self, id: str) -> dict[str, Any]:
        document = self.documents.get(id) or refuse(404, "document_not_found", f"no document {id}")
        if document["filename"] == "broken":
            error = {"message": "byte 17 is not UTF-8", "code": "not_utf8"}
            document |= {"status": "failed", "error": error}
        elif document["filename"] != "stuck" and document["status"] != "ready":
            progress = document["progress"] + 0.25
            document |= {"status": "ready" if progress == 1 else "reading", "progress": progress}
            document |= {"tokens": int(1000 * progress), "tokens_per_second": 500.0}
        return dict(document)

    def session(self, documents: list[str]) -> dict[str, Any]:
        for id in documents:
            document = self.documents.get(id) or refuse(404, "document_not_found", f"no document {id}")
            if document["status"] != "ready":
                refuse(409, "document_not_ready", f"{id} is being read")
        self.asked_about = documents
        id = f"ses_{len(self.sessions) + 1}"
        self.sessions[id] = {"id": id, "object": "session", "documents": documents, "status": "reading", "messages": 0}
        return self.sessions[id]

    def answer(self, session: str, text: str, reason: str = "stop") -> dict[str, Any]:
        usage = {"prompt_tokens": 5, "completion_tokens": 7, "reused_tokens": 1000, "from_the_future": 1}
        message = {"id": "msg_1", "object": "message", "role": "assistant", "content": text, "finish_reason": reason}
        return (
            message | {"usage": usage, "seed": 7, "session": session, "model": "tiny", "created_at": 1.5} | self.sources
        )


class RefusedError(Exception):
    def __init__(self, status: int, code: str, message: str, headers: dict[str, str]) -> None:
        self.response = JSONResponse({"error": error(code, message)}, status, headers)


def refuse(status: int, code: str, message: str, **headers: str) -> Any:
    raise RefusedError(status, code, message, {name.replace("_", "-"): value for name, value in headers.items()})


def error(code: str, message: str) -> dict[str, Any]:
    return {"message": message, "type": "invalid_request_error", "param": None, "code": code}


def sse(event: dict[str, Any]) -> Iterator[bytes]:
    """One event, in pieces that split characters and line ends."""
    text = f": keep-alive\r\nevent: {event['type']}\r\ndata: {json.dumps(event, ensure_ascii=False)}\r\n\r\n".encode()
    return (text[i : i + 3] for i in range(0, len(text), 3))


async def events(fake: Fake, session: str, content: str, stop: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
    delta = "response.output_text.delta"
    yield {"type": "response.created", "response": {"id": "msg_1"}}
    yield {"type": "response.thinking", "note": "from the future"}
    if content in ("fail", "full"):
        yield {"type": "error", "error": error("out_of_memory", "no room for the answer")}
        if content == "full":
            raise ConnectionResetError
        return
    pieces = [ANSWER[i : i + 5] for i in range(0, len(ANSWER), 5)]
    if content in ("hang", "deaf", "die", "cut"):
        yield {"type": delta, "delta": pieces[0]}
        if content == "die":
            raise ConnectionResetError
        if content == "cut":
            return
        await (stop if content == "hang" else asyncio.Event()).wait()
        fake.cancelled.set()
        yield {"type": "response.completed", "message": fake.answer(session, pieces[0], "cancelled")}
        return
    for piece in pieces:
        yield {"type": delta, "delta": piece}
    yield {"type": "response.completed", "message": fake.answer(session, ANSWER, fake.finish_reason)}


app = FastAPI()


@app.exception_handler(RefusedError)
async def refused(request: Request, exc: RefusedError) -> JSONResponse:
    return exc.response


@app.middleware("http")
async def authenticate(request: Request, call_next: Any) -> Any:
    key = request.app.state.fake.api_key
    if key and request.headers.get("authorization") != f"Bearer {key}":
        return JSONResponse({"error": error("invalid_api_key", "wrong API key")}, 401)
    return await call_next(request)


@app.post("/v1/documents", status_code=202)
async def upload(request: Request, filename: str = "document.txt", ocr_language: str | None = None) -> Any:
    fake: Fake = request.app.state.fake
    body = b"".join([chunk async for chunk in request.stream()])
    fake.uploads.append((body, dict(request.headers)))
    fake.ocr_languages.append(ocr_language)
    if filename == "scan.pdf":  # it is converted until its progress was asked for three times
        key = request.headers["idempotency-key"]
        while fake.conversions.setdefault(key, 0) < 3:
            await asyncio.sleep(0.01)
    if filename == "large":
        refuse(413, "document_too_large", "at most 1000 bytes")
    if filename == "pdf":
        refuse(415, "unsupported_media_type", "only text")
    id = f"doc_{len(fake.documents) + 1}"
    fake.documents[id] = {"id": id, "object": "document", "filename": filename, "status": "queued", "bytes": len(body)}
    fake.documents[id] |= {"progress": 0.0, "tokens": 0, "error": None, "from_the_future": {"a": 1}}
    return fake.documents[id]


@app.post("/v1/documents/archive", status_code=202)
async def upload_archive(request: Request) -> Any:
    """Takes a body of `name=text` lines for an archive. Leaves out files whose names end with `.bin`."""
    fake: Fake = request.app.state.fake
    made, notes = [], []
    for line in (await request.body()).decode().splitlines():
        name, _, text = line.partition("=")
        if name.endswith(".bin"):
            notes.append({"text": "it was left out", "page": None, "part": name})
            continue
        id = f"doc_{len(fake.documents) + 1}"
        fake.documents[id] = {"id": id, "object": "document", "filename": name, "status": "queued", "bytes": len(text)}
        fake.documents[id] |= {"progress": 0.0, "tokens": 0, "error": None}
        made.append(fake.documents[id])
    return {"object": "list", "data": made, "has_more": False, "notes": notes}


@app.get("/v1/conversion")
async def conversion(request: Request) -> Any:
    fake: Fake = request.app.state.fake
    key = request.headers["idempotency-key"]
    if key not in fake.conversions:
        refuse(404, "request_not_running", "no such request")
    page = fake.conversions[key]
    fake.conversions[key] += 1
    return {"object": "conversion", "page": page or None, "pages": 12 if page else None}


@app.get("/v1/documents")
@app.get("/v1/sessions")
async def list_(request: Request, limit: int = 2, after: str = "") -> Any:
    fake: Fake = request.app.state.fake
    rows = list((fake.documents if "documents" in request.url.path else fake.sessions).values())
    rows = rows[next((i + 1 for i, row in enumerate(rows) if row["id"] == after), 0) :]
    return {"object": "list", "data": rows[: min(limit, 2)], "has_more": len(rows) > min(limit, 2)}


@app.get("/v1/documents/{id}")
async def get_document(request: Request, id: str) -> Any:
    return request.app.state.fake.poll(id)


@app.delete("/v1/documents/{id}")
async def delete_document(request: Request, id: str) -> Any:
    request.app.state.fake.documents.pop(id, None) or refuse(404, "document_not_found", f"no document {id}")
    return {"id": id, "object": "document.deleted", "deleted": True}


@app.get("/v1/documents/{id}/events")
async def document_events(request: Request, id: str) -> Any:
    fake: Fake = request.app.state.fake
    name = fake.poll(id)["filename"]
    fake.event_streams += 1

    async def stream() -> AsyncIterator[bytes]:
        if name == "unheard":
            raise ConnectionResetError
        if name == "deleted":
            fake.documents.pop(id)
            for piece in sse({"type": "document.deleted", "id": id, "object": "document.deleted", "deleted": True}):
                yield piece
            return
        status = ""
        while status not in ("ready", "failed"):
            if name in ("stuck", "buffered"):
                await asyncio.Event().wait()
            shown = fake.poll(id)
            status = shown["status"]
            kind = f"document.{status}" if status in ("ready", "failed") else "document.progress"
            for piece in sse({"type": kind, **shown}):
                yield piece

    return StreamingResponse(stream(), media_type="text/event-stream")


@app.post("/v1/sessions", status_code=201)
async def create_session(request: Request) -> Any:
    body = await request.json()
    return request.app.state.fake.session(body["documents"]) | {"recall": body.get("recall")}


@app.get("/v1/sessions/{id}")
async def get_session(request: Request, id: str) -> Any:
    session = request.app.state.fake.sessions.get(id) or refuse(404, "session_not_found", f"no session {id}")
    session["status"] = "ready"
    return session


@app.patch("/v1/sessions/{id}")
async def rename(request: Request, id: str) -> Any:
    session = await get_session(request, id)
    session |= await request.json()
    return session


@app.delete("/v1/sessions/{id}")
async def delete_session(request: Request, id: str) -> Any:
    request.app.state.fake.sessions.pop(id, None) or refuse(404, "session_not_found", f"no session {id}")
    return {"id": id, "object": "session.deleted", "deleted": True}


@app.post("/v1/sessions/{id}/fork", status_code=201)
async def fork(request: Request, id: str) -> Any:
    return request.app.state.fake.session((await get_session(request, id))["documents"])


@app.get("/v1/sessions/{id}/memory")
async def memory(request: Request, id: str) -> Any:
    await get_session(request, id)
    return request.app.state.fake.memory | {"session": id}


@app.post("/v1/sessions/{id}/messages")
async def message(request: Request, id: str) -> Any:
    fake: Fake = request.app.state.fake
    question = await request.json()
    fake.questions.append(question)
    if question["content"] == "busy":
        refuse(409, "session_busy", "another answer is being written", Retry_After="2")
    if not question.get("stream"):
        return fake.answer(id, ANSWER)

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for event in events(fake, id, question["content"], asyncio.Event()):
                for piece in sse(event):
                    yield piece
        finally:
            fake.closed.set()

    return StreamingResponse(stream(), media_type="text/event-stream; charset=utf-8")


@app.websocket("/v1/sessions/{id}/stream")
async def converse(socket: WebSocket, id: str) -> None:
    fake: Fake = socket.app.state.fake
    if fake.api_key and socket.headers.get("authorization") != f"Bearer {fake.api_key}":
        return await socket.send_denial_response(
            JSONResponse({"error": error("invalid_api_key", "wrong API key")}, 401)
        )
    if fake.refused_sockets:
        fake.refused_sockets -= 1
        refusal = {"error": error("overloaded", "too many answers at once")}
        return await socket.send_denial_response(JSONResponse(refusal, 503, {"Retry-After": "0"}))
    await socket.accept()
    if id not in fake.sessions:
        return await socket.close(1008, f"no session {id}")
    stop = asyncio.Event()
    writing: asyncio.Task[None] | None = None

    async def write(question: dict[str, Any]) -> None:
        try:
            async for event in events(fake, id, question["content"], stop):
                await socket.send_text(json.dumps(event))
        except ConnectionResetError:
            await socket.close(1012, "see you soon")

    try:
        while True:
            frame = await socket.receive_json()
            if frame.pop("type") == "response.cancel":
                fake.cancelling.set()
                stop.set()
                continue
            if writing is not None:
                await asyncio.wait_for(writing, 5)  # one answer at a time
            fake.questions.append(frame)
            stop.clear()
            writing = asyncio.create_task(write(frame))
    except (WebSocketDisconnect, RuntimeError):
        fake.closed.set()
    finally:
        if writing is not None:
            writing.cancel()


@app.get("/v1/models")
async def models() -> Any:
    model = {"id": "tiny", "object": "model", "memory": "rmt", "memory_trained": True, "segment_length": 512}
    return {"object": "list", "data": [model | {"state_bytes": 73728, "fingerprint": "abc", "backbone": "tiny-lm"}]}


class FakeServer:
    """Runs the app in a thread. `stop` and `start` keep the port and the state."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def fake(self) -> Fake:
        return app.state.fake  # type: ignore[no-any-return]

    def reset(self) -> None:
        app.state.fake = Fake()

    def start(self) -> None:
        config = uvicorn.Config(app, "127.0.0.1", self.port, log_level="critical", ws="websockets-sansio")
        config.timeout_graceful_shutdown = 0
        self._server = uvicorn.Server(config)
        socket = config.bind_socket()
        self.port = socket.getsockname()[1]
        started = threading.Event()
        startup = self._server.startup

        async def startup_and_signal(sockets: Any = None) -> None:
            await startup(sockets)
            started.set()

        self._server.startup = startup_and_signal  # type: ignore[method-assign]
        self._thread = threading.Thread(target=self._server.run, args=([socket],), daemon=True)
        self._thread.start()
        assert started.wait(10)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()
