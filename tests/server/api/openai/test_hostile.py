"""Hostile input to OpenAI's endpoints gets a clear error; never a 500, never a hang."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.process import Server
from tests.server.api.openai.talk import MODEL, user

FACTS = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
JSON: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [user("hi")]},
    "/v1/responses": {"model": MODEL, "input": "hi"},
    "/v1/embeddings": {"model": "all-MiniLM-L6-v2", "input": "hi"},
    "/v1/rerank": {"model": "all-MiniLM-L6-v2", "query": "hi", "documents": ["hi"]},
    "/v1/vector_stores": {"name": "Bills"},
    "/v1/uploads": FACTS,
    "/v1/uploads/{upload}/complete": {"part_ids": ["part_x"]},
}
"""Endpoints that take JSON, and a valid body for each."""
FORMS: dict[str, dict[str, Any]] = {
    "/v1/files": {"files": {"file": ("a.txt", b"Once.")}, "data": {"purpose": "user_data"}},
    "/v1/uploads/{upload}/parts": {"files": {"data": b"Once."}},
}
EVERY = [*JSON, *FORMS]


@pytest.fixture
def upload(server: Server) -> str:
    """An upload that no test changes. It expires."""
    return str(server.http.post("/v1/uploads", json=FACTS).json()["id"])


@pytest.fixture(autouse=True)
def _nothing_is_made(server: Server) -> Any:
    before = server.http.get("/v1/files").json()
    yield
    assert server.http.get("/v1/files").json() == before


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"text"', b"7", b"\xff\xfe", b"{" * 100_000, b"[" * 100_000, b'{"model": "\\ud800", "input": "\\ud800"}'],
    ids=["empty", "cut", "list", "null", "text", "number", "no UTF-8", "deep", "deeper", "half a character"],
)  # fmt: skip
@pytest.mark.parametrize("path", JSON)
def test_invalid_bodies(server: Server, upload: str, path: str, body: bytes) -> None:
    answer = server.http.post(path.format(upload=upload), content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"]


@pytest.mark.parametrize("path", JSON)
def test_unknown_fields_are_named(server: Server, upload: str, path: str) -> None:
    answer = server.http.post(path.format(upload=upload), json=JSON[path] | {"sparkle": 1})
    server.error(answer, 422, "unknown_parameter", "sparkle")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("path", "field"), [("/v1/chat/completions", "temperature"), ("/v1/responses", "top_p"), ("/v1/uploads", "bytes")]
)
def test_invalid_numbers(server: Server, path: str, field: str, number: str) -> None:
    body = json.dumps(JSON[path] | {field: "THIS"}).replace('"THIS"', number)
    answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"] in (field, None)


@pytest.mark.parametrize("path", JSON)
def test_bodies_that_are_too_large(server: Server, upload: str, path: str) -> None:
    big = json.dumps(JSON[path] | {"sparkle": "x" * (1 << 20)}).encode()
    for content in (big, iter([big[: 1 << 19], big[1 << 19 :]])):
        answer = server.http.post(
            path.format(upload=upload), content=content, headers={"content-type": "application/json"}
        )
        assert str(1 << 20) in server.error(answer, 413, "too_large")["message"]


@pytest.mark.parametrize("coding", ["gzip", "br", "identity, gzip"])
@pytest.mark.parametrize("path", EVERY)
def test_bodies_are_not_decompressed(server: Server, upload: str, path: str, coding: str) -> None:
    kind = "application/json" if path in JSON else "multipart/form-data; boundary=x"
    answer = server.http.post(
        path.format(upload=upload), content=gzip.compress(bytes(1 << 20)),
        headers={"content-encoding": coding, "content-type": kind},
    )  # fmt: skip
    assert "Content-Encoding" in server.error(answer, 415, "unsupported_media_type")["message"]


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "\x1b[31m", "invoice\u202efdp.exe", "a\u2066b", "a\u2028b", "\x7f"])
def test_misleading_file_names_are_refused(server: Server, bad: str) -> None:
    answer = server.http.post("/v1/uploads", json=FACTS | {"filename": bad})
    assert "U+" in server.error(answer, 422, "invalid_value", "filename")["message"]
    answer = server.http.post("/v1/files", files={"file": (bad, b"Once.")}, data={"purpose": "user_data"})
    if answer.status_code == 200:  # httpx writes the control characters of a form as %0A: such a name is only ugly
        assert answer.json()["filename"].isprintable()
        server.http.delete(f"/v1/files/{answer.json()['id']}")
    else:
        server.error(answer, 422, "invalid_value", "filename")


@pytest.mark.parametrize(
    ("given", "name"),
    [("../../etc/passwd", "passwd"), ("C:\\Users\\ann\\book.txt", "book.txt"), ("e\u0301.txt", "\u00e9.txt")],
)
def test_names_are_names(server: Server, given: str, name: str) -> None:
    file = server.http.post("/v1/files", files={"file": (given, b"Once.")}, data={"purpose": "user_data"}).json()
    assert file["filename"] == name
    server.http.delete(f"/v1/files/{file['id']}")
    assert server.http.post("/v1/uploads", json=FACTS | {"filename": given}).json()["filename"] == name


@pytest.mark.parametrize(
    "form",
    [b"", b"--x", b"--x\r\n", b"--x\r\nContent-Disposition: form-data", b"--y--\r\n", b"\0" * 1000, b"--x\r\n\r\n" + b"a" * 200_000,
     b'--x\r\nContent-Disposition: form-data; name="' + b"a" * 200_000],
    ids=["empty", "begun", "a line", "half a head", "another boundary", "zeros", "no head", "a long head"],
)  # fmt: skip
@pytest.mark.parametrize("path", FORMS)
def test_invalid_forms(server: Server, upload: str, path: str, form: bytes) -> None:
    kind = {"content-type": "multipart/form-data; boundary=x"}
    answer = server.http.post(path.format(upload=upload), content=form, headers=kind)
    assert answer.status_code == 422, answer.text
    for kind in (
        {"content-type": "multipart/form-data"},
        {"content-type": "multipart/form-data; boundary=" + "x" * 5000},
    ):
        answer = server.http.post(path.format(upload=upload), content=b"--x", headers=kind)
        assert answer.status_code in (415, 422), answer.text


@pytest.mark.parametrize("path", EVERY)
@pytest.mark.parametrize(
    ("headers", "code"),
    [({"origin": "https://evil.example"}, "origin_not_allowed"), ({"host": "evil.example"}, "host_not_allowed")],
    ids=["origin", "host"],
)
def test_another_sites_page_may_not_use_them(server: Server, upload: str, path: str, headers: dict, code: str) -> None:
    body = FORMS[path] if path in FORMS else {"json": JSON[path]}
    server.error(server.http.post(path.format(upload=upload), headers=headers, **body), 403, code)


@pytest.mark.parametrize("path", [*EVERY, "/v1/models", "/v1/files/x/content", "/v1/responses/x/input_items"])
def test_unknown_methods(server: Server, upload: str, path: str) -> None:
    answer = server.http.put(path.format(upload=upload), json={})
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "invalid_request_error")
    assert answer.headers["allow"]
