"""Documents: uploads from every kind of source, and waiting through outages of the server."""

from __future__ import annotations

import asyncio
import io
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong_client import (
    APIConnectionError,
    APITimeoutError,
    AsyncEverlong,
    Document,
    Everlong,
    NotFoundError,
    NotSentError,
    PayloadTooLargeError,
    ReadingFailedError,
    UnsupportedMediaTypeError,
)
from everlong_client.transport import conversion
from everlong_client.transport.upload import CHUNK, PART, Upload
from tests.client.conftest import eventually
from tests.client.fake_server import FakeServer

TEXT = "Nenne mich Ismael. 🐋\n" * 40_000  # several chunks
BYTES = TEXT.encode()


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "Bücher & mehr.txt"
    path.write_bytes(BYTES)
    return path


def generator() -> Iterator[bytes]:
    yield from (BYTES[i : i + 100_000] for i in range(0, len(BYTES), 100_000))


@pytest.mark.parametrize(
    ("source", "name", "total"),
    [
        (lambda path: path, "Bücher & mehr.txt", len(BYTES)),
        (str, "Bücher & mehr.txt", len(BYTES)),
        (lambda path: path.open("rb"), "Bücher & mehr.txt", len(BYTES)),
        (lambda path: path.open(encoding="utf-8"), "Bücher & mehr.txt", None),
        (lambda path: io.BytesIO(BYTES), "document.txt", len(BYTES)),
        (lambda path: io.StringIO(TEXT), "document.txt", None),
        (lambda path: BYTES, "document.txt", len(BYTES)),
        (lambda path: generator(), "document.txt", None),
        (lambda path: TEXT.splitlines(keepends=True), "document.txt", None),
    ],
    ids=["path", "string", "file", "text-file", "BytesIO", "StringIO", "bytes", "generator", "lines"],
)
def test_upload(client: Any, server: FakeServer, book: Path, source: Callable[[Path], Any], name: str, total: int):
    seen: list[tuple[int, int | None]] = []
    opened = source(book)
    document = client.documents.upload(opened, progress=lambda sent, total: seen.append((sent, total)))
    if isinstance(opened, io.IOBase):
        assert not opened.closed, "the caller closes the file"
        opened.close()

    assert isinstance(document, Document)
    assert (document.filename, document.bytes) == (name, len(BYTES))
    body, headers = server.fake.uploads[0]
    assert body == BYTES
    assert headers["content-type"] == "text/plain"
    assert headers.get("content-length") == (str(total) if total else None)
    assert headers.get("transfer-encoding") == (None if total else "chunked")
    sent = [bytes for bytes, _ in seen]
    assert (sent[0], sent[-1]) == (0, len(BYTES))
    assert sent == sorted(set(sent))
    assert len(sent) > len(BYTES) // CHUNK
    assert {total for _, total in seen} == {total}


def test_an_upload_reports_the_page_that_is_converted(client: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conversion, "INTERVAL", 0.01)
    seen: list[tuple[int, int]] = []
    document = client.documents.upload(b"x", "scan.pdf", conversion=lambda page, pages: seen.append((page, pages)))
    assert document.filename == "scan.pdf"
    assert (1, 12) in seen
    assert seen == sorted(set(seen))


def test_a_file_is_uploaded_from_its_current_position(client: Any, server: FakeServer):
    file = io.BytesIO(b"skipped, sent")
    file.seek(9)
    client.documents.upload(file, filename="rest.txt")
    assert server.fake.uploads[0][0] == b"sent"
    assert server.fake.uploads[0][1]["content-length"] == "4"


def test_an_empty_document(client: Any, server: FakeServer):
    seen: list[object] = []
    client.documents.upload(b"", progress=lambda *counts: seen.append(counts))
    assert server.fake.uploads[0][0] == b""
    assert seen == [(0, 0)]


def test_a_pipe_has_no_length(client: Any, server: FakeServer, tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(BYTES,))
    writer.start()
    client.documents.upload(pipe)
    writer.join()
    assert server.fake.uploads[0][0] == BYTES


