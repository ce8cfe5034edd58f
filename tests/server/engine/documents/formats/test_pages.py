"""Pictures of pages of a PDF, with a passage marked."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import pytest

from tests.files import encrypted_pdf, pdf, pdf_lines, pdf_of, word
from tests.process import Server

LINES = (
    (72, 700, "The hatter sings to the dormouse all day,"),
    (72, 680, "and the March hare pours the tea."),
    (72, 400, "No."),
)
PASSAGE = "the dormouse all day, and the March hare"


def upload(server: Server, content: bytes, **query: str) -> httpx.Response:
    return server.http.post(
        "/v1/documents", content=content, params=query, headers={"content-type": "application/octet-stream"}
    )


def pixels(png: bytes) -> np.ndarray:
    """Decode a PNG with 8-bit colours and without row filters, as the server writes it."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    stream, body, shape = io.BytesIO(png[8:]), b"", (0, 0)
    while head := stream.read(8):
        length, kind = struct.unpack(">I4s", head)
        data = stream.read(length)
        assert struct.unpack(">I", stream.read(4))[0] == zlib.crc32(kind + data)
        if kind == b"IHDR":
            shape = struct.unpack(">II", data[:8])
        body += data if kind == b"IDAT" else b""
    rows = np.frombuffer(zlib.decompress(body), np.uint8).reshape(shape[1], -1)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(shape[1], shape[0], 3)


def marked(picture: np.ndarray) -> np.ndarray:
    """Whether each pixel is coloured."""
    return picture[:, :, 2] < picture[:, :, 0]


@pytest.fixture(scope="module")
def document(shared_server: Server) -> dict:
    made = upload(shared_server, pdf_of(pdf_lines(*LINES)), filename="tea.pdf").json()
    return shared_server.wait_read(made["id"])


def test_the_passage_is_marked_where_it_is_on_the_page(server: Server, document: dict) -> None:
    assert document["pages"] is True
    text = server.http.get(f"/v1/documents/{document['id']}/text").json()["text"]
    start = text.index("the dormouse")
    end = text.index(" pours")
    path = f"/v1/documents/{document['id']}/pages/1.png"
    plain = server.http.get(path, params={"width": 612})
    assert plain.headers["content-type"] == "image/png"
    assert pixels(plain.content).shape == (792, 612, 3)
    assert not marked(pixels(plain.content)).any()
    where = marked(pixels(server.http.get(path, params={"width": 612, "start_byte": start, "end_byte": end}).content))
    rows, _columns = np.nonzero(where)
    # One pixel is one point; the page's points count from below. The first line is marked from its middle, the second up to its middle.
    assert {792 - 700, 792 - 680} == {y for y in (792 - 700, 792 - 680, 792 - 400) if where[y - 3].any()}
    assert rows.min() > 792 - 720
    assert rows.max() < 792 - 670
    first, second = (np.nonzero(where[792 - y - 3])[0] for y in (700, 680))
    assert first.min() > 72 + 50
    assert second.min() < 75
    assert second.max() < first.max() < 400


def test_words_that_the_page_has_in_another_order_are_marked_in_groups(server: Server) -> None:
    text = "one two three four five six\nseven eight nine ten eleven twelve"
    lines = (72, 700, "seven eight nine ten eleven twelve"), (72, 600, "one two three four five six")
    document = server.wait_read(upload(server, pdf_of(pdf_lines(*lines))).json()["id"])
    stored = server.http.get(f"/v1/documents/{document['id']}/text").json()["text"]
    assert stored.split() != text.split()
    path = f"/v1/documents/{document['id']}/pages/1.png"
    query = {"width": 612, "start_byte": 0, "end_byte": len(stored)}
    where = marked(pixels(server.http.get(path, params=query).content))
    assert where[792 - 703].any()
    assert where[792 - 603].any()


@pytest.mark.parametrize(
    ("page", "query", "status", "code"),
    [
        ("2", {}, 404, "page_not_found"),
        ("0", {}, 422, "invalid_value"),
        ("x", {}, 422, "invalid_value"),
        ("1", {"width": 4000}, 422, "invalid_value"),
        ("1", {"start_byte": 1}, 422, "invalid_value"),
        ("1", {"start_byte": 1_000_000, "end_byte": 1_000_001}, 422, "invalid_value"),
    ],
)
def test_what_cannot_be_drawn(server: Server, document: dict, page: str, query: dict, status: int, code: str) -> None:
    answer = server.http.get(f"/v1/documents/{document['id']}/pages/{page}.png", params=query)
    server.error(answer, status, code)


@pytest.mark.long
def test_other_documents_have_no_pages(server: Server) -> None:
    for made in (server.upload("Plain."), upload(server, word(("Normal", "A word file."))).json()):
        assert made["pages"] is False
        server.error(server.http.get(f"/v1/documents/{made['id']}/pages/1.png"), 404, "page_not_found")
    server.error(server.http.get(f"/v1/documents/doc_{'0' * 32}/pages/1.png"), 404, "document_not_found")
    server.error(upload(server, encrypted_pdf()), 422, "unreadable_document")


@pytest.mark.long
def test_the_original_counts_for_its_tenant_and_is_deleted_with_it(new_server: Callable[..., Server]) -> None:
    server = new_server().start()
    content = pdf(["A page.", "Another."])
    document = server.wait_read(upload(server, content).json()["id"])
    stored = int(server.redis.get("{everlong}:stored:default") or 0)
    assert stored == document["bytes"] + len(content)
    blobs = Path(server.data) / "blobs"
    assert len(list(Path(server.data).rglob(f"{document['id']}.original"))) == 1, list(blobs.glob("*"))
    assert server.http.delete(f"/v1/documents/{document['id']}").status_code == 200
    assert int(server.redis.get("{everlong}:stored:default") or 0) == 0
    assert list(Path(server.data).rglob(f"{document['id']}*")) == []
