"""An answer that loops is cut, and each API says so in its own words."""

from __future__ import annotations

from typing import Any

import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import MODEL, SEGMENT, chat, respond, user

LOOP: dict[str, Any] = {"logit_bias": {"65": 100}, "temperature": 0}
LONG = 3 * SEGMENT


def test_a_session_keeps_the_text_before_the_loop(server: Server) -> None:
    session = server.session()["id"]
    looped = server.say(session, "Talk.", max_tokens=LONG, **LOOP)
    assert looped["finish_reason"] == "repetition"
    assert looped["usage"]["completion_tokens"] == 1
    assert server.get_session(session)["position"] == looped["usage"]["prompt_tokens"] + 1
    short = server.say(server.session()["id"], "Talk.", max_tokens=1, **LOOP)
    assert looped["content"] == short["content"] != ""
    whole = server.say(server.session()["id"], "Talk.", max_tokens=LONG, stop_repetition=False, **LOOP)
    assert (whole["finish_reason"], whole["content"]) == ("length", LONG * short["content"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_ends_as_one_that_was_too_long(client: OpenAI, stream: bool) -> None:
    how: dict[str, Any] = {"max_tokens": LONG, "extra_body": {}, "stream": stream, **LOOP}
    answer = chat(client, user("Talk."), **how)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer]
        choice, text = chunks[-1], "".join(chunk.delta.content or "" for chunk in chunks)
    else:
        (choice,) = answer.choices
        text = choice.message.content
    assert (choice.finish_reason, choice.stop_reason) == ("length", "repetition")
    short = chat(client, user("Talk."), **how | {"max_tokens": 1, "stream": False}).choices[0]
    assert text == short.message.content
    assert (short.finish_reason, short.stop_reason) == ("length", None)


def test_a_response_is_incomplete(client: OpenAI) -> None:
    body = {key: value for key, value in LOOP.items() if key != "temperature"}
    response = respond(client, "Talk.", max_output_tokens=LONG, extra_body=body)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "repetition")
    assert client.responses.retrieve(response.id) == response
    assert response.usage.output_tokens == 1
    assert response.model == MODEL


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_repeats_itself_unless_it_may_not(client: OpenAI, stream: bool) -> None:
    """Evaluators compare a text with what the model alone generates."""
    how: dict[str, Any] = {"model": MODEL, "prompt": "Talk.", "stream": stream, **LOOP}

    def complete(**more: Any) -> tuple[str, str, str | None]:
        answer = client.completions.create(**how, **more)
        choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
        return "".join(choice.text for choice in choices), choices[-1].finish_reason, choices[-1].stop_reason

    short, _, _ = complete(max_tokens=1)
    assert complete(max_tokens=LONG) == (LONG * short, "length", None)
    assert complete(max_tokens=LONG, extra_body={"stop_repetition": True}) == (short, "length", "repetition")
