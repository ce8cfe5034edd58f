"""Files inside a request: as base64 and as URLs."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from tests import files
from tests.process import Server
from tests.server.api.native.test_fetch import web  # noqa: F401, the fixture
from tests.server.api.openai.talk import MODEL, SEGMENT, TEXT, of
from tests.tinymodel import make_model

QUESTION = "How did Dinah wash her children's faces?"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, web: str) -> Iterator[Server]:  # noqa: F811
    model = make_model(tmp_path_factory.mktemp("model"), segment_length=SEGMENT)
    with Server(model, tmp_path_factory.mktemp("inline"), recall_tokens=100, fetch_hosts=[web]) as server:
        server.start()
        yield server
        server.check_keys()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[OpenAI]:
    """Never retries: the server waits until it has read a file."""
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def encoded(content: bytes, media_type: str | None = "text/plain") -> str:
    data = base64.b64encode(content).decode()
    return data if media_type is None else f"data:{media_type};base64,{data}"


def ask(client: OpenAI, **file: str) -> Any:
    parts = [{"type": "file", "file": file}, {"type": "text", "text": QUESTION}]
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], max_tokens=8, temperature=0
    )


def respond(client: OpenAI, **file: str) -> Any:
    parts = [{"type": "input_file", **file}, {"type": "input_text", "text": QUESTION}]
    return client.responses.create(
        model=MODEL, input=[{"role": "user", "content": parts}], max_output_tokens=16, temperature=0
    )


def count(client: OpenAI) -> int:
    return len(client.files.list().data)


@pytest.mark.long
def test_a_file_in_base64_is_stored_once(client: OpenAI) -> None:
    before = count(client)
    first = ask(client, file_data=encoded(TEXT.encode()), filename="alice.txt")
    (passage, *_) = first.choices[0].message.evidence
    assert TEXT[passage["start"] : passage["end"]] == passage["text"]
    (stored,) = [file for file in client.files.list().data if file.filename == "alice.txt"]
    assert passage["document"] == stored.id
    again = ask(client, file_data=encoded(TEXT.encode(), None), filename="alice.txt")
    assert again.choices[0].message.content == first.choices[0].message.content
    response = respond(client, file_data=encoded(TEXT.encode()), filename="alice.txt")
    (item,) = client.responses.input_items.list(response.id).data
    assert item.content[0].file_id == stored.id, "the content is not stored again with the request"
    assert count(client) == before + 1
    client.files.delete(stored.id)
    assert ask(client, file_data=encoded(TEXT.encode()), filename="alice.txt").choices[0].message.evidence
    assert count(client) == before + 1


def test_other_formats_are_converted(client: OpenAI) -> None:
    pdf = files.pdf(["Dinah washed her children's faces with one paw."])
    response = respond(client, file_data=encoded(pdf, "application/pdf"), filename="cats.pdf")
    assert "one paw" in response.output[0].evidence[0]["text"]


def test_a_file_of_an_allowed_host(client: OpenAI, web: str) -> None:  # noqa: F811
    before = count(client)
    for _ in range(2):
        response = respond(client, file_url=f"http://{web}/story.txt")
    assert response.output[0].content[0].type == "output_text"
    assert count(client) == before + 1


@pytest.mark.parametrize(
    ("file", "status", "param"),
    [
        ({"file_data": "no base64!"}, 422, "file_data"),
        ({"file_data": "data:text/plain,words"}, 422, "file_data"),
        ({"file_data": encoded(b"\x89PNG\r\n\x1a\n" + bytes(50), None)}, 422, "file_data"),
        ({"file_url": "http://example.org/x"}, 403, "file_url"),
        ({"file_url": "ftp://example.org/x"}, 422, "file_url"),
        ({"file_url": "http://WEB/gone"}, 422, "file_url"),
        ({"file_id": "doc_x", "file_data": "eA=="}, 422, ""),
        ({}, 422, ""),
    ],
)
def test_what_is_refused(client: OpenAI, web: str, file: dict[str, str], status: int, param: str) -> None:  # noqa: F811
    with pytest.raises(openai.APIStatusError) as error:
        respond(client, **{name: value.replace("WEB", web) for name, value in file.items()})
    assert error.value.status_code == status
    assert of(error)[1] == f"input.0.content.0{'.' * bool(param)}{param}", error.value.message


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "input_audio", "input_audio": {}}]
)
def test_images_and_audio_are_refused_by_name(client: OpenAI, part: dict[str, Any]) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="images and audio are not supported") as error:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": [part]}])
    assert of(error)[1] == "messages.0.content.0"
    with pytest.raises(openai.UnprocessableEntityError, match="images and audio are not supported"):
        client.responses.create(
            model=MODEL, input=[{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]
        )
