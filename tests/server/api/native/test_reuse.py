"""`reuse` of an upload: the same file becomes one document of its tenant, however it is sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from everlong_server.engine.documents import ingest
from everlong_server.engine.documents.formats import recognition
from everlong_server.engine.documents.formats.languages import ANY_LANGUAGE
from everlong_server.store.redis import keys
from tests import files
from tests.process import Server

SENDS = ["in_one_request", "in_parts"]


def in_one_request(server: Server, data: bytes, **query: str) -> str:
    headers = {"content-type": "application/octet-stream"}
    return document(server.http.post("/v1/documents", content=data, params=query, headers=headers), 202)["id"]


def in_parts(server: Server, data: bytes, **query: str) -> str:
    facts = {"bytes": len(data), "filename": "a", "mime_type": "application/octet-stream", "purpose": "user_data"}
    id = server.http.post("/v1/uploads", json=facts).json()["id"]
    part = server.http.post(f"/v1/uploads/{id}/parts", files={"data": data}).json()["id"]
    path = f"/v1/uploads/{id}/complete"
    made = document(server.http.post(path, params=query, json={"part_ids": [part]}), 200)
    assert made["status"] == "completed"
    again = document(server.http.post(path, params=query, json={"part_ids": [part]}), 200)
    assert again["file"]["id"] == made["file"]["id"], "the response may have been lost"
    return made["file"]["id"]


def document(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    return dict(response.json())


def send_as(name: str) -> Callable[..., str]:
    return {"in_one_request": in_one_request, "in_parts": in_parts}[name]


def fresh(kind: str) -> bytes:
    """A file that no other test has."""
    text = f"The harbour was closed {uuid.uuid4()}."
    if kind == "pdf":
        return files.pdf([text])
    return files.word(("Normal", text)) if kind == "docx" else f"{text} Très tard.".encode(kind)


def count(server: Server) -> int:
    return len(server.http.get("/v1/documents", params={"limit": 100}).json()["data"])


def stored(server: Server) -> set[str]:
    """The names of all files of documents; an upload that is not completed has none."""
    return {path.name for path in (server.data / "documents").iterdir() if not path.name.endswith((".idx", ".vec"))}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["utf-8", "latin-1", "pdf", "docx"])
@pytest.mark.parametrize("first", SENDS)
@pytest.mark.parametrize("second", SENDS)
def test_the_same_file_is_one_document(server: Server, kind: str, first: str, second: str) -> None:
    data = fresh(kind)
    made = send_as(first)(server, data, reuse="true")
    server.wait_read(made)
    before, held = count(server), stored(server)
    assert send_as(second)(server, data, reuse="true") == made
    assert count(server) == before
    assert stored(server) - held == set(), "the file that was not needed is kept"


def test_it_is_another_document_without_reuse_with_other_bytes_and_after_a_deletion(server: Server) -> None:
    data = fresh("utf-8")
    made = in_one_request(server, data)
    assert in_one_request(server, data) != made
    assert in_one_request(server, data + b" And so on.", reuse="true") != made
    assert in_one_request(server, data, reuse="true", filename="other.txt") == made
    server.http.delete(f"/v1/documents/{made}")
    again = in_one_request(server, data, reuse="true")
    assert again != made
    assert in_one_request(server, data, reuse="true") == again


@pytest.mark.parametrize("kind", ["utf-8", "pdf"])
def test_of_several_that_arrive_at_once_one_becomes_a_document(server: Server, kind: str) -> None:
    data = fresh(kind)
    with ThreadPoolExecutor(6) as threads:
        made = set(threads.map(lambda n: (in_one_request, in_parts)[n % 2](server, data, reuse="true"), range(6)))
    assert len(made) == 1


def test_a_file_is_converted_again_if_its_text_can_be_another(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    data = fresh("pdf")
    made = in_one_request(server, data, reuse="true")
    assert in_one_request(server, data, reuse="true", ocr_language="latin") != made
    received = ingest.ReceivedFile(1, 0, "0" * 64, "a.pdf", "pdf")
    contents = {received.identified(ANY_LANGUAGE).content}
    installed = recognition.is_installed()
    monkeypatch.setattr(recognition, "is_installed", lambda: not installed)
    contents.add(received.identified(ANY_LANGUAGE).content)
    monkeypatch.setattr(ingest, "_READERS", ingest._READERS + 1)
    contents.add(received.identified(ANY_LANGUAGE).content)
    assert len(contents) == 3


def test_files_of_archives_are_new_documents(server: Server) -> None:
    data = fresh("utf-8")
    known = in_one_request(server, data, reuse="true")
    sent = server.http.post(
        "/v1/documents/archive",
        content=files.zipped({"a.txt": data}),
        headers={"content-type": "application/octet-stream"},
    )
    (made,) = document(sent, 202)["data"]
    assert made["id"] != known
    assert in_one_request(server, data, reuse="true") == known


def test_a_retry_gets_the_recorded_document(server: Server) -> None:
    data, headers = fresh("utf-8"), {"content-type": "text/plain", "Idempotency-Key": uuid.uuid4().hex}
    known = in_one_request(server, data)

    def send() -> str:
        sent = server.http.post("/v1/documents", content=data, params={"reuse": "true"}, headers=headers)
        return str(document(sent, 202)["id"])

    assert send() == known
    server.http.delete(f"/v1/documents/{known}")
    assert send() == known, "without a record, the file would become a document again"


def test_a_document_that_could_not_be_read_is_not_reused(server: Server) -> None:
    data = fresh("utf-8")
    made = in_one_request(server, data)
    server.wait_read(made)
    fail(server, made)
    again = in_one_request(server, data, reuse="true")
    assert again != made
    assert in_one_request(server, data, reuse="true") == again


def fail(server: Server, id: str) -> None:
    """Mark a document's reading as failed."""
    (reading,) = server.redis.smembers(keys.document_readings(id))
    server.redis.hset(keys.reading(reading.decode()), mapping={"status": "failed", "error": ""})
