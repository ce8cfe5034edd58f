"""OpenAI's API through OpenAI's own SDK, unmodified, against a real server."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_model

MODEL = "tiny-rmt"
SEGMENT = 128
"""Tokens: passages need room beside the question."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
TEXT = STORY.read_text()[:8_000]


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=SEGMENT)
    data = tmp_path_factory.mktemp("openai")
    with Server(model, data, max_message_chars=20_000, recall_tokens=100) as server:
        server.start()
        yield server


@pytest.fixture
def server(own_server: Server) -> Iterator[Server]:
    yield own_server
    own_server.check_keys()


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def of(error: pytest.ExceptionInfo[openai.APIStatusError]) -> tuple[str | None, str | None]:
    """What a program sees of it: code and field."""
    return error.value.code, error.value.param


# Models


def test_models(client: OpenAI) -> None:
    (model,) = client.models.list()
    assert model.id == "tiny-rmt"
    assert (model.object, model.owned_by) == ("model", "everlong")
    assert model.created > 1_700_000_000
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-5")
    assert of(error) == ("model_not_found", "model_id")


# Files


def test_a_file_is_a_document(client: OpenAI, server: Server, tmp_path: Path) -> None:
    path = tmp_path / "alice.txt"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    with path.open("rb") as body:
        file = client.files.create(file=body, purpose="user_data")
    assert (file.object, file.purpose, file.filename) == ("file", "user_data", "alice.txt")
    assert file.bytes == path.stat().st_size
    assert file.status in ("uploaded", "processed")
    assert client.files.wait_for_processing(file.id, poll_interval=0.05).status == "processed"
    assert server.document(file.id)["status"] == "ready"
    assert client.files.content(file.id).content == path.read_bytes()
    assert file.id in [each.id for each in client.files.list(purpose="user_data")]
    assert not list(client.files.list(purpose="assistants"))
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError) as error:
            ask(file.id)
        assert of(error) == ("file_not_found", "file_id")


def test_the_list_of_files_goes_on(client: OpenAI) -> None:
    ids = [client.files.create(file=(f"{n}.txt", b"Once."), purpose="user_data").id for n in range(3)]
    page = client.files.list(limit=2)
    assert [file.id for file in page.data] == [ids[2], ids[1]]
    assert page.has_more
    assert [file.id for file in client.files.list(limit=2)][:3] == ids[::-1]
    assert client.files.list(limit=1, after=ids[1]).data[0].id == ids[0]
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.files.list(order="asc")
    assert of(error) == ("invalid_value", "order")


def test_a_file_larger_than_a_body_may_be(client: OpenAI) -> None:
    file = client.files.create(file=("big.txt", io.BytesIO(b"So it goes. " * 200_000)), purpose="user_data")
    assert file.bytes == 2_400_000
    client.files.delete(file.id)


@pytest.mark.parametrize("purpose", ["fine-tune", "", "user_data" * 1000])
def test_other_purposes_are_refused(client: OpenAI, server: Server, purpose: str) -> None:
    before = server.http.get("/v1/documents").json()
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.files.create(file=("a.txt", b"Once."), purpose=purpose)  # type: ignore[arg-type]
    assert of(error) == ("invalid_value", "purpose")
    assert "user_data" in error.value.message
    assert server.http.get("/v1/documents").json() == before


@pytest.mark.parametrize(
    ("parts", "status", "code", "param"),
    [
        ({"file": ("a.txt", b"Once.")}, 422, "missing_parameter", "purpose"),
        ({"purpose": (None, b"user_data")}, 422, "missing_parameter", "file"),
        ({"file": ("a.txt", b""), "purpose": (None, b"user_data")}, 422, "empty_document", "file"),
        ({"file": ("a.pdf", b"%PDF-1.7"), "purpose": (None, b"user_data")}, 415, "unsupported_media_type", "file"),
        ({"file": ("a.txt", b"\xff\xfd"), "purpose": (None, b"user_data")}, 422, "invalid_utf8", "file"),
        ({"file": ("a.txt", b"Once."), "sparkle": (None, b"1")}, 422, "unknown_parameter", "sparkle"),
    ],
)
def test_forms_that_are_no_upload(server: Server, parts: dict, status: int, code: str, param: str) -> None:
    before = server.http.get("/v1/documents").json()
    server.error(server.http.post("/v1/files", files=parts), status, code, param)
    assert server.http.get("/v1/documents").json() == before


