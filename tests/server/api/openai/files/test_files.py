"""`/v1/files` through OpenAI's SDK."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import TEXT, begin_upload, of


def test_a_file_is_a_document(client: OpenAI, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "alice.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    with path.open("rb") as body:
        file = client.files.create(file=body, purpose="user_data")
    assert (file.object, file.purpose, file.filename) == ("file", "user_data", "alice.txt")
    assert file.bytes == path.stat().st_size
    assert file.status in ("uploaded", "processed")
    assert client.files.wait_for_processing(file.id, poll_interval=0.05).status == "processed"
    assert server.document(file.id)["status"] == "ready"
    assert client.files.content(file.id).content == path.read_bytes()
    assert file.id in [each.id for each in client.files.list(purpose="user_data")]
    assert not list(client.files.list(purpose="vision"))
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            ask(file.id)
        assert of(error) == ("file_not_found", "file_id")


def test_a_file_without_room_is_refused_before_it_is_received(new_server: Callable[..., Server]) -> None:
    """Also if its purpose comes after it, as from OpenAI's SDK for Node."""
    server = new_server(recall_passages=0, tenant_bytes=1000).start()
    head = (
        "POST /v1/files HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 9999999\r\n\r\n"
        '--x\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n\r\nOnce upon a time'
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as peer:
        peer.sendall(head.encode())
        assert peer.recv(1000).startswith(b"HTTP/1.1 429 ")


def test_the_purpose_assistants_is_another_name(client: OpenAI) -> None:
    file = client.files.create(file=("a.txt", b"Once."), purpose="assistants")
    assert file.purpose == "user_data"
    assert (
        client.files.list(purpose="assistants").data[0].id
        == client.files.list(purpose="user_data").data[0].id
        == file.id
    )
    upload = begin_upload(client, 5, purpose="assistants")
    assert upload.purpose == "user_data"
    client.uploads.cancel(upload.id)
    client.files.delete(file.id)


def test_the_list_of_files_is_paged(client: OpenAI) -> None:
    ids = [client.files.create(file=(f"{n}.txt", b"Once."), purpose="user_data").id for n in range(3)]
    page = client.files.list(limit=2)
    assert [file.id for file in page.data] == [ids[2], ids[1]]
    assert page.has_more
    assert [file.id for file in client.files.list(limit=2)][:3] == ids[::-1]
    assert client.files.list(limit=1, after=ids[1]).data[0].id == ids[0]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.files.list(order="asc")
    assert of(error) == ("invalid_value", "order")


def test_a_file_larger_than_a_body_may_be(client: OpenAI) -> None:
    file = client.files.create(file=("big.txt", io.BytesIO(b"So it goes. " * 200_000)), purpose="user_data")
    assert file.bytes == 2_400_000
    client.files.delete(file.id)


@pytest.mark.parametrize("purpose", ["fine-tune", "", "user_data" * 1000])
def test_other_purposes_are_refused(client: OpenAI, server: Server, purpose: str) -> None:
    before = server.http.get("/v1/documents").json()
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.files.create(file=("a.txt", b"Once."), purpose=purpose)  # type: ignore[arg-type]
    assert of(error) == ("invalid_value", "purpose")
    assert "user_data" in error.value.message
    assert server.http.get("/v1/documents").json() == before


@pytest.mark.parametrize(
    ("parts", "status", "code", "param"),
    [
        ({"file": ("a.txt", b"Once.")}, 422, "missing_parameter", "purpose"),
        ({"purpose": (None, b"user_data")}, 422, "missing_parameter", "file"),
        ({"file": ("a.txt", b""), "purpose": (None, b"user_data")}, 422, "empty_document", "file"),
        ({"file": ("a.pdf", b"%PDF-1.7"), "purpose": (None, b"user_data")}, 422, "unreadable_document", "file"),
        ({"file": ("a.txt", b"\0\0\1\2"), "purpose": (None, b"user_data")}, 415, "unsupported_media_type", "file"),
        ({"file": ("a.txt", b"Once."), "sparkle": (None, b"1")}, 422, "unknown_parameter", "sparkle"),
    ],
)
def test_forms_without_an_upload(server: Server, parts: dict, status: int, code: str, param: str) -> None:
    before = server.http.get("/v1/documents").json()
    server.error(server.http.post("/v1/files", files=parts), status, code, param)
    assert server.http.get("/v1/documents").json() == before


def test_the_purpose_may_come_last_but_not_twice(server: Server) -> None:
    file, purpose = ("file", ("a.txt", b"Once.")), ("purpose", (None, b"user_data"))
    assert server.http.post("/v1/files", files=[file, purpose]).status_code == 200
    answer = server.http.post("/v1/files", files=[purpose, purpose, file])
    server.error(answer, 422, "unknown_parameter", "purpose")
    answer = server.http.post("/v1/files", content=b"Once.", headers={"content-type": "text/plain"})
    server.error(answer, 415, "unsupported_media_type", "content-type")


def test_invalid_ids(server: Server) -> None:
    for identifier in ("x", "doc_" + "0" * 32, "doc_*", "%00", "a" * 5000, "..%2f..%2fetc"):
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            answer = server.http.request(method, f"/v1/files/{identifier}{path}")
            assert answer.status_code == 404, answer.text
            assert answer.json()["error"]["code"].endswith("_not_found")
