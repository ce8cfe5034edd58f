"""`/v1/search`, through HTTP, the Python clients and the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from everlong_client import AsyncEverlong, Everlong, NotFoundError
from everlong_client.cli.main import app
from tests.process import Server

PAID = "The physician was paid forty guineas for setting the broken arm."
FILLING = "\n\n".join(f"The {n} rabbits went to the river and looked at the water for a while." * 4 for n in range(40))
TEXT = f"\ufeff{FILLING}\n\n{PAID}\n\n{FILLING}"
OTHER = f"{FILLING}\n\nThe dentist of the town was paid nothing."


@pytest.fixture(scope="module")
def documents(shared_server: Server) -> list[str]:
    return [shared_server.upload(text, filename=name)["id"] for text, name in ((TEXT, "one.txt"), (OTHER, "two.txt"))]


def search(server: Server, **body: Any) -> list[dict[str, Any]]:
    answer = server.http.post("/v1/search", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "list"
    return answer.json()["data"]


def test_passages_come_best_first_with_exact_offsets(server: Server, documents: list[str]) -> None:
    found = search(server, query="Who was paid forty guineas?", documents=documents, limit=5)
    assert 2 <= len(found) <= 5
    best = found[0]
    assert PAID in best["text"]
    assert (best["document"], best["filename"], best["score"], best["words"]) == (documents[0], "one.txt", 1, 1)
    assert (best["page"], best["section"], best["similarity"]) == (None, None, None)
    text = TEXT.removeprefix("\ufeff")
    assert text[best["start"] : best["end"]] == best["text"]
    assert text.encode()[best["start_byte"] : best["end_byte"]].decode() == best["text"]
    assert 0 < best["start_token"] < best["end_token"]
    scores = [passage["score"] for passage in found]
    assert scores == sorted(scores, reverse=True)
    assert {passage["document"] for passage in found} == set(documents)


def test_words_alone_are_searched_for_too(server: Server, documents: list[str]) -> None:
    (best,) = search(server, query="dentist", documents=documents, limit=1)
    assert "dentist" in best["text"]
    assert search(server, query="walrus", documents=documents) == []
    assert search(server, query="…", documents=documents) == []


def test_a_session_is_searched_without_its_deleted_documents(server: Server, documents: list[str]) -> None:
    gone = server.upload(f"The carpenter was paid. {FILLING}")["id"]
    session = server.session(documents[0], gone)["id"]
    server.http.delete(f"/v1/documents/{gone}")
    found = search(server, query="paid", session=session)
    assert {passage["document"] for passage in found} == {documents[0]}


def test_filters(server: Server) -> None:
    page = b"<h1>Rabbits</h1><p>A fee is paid here.</p><h2>The Bill of the Doctor</h2><p>No fee is paid there.</p>"
    document = server.http.post("/v1/documents", params={"filename": "page.html"}, content=page).json()["id"]
    both = search(server, query="fee", documents=[document])
    assert both
    assert search(server, query="fee", documents=[document], filters={"section": "no such"}) == []
    assert search(server, query="fee", documents=[document], filters={"section": "RABBITS"}) == both
    assert search(server, query="fee", documents=[document], filters={"first_page": 1}) == []


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "documents", "either `documents` or `session`"),
        ({"documents": ["DOCUMENT"], "session": "ses_x"}, "documents", "either `documents` or `session`"),
        ({"documents": []}, "documents", "is empty"),
        ({"documents": ["DOCUMENT"] * 257}, "documents", "at most 256 items"),
        ({"documents": ["DOCUMENT"], "limit": 0}, "limit", "greater than or equal to 1"),
        ({"documents": ["DOCUMENT"], "limit": 101}, "limit", "less than or equal to 100"),
        ({"documents": ["DOCUMENT"], "query": ""}, "query", "is empty"),
        ({"documents": ["DOCUMENT"], "filters": {"pages": 1}}, "filters.pages", "unknown field"),
        ({"documents": ["DOCUMENT"], "filters": {"last_page": 0}}, "filters.last_page", "greater than"),
        (
            {"documents": ["DOCUMENT"], "filters": {"first_page": 5, "last_page": 2}},
            "filters.first_page",
            "filters.first_page must be at most filters.last_page, 2, got 5",
        ),
    ],
)
def test_what_is_refused(server: Server, documents: list[str], fields: dict[str, Any], param: str, words: str) -> None:
    body = json.loads(json.dumps({"query": "paid", **fields}).replace("DOCUMENT", documents[0]))
    answer = server.http.post("/v1/search", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (422, param)
    assert words in answer.json()["error"]["message"]


def test_what_does_not_exist(server: Server, documents: list[str]) -> None:
    post = server.http.post
    answer = post("/v1/search", json={"query": "paid", "documents": [documents[0], "doc_x"]})
    server.error(answer, 404, "document_not_found", "documents.1")
    server.error(
        post("/v1/search", json={"query": "paid", "session": "ses_x"}), 404, "session_not_found", "session"
    )  # fmt: skip
    server.error(post("/v1/search", json={"query": "x" * 200_001, "documents": documents}), 413, "too_large", "query")


@pytest.fixture
def client(server: Server) -> Iterator[Everlong]:
    with Everlong(server.url) as client:
        yield client


def test_both_python_clients(server: Server, client: Everlong, documents: list[str]) -> None:
    found = client.search("Who was paid?", documents, limit=3)
    assert [passage.text for passage in found] == [
        passage["text"] for passage in search(server, query="Who was paid?", documents=documents, limit=3)
    ]
    assert (found[0].filename, found[0].similarity) in {("one.txt", None), ("two.txt", None)}
    assert client.search("paid", documents[0]), "one id"
    assert client.search("paid", documents, filters={"first_page": 1}) == ()
    session = client.sessions.create(documents).id

    async def search_session() -> Any:
        async with AsyncEverlong(server.url) as everlong:
            return await everlong.search("Who was paid?", session=session, limit=3)

    assert asyncio.run(search_session()) == found
    with pytest.raises(NotFoundError):
        client.search("paid", ["doc_x"])


def run(server: Server, *words: str | Path) -> Result:
    return CliRunner().invoke(app, ["search", *map(str, words)], env={"EVERLONG_URL": server.url})


def test_the_command_searches_files_and_documents(server: Server, documents: list[str], tmp_path: Path) -> None:
    file = tmp_path / "bill.txt"
    file.write_text(f"The bill\n\n{PAID}\n")
    before = server.http.get("/v1/documents").json()
    result = run(server, file, documents[1], "Who was paid?", "--limit", "2")
    assert result.exit_code == 0, result.output
    first, second = result.stdout.split("\n\n")[0:3:2]
    assert first.startswith(("bill.txt, line 1 (", "two.txt ("))
    assert PAID in result.stdout
    assert second
    assert server.http.get("/v1/documents").json() == before, "the file is deleted again"
    (best,) = json.loads(run(server, file, "physician", "--json", "--limit", "1").stdout)
    assert (best["filename"], best["line"], best["score"]) == ("bill.txt", 1, 1)
    nothing = run(server, documents[1], "walrus")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert "no passage" in nothing.stderr


def test_the_command_needs_something_to_search(server: Server) -> None:
    result = run(server, "Who was paid?")
    assert result.exit_code == 1
    assert 'everlong search FILE "QUERY"' in result.stderr
