"""The language of the text in pictures, chosen for one upload."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from PIL import Image, ImageDraw, ImageFont

from everlong_client import Everlong, UnprocessableEntityError
from everlong_client.transport import upload
from tests.process import Server
from tests.server.engine.documents.formats.test_round_trips import FONT


def in_one_request(server: Server, **asked: str) -> httpx.Response:
    return server.http.post("/v1/documents", content=b"words", params=asked, headers={"content-type": "text/plain"})


def in_parts(server: Server, **asked: str) -> httpx.Response:
    facts = {"bytes": 5, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    id = server.http.post("/v1/uploads", json=facts).json()["id"]
    part = server.http.post(f"/v1/uploads/{id}/parts", files={"data": b"words"}).json()["id"]
    return server.http.post(f"/v1/uploads/{id}/complete", json={"part_ids": [part], **asked})


@pytest.mark.parametrize("send", [in_one_request, in_parts])
def test_an_unknown_language_is_refused(server: Server, send: Callable[..., httpx.Response]) -> None:
    for language in ("klingon", "", "../latin"):
        error = server.error(send(server, ocr_language=language), 422, "invalid_value", "ocr_language")
        assert (
            "ocr_language: the language must be any, latin, greek, chinese, japanese, or one that takes a model"
            in error["message"]
        )
        assert repr(language) in error["message"]
    error = server.error(send(server, ocr_language="korean"), 422, "invalid_value", "ocr_language")
    assert "the model of 'korean' is missing: put korean_PP-OCRv5_rec_mobile.onnx" in error["message"]
    server.error(send(server, ocr_language="x" * 61), 422, "invalid_value", "ocr_language")
    assert send(server, ocr_language="latin").is_success


def test_it_belongs_to_the_request_that_a_key_identifies(server: Server) -> None:
    def send(key: str, **asked: str) -> httpx.Response:
        headers = {"content-type": "text/plain", "Idempotency-Key": key}
        return server.http.post("/v1/documents", content=b"words", params=asked, headers=headers)

    first = send("with", ocr_language="latin")
    assert send("with", ocr_language="latin").json() == first.json()
    server.error(send("with", ocr_language="greek"), 422, "idempotency_key_reused")
    server.error(send("with"), 422, "idempotency_key_reused")
    assert send("without").is_success
    server.error(send("without", ocr_language="any"), 422, "idempotency_key_reused")


@pytest.mark.parametrize("size", [upload.PART, 3])
def test_the_client_sends_it(server: Server, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with an upload in parts."""
    monkeypatch.setattr(upload, "PART", size)
    with Everlong(server.url) as client:
        assert client.documents.upload(b"words", ocr_language="greek").bytes == 5
        with pytest.raises(UnprocessableEntityError, match="klingon"):
            client.documents.upload(b"words", ocr_language="klingon")


@pytest.mark.long
def test_it_restricts_the_letters_that_are_found(server: Server) -> None:
    page, out = Image.new("L", (900, 200), 255), io.BytesIO()
    ImageDraw.Draw(page).text(
        (60, 60), "The sign said \u03a9\u03a8\u03a6 1843", font=ImageFont.truetype(FONT, 40), fill=0
    )
    page.save(out, "PNG")

    def letters(**asked: Any) -> str:
        answer = server.http.post("/v1/documents", content=out.getvalue(), params=asked, timeout=300)
        assert answer.status_code == 202, answer.text
        return server.http.get(f"/v1/documents/{answer.json()['id']}/text").json()["text"]

    assert "\u03a9" in letters(ocr_language="greek")
    found = letters(ocr_language="latin")
    assert "The sign said" in found
    assert not set(found) & set("\u03a9\u03a8\u03a6")
