"""JSON to dataclasses: unknown fields are ignored, invalid objects are errors."""

import pytest

from everlong_client import Document, Failure, Message, Session, UnexpectedAnswerError, Usage
from everlong_client.types.record import from_json


def test_unknown_fields_are_left_out_at_every_depth():
    data = {"id": "msg_1", "content": "Yes.", "new": 1, "usage": {"prompt_tokens": 3, "new": 2}}
    assert from_json(Message, data) == Message(id="msg_1", content="Yes.", usage=Usage(prompt_tokens=3))


def test_nested_and_null():
    document = from_json(Document, {"id": "d", "status": "failed", "progress": None, "error": {"message": "no"}})
    assert document.error == Failure(message="no")
    assert document.progress is None
    assert from_json(Document, {"id": "d", "status": "ready", "error": None}).error is None


def test_lists_become_tuples():
    assert from_json(Session, {"id": "s", "status": "ready", "documents": ["a", "b"]}).documents == ("a", "b")


@pytest.mark.parametrize("data", [None, [], "text", {}, {"id": "d"}, {"id": "d", "status": "x", "error": "text"}])
def test_an_invalid_document(data: object):
    with pytest.raises(UnexpectedAnswerError, match=r"document|failure"):
        from_json(Document, data)
