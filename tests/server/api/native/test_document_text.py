"""`GET /v1/documents/{id}/text`: parts of a text, cut between characters only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.process import Server

TEXT = "Où est la 鯨? 🐋 «Là-bas.»\n" * 50
DATA = TEXT.encode()


@pytest.fixture(scope="module")
def document(shared_server: Server) -> str:
    """A document with a byte-order mark, which does not count."""
    return str(shared_server.upload(b"\xef\xbb\xbf" + DATA)["id"])


def part(server: Server, document: str, **query: int) -> dict[str, Any]:
    answer = server.http.get(f"/v1/documents/{document}/text", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_adjacent_parts_contain_each_character_once(server: Server, document: str) -> None:
    parts = [part(server, document, start_byte=at, end_byte=at + 7) for at in range(0, len(DATA), 7)]
    assert "".join(p["text"] for p in parts) == TEXT
    for p in parts:
        assert DATA[p["start_byte"] : p["end_byte"]].decode() == p["text"]
        assert p["bytes"] == len(DATA)


def test_without_an_end_it_is_a_part_and_beyond_the_end_nothing(server: Server, document: str) -> None:
    assert part(server, document)["text"] == TEXT
    assert part(server, document, start_byte=len(DATA))["text"] == ""
    long = str(server.upload("0123456789" * 5_000)["id"])
    assert part(server, long, start_byte=5) | {"text": ""} == {
        "document": long, "object": "document.text", "start_byte": 5, "end_byte": 5 + 16_384, "bytes": 50_000, "text": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"start_byte": -1}, "start_byte"),
        ({"start_byte": len(DATA) + 1}, "start_byte"),
        ({"start_byte": 8, "end_byte": 7}, "end_byte"),
        ({"end_byte": 65_537}, "end_byte"),
        ({"start_byte": "x"}, "start_byte"),
    ],
)
def test_invalid_requests_name_the_field(server: Server, document: str, query: dict[str, Any], param: str) -> None:
    answer = server.http.get(f"/v1/documents/{document}/text", params=query)
    server.error(answer, 422, "invalid_value", param)


@pytest.mark.parametrize("name", ["doc_" + "0" * 32, "ses_" + "0" * 32, "..%2f..%2fetc%2fpasswd", "x"])
def test_no_text_of_an_unknown_document(server: Server, name: str) -> None:
    answer = server.http.get(f"/v1/documents/{name}/text")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] in ("document_not_found", "path_not_found")
