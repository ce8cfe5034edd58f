"""Killed with -9 in the middle of everything; then ended politely. One server for all: each story is told up to the kill,
and from the restart on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.process import Server, wait_for
from tests.server.api.openai.talk import begin_upload, chat, of, over, respond, sdk, user


def a_known_dialogue(client: OpenAI, server: Server) -> Iterator[None]:
    said = [user("Tell me of it. " * 40)]
    said.append(chat(client, *said).choices[0].message)
    known = chat(client, *said, user("And?"))
    yield
    again = chat(client, *said, user("And?"))
    assert again.choices[0].message.content == known.choices[0].message.content
    assert again.usage == known.usage
    assert again.usage.prompt_tokens_details.cached_tokens > 0


def a_chain_of_responses(client: OpenAI, server: Server) -> Iterator[None]:
    root = respond(client, "Tell me of this. " * 40)
    on = respond(client, "And?", previous_response_id=root.id)
    yield
    assert client.responses.retrieve(root.id) == root
    for key in server.redis.scan_iter("{everlong}:chat:*"):  # it needs none of these
        server.redis.delete(key)
    again = respond(client, "And?", previous_response_id=root.id)
    assert (again.output_text, again.usage) == (on.output_text, on.usage)
    assert again.usage.input_tokens_details.cached_tokens > 0


def uploads_that_are_not_complete(client: OpenAI, server: Server) -> Iterator[None]:
    text = "Ω Once upon a time. ".encode() * 100
    upload, late = begin_upload(client, len(text)), begin_upload(client, len(text))
    first, _ = (client.uploads.parts.create(each.id, data=text[:1001]).id for each in (upload, late))
    server.redis.hset(f"{{everlong}}:upload:{late.id}", "expires_at", 1)
    server.redis.zadd("{everlong}:uploads", {late.id: 1})
    with pytest.raises(openai.NotFoundError) as error:
        client.uploads.parts.create(late.id, data=b"x")
    assert of(error) == ("upload_not_found", "upload_id")
    yield
    second = client.uploads.parts.create(upload.id, data=text[1001:]).id
    done = client.uploads.complete(upload.id, part_ids=[first, second])
    assert client.files.content(done.file.id).content == text
    assert not [path for path in (server.data / "documents").iterdir() if "upload" in path.name]
    assert not server.redis.exists(f"{{everlong}}:upload:{late.id}", f"{{everlong}}:upload:{late.id}:parts")


def background_responses(client: OpenAI, server: Server) -> Iterator[None]:
    expected = respond(client, "Talk.", max_output_tokens=1500).output_text
    first = respond(client, "Talk.", max_output_tokens=1500, background=True)
    wait_for(lambda: client.responses.retrieve(first.id).status == "in_progress", 30, "for the answer to begin")
    poison, orphan, last = (respond(client, "Hi.", background=True) for _ in range(3))
    assert client.responses.retrieve(last.id).status == "queued"
    server.redis.hset(f"{{everlong}}:response:{poison.id}", "attempts", 9)
    facts = json.loads(server.redis.hget(f"{{everlong}}:response:{orphan.id}", "response") or "")
    server.redis.hset(f"{{everlong}}:response:{orphan.id}", "response", json.dumps(facts | {"model": "another"}))
    failed = client.responses.retrieve(orphan.id)
    assert (failed.status, failed.error.code) == ("failed", "model_not_found")
    assert client.responses.retrieve(first.id).status == "in_progress"
    yield
    assert over(client, first.id).output_text == expected
    failed = over(client, poison.id)
    assert (failed.status, failed.error.code) == ("failed", "too_many_attempts")
    assert over(client, last.id).status == "incomplete"
    assert server.redis.xlen(next(iter(server.redis.scan_iter("{everlong}:responses:*")))) == 0


@pytest.mark.long
def test_everything_resumes_after_a_kill(new_server: Any) -> None:
    server = new_server(recall_passages=0, max_streams=1, drain_seconds=0.2).start()
    with sdk(server) as client:
        # The background is last, as it takes the only place for answers with it to the end.
        tell = (a_known_dialogue, a_chain_of_responses, uploads_that_are_not_complete, background_responses)
        stories = [story(client, server) for story in tell]
        for story in stories:
            next(story)
        server.kill9()
        server.start()
        for story in (stories[-1], *stories[:-1]):
            next(story, None)
        server.check_keys()
        # Streams that a server ends say why.
        events = iter(respond(client, "Talk.", max_output_tokens=1_000_000, stream=True))
        next(event for event in events if event.type == "response.output_text.delta")
        chunks = iter(chat(client, user("Talk."), max_tokens=1_000_000, stream=True))
        assert server.process is not None
        server.process.terminate()
        last = list(events)[-1]
        assert (last.type, last.response.status) == ("response.failed", "failed")
        assert last.response.error.code == "draining"
        with pytest.raises(openai.APIError) as error:
            list(chunks)
        assert error.value.code == "draining"
        server.process.wait(60)
        server.process = None
