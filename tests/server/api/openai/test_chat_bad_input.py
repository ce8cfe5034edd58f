"""Invalid chats are refused with the name of the field, as exceptions of OpenAI's SDK."""

from __future__ import annotations

import openai
import pytest
from openai import OpenAI

from tests.server.api.openai.talk import MODEL, answer, chat, of, user


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "missing_parameter", "messages"),
        ({"messages": "hi"}, "invalid_value", "messages"),
        ({"messages": [1]}, "invalid_value", "messages.0"),
        ({"messages": [{}]}, "missing_parameter", "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "missing_parameter", "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "tools_not_supported", "messages.0"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [user("x"), answer("y")]}, "invalid_value", "messages.1.role"),
        ({"messages": [{"role": "system", "content": ""}]}, "invalid_value", "messages.0.content"),
        ({"messages": [user("")]}, "invalid_value", "messages.0.content"),
        ({"messages": [user(" \n")]}, "invalid_value", "messages.0.content"),
        ({"messages": [user(7)]}, "invalid_value", "messages.0.content"),  # type: ignore[arg-type]
        ({"messages": [{"role": "user", "content": [1]}]}, "invalid_value", "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "invalid_value", "messages.0.content.0"),
        ({"messages": [{"role": "user", "content": [{"type": ["text"]}]}]}, "invalid_value", "messages.0.content.0"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_parameter",
            "messages.0.content.0.text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": "x", "file_id": "y"}}]}]},
            "invalid_value",
            "messages.0.content.0.file",
        ),
        (
            {"messages": [user("x"), {"role": "assistant", "content": user("", "doc_x")["content"]}, user("y")]},
            "invalid_value",
            "messages.1.content.0",
        ),
        ({"messages": [{**user("x"), "nick": "Bob"}]}, "unknown_parameter", "messages.0.nick"),
        ({"messages": [user("x")] * 2049}, "invalid_value", "messages"),
        ({"model": None}, "missing_parameter", "model"),
        ({"model": 7}, "invalid_value", "model"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 10**9}, "invalid_value", "n"),
        ({"n": "two"}, "invalid_value", "n"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 10**12}, "invalid_value", "max_completion_tokens"),
        ({"seed": -(2**63) - 1}, "invalid_value", "seed"),
        ({"reasoning_effort": "huge"}, "invalid_value", "reasoning_effort"),
        ({"modalities": ["text", "audio"]}, "invalid_value", "modalities"),
        ({"stream_options": {"include_obfuscation": True}}, "invalid_value", "stream_options.include_obfuscation"),
        ({"stop": ["x"] * 17}, "invalid_value", "stop"),
        ({"logit_bias": {"100000": 1}}, "invalid_value", "logit_bias"),
        ({"response_format": {"type": "grammar"}}, "invalid_value", "response_format"),
        ({"tools": {}}, "invalid_value", "tools"),
        ({"stream": "maybe"}, "invalid_value", "stream"),
        ({"stream_options": {"sparkle": True}}, "unknown_parameter", "stream_options.sparkle"),
        ({"store": True}, "invalid_value", "store"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        ({"prompt_cache_key": "x" * 513}, "invalid_value", "prompt_cache_key"),
        ({"recall": {"tokens": 10**6}}, "invalid_value", "recall.tokens"),
        ({"sparkle": 1}, "unknown_parameter", "sparkle"),
    ],
)
def test_invalid_requests_name_the_field(client: OpenAI, fields: dict, code: str, param: str) -> None:
    body = {"model": MODEL, "messages": [user("hi")], **fields}
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.post("/chat/completions", body=body, cast_to=object)
    assert of(error) == (code, param), error.value.message
    assert error.value.type == "invalid_request_error"


def test_who_wants_a_stored_answer_is_told_where(client: OpenAI) -> None:
    with pytest.raises(
        openai.UnprocessableEntityError, match=r"store: chat completions are not stored: .* /v1/responses"
    ):
        client.chat.completions.create(model=MODEL, messages=[user("hi")], store=True, metadata={"a": "b"})
    with pytest.raises(openai.NotFoundError, match="no such path"):
        client.chat.completions.retrieve("chatcmpl-1")


def test_unknown_models_and_files_and_wrong_lengths(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "hi"}])
    assert of(error) == ("model_not_found", "model")
    for identifier in ("x", "doc_" + "0" * 32, "doc_*"):
        with pytest.raises(openai.NotFoundError) as error:
            chat(client, user("first"), answer("second"), user("third", identifier))
        assert of(error) == ("file_not_found", "messages.2.content.0.file.file_id")
    with pytest.raises(openai.APIStatusError) as large:
        chat(client, user("first"), answer("x" * 20_001), user("third"))
    assert large.value.status_code == 413
    assert of(large) == ("too_large", "messages.1.content")
    with pytest.raises(openai.APIStatusError) as large:  # to the model, messages of one role in a row are one
        chat(client, user("x" * 15_000), user("y" * 15_000))
    assert large.value.status_code == 413
    assert of(large) == ("too_large", "messages.1.content")