def test_the_purpose_may_come_last_but_not_twice(server: Server) -> None:
    file, purpose = ("file", ("a.txt", b"Once.")), ("purpose", (None, b"user_data"))
    assert server.http.post("/v1/files", files=[file, purpose]).status_code == 200
    answer = server.http.post("/v1/files", files=[purpose, purpose, file])
    server.error(answer, 422, "unknown_parameter", "purpose")
    answer = server.http.post("/v1/files", content=b"Once.", headers={"content-type": "text/plain"})
    server.error(answer, 415, "unsupported_media_type", "content-type")


def test_ids_that_are_none(server: Server) -> None:
    for identifier in ("x", "doc_" + "0" * 32, "doc_*", "%00", "a" * 5000, "..%2f..%2fetc"):
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            answer = server.http.request(method, f"/v1/files/{identifier}{path}")
            assert answer.status_code == 404, answer.text
            assert answer.json()["error"]["code"].endswith("_not_found")


# Chat completions


@pytest.fixture(scope="module")
def book(own_server: Server) -> str:
    return str(own_server.read(TEXT)["id"])


def user(text: str, *files: str) -> dict[str, Any]:
    if not files:
        return {"role": "user", "content": text}
    parts = [{"type": "file", "file": {"file_id": file}} for file in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(client: OpenAI, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=list(messages), **{**GREEDY, **more})


def test_a_chat_says_what_a_session_says(client: OpenAI, server: Server) -> None:
    completion = chat(client, user("Who are you, and why?"))
    (choice,) = completion.choices
    native = server.say(server.session()["id"], "Who are you, and why?", temperature=0, max_tokens=12, ignore_eos=True)
    assert completion.object == "chat.completion"
    assert completion.model == MODEL
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "length", "assistant")
    assert choice.message.content == native["content"]
    usage = completion.usage
    assert usage.prompt_tokens == native["usage"]["prompt_tokens"]
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert usage.prompt_tokens_details.cached_tokens == 0
    shorter = chat(client, user("Who are you, and why?"), max_tokens=openai.omit, max_completion_tokens=3)
    assert shorter.usage.completion_tokens == 3


def test_a_known_dialogue_is_not_read_again(client: OpenAI, server: Server) -> None:
    """Turn by turn it says what a session says, and counts what it had not to read as the session does."""
    session, said = server.session()["id"], []
    for n in range(3):
        said.append(user(f"Question {n}: " + "and then? " * 40))
        completion = chat(client, *said)
        native = server.say(session, said[-1]["content"], temperature=0, max_tokens=12, ignore_eos=True)
        message = completion.choices[0].message
        assert message.content == native["content"]
        assert completion.usage.prompt_tokens == native["usage"]["prompt_tokens"]
        assert completion.usage.prompt_tokens_details.cached_tokens == native["usage"]["reused_tokens"]
        said.append(message)  # as the SDK gave it: with its evidence
    assert completion.usage.prompt_tokens_details.cached_tokens > SEGMENT / 2
    again = chat(client, *said[:3])
    assert again.usage.prompt_tokens_details.cached_tokens > 0, "an earlier point is still there after going on from it"
    assert again.choices[0].message.content == said[3].content
    other = chat(client, *said[:2], user("Something else?"))
    assert other.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens_details.cached_tokens


def test_a_foreign_history_is_read_as_the_template_has_it(client: OpenAI, server: Server) -> None:
    """What was never said here is read now, to the token as if it had been."""
    said = [user("Alpha? " * 60), answer("Beta. " * 60), user("Gamma?")]
    fed = chat(client, *said)
    assert fed.usage.prompt_tokens_details.cached_tokens == 0
    rendered = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in said) + "<|im_start|>assistant\n"
    assert fed.usage.prompt_tokens == tokens(server, rendered)
    on = chat(client, *said, fed.choices[0].message, user("Delta?"))
    assert on.usage.prompt_tokens_details.cached_tokens > SEGMENT / 2
    system = {"role": "developer", "content": "Be brief."}
    told = chat(client, system, *said)
    assert told.usage.prompt_tokens == tokens(server, "<|im_start|>system\nBe brief.<|im_end|>\n" + rendered)


