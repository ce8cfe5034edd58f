"""A session's title: its first question, unless it is given one."""

from __future__ import annotations

import pytest

from everlong_server.store.records import title_of
from tests.process import Server


def titled(server: Server, session: str, title: object) -> dict:
    answer = server.http.patch(f"/v1/sessions/{session}", json={"title": title})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_first_question_is_the_title_wherever_a_session_is_shown(server: Server) -> None:
    session = server.session()["id"]
    assert server.get_session(session)["title"] is None
    for question in ("  Who is\n\nAlice? ", "And the Queen?"):
        server.say(session, question, max_tokens=2)
    assert server.get_session(session)["title"] == "Who is Alice?"
    assert server.http.get("/v1/sessions").json()["data"][0]["title"] == "Who is Alice?"
    assert server.http.post(f"/v1/sessions/{session}/fork").json()["title"] == "Who is Alice?"


def test_a_title_that_was_given_stays(server: Server) -> None:
    session = server.session()["id"]
    assert titled(server, session, "Reading group, 鯨")["title"] == "Reading group, 鯨"
    server.say(session, "Who is Alice?", max_tokens=2)
    before = server.get_session(session)
    assert before["title"] == "Reading group, 鯨"
    assert titled(server, session, None) == before | {"title": None}, "something else has changed"
    server.say(session, "And the Queen?", max_tokens=2)
    assert server.get_session(session)["title"] == "And the Queen?"


def test_it_can_be_given_while_the_session_answers(server: Server) -> None:
    session = server.session()["id"]
    with server.http.stream(
        "POST", f"/v1/sessions/{session}/messages",
        json={"content": "Tell me.", "stream": True, "max_tokens": 200, "ignore_eos": True},
    ) as answer:  # fmt: skip
        lines = answer.iter_lines()
        next(lines)
        assert server.http.patch(f"/v1/sessions/{session}", json={"title": "Mine"}).status_code == 200
        assert any("response.completed" in line for line in lines)
    assert server.get_session(session)["title"] == "Mine"
    assert server.get_session(session)["messages"] == 2


@pytest.mark.parametrize(
    ("body", "param"),
    [({"title": ""}, "title"), ({"title": " \n"}, "title"), ({"title": "x" * 201}, "title"),
     ({"title": 1}, "title"), ({"title": "x", "documents": []}, "documents")],
    ids=["empty", "blank", "long", "number", "unknown"],
)  # fmt: skip
def test_what_is_no_title_is_refused_by_name(server: Server, body: dict, param: str) -> None:
    session = server.session()["id"]
    answer = server.http.patch(f"/v1/sessions/{session}", json=body)
    assert answer.status_code == 422
    assert answer.json()["error"]["param"] == param
    assert server.get_session(session)["title"] is None


def test_what_is_not_there_has_no_title(server: Server) -> None:
    answer = server.http.patch("/v1/sessions/ses_0123456789abcdef0123456789abcdef", json={"title": "x"})
    server.error(answer, 404, "session_not_found", "session_id")


@pytest.mark.parametrize(
    ("question", "title"),
    [("word " * 40, "word " * 15 + "word…"), ("鯨" * 200, "鯨" * 79 + "…"), ("x" * 80, "x" * 80), ("a " + "x" * 100, "a " + "x" * 77 + "…")],
    ids=["words", "no spaces", "exactly", "a long word"],
)  # fmt: skip
def test_a_title_is_a_line(question: str, title: str) -> None:
    assert title_of(question) == title
    assert len(title) <= 80
