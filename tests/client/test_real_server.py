"""What the clients send and read, with a real server."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from tests.process import Server

LONG = {"temperature": 0, "ignore_eos": True, "stop_repetition": False}


@pytest.fixture
def real(make: Callable[..., Any], shared_server: Server) -> Any:
    return make(shared_server.url, timeout=120)


@pytest.mark.parametrize("size", [100, 9 << 20], ids=["whole", "in parts"])
def test_the_same_file_is_one_document_with_reuse(real: Any, size: int) -> None:
    text = f"{uuid.uuid4()} ".encode() * (size // 37)
    made = real.documents.upload(text, "a.txt")
    assert real.documents.upload(text, "b.txt").id != made.id
    assert real.documents.upload(text, "b.txt", reuse=True).id == made.id


def test_sessions_are_found_by_their_words_and_by_their_branches(real: Any) -> None:
    word = f"w{uuid.uuid4().hex}"
    past = [{"role": "user", "content": f"What is {word}?"}, {"role": "assistant", "content": "A word."}]
    made = real.sessions.create(messages=past)
    branch = real.sessions.create(messages=past[:2], title="Branch", parent=made.id)
    assert (branch.title, branch.parent) == ("Branch", made.id)
    assert {session.id for session in real.sessions.list(query=word)} == {made.id, branch.id}
    assert {session.id for session in real.sessions.list(branches_of=made.id, limit=10)} == {made.id, branch.id}
    assert [(message.role, message.content) for message in real.sessions.messages(made.id)] == [
        ("user", f"What is {word}?"),
        ("assistant", "A word."),
    ]


def test_an_answer_is_continued(real: Any) -> None:
    session = real.sessions.create().id
    first = real.sessions.send(session, "Who?", max_tokens=5, **LONG)
    assert first.finish_reason == "length"
    joined = real.sessions.send(session, "-", continue_answer=True, max_tokens=5, **LONG)
    assert joined.content.startswith(first.content)
    assert joined.usage.completion_tokens == 10
    _, answer = real.sessions.messages(session)
    assert (answer.id, answer.content) == (joined.id, joined.content)
