"""`query` and `branches_of` of `GET /v1/sessions`: sessions by their words, and the branches of one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from everlong_server.store.search import conversations
from tests.process import Server


def talk(server: Server, *said: str, documents: list[str] | None = None, **fields: str) -> str:
    messages = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(said)]
    made = server.http.post("/v1/sessions", json={"messages": messages, "documents": documents or [], **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


def listed(server: Server, **query: object) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    while True:
        after = {"after": found[-1]} if found else {}
        answer = server.http.get("/v1/sessions", params={**query, **after})
        assert answer.status_code == 200, answer.text
        found += [session["id"] for session in answer.json()["data"]]
        if not answer.json()["has_more"]:
            return found


@pytest.fixture
def word() -> Iterator[str]:
    """A word that no other session has."""
    return f"w{uuid.uuid4().hex}"


def test_all_words_must_be_in_titles_messages_or_names(server: Server, word: str) -> None:
    document = server.upload("Note.", filename=f"{word}.md")["id"]
    asked = talk(server, f"Who is {word}?", "A zebra.")
    answered = talk(server, "Who?", f"Émile {word}, a zebra.")
    titled = talk(server, "Who?", "A horse.", title=f"Of {word}")
    named = talk(server, "Who?", "A zebra.", documents=[document])
    other = talk(server, "Who?", "A zebra.")
    assert listed(server, query=word) == [named, titled, answered, asked]
    assert listed(server, query=f"{word.upper()[:20]} ZEBRA") == [named, answered, asked]
    assert listed(server, query=f"emile {word}") == [answered]
    assert listed(server, query=f"zebra {word} horse") == []
    assert other in listed(server, query="zebra", limit=100)
    server.http.delete(f"/v1/sessions/{answered}")
    assert listed(server, query=word) == [named, titled, asked]


def test_results_have_pages(server: Server, word: str) -> None:
    made = [talk(server, f"{word} {n}", "Yes.") if n % 3 else talk(server, "No.", "No.") for n in range(9)]
    expected = [id for n, id in enumerate(made) if n % 3][::-1]
    for limit in (1, 2, 5, 6, 100):
        assert listed(server, query=word, limit=limit) == expected


def test_branches_are_those_of_the_same_conversation(server: Server) -> None:
    first = talk(server, "Who?", "I.")
    second = talk(server, "Who?", "I.", parent=first)
    third = talk(server, "Who?", "I.", parent=second)
    fork = server.http.post(f"/v1/sessions/{first}/fork").json()["id"]
    alone = talk(server, "Who?", "I.")
    family = [fork, third, second, first]
    for id in family:
        assert listed(server, branches_of=id, limit=2) == family
    assert listed(server, branches_of=alone) == [alone]
    server.http.delete(f"/v1/sessions/{first}")
    assert listed(server, branches_of=third) == [fork, third, second], "the first one is deleted"
    unknown = talk(server, "Who?", "I.", parent=f"ses_{uuid.uuid4().hex}")
    assert listed(server, branches_of=unknown) == [unknown]


def test_wrong_searches_are_refused(server: Server) -> None:
    session = talk(server, "Who?", "I.")
    for query, param in (({"query": " "}, "query"), ({"query": "x" * 201}, "query")):
        server.error(server.http.get("/v1/sessions", params=query), 422, "invalid_value", param)
    both = server.http.get("/v1/sessions", params={"query": "x", "branches_of": session})
    server.error(both, 422, "invalid_value", "query")
    unknown = server.http.get("/v1/sessions", params={"branches_of": f"ses_{uuid.uuid4().hex}"})
    server.error(unknown, 404, "session_not_found", "branches_of")


def test_messages_are_read_in_parts() -> None:
    parts = conversations._parts
    assert list(parts([1, 2, 3])) == [slice(0, 3)]
    assert list(parts([600, 600, 5000, 1, 999, 1])) == [slice(0, 1), slice(1, 2), slice(2, 3), slice(3, 5), slice(5, 6)]
    assert list(parts([])) == [slice(0, 0)]
