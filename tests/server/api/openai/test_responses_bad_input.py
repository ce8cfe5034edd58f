"""Invalid responses are refused with the name of the field, as exceptions of OpenAI's SDK."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import MODEL, answer, of, respond, user


def items(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "x", **fields}]}


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"input": None}, "missing_parameter", "input"),
        ({"input": ""}, "invalid_value", "input"),
        ({"input": " \n"}, "invalid_value", "input"),
        ({"input": 7}, "invalid_value", "input"),
        ({"input": {}}, "invalid_value", "input"),
        ({"input": []}, "invalid_value", "input"),
        ({"input": [1]}, "invalid_value", "input.0"),
        ({"input": [user("x")] * 2049}, "invalid_value", "input"),
        (items(role="tool"), "invalid_value", "input.0.role"),
        (items(role=None), "missing_parameter", "input.0.role"),
        (items(role="assistant"), "invalid_value", "input.0.role"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "invalid_value", "input"),
        ({"input": [user("x"), answer("y")]}, "invalid_value", "input.1.role"),
        (items(content=""), "invalid_value", "input.0.content"),
        (items(content=7), "invalid_value", "input.0.content"),
        (items(content=[1]), "invalid_value", "input.0.content.0"),
        (items(content=[{"type": "input_image", "image_url": "x"}]), "invalid_value", "input.0.content.0"),
        (items(content=[{"type": ["input_text"]}]), "invalid_value", "input.0.content.0"),
        (items(content=[{"type": "input_text"}]), "missing_parameter", "input.0.content.0.text"),
        (items(content=[{"type": "input_file", "file_data": "x"}]), "invalid_value", "input.0.content.0.file_data"),
        (
            items(content=[{"type": "input_file", "file_id": "doc_x", "file_url": "http://x"}]),
            "invalid_value",
            "input.0.content.0",
        ),
        (
            {
                "input": [
                    user("x"),
                    answer("y") | {"content": [{"type": "input_file", "file_id": "doc_x"}]},
                    user("z"),
                ]
            },
            "invalid_value",
            "input.1.content.0",
        ),
        (items(type="function_call_output"), "missing_parameter", "input.0.call_id"),
        ({"input": [{"type": "item_reference"}]}, "missing_parameter", "input.0.id"),
        (items(type="image_generation_call"), "invalid_value", "input.0"),
        (items(sparkle=1), "unknown_parameter", "input.0.sparkle"),
        ({"model": 7}, "invalid_value", "model"),
        ({"instructions": 7}, "invalid_value", "instructions"),
        ({"previous_response_id": 7}, "invalid_value", "previous_response_id"),
        ({"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
        ({"max_output_tokens": 10**12}, "invalid_value", "max_output_tokens"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"temperature": "hot"}, "invalid_value", "temperature"),
        ({"top_p": -0.1}, "invalid_value", "top_p"),
        ({"top_logprobs": 21}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {"100000": 1}}, "invalid_value", "logit_bias"),
        ({"include": ["everything"]}, "invalid_value", "include.0"),
        ({"reasoning": {"effort": "huge"}}, "invalid_value", "reasoning.effort"),
        ({"max_tool_calls": 0}, "invalid_value", "max_tool_calls"),
        ({"service_tier": "best"}, "invalid_value", "service_tier"),
        ({"metadata": {"a": 1}}, "invalid_value", "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "invalid_value", "metadata.a"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "invalid_value", "metadata"),
        ({"store": "maybe"}, "invalid_value", "store"),
        ({"stream": "maybe"}, "invalid_value", "stream"),
        ({"stream_options": {"include_obfuscation": True}}, "invalid_value", "stream_options.include_obfuscation"),
        ({"background": True, "stream": True}, "invalid_value", "stream"),
        ({"background": True, "store": False}, "invalid_value", "store"),
        ({"text": {"format": {"type": "grammar"}}}, "invalid_value", "text.format"),
        ({"text": {"verbosity": "huge"}}, "invalid_value", "text.verbosity"),
        ({"truncation": "sometimes"}, "invalid_value", "truncation"),
        ({"recall": {"tokens": 10**6}}, "invalid_value", "recall.tokens"),
        *(({name: value}, "unknown_parameter", name) for name, value in {
            "conversation": "conv_1", "prompt": {"id": "x"}, "sparkle": 1,
        }.items()),
    ],
)  # fmt: skip
def test_invalid_requests_name_the_field(client: OpenAI, fields: dict, code: str, param: str) -> None:
    body = {"model": MODEL, "input": "hi", **fields}
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.post("/responses", body=body, cast_to=object)
    assert of(error) == (code, param), error.value.message
    assert error.value.type == "invalid_request_error"


def test_unknown_objects(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as error:
        respond(client, "hi", model="gpt-5")
    assert of(error) == ("model_not_found", "model")
    for identifier in ("x", "doc_" + "0" * 32, "doc_*"):
        parts = [{"type": "input_file", "file_id": identifier}, {"type": "input_text", "text": "who?"}]
        with pytest.raises(openai.NotFoundError) as error:
            respond(client, [{"role": "user", "content": parts}])
        assert of(error) == ("file_not_found", "input.0.content.0.file_id")
    for identifier in ("x", "resp_" + "0" * 32, "resp_*", "doc_" + "0" * 32):
        with pytest.raises(openai.NotFoundError) as error:
            respond(client, "hi", previous_response_id=identifier)
        assert of(error) == ("previous_response_not_found", "previous_response_id")


@pytest.mark.parametrize("identifier", ["x", "resp_" + "0" * 32, "resp_*", "..%2f..%2fetc", "%00", "a" * 5000, "ß"])
def test_invalid_ids(server: Server, identifier: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = server.http.request(method, f"/v1/responses/{identifier}{path}")
        assert answer.status_code == 404, (method, path, answer.text)
        assert answer.json()["error"]["code"].endswith("_not_found")


def test_requests_that_are_too_large(client: OpenAI, server: Server) -> None:
    for fields, param in (
        ({"input": "x" * 20_001}, "input.0.content"),
        ({"input": "x", "instructions": "x" * 20_001}, "instructions"),
    ):
        with pytest.raises(openai.APIStatusError) as error:
            client.responses.create(model=MODEL, **fields)
        assert error.value.status_code == 413
        assert of(error) == ("too_large", param)
    answer = server.http.post("/v1/responses", json={"input": "x" * (1 << 20)})
    server.error(answer, 413, "too_large")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{" * 100_000, b'{"input": "\\ud800"}', b'{"input": "a"']
)
def test_invalid_bodies(server: Server, body: bytes) -> None:
    answer = server.http.post("/v1/responses", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["code"]


def test_a_stored_response_cannot_be_streamed(client: OpenAI) -> None:
    response = respond(client, "Hi.")
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.responses.retrieve(response.id, stream=True)
    assert of(error) == ("invalid_value", "stream")
