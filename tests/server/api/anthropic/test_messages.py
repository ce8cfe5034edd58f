"""`/v1/messages`, with Anthropic's unmodified SDK."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.pages import Block, run_by
from tests.process import Server
from tests.server.api.anthropic.conftest import sdk
from tests.server.tenants import MODEL, new_key
from tests.tinymodel import STORY

GREEDY: dict[str, Any] = {"max_tokens": 12, "extra_body": {"temperature": 0}}
"""Recent versions of the SDK have no arguments for the temperature, `top_k` and `top_p`."""
TEXT = STORY.read_text()[:4_000]


def ask(client: Anthropic, *messages: Any, **more: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "messages": list(messages), **GREEDY, **more})


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content[0] if len(content) == 1 else list(content)}


def answer(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def words(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def document(text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}, **more}


def test_an_answer(client: Anthropic) -> None:
    said = ask(
        client,
        user("Who is Alice?"),
        system="Be brief.",
        metadata={"user_id": "me"},
        extra_body={"temperature": 0, "top_k": 5, "top_p": 0.5},
    )
    assert (said.type, said.role, said.model) == ("message", "assistant", MODEL)
    assert said.id.startswith("msg_")
    assert [block.type for block in said.content] == ["text"]
    assert said.content[0].text
    assert "citations" not in said.content[0].model_fields_set, "left out, as in Anthropic's own answers"
    assert said.stop_reason in ("end_turn", "max_tokens")
    usage = said.usage
    assert 0 < usage.output_tokens <= 12
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (0, 0)
    assert usage.input_tokens > len(["Who", "is", "Alice?"])


def test_the_same_answer_as_a_chat(client: Anthropic, server: Server) -> None:
    messages = [user("Who is Alice?"), answer("A girl."), user("And the kitten?")]
    said = ask(client, *messages, system="Be brief.")
    system = {"role": "system", "content": "Be brief."}
    chat = {"model": MODEL, "messages": [system, *messages], "max_tokens": 12, "temperature": 0}
    other = server.http.post("/v1/chat/completions", json=chat).json()
    assert said.content[0].text == other["choices"][0]["message"]["content"]
    total = said.usage.input_tokens + said.usage.cache_read_input_tokens
    assert (total, said.usage.output_tokens) == (other["usage"]["prompt_tokens"], other["usage"]["completion_tokens"])


def test_events_in_their_order(client: Anthropic) -> None:
    whole = ask(client, user("Who is Alice?"))
    kinds, texts = [], []
    for event in client.messages.create(model=MODEL, messages=[user("Who is Alice?")], stream=True, **GREEDY):
        kinds.append(event.type)
        if event.type == "message_start":
            assert event.message.content == []
            assert event.message.stop_reason is None
            assert event.message.usage.input_tokens == whole.usage.input_tokens
            assert event.message.usage.output_tokens == 0
        if event.type == "content_block_delta":
            texts.append(event.delta.text)
        if event.type == "message_delta":
            assert (event.delta.stop_reason, event.usage.output_tokens) == (
                whole.stop_reason,
                whole.usage.output_tokens,
            )
    assert "".join(texts) == whole.content[0].text
    middle = [kind for kind in kinds if kind != "content_block_delta"]
    # The SDK's iterator leaves out `ping`.
    assert middle == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]


def test_a_stream_is_accumulated_by_the_sdk(client: Anthropic) -> None:
    with client.messages.stream(model=MODEL, messages=[user("Who is Alice?")], **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    whole = ask(client, user("Who is Alice?"))
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_the_names_of_the_events(server: Server) -> None:
    body = {"model": MODEL, "messages": [user("Hi")], "stream": True, "max_tokens": 12}
    lines = server.http.post("/v1/messages", json=body).text.splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    types = [json.loads(line.removeprefix("data: "))["type"] for line in lines if line.startswith("data: ")]
    assert names == types
    assert types[:3] == ["message_start", "content_block_start", "ping"]


def test_a_stop_sequence(client: Anthropic) -> None:
    whole = ask(client, user("Who is Alice?")).content[0].text
    stop = whole[len(whole) // 2 :][:3]
    said = ask(client, user("Who is Alice?"), stop_sequences=["never", stop])
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in said.content) == whole[: whole.index(stop)]
    assert ask(client, user("Who is Alice?"), stop_sequences=["never"]).stop_sequence is None


def test_a_conversation_is_not_read_again(client: Anthropic, server: Server) -> None:
    first = [user(document(title="alice.md"), words("What did Alice say?"))]
    one = ask(client, *first)
    assert one.usage.cache_read_input_tokens > 500, "the document was read for itself, before the question"
    two = ask(client, *first, answer(one.content), user("And then?"))
    assert two.usage.cache_read_input_tokens > one.usage.cache_read_input_tokens
    assert two.usage.input_tokens < 300
    listed = [each for each in server.http.get("/v1/documents").json()["data"] if each["filename"] == "alice.md"]
    assert len(listed) == 1, "the document is stored once"
    server.http.delete(f"/v1/documents/{listed[0]['id']}")
    three = ask(client, *first)
    assert three.content == one.content
    (again,) = [each for each in server.http.get("/v1/documents").json()["data"] if each["filename"] == "alice.md"]
    server.http.delete(f"/v1/documents/{again['id']}")


def test_cache_control_is_accepted_everywhere(client: Anthropic) -> None:
    cached = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    system = [words("Be brief.") | cached]
    plain = ask(client, user(document(), words("Who?")), system="Be brief.")
    said = ask(
        client, user(document(**cached), words("Who?") | cached), system=system, cache_control={"type": "ephemeral"}
    )
    assert said.content == plain.content


def test_a_file_by_its_id(client: Anthropic, server: Server) -> None:
    book = server.read(TEXT)["id"]
    source = {"type": "file", "file_id": book}
    said = ask(client, user({"type": "document", "source": source}, words("Who is Alice?")))
    assert said.usage.cache_read_input_tokens > 500
    with pytest.raises(anthropic.NotFoundError, match=r"messages\.0\.content\.0\.source\.file_id: no file 'doc_none'"):
        ask(client, user({"type": "document", "source": source | {"file_id": "doc_none"}}, words("Who?")))


def test_json_that_follows_a_schema(client: Anthropic) -> None:
    schema = {"type": "object", "properties": {"name": {"const": "Alice"}}, "required": ["name"]}
    form = {"format": {"type": "json_schema", "schema": schema | {"additionalProperties": False}}}
    said = ask(client, user("Who?"), output_config=form, max_tokens=60)
    assert json.loads(said.content[0].text) == {"name": "Alice"}


def test_the_context_of_a_document_is_read_with_the_message(client: Anthropic) -> None:
    with_context = ask(client, user(document(context="A tale."), words("Who?")))
    assert with_context.content == ask(client, user(document(), words("A tale.\n\nWho?"))).content


@pytest.mark.parametrize("stream", [False, True])
def test_a_retry_gets_the_first_answer(client: Anthropic, stream: bool) -> None:
    headers = {"Idempotency-Key": uuid.uuid4().hex}
    body: dict[str, Any] = {"model": MODEL, "messages": [user("Hi")], "max_tokens": 8, "extra_body": {"temperature": 1}}
    found = []
    for _ in range(2):
        if stream:
            with client.messages.stream(**body, extra_headers=headers) as events:
                found.append(events.get_final_message())
        else:
            found.append(client.messages.create(**body, extra_headers=headers))
    one, two = found
    assert one.model_dump() == two.model_dump()
    with pytest.raises(anthropic.BadRequestError, match="Idempotency-Key was used for another request"):
        client.messages.create(**body | {"max_tokens": 9}, extra_headers=headers)


def test_tokens_are_counted_as_they_are_used(client: Anthropic) -> None:
    for messages in (
        [user("Who is Alice?")],
        [user(document(), words("What did Alice say?"))],
        [user("Hi"), answer("Hello."), user("Who?")],
    ):
        counted = client.messages.count_tokens(model=MODEL, messages=messages, system="Be brief.")
        used = ask(client, *messages, system="Be brief.").usage
        assert counted.input_tokens == used.input_tokens + used.cache_read_input_tokens


@pytest.mark.parametrize(
    "more",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": "high"}},
        {"thinking": {"type": "between_tools"}},
    ],
)
def test_programs_that_ask_for_thinking_get_an_answer_without_it(client: Anthropic, more: dict[str, Any]) -> None:
    given = {
        "model": "tiny-rmt",
        "max_tokens": 8,
        "messages": [user("Who is Alice?")],
        "extra_body": {"temperature": 0},
    }
    plain, thinking = client.messages.create(**given), client.messages.create(**given, **more)
    assert [block.type for block in thinking.content] == ["text"]
    assert thinking.content == plain.content
    counted = {"model": given["model"], "messages": given["messages"]}
    assert client.messages.count_tokens(**counted, **more) == client.messages.count_tokens(**counted)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"max_tokens": 0}, "max_tokens: .* greater than or equal to 1, got 0"),
        ({"extra_body": {"temperature": 1.5}}, "temperature: .* less than or equal to 1"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"output_config": {"effort": "none"}}, "output_config.effort"),
        ({"extra_body": {"box": "x"}}, "box: unknown field"),
        ({"messages": [answer("Hi")]}, r"messages\.0\.role: the last message must be the user's"),
        ({"messages": [user("Hi"), answer("Hello")]}, r"messages\.1\.role: the last message must be the user's"),
        ({"messages": [user({"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}, words("?"))]},
         r"messages\.0\.content\.0: images are not supported"),
        ({"messages": [user({"type": "video"}, words("?"))]}, "type must be 'text', 'document'"),
        ({"messages": [user(" \n")]}, r"messages\.0\.content: the last message is empty"),
        ({"messages": [user(document(""), words("?"))]}, r"messages\.0\.content\.0\.source\.data"),
        ({"messages": [user(document("a\0b" * 50), words("?"))]}, r"messages\.0\.content\.0: "),
        ({"messages": [user({"type": "document", "source": {"type": "url", "url": "http://x/y.pdf"}}, words("?"))]},
         r"messages\.0\.content\.0\.source: type must be"),
        ({"messages": [user({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "?"}},
                            words("?"))]}, r"messages\.0\.content\.0\.source\.data: not valid base64"),
        ({"messages": [user(document(citations={"enabled": True}), document("Other text."), words("?"))]},
         "citations must be enabled for all documents or for none"),
        ({"messages": [user("Hi"), answer([document()]), user("?")]}, "only user messages can"),
        ({"messages": [user("x" * 20_001)]}, r"messages\.0\.content has 20001 characters"),
    ],
)  # fmt: skip
def test_what_is_invalid_is_named(client: Anthropic, change: dict[str, Any], match: str) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": [user("Hi")], "max_tokens": 4}
    with pytest.raises((anthropic.BadRequestError, anthropic.APIStatusError), match=match) as refused:
        client.messages.create(**body | change)
    assert refused.value.status_code in (400, 413)
    error = refused.value.body
    assert isinstance(error, dict)
    assert error["type"] == "error"
    assert error["error"]["type"] in ("invalid_request_error", "request_too_large")
    assert error["request_id"] == refused.value.response.headers["x-request-id"]


def test_another_model_and_another_version(client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="no model 'claude'") as refused:
        client.messages.create(model="claude", messages=[user("Hi")], max_tokens=4)
    assert refused.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(
        anthropic.BadRequestError, match="anthropic-version: '2023-01-01' is not supported; leave it out"
    ):
        ask(client, user("Hi"), extra_headers={"anthropic-version": "2023-01-01"})


@pytest.fixture(scope="module")
def locked(tiny_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Server(tiny_model, tmp_path_factory.mktemp("locked"), auth="keys", recall_passages=0) as server:
        server.start()
        yield server
        server.check_keys()


def test_keys(locked: Server) -> None:
    with sdk(locked, api_key=new_key(locked, "alice")) as client:
        assert ask(client, user(document("A secret."), words("Hi"))).content
        assert len(locked.http.get("/v1/documents", headers={"x-api-key": client.api_key}).json()["data"]) == 1
    with sdk(locked, api_key=new_key(locked, "bob")) as client:
        said = ask(client, user(document("A secret."), words("Hi")))
        assert said.content
        assert len(locked.http.get("/v1/documents", headers={"x-api-key": client.api_key}).json()["data"]) == 1
    with sdk(locked, api_key=None, auth_token=new_key(locked, "bob")) as client:
        assert ask(client, user("Hi")).content
    with sdk(locked, api_key="evl_wrong") as client, pytest.raises(anthropic.AuthenticationError) as refused:
        ask(client, user("Hi"))
    assert refused.value.body["error"]["type"] == "authentication_error"
    with sdk(locked, api_key=new_key(locked, "bob", "read")) as client, pytest.raises(anthropic.PermissionDeniedError):
        ask(client, user("Hi"))


@pytest.mark.long
@pytest.mark.parametrize("block", run_by("tests/server/api/anthropic/test_messages.py"), ids=str)
def test_the_programs_of_the_page(block: Block, server: Server) -> None:
    code = block.code.replace("http://127.0.0.1:8080", server.url).replace("smollm2-135m-reader", MODEL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    for document in server.http.get("/v1/documents").json()["data"]:
        server.http.delete(f"/v1/documents/{document['id']}")