def tokens(server: Server, rendered: str) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(server.environment["EVERLONG_MODEL"]) / "backbone")
    return len(tokenizer.encode(rendered, add_special_tokens=False))


def test_messages_of_one_role_are_one(client: OpenAI) -> None:
    apart = chat(client, user("One."), user("Two."), user("Three?"))
    assert apart.usage.prompt_tokens == chat(client, user("One.\n\nTwo.\n\nThree?")).usage.prompt_tokens


def test_a_file_grounds_a_chat(client: OpenAI, server: Server, book: str) -> None:
    first = user("How did Dinah wash her children's faces?", book)
    completion = chat(client, first)
    read = server.document(book)["tokens"]
    assert completion.usage.prompt_tokens > read
    assert completion.usage.prompt_tokens_details.cached_tokens > read - SEGMENT
    message = completion.choices[0].message
    assert message.evidence, "the passages that the answer can rest on"
    for passage in message.evidence:
        assert passage["document"] == book
        assert TEXT[passage["start"] : passage["end"]] == passage["text"]
    session = server.session(book)["id"]
    native = server.say(session, first["content"][1]["text"], temperature=0, max_tokens=12, ignore_eos=True)
    assert message.content == native["content"]
    assert message.evidence == native["evidence"]
    on = chat(client, first, message, user("Why?"))
    assert on.usage.prompt_tokens_details.cached_tokens >= completion.usage.prompt_tokens - SEGMENT
    bare = chat(client, first, extra_body={"ignore_eos": True, "recall": False})
    assert bare.choices[0].message.evidence == []
    assert bare.usage.prompt_tokens < completion.usage.prompt_tokens
    told = chat(client, {"role": "system", "content": "Be brief."}, first)
    assert told.usage.prompt_tokens > completion.usage.prompt_tokens
    two = chat(client, user("Alice?", book, book))
    assert two.usage.prompt_tokens < 2 * read, "one file named twice is one"


def test_a_file_that_is_still_being_read(client: OpenAI, server: Server) -> None:
    file = client.files.create(file=("long.txt", STORY.read_bytes() * 10), purpose="user_data")
    with pytest.raises(openai.ConflictError) as error:
        chat(client, user("Who?", file.id))
    assert of(error) == ("document_not_ready", "messages")
    assert int(error.value.response.headers["retry-after"]) >= 1
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, user("Who?", file.id))
    assert of(missing) == ("file_not_found", "messages.0.content.0.file.file_id")


def test_what_is_known_of_a_deleted_file_is_not_told(client: OpenAI) -> None:
    file = client.files.create(file=("a.txt", b"Once upon a time."), purpose="user_data")
    client.files.wait_for_processing(file.id, poll_interval=0.05)
    first = user("When?", file.id)
    message = chat(client, first).choices[0].message
    client.files.delete(file.id)
    with pytest.raises(openai.NotFoundError):
        chat(client, first, message, user("And?"))


def test_streaming_says_the_same_as_json(client: OpenAI, book: str) -> None:
    asked = user("What had the black kitten done with the ball of worsted?", book)
    whole = chat(client, asked)
    chunks = list(chat(client, asked, stream=True, stream_options={"include_usage": True}))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    *spoken, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in spoken) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in spoken][-2:] == [None, "length"]
    assert spoken[1].choices[0].delta.evidence == whole.choices[0].message.evidence
    assert last.choices == []
    assert last.usage == whole.usage
    assert all(chunk.usage is None for chunk in spoken)
    assert chat(client, asked, stream=True).response.headers["content-type"].startswith("text/event-stream")
    assert all(chunk.choices for chunk in chat(client, asked, stream=True)), "usage only where it was asked for"


def test_the_sdks_own_accumulation(client: OpenAI, book: str) -> None:
    asked = user("What had the black kitten done with the ball of worsted?", book)
    stop = str(chat(client, asked).choices[0].message.content)[6:9]  # the SDK raises for an answer that is cut short
    with client.chat.completions.stream(model=MODEL, messages=[asked], stop=stop, **GREEDY) as stream:
        final = stream.get_final_completion()
    whole = chat(client, asked, stop=stop)
    assert final.choices[0].message.evidence == whole.choices[0].message.evidence
    assert final.choices[0].message.content == whole.choices[0].message.content
    on = chat(client, asked, final.choices[0].message, user("And?"))
    assert on.usage.prompt_tokens_details.cached_tokens >= whole.usage.prompt_tokens - SEGMENT


