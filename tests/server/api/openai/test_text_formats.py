"""Answers that are JSON, through OpenAI's SDK."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.process import Server
from tests.server.api.openai.talk import GREEDY, MODEL, answer, chat, of, respond, user


class Verdict(BaseModel):
    suspect: Literal["Alice", "Dinah"]
    guilty: bool
    years: list[Literal[1, 2, 3]]


SCHEMA = Verdict.model_json_schema() | {"additionalProperties": False}
SCHEMA["properties"]["years"] |= {"minItems": 1, "maxItems": 2}


def test_a_schema(client: OpenAI) -> None:
    """The answer ends with the JSON, also with `ignore_eos`."""
    format = {"type": "json_schema", "json_schema": {"name": "verdict", "strict": True, "schema": SCHEMA}}
    completion = chat(client, user("Who?"), max_tokens=200, response_format=format)
    assert completion.choices[0].finish_reason == "stop"
    verdict = Verdict.model_validate_json(completion.choices[0].message.content)
    response = respond(
        client, "Who?", max_output_tokens=200, text={"format": {**format["json_schema"], "type": "json_schema"}}
    )
    assert response.status == "completed"
    assert Verdict.model_validate_json(response.output_text) == verdict
    assert response.text.format.schema_ == SCHEMA
    assert client.responses.retrieve(response.id) == response
    # It is a part of the dialogue like any other.
    on = chat(client, user("Who?"), answer(response.output_text), user("Sure?"), max_tokens=200, response_format=format)
    assert Verdict.model_validate_json(on.choices[0].message.content)


def test_a_json_object(client: OpenAI) -> None:
    warm: dict[str, Any] = {"temperature": 1.5, "top_p": 1, "seed": 3, "n": 4, "max_tokens": 400, "stream": True}
    texts, reasons = [""] * 4, [""] * 4
    for chunk in chat(client, user("Go."), response_format={"type": "json_object"}, **warm):
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    for text, reason in zip(texts, reasons, strict=True):
        assert text.startswith("{")
        assert reason == "length" or isinstance(json.loads(text), dict)
    cut = respond(client, "Go.", text={"format": {"type": "json_object"}}, max_output_tokens=3)
    assert (cut.status, cut.output_text[0]) == ("incomplete", "{")


def test_the_sdks_own_parsing(client: OpenAI) -> None:
    how = {**GREEDY, "max_tokens": 200, "extra_body": {}}
    parsed = client.chat.completions.parse(model=MODEL, messages=[user("Who?")], response_format=Verdict, **how)
    assert isinstance(parsed.choices[0].message.parsed, Verdict)
    response = client.responses.parse(
        model=MODEL, input="Who?", text_format=Verdict, temperature=0, max_output_tokens=300
    )
    assert isinstance(response.output_parsed, Verdict)


def test_formats_do_not_affect_other_answers_of_the_batch(client: OpenAI, server: Server) -> None:
    """A background answer without a format is the same as alone."""
    alone = respond(client, "Talk.", max_output_tokens=200).output_text
    beside = respond(client, "Talk.", max_output_tokens=200, background=True)
    while client.responses.retrieve(beside.id).status in ("queued", "in_progress"):
        respond(client, "Who?", max_output_tokens=50, text={"format": {"type": "json_object"}})
    assert client.responses.retrieve(beside.id).output_text == alone


def test_a_native_message(server: Server) -> None:
    session = server.session()["id"]
    message = server.say(session, "Who?", temperature=0, max_tokens=200, ignore_eos=True, json_schema=SCHEMA)
    assert Verdict.model_validate_json(message["content"])
    body = {"content": "Who?", "json_schema": {"type": "objekt"}}
    server.error(server.http.post(f"/v1/sessions/{session}/messages", json=body), 422, "invalid_value", "json_schema")


@pytest.mark.parametrize(
    ("schema", "path", "words"),
    [
        ({"type": "objekt"}, ".schema", "objekt"),
        ({"$ref": "http://127.0.0.1:1/x"}, ".schema", "fetch"),
        ("{}", ".schema", "must be a JSON object"),
    ],
)
def test_schemas_that_are_not_supported(client: OpenAI, schema: Any, path: str, words: str) -> None:
    inner = {"name": "x", "schema": schema}
    for ask, name in (
        (
            lambda: chat(client, user("Hi."), response_format={"type": "json_schema", "json_schema": inner}),
            "response_format.json_schema",
        ),
        (lambda: respond(client, "Hi.", text={"format": {"type": "json_schema", **inner}}), "text.format"),
    ):
        with pytest.raises(openai.UnprocessableEntityError) as error:
            ask()
        assert of(error) == ("invalid_value", name + path), error.value.message
        assert words in error.value.message


NESTED = "[" * 300 + "]" * 300


@pytest.mark.parametrize(
    ("more", "code"),
    [
        (r'"\ud800": "a"', "invalid_json"),
        ('"default": NaN', "invalid_json"),
        (f'"x": {NESTED}', "invalid_json"),
        ('"title": 1e999', "invalid_value"),
    ],
)
@pytest.mark.parametrize("how", ["", '"background": true,', '"stream": true,'])
def test_schemas_that_json_cannot_represent(server: Server, more: str, code: str, how: str) -> None:
    schema = f'{{"type": "null", {more}}}'
    for path, field, body in (
        ("responses", "text.format.schema", f'"text": {{"format": {{"type": "json_schema", "name": "a", "schema": {schema}}}}}'),
        ("responses", "json_schema", f'"json_schema": {schema}'),
    ):  # fmt: skip
        answer = server.http.post(
            f"/v1/{path}", content=f'{{"max_output_tokens": 2, "input": "x", {how} {body}}}',
            headers={"content-type": "application/json"},
        )  # fmt: skip
        server.error(answer, 422, code, field if code == "invalid_value" else None)


@pytest.mark.parametrize(
    ("format", "code", "path"),
    [
        ({"type": "grammar"}, "invalid_value", ""),
        ({"type": ["text"]}, "invalid_value", ""),
        ({}, "invalid_value", ""),
        ("json", "invalid_value", ""),
        ({"type": "json_object", "schema": {}}, "unknown_parameter", ".schema"),
        ({"type": "json_schema", "sparkle": 1}, None, None),
    ],
)
def test_invalid_formats(client: OpenAI, format: Any, code: str | None, path: str | None) -> None:
    for ask, name in (
        (lambda: chat(client, user("Hi."), response_format=format), "response_format"),
        (lambda: respond(client, "Hi.", text={"format": format}), "text.format"),
    ):
        with pytest.raises(openai.UnprocessableEntityError) as error:
            ask()
        if code is not None:
            assert of(error) == (code, name + (path or "")), error.value.message
