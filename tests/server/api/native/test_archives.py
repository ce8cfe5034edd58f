"""`POST /v1/documents/archive`: each file of an archive becomes a document of its own."""

from __future__ import annotations

import gzip
import io
import tarfile
import uuid
from typing import Any

import httpx
import pytest

from everlong_client import Everlong, UnsupportedMediaTypeError
from everlong_server.app import UPLOAD_PATHS
from tests import files
from tests.process import Server

HARBOUR, MILL = "The harbour was closed.", "The mill stood still."


def tarred(entries: dict[str, bytes | str], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as packed:  # type: ignore[call-overload]
        for name, content in entries.items():
            data = content.encode() if isinstance(content, str) else content
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            packed.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def send(server: Server, data: bytes, key: str | None = None, **query: str) -> httpx.Response:
    headers = {"content-type": "application/octet-stream"} | ({"Idempotency-Key": key} if key else {})
    return server.http.post("/v1/documents/archive", content=data, params=query, headers=headers)


def text_of(server: Server, document: dict[str, Any]) -> str:
    return server.http.get(f"/v1/documents/{document['id']}/text").json()["text"]


def count(server: Server) -> int:
    return len(server.http.get("/v1/documents", params={"limit": 100}).json()["data"])


def test_an_archive_may_be_larger_than_a_json_body(server: Server) -> None:
    story = HARBOUR * 60_000
    answer = send(server, files.zipped({"story.txt": story, "mill.md": MILL}), filename="all.zip")
    assert answer.status_code == 202, answer.text
    made = {document["filename"]: document for document in answer.json()["data"]}
    assert made["story.txt"]["bytes"] == len(story) > 1 << 20
    assert text_of(server, made["mill.md"]) == MILL
    for document in made.values():  # other tests would wait until the story is read
        server.http.delete(f"/v1/documents/{document['id']}")


def test_every_request_with_a_file_may_be_larger_than_a_json_body(server: Server) -> None:
    paths = server.http.get("/openapi.json").json()["paths"]
    with_files = [
        path for path, operations in paths.items() for operation in operations.values()
        if set(operation.get("requestBody", {}).get("content", {})) - {"application/json"}
    ]  # fmt: skip
    assert "/v1/documents/archive" in with_files
    assert [path for path in with_files if not UPLOAD_PATHS.fullmatch(path)] == []


def test_each_file_is_a_document(server: Server) -> None:
    data = files.zipped({
        "b/mill.md": f"\ufeff  {MILL}\n", "a/harbour.pdf": files.pdf([HARBOUR, "It opened again."]), "c.txt": "größer".encode("cp1252"),
        "page.html": "<html><body><p>One.</p><script>x</script></body></html>", "__MACOSX/._c.txt": "x",
    })  # fmt: skip
    answer = send(server, data, filename="all.zip")
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert (body["object"], body["has_more"], body["notes"]) == ("list", False, [])
    made = {document["filename"]: document for document in body["data"]}
    assert list(made) == ["harbour.pdf", "mill.md", "c.txt", "page.html"], "in the order of the paths"
    assert [document["format"] for document in made.values()] == ["pdf", None, None, "html"]
    assert text_of(server, made["mill.md"]) == f"  {MILL}\n", "a text is kept as it is"
    assert text_of(server, made["c.txt"]) == "größer"
    assert "not UTF-8" in made["c.txt"]["notes"][0]["text"]
    assert made["harbour.pdf"]["pages"] is True
    assert (
        server.http.get(f"/v1/documents/{made['harbour.pdf']['id']}/pages/2.png").headers["content-type"] == "image/png"
    )
    for document in body["data"]:
        assert server.wait_read(document["id"])["tokens"] > 0
        server.http.delete(f"/v1/documents/{document['id']}")
    assert not {document["id"] for document in body["data"]} & server.stored()


def test_what_cannot_be_read_is_noted(server: Server) -> None:
    data = tarred(
        {
            "good.txt": HARBOUR,
            "tool.bin": b"\x7fELF\0\1",
            "bad.pdf": b"%PDF-1.7 ...",
            "blank.txt": " \n",
            "in.zip": files.zipped({"x.txt": MILL}),
        }
    )
    body = send(server, data).json()
    assert [document["filename"] for document in body["data"]] == ["good.txt", "in.zip"], (
        "an archive in it is one document"
    )
    assert MILL in text_of(server, body["data"][1])
    notes = {note["part"]: note["text"] for note in body["notes"]}
    assert notes.keys() == {"tool.bin", "bad.pdf", "blank.txt"}
    assert notes["tool.bin"] == "it was left out: its format is not supported"
    assert notes["bad.pdf"].startswith("it was left out: ")
    assert notes["blank.txt"] == "it was left out: there is no text in it"
    error = server.error(send(server, tarred({"tool.bin": b"\x7fELF\0\1"})), 422, "unreadable_document", "file")
    assert (
        error["message"]
        == "the document: no file in it can be read (tool.bin: it was left out: its format is not supported)"
    )


def test_one_compressed_file_has_the_archives_name(server: Server) -> None:
    (document,) = send(server, gzip.compress(HARBOUR.encode()), filename="notes.txt.gz").json()["data"]
    assert document["filename"] == "notes.txt"
    assert text_of(server, document) == HARBOUR


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (HARBOUR.encode(), "text"),
        (files.pdf([HARBOUR]), "a PDF file"),
        (files.zipped({"word/document.xml": "<x/>", "[Content_Types].xml": "<x/>"}), "a Word file"),
    ],
    ids=["text", "pdf", "docx"],
)
def test_other_files_are_refused(server: Server, data: bytes, what: str) -> None:
    before = server.stored()
    error = server.error(send(server, data), 415, "unsupported_media_type", "file")
    assert error["message"] == f"the file is {what}, not an archive: upload it to /v1/documents"
    assert server.stored() == before


def test_a_retry_makes_no_second_documents(server: Server) -> None:
    data, key = files.zipped({"a.txt": HARBOUR, "b.txt": MILL, "c.bin": b"\0\1"}), uuid.uuid4().hex
    before = count(server)
    first = send(server, data, key)
    assert [note["part"] for note in first.json()["notes"]] == ["c.bin"]
    again = send(server, data, key)
    assert (again.status_code, again.json()) == (202, first.json())
    assert count(server) == before + 2
    server.error(send(server, files.zipped({"a.txt": HARBOUR}), key), 422, "idempotency_key_reused")
    server.error(send(server, data, key, filename="other.zip"), 422, "idempotency_key_reused")
    assert send(server, data).json()["data"][0]["id"] != first.json()["data"][0]["id"], (
        "without a key, it is another request"
    )


def test_the_client_sends_an_archive(server: Server) -> None:
    with Everlong(server.url) as client:
        made = client.documents.upload_archive(files.zipped({"a.txt": HARBOUR, "b.bin": b"\0\1"}), "all.zip")
        assert [document.filename for document in made.documents] == ["a.txt"]
        assert [str(note) for note in made.notes] == ["b.bin: it was left out: its format is not supported"]
        assert client.documents.text(made.documents[0].id).text == HARBOUR
        with pytest.raises(UnsupportedMediaTypeError, match="not an archive"):
            client.documents.upload_archive(b"words")