def test_the_bytes_of_a_stream(server: Server) -> None:
    body = {"model": MODEL, "messages": [user("Hi.")], "stream": True, "max_tokens": 2, "ignore_eos": True}
    answer = server.http.post("/v1/chat/completions", json=body)
    lines = [line for line in answer.text.splitlines() if line and not line.startswith(":")]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    assert all("choices" in json.loads(line[6:]) for line in lines[:-1])


def test_several_answers(client: OpenAI) -> None:
    warm: dict[str, Any] = {"temperature": 1.5, "top_p": 1, "seed": 7}
    three = chat(client, user("Go on."), n=3, **warm)
    texts = [choice.message.content for choice in three.choices]
    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert three.usage.completion_tokens == 36
    assert texts[1] == chat(client, user("Go on."), **{**warm, "seed": 8}).choices[0].message.content
    streamed = ["", "", ""]
    for chunk in chat(client, user("Go on."), n=3, stream=True, **warm):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    for text in texts:  # each of them can be gone on from
        on = chat(client, user("Go on. " * 40), answer(text), user("More."))
        assert on.choices[0].message.content


def test_sampling_stops_and_logprobs(client: OpenAI) -> None:
    whole = chat(client, user("Speak."), max_tokens=40, logprobs=True, top_logprobs=2)
    text, spoken = whole.choices[0].message.content, whole.choices[0].logprobs.content
    assert len(spoken) == 40
    assert spoken[0].token == spoken[0].top_logprobs[0].token
    assert spoken[0].logprob <= 0
    stop = text[10:13]
    cut = chat(client, user("Speak."), max_tokens=40, stop=stop)
    assert cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].message.content == text[: text.index(stop)]
    streamed = [
        entry.token
        for chunk in chat(client, user("Speak."), max_tokens=40, logprobs=True, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert streamed == [entry.token for entry in spoken]


def test_nulls_are_as_if_not_given(client: OpenAI) -> None:
    plain = chat(client, user("Hi."))
    nulls = chat(client, {**user("Hi."), "name": None}, stop=None, seed=None, tools=None, response_format=None)
    assert nulls.choices[0].message.content == plain.choices[0].message.content
    chat(client, user("Hi."), response_format={"type": "text"}, store=False, user="me")


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_leaves_nothing(client: OpenAI, server: Server, stream: bool) -> None:
    before = {key for key in server.redis.scan_iter("everlong:*") if b"replica" not in key}
    asked = user(f"Talk, stream {stream}.")
    if stream:
        with chat(client, asked, max_tokens=1_000_000, stream=True) as chunks:
            next(chunk for chunk in chunks if chunk.choices[0].delta.content)
    else:
        with pytest.raises(openai.APITimeoutError):
            chat(client, asked, max_tokens=1_000_000, timeout=1)
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 30, "for the answer to stop")
    assert {key for key in server.redis.scan_iter("everlong:*") if b"replica" not in key} == before


def test_what_was_forgotten_is_read_again(client: OpenAI, server: Server) -> None:
    said = [user("Tell me of it. " * 40)]
    said.append(chat(client, *said).choices[0].message)
    known = chat(client, *said, user("And?"))
    for key in server.redis.scan_iter("everlong:chat:*"):
        server.redis.delete(key)
    again = chat(client, *said, user("And?"))
    assert known.usage.prompt_tokens_details.cached_tokens > again.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices[0].message.content


def test_a_known_dialogue_outlives_the_server(new_server: Any) -> None:
    server = new_server(recall_passages=0).start()
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        said = [user("Tell me of it. " * 40)]
        said.append(chat(client, *said).choices[0].message)
        known = chat(client, *said, user("And?"))
        server.kill9()
        server.start()
        again = chat(client, *said, user("And?"))
    assert again.choices[0].message.content == known.choices[0].message.content
    assert again.usage == known.usage
    assert again.usage.prompt_tokens_details.cached_tokens > 0


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"messages": []}, "invalid_value", "messages"),
        ({"messages": None}, "missing_parameter", "messages"),
        ({"messages": "hi"}, "invalid_value", "messages"),
        ({"messages": [1]}, "invalid_value", "messages.0"),
        ({"messages": [{}]}, "missing_parameter", "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "missing_parameter", "messages.0.content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [user("x"), answer("y")]}, "invalid_value", "messages.1.role"),
        ({"messages": [{"role": "system", "content": "x"}]}, "invalid_value", "messages.0.role"),
        ({"messages": [user("x"), {"role": "system", "content": "y"}]}, "invalid_value", "messages.1.role"),
        ({"messages": [user("")]}, "invalid_value", "messages.0.content"),
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
            "unknown_parameter",
            "messages.0.content.0.file.file_data",
        ),
        (
            {"messages": [user("x"), {"role": "assistant", "content": user("", "doc_x")["content"]}, user("y")]},
            "invalid_value",
            "messages.1.content.0",
        ),
        ({"messages": [{**user("x"), "name": "Bob"}]}, "unknown_parameter", "messages.0.name"),
        ({"messages": [user("x")] * 2049}, "invalid_value", "messages"),
        ({"model": None}, "missing_parameter", "model"),
        ({"model": 7}, "invalid_value", "model"),
        ({"n": 0}, "invalid_value", "n"),
        ({"n": 10**9}, "invalid_value", "n"),
        ({"n": "two"}, "invalid_value", "n"),
        ({"temperature": 3}, "invalid_value", "temperature"),
        ({"top_p": 0}, "invalid_value", "top_p"),
        ({"max_tokens": 0}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": 10**12}, "invalid_value", "max_completion_tokens"),
        ({"seed": -1}, "invalid_value", "seed"),
        ({"stop": ["x"] * 17}, "invalid_value", "stop"),
        ({"logit_bias": {"100000": 1}}, "invalid_value", "logit_bias"),
        ({"response_format": {"type": "json_object"}}, "invalid_value", "response_format.type"),
        ({"tools": []}, "unknown_parameter", "tools"),
        ({"stream": "maybe"}, "invalid_value", "stream"),
        ({"stream_options": {"sparkle": True}}, "unknown_parameter", "stream_options.sparkle"),
        ({"store": True}, "invalid_value", "store"),
        ({"recall": {"tokens": 10**6}}, "invalid_value", "recall.tokens"),
        ({"sparkle": 1}, "unknown_parameter", "sparkle"),
    ],
)
def test_what_cannot_be_is_refused_by_name(client: OpenAI, fields: dict, code: str, param: str) -> None:
    body = {"model": MODEL, "messages": [user("hi")], **fields}
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.post("/chat/completions", body=body, cast_to=object)
    assert of(error) == (code, param), error.value.message
    assert error.value.type == "invalid_request_error"