def test_a_file_that_grows_is_sent_up_to_its_announced_length(client: Any, server: FakeServer, book: Path):
    def grow(sent: int, total: int | None) -> None:
        with book.open("ab") as file:
            file.write(b"more")

    client.documents.upload(book, progress=grow)
    assert server.fake.uploads[0][0] == BYTES


def test_a_file_that_is_truncated_during_the_upload_is_an_error(client: Any, server: FakeServer, book: Path):
    with pytest.raises(NotSentError, match=r"^Bücher & mehr\.txt was truncated during the upload: .* are missing$"):
        client.documents.upload(book, progress=lambda sent, total: os.truncate(book, CHUNK + 1))
    assert not server.fake.documents


def test_the_parts_have_the_announced_length(tmp_path: Path):
    path = tmp_path / "large.txt"
    path.write_bytes(bytes(PART + 10))

    def resize(size: int) -> Upload:
        return Upload(path, progress=lambda sent, total: os.truncate(path, size))

    assert [len(part) for part in resize(3 * PART).parts()] == [PART, 10]
    with pytest.raises(NotSentError, match=r"large\.txt was truncated"):
        list(resize(PART + 1).parts())


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="Linux has it")
@pytest.mark.parametrize("opened", [False, True])
def test_a_virtual_file_that_reports_size_zero(client: Any, server: FakeServer, opened: bool):
    path = Path("/proc/self/limits")
    with path.open("rb") as file:
        client.documents.upload(file if opened else path)
    assert server.fake.uploads[0][0] == path.read_bytes()


def test_a_file_name_that_is_not_unicode(client: Any, server: FakeServer, tmp_path: Path):
    path = tmp_path / os.fsdecode(b"B\xfccher.txt")
    path.write_bytes(BYTES)
    assert client.documents.upload(path).filename == "B?cher.txt"


@pytest.mark.parametrize(("name", "kind"), [("large", PayloadTooLargeError), ("pdf", UnsupportedMediaTypeError)])
def test_a_refused_upload(client: Any, name: str, kind: type[Exception]):
    with pytest.raises(kind):
        client.documents.upload(BYTES, filename=name)


