"""`reuse` of an upload: the same file becomes one document of its tenant, however it is sent."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from everlong_server.store.redis import keys
from tests import files
from tests.process import Server

SENDS = ["in_one_request", "in_parts", "in_an_archive"]


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


def in_an_archive(server: Server, data: bytes, **query: str) -> str:
    headers = {"content-type": "application/octet-stream"}
    packed = files.zipped({"a": data, "same": data})
    sent = server.http.post("/v1/documents/archive", content=packed, params=query, headers=headers)
    return document(sent, 202)["data"][0]["id"]


def document(response: httpx.Response, status: int) -> dict:
    assert response.status_code == status, response.text
    return dict(response.json())


def send_as(name: str) -> Callable[..., str]:
    return {"in_one_request": in_one_request, "in_parts": in_parts, "in_an_archive": in_an_archive}[name]


def fresh(kind: str) -> bytes:
    """A file that no other test has."""
    text = f"The harbour was closed {uuid.uuid4()}."
    return files.pdf([text]) if kind == "pdf" else text.encode()


def count(server: Server) -> int:
    return len(server.http.get("/v1/documents", params={"limit": 100}).json()["data"])


def stored(server: Server) -> set[str]:
    """The names of all files of documents; an upload that is not completed has none."""
    return {path.name for path in (server.data / "documents").iterdir() if not path.name.endswith((".idx", ".vec"))}


@pytest.mark.parametrize("kind", ["text", "pdf"])
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
    data = fresh("text")
    made = in_one_request(server, data)
    assert in_one_request(server, data) != made
    assert in_one_request(server, data + b" And so on.", reuse="true") != made
    assert in_one_request(server, data, reuse="true", ocr_language="latin") != made
    assert in_one_request(server, data, reuse="true", filename="other.txt") == made
    server.http.delete(f"/v1/documents/{made}")
    again = in_one_request(server, data, reuse="true")
    assert again != made
    assert in_one_request(server, data, reuse="true") == again


@pytest.mark.parametrize("kind", ["text", "pdf"])
def test_of_several_that_arrive_at_once_one_becomes_a_document(server: Server, kind: str) -> None:
    data = fresh(kind)
    with ThreadPoolExecutor(6) as threads:
        made = set(threads.map(lambda n: (in_one_request, in_parts)[n % 2](server, data, reuse="true"), range(6)))
    assert len(made) == 1


def test_a_retry_gets_the_same_document(server: Server) -> None:
    data, headers = fresh("text"), {"content-type": "text/plain", "Idempotency-Key": uuid.uuid4().hex}
    known = in_one_request(server, data)
    for _ in range(2):
        sent = server.http.post("/v1/documents", content=data, params={"reuse": "true"}, headers=headers)
        assert document(sent, 202)["id"] == known


def test_a_document_that_could_not_be_read_is_not_reused(server: Server) -> None:
    data = fresh("text")
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