def test_models_files_and_lengths_that_are_not_there(client: OpenAI) -> None:
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


@pytest.mark.parametrize("stream", [True, False])
def test_overload_is_a_rate_limit(new_server: Any, stream: bool) -> None:
    server = new_server(max_streams=1, max_queued=1).start()
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        with pytest.raises(openai.RateLimitError) as error:
            chat(client, user("Talk."), n=3, stream=stream)
        assert of(error) == ("overloaded", None)
        assert int(error.value.response.headers["retry-after"]) >= 1
        assert chat(client, user("Talk."), n=2).usage.completion_tokens == 24, "the refused ones left their places"
    server.check_keys()


def test_a_draining_server_ends_a_stream_with_an_error(new_server: Any) -> None:
    server = new_server(drain_seconds=0.2).start()
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        chunks = iter(chat(client, user("Talk."), max_tokens=1_000_000, stream=True))
        next(chunk for chunk in chunks if chunk.choices[0].delta.content)
        server.process.terminate()
        with pytest.raises(openai.APIError) as error:
            list(chunks)
        assert error.value.code == "draining"
        server.process.wait(60)
        server.process = None


def test_a_server_without_its_store_is_an_internal_server_error(new_server: Any) -> None:
    server = new_server(redis_url="redis://127.0.0.1:1")
    server.launch()

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return server.http.get("/livez").status_code == 200
        return False

    wait_for(answers, 120, "for the server to listen")
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        for ask in (client.models.list, client.files.list, lambda: chat(client, user("Hi."))):
            with pytest.raises(openai.InternalServerError) as error:
                ask()
            assert of(error) == ("loading", None)
            assert int(error.value.response.headers["retry-after"]) >= 1