def test_a_missing_file(client: Any, tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        client.documents.upload(tmp_path / "none.txt")


def test_an_error_of_the_source_reaches_the_caller(client: Any, server: FakeServer):
    def torn() -> Iterator[bytes]:
        yield b"some"
        raise RuntimeError("torn")

    with pytest.raises(RuntimeError, match="torn"):
        client.documents.upload(torn())
    assert not server.fake.documents


async def test_an_async_iterator_is_for_the_async_client(server: FakeServer):
    async def lines() -> AsyncIterator[str]:
        for line in TEXT.splitlines(keepends=True):
            yield line

    async with AsyncEverlong(server.url) as client:
        await client.documents.upload(lines())
    assert server.fake.uploads[0][0] == BYTES
    with Everlong(server.url) as client, pytest.raises(TypeError, match="AsyncEverlong"):
        client.documents.upload(lines())  # type: ignore[arg-type]


async def test_a_slow_source_does_not_stop_the_event_loop(server: FakeServer):
    reached, free = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        reached.set()
        assert free.wait(10)
        yield b"at last"

    async with AsyncEverlong(server.url) as client, asyncio.TaskGroup() as group:
        group.create_task(client.documents.upload(slow()))
        await asyncio.to_thread(reached.wait, 10)
        free.set()  # reached only if the event loop is running
    assert server.fake.uploads[0][0] == b"at last"


def test_get_list_delete(client: Any):
    ids = [client.documents.upload(b"x", filename=f"{n}.txt").id for n in range(5)]
    assert client.documents.get(ids[0]).id == ids[0]
    assert [document.id for document in client.documents.list()] == ids, "all pages of two"
    assert [document.id for document in client.documents.list(limit=3)] == ids[:3]
    assert [document.id for document in client.documents.list(after=ids[1], limit=2)] == ids[2:4]
    client.documents.delete(ids[0])
    with pytest.raises(NotFoundError, match=ids[0]):
        client.documents.get(ids[0])


def test_a_list_ends_at_its_limit(make: Callable[..., Any]):
    """Even if the server ignores `limit`, and without unnecessary requests."""
    asked: list[dict[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(dict(request.url.params))
        rows = [{"id": f"doc_{len(asked)}_{n}", "status": "ready"} for n in range(2)]
        return httpx.Response(200, json={"data": rows, "has_more": True})

    client = make(handler=handler)
    assert [document.id for document in client.documents.list(limit=3)] == ["doc_1_0", "doc_1_1", "doc_2_0"]
    assert [document.id for document in client.documents.list(limit=2, after="doc_0")] == ["doc_3_0", "doc_3_1"]
    assert asked == [{"limit": "3"}, {"limit": "1", "after": "doc_1_1"}, {"limit": "2", "after": "doc_0"}]


def test_wait_follows_the_events(client: Any, server: FakeServer):
    seen: list[Document] = []
    id = client.documents.upload(b"x").id
    document = client.documents.wait(id, progress=seen.append)
    assert document.status == "ready"
    assert [document.progress for document in seen] == [0.25, 0.75, 1], (
        "opening the event stream advances the fake document to 0.5"
    )
    assert seen[1].tokens_per_second == 500
    assert server.fake.event_streams == 1


def test_wait_polls_if_there_are_no_events(client: Any, server: FakeServer):
    id = client.documents.upload(b"x", filename="unheard").id
    assert client.documents.wait(id).status == "ready"
    assert server.fake.event_streams > 1, "the event stream was tried each time"


def test_wait_does_not_overrun_its_timeout(make: Callable[..., Any]):
    client = make(handler=lambda request: httpx.Response(200, json={"id": "doc_1", "status": "queued"}))
    with pytest.raises(APITimeoutError, match=r"doc_1 is not ready after 0\.2 s: its status is queued"):
        client.documents.wait("doc_1", timeout=0.2)


def test_wait_polls_if_the_event_stream_is_silent(client: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch):
    def impatient(document: Document) -> None:  # only after the first request, which must not time out
        monkeypatch.setattr("everlong_client.transport.waiting.READ_TIMEOUT", 0.1)

    id = client.documents.upload(b"x", filename="buffered").id
    assert client.documents.wait(id, progress=impatient).status == "ready"
    assert server.fake.event_streams >= 1


def test_wait_for_a_document_that_cannot_be_read(client: Any):
    id = client.documents.upload(b"x", filename="broken").id
    with pytest.raises(ReadingFailedError, match="byte 17 is not UTF-8") as raised:
        client.documents.wait(id)
    assert (raised.value.id, raised.value.code) == (id, "not_utf8")


def test_wait_for_a_document_that_is_deleted(client: Any):
    id = client.documents.upload(b"x", filename="deleted").id
    with pytest.raises(NotFoundError):
        client.documents.wait(id)


def test_wait_without_a_server(make: Callable[..., Any], closed_url: str):
    with pytest.raises(APIConnectionError):
        make(closed_url).documents.wait("doc_1")


def test_wait_continues_after_a_restart(make: Callable[..., Any]):
    server = FakeServer()
    server.reset()
    client = make(server.url)
    id = client.documents.upload(b"x", filename="stuck").id
    result: list[Document] = []
    waiter = threading.Thread(target=lambda: result.append(client.documents.wait(id)), daemon=True)
    waiter.start()
    eventually(lambda: server.fake.event_streams == 1)
    server.stop()
    server.fake.documents[id]["filename"] = "book.txt"
    server.start()
    waiter.join(20)
    server.stop()
    assert [document.status for document in result] == ["ready"]


def test_an_invalid_event_does_not_end_the_wait(make: Callable[..., Any]):
    """If a proxy replaces the event stream, the client polls instead."""
    answers = iter(["reading", "ready"])

    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/events"):
            return httpx.Response(200, text="data: <html>\n\n", headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json={"id": "doc_1", "status": next(answers)})

    assert make(handler=handler).documents.wait("doc_1").status == "ready"
