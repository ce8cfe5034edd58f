"""`background` responses: queued, answered, polled, cancelled; never stuck, even if a server dies."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI

from tests.process import Server, wait_for
from tests.server.api.openai.talk import of, over, respond, sdk
from tests.tinymodel import STORY


def idle(server: Server) -> None:
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 30, "for the answer to stop")


def test_a_background_response_equals_a_foreground_one(client: OpenAI) -> None:
    response = respond(client, "Tell me of it. " * 40, background=True)
    assert (response.status, response.background, response.output, response.usage) == ("queued", True, [], None)
    done = over(client, response.id)
    waited = respond(client, "Tell me of it. " * 40)
    assert (done.status, done.output_text, done.usage) == ("incomplete", waited.output_text, waited.usage)
    assert done.completed_at >= done.created_at
    on = over(client, respond(client, "And?", background=True, previous_response_id=response.id).id)
    assert on.output_text == respond(client, "And?", previous_response_id=waited.id).output_text
    assert client.responses.cancel(on.id) == on, "one that is over stays as it is"


def test_cancel_and_delete(client: OpenAI, server: Server) -> None:
    long: dict[str, Any] = {"background": True, "max_output_tokens": 1_000_000}
    response = respond(client, "Talk.", **long)
    wait_for(lambda: client.responses.retrieve(response.id).status == "in_progress", 30, "for the answer to begin")
    with pytest.raises(openai.ConflictError) as error:
        respond(client, "And?", previous_response_id=response.id)
    assert of(error) == ("response_not_complete", "previous_response_id")
    assert client.responses.cancel(response.id).status == "cancelled"
    idle(server)
    assert client.responses.retrieve(response.id).status == "cancelled"
    response = respond(client, "Talk.", **long)
    wait_for(lambda: client.responses.retrieve(response.id).status == "in_progress", 30, "for the answer to begin")
    client.responses.delete(response.id)
    idle(server)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.ConflictError) as error:
        client.responses.cancel(respond(client, "Hi.").id)
    assert of(error) == ("not_in_background", "response_id")


@pytest.mark.long
def test_it_waits_for_its_documents_and_fails_without(client: OpenAI, server: Server) -> None:
    file = client.files.create(file=("long.txt", STORY.read_bytes()), purpose="user_data").id
    parts = [{"type": "input_file", "file_id": file}, {"type": "input_text", "text": "Who?"}]
    response = respond(client, [{"role": "user", "content": parts}], background=True)
    assert over(client, response.id).usage.input_tokens > server.document(file)["tokens"]
    lost = client.files.create(file=("long.txt", STORY.read_bytes() * 5), purpose="user_data").id
    parts[0]["file_id"] = lost
    response = respond(client, [{"role": "user", "content": parts}], background=True)
    client.files.delete(lost)
    failed = over(client, response.id)
    # Not there any more when it is looked for, or gone between that and its reading.
    assert failed.status == "failed"
    assert failed.error.code in ("document_not_found", "document_failed")
    client.files.delete(file)


@pytest.mark.long
def test_a_background_response_waits_for_its_tenants_quota(new_server: Any) -> None:
    server = new_server(recall_passages=0, max_streams=2, tenant_streams=1).start()
    with sdk(server) as client:
        long = respond(client, "Talk.", background=True, max_output_tokens=1_000_000)
        wait_for(lambda: client.responses.retrieve(long.id).status == "in_progress", 30, "for the answer to begin")
        short = [respond(client, "Hi.", background=True).id for _ in range(3)]
        with pytest.raises(openai.RateLimitError):
            respond(client, "Hi.")
        assert all(client.responses.retrieve(each).status == "queued" for each in short)
        client.responses.cancel(long.id)
        assert {over(client, each).status for each in short} == {"incomplete"}
    server.check_keys()
