"""Several models in one server: each request is answered by the model that it names, and sessions stay with theirs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as open_socket

from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_model, make_tool_model

pytestmark = pytest.mark.long

QUESTION = [{"role": "user", "content": "Who is she?"}]
FIRST, SECOND, TOOLS = "tiny-rmt", "tiny-two", "tiny-tools"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two models besides the first one."""
    folder = tmp_path_factory.mktemp("several")
    return [make_model(folder, name=SECOND, seed=1), make_tool_model(folder)]


@pytest.fixture(scope="module")
def own_server(tiny_model: Path, folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tiny_model, tmp_path_factory.mktemp("data"), models=[str(each) for each in folders]) as server:
        server.start()
        yield server


def loaded(server: Server) -> dict[str, bool]:
    return {model["id"]: model["loaded"] for model in server.http.get("/v1/models").json()["data"]}


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.http.post(path, json=body)


# The requests of every API that names a model, and where its answer has the name.
ASKING: dict[str, Callable[[Server, str], httpx.Response]] = {
    "chat": lambda server, model: post(server, "/v1/chat/completions", model=model, messages=QUESTION, max_tokens=3),
    "completions": lambda server, model: post(server, "/v1/completions", model=model, prompt="She", max_tokens=3),
    "responses": lambda server, model: post(
        server, "/v1/responses", model=model, input="Who is she?", max_output_tokens=3
    ),
    "anthropic": lambda server, model: post(server, "/v1/messages", model=model, messages=QUESTION, max_tokens=3),
    "ollama chat": lambda server, model: post(
        server, "/api/chat", model=model, messages=QUESTION, stream=False, options={"num_predict": 3}
    ),
    "ollama generate": lambda server, model: post(
        server, "/api/generate", model=f"{model}:latest", prompt="She", stream=False, options={"num_predict": 3}
    ),
    "session": lambda server, model: post(server, "/v1/sessions", model=model),
}


def test_models_are_listed_before_they_are_loaded(server: Server) -> None:
    listed = server.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == [FIRST, SECOND, TOOLS]
    assert loaded(server)[FIRST]
    assert all(model["memory_bytes"] > 0 for model in listed)
    assert [model["name"] for model in server.http.get("/api/tags").json()["models"]] == [FIRST, SECOND, TOOLS]
    running = {model["name"] for model in server.http.get("/api/ps").json()["models"]}
    assert running == {name for name, is_loaded in loaded(server).items() if is_loaded}
    assert server.http.get(f"/v1/models/{SECOND}").json()["id"] == SECOND
    assert post(server, "/api/show", model=TOOLS).status_code == 200


@pytest.mark.parametrize("api", ASKING)
def test_the_named_model_answers(server: Server, api: str) -> None:
    for name in (SECOND, FIRST):
        answer = ASKING[api](server, name)
        assert answer.status_code in (200, 201), answer.text
        assert answer.json()["model"].removesuffix(":latest") == name
    assert loaded(server)[SECOND]
    assert f'everlong_model_loads_total{{model="{SECOND}"}} 1.0' in server.http.get("/metrics").text


@pytest.mark.parametrize("api", ASKING)
def test_an_unknown_model_is_refused_with_the_known_names(server: Server, api: str) -> None:
    answer = ASKING[api](server, "llama")
    code = "not_found_error" if api == "anthropic" else "model_not_found"
    assert answer.status_code == 404
    message = answer.json()["error"] if api.startswith("ollama") else answer.json()["error"]["message"]
    assert message == f"no model 'llama'; this server serves '{FIRST}' and '{SECOND}' and '{TOOLS}'"
    assert code in answer.text or api.startswith("ollama")


def test_fingerprints_and_answers_differ_by_model(server: Server) -> None:
    answers = [
        post(server, "/v1/chat/completions", model=name, messages=QUESTION, max_tokens=8, temperature=0).json()
        for name in (FIRST, SECOND, FIRST)
    ]
    prints = [answer["system_fingerprint"] for answer in answers]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert prints[0] == prints[2] != prints[1]
    assert texts[0] == texts[2] != texts[1]


def test_only_the_model_with_a_tool_format_takes_tools(server: Server) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    body = {"messages": QUESTION, "tools": tools, "tool_choice": "required", "max_tokens": 40}
    answer = post(server, "/v1/chat/completions", model=TOOLS, **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
    refused = post(server, "/v1/chat/completions", model=SECOND, **body)
    assert refused.status_code == 422
    assert SECOND in refused.text


def test_a_session_stays_with_its_model(server: Server) -> None:
    session = post(server, "/v1/sessions", model=SECOND).json()
    answer = server.say(session["id"], "Who is she?", max_tokens=3)
    assert answer["model"] == SECOND
    assert server.say(session["id"], "Why?", max_tokens=3, model=SECOND)["model"] == SECOND
    other = post(server, f"/v1/sessions/{session['id']}/messages", content="Why?", model=FIRST)
    error = server.error(other, 409, "model_of_session", "model")
    assert SECOND in error["message"]
    assert FIRST in error["message"]
    fork = post(server, f"/v1/sessions/{session['id']}/fork").json()
    assert (fork["model"], server.get_session(session["id"])["messages"]) == (SECOND, 4)
    memory = server.http.get(f"/v1/sessions/{fork['id']}/memory")
    assert memory.status_code == 200, memory.text
    with open_socket(f"ws://127.0.0.1:{server.port}/v1/sessions/{fork['id']}/stream") as socket:
        socket.send(json.dumps({"type": "message.create", "content": "Why?", "max_tokens": 3, "model": FIRST}))
        assert json.loads(socket.recv())["error"]["code"] == "model_of_session"
        socket.send(json.dumps({"type": "message.create", "content": "Why?", "max_tokens": 3}))
        while (event := json.loads(socket.recv()))["type"] != "response.completed":
            assert event["type"] != "error", event
        assert event["message"]["model"] == SECOND


def test_a_document_is_read_by_each_model_that_is_asked_about_it(server: Server) -> None:
    document = server.read(STORY.read_bytes()[:4000])
    part = {"type": "file", "file": {"file_id": document["id"]}}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "Who is she?"}]}]
    answer = post(server, "/v1/chat/completions", model=SECOND, messages=messages, max_tokens=3)
    assert answer.status_code == 200, answer.text  # the request waited until the second model had read it
    session = post(server, "/v1/sessions", model=SECOND, documents=[document["id"]]).json()
    assert session["status"] == "ready"
    first = server.session(document["id"])
    digests = {server.get_session(each["id"])["state_digest"] for each in (first, session)}
    assert len(digests) == 2
    ollama = post(server, "/api/chat", model=TOOLS, messages=QUESTION, documents=[document["id"]], stream=False)
    assert ollama.status_code == 200, ollama.text
    content = [{"type": "input_file", "file_id": document["id"]}, {"type": "input_text", "text": "Who?"}]
    asked = [{"role": "user", "content": content}]
    response = post(server, "/v1/responses", model=TOOLS, input=asked, max_output_tokens=3)
    assert response.status_code == 200, response.text
    assert server.http.delete(f"/v1/documents/{document['id']}").status_code == 200


def cached(response: dict[str, Any]) -> int:
    return response["usage"]["input_tokens_details"]["cached_tokens"]


def test_a_conversation_of_responses_stays_with_its_model_unless_another_is_named(server: Server) -> None:
    first = post(server, "/v1/responses", model=SECOND, input=20 * "Who is she? ", max_output_tokens=3).json()
    second = post(server, "/v1/responses", previous_response_id=first["id"], input="Why?", max_output_tokens=3).json()
    assert (second["model"], cached(second) > 0) == (SECOND, True)
    third = post(
        server, "/v1/responses", previous_response_id=second["id"], model=FIRST, input="Why?", max_output_tokens=3
    ).json()
    assert (third["model"], cached(third)) == (FIRST, 0)  # the other model has read the earlier messages itself


def test_a_batch_is_answered_by_the_model_that_its_requests_name(server: Server) -> None:
    path = "/v1/chat/completions"
    body = {"model": SECOND, "messages": QUESTION, "max_tokens": 3}
    line = json.dumps({"custom_id": "one", "method": "POST", "url": path, "body": body})
    file = server.http.post("/v1/files", files={"file": ("batch.jsonl", line)}, data={"purpose": "batch"}).json()
    batch = post(server, "/v1/batches", input_file_id=file["id"], endpoint=path, completion_window="24h").json()

    def ended() -> dict[str, Any] | None:
        found = server.http.get(f"/v1/batches/{batch['id']}").json()
        return found if found["status"] in ("completed", "failed") else None

    output = wait_for(ended)["output_file_id"]
    answer = json.loads(server.http.get(f"/v1/files/{output}/content").text)
    assert answer["response"]["body"]["model"] == SECOND


def test_an_unfinished_reading_and_a_background_response_of_a_killed_server_load_their_model(
    new_server: Callable[..., Server], folders: list[Path], tmp_path: Path
) -> None:
    server = new_server(models=[str(each) for each in folders], model_idle_seconds=0, lease_seconds=3).start()
    document = server.read(STORY.read_bytes()[:60_000])
    session = post(server, "/v1/sessions", model=SECOND, documents=[document["id"]]).json()
    queued = post(server, "/v1/responses", model=SECOND, input="Who?", max_output_tokens=2000, background=True).json()
    server.kill9()
    server.start()
    assert server.get_session(session["id"])["status"] == "reading"
    assert server.http.get(f"/v1/responses/{queued['id']}").json()["status"] in ("queued", "in_progress")
    wait_for(lambda: server.get_session(session["id"])["status"] == "ready", what="for the second model's reading")
    ended = ("completed", "incomplete")
    wait_for(lambda: server.http.get(f"/v1/responses/{queued['id']}").json()["status"] in ended)
    assert server.say(session["id"], "Who is she?", max_tokens=3)["model"] == SECOND
    wait_for(lambda: not loaded(server)[SECOND], what="for the second model to be unloaded")
    assert server.say(session["id"], "Why?", max_tokens=3)["model"] == SECOND
    server.check_keys()


def test_a_session_of_a_model_that_is_no_longer_served_is_refused_with_the_names(
    new_server: Callable[..., Server], folders: list[Path], tmp_path: Path
) -> None:
    server = new_server(data=tmp_path / "both", models=[str(folders[0])]).start()
    session = post(server, "/v1/sessions", model=SECOND).json()
    server.terminate()
    server = new_server(data=tmp_path / "both").start()
    refused = post(server, f"/v1/sessions/{session['id']}/messages", content="Who?")
    message = server.error(refused, 409, "state_unusable", "session_id")["message"]
    assert SECOND in message
    assert FIRST in message
    assert server.get_session(session["id"])["model"] == SECOND


@pytest.mark.parametrize(
    ("models", "said"),
    [
        (["tinyy"], "no model 'tinyy': not a folder"),
        (["{0}", "{0}/../copy/tiny-two"], "has the name 'tiny-two'"),
    ],
)
def test_a_wrong_setting_ends_the_start(
    new_server: Callable[..., Server], folders: list[Path], models: list[str], said: str
) -> None:
    copy = folders[0].parent / "copy" / SECOND
    copy.parent.mkdir(exist_ok=True)
    if not copy.exists():
        copy.symlink_to(folders[0])
    server = new_server(models=[each.format(folders[0]) for each in models])
    server.launch()
    assert server.process is not None
    assert server.process.wait(60) == 1
    server.process = None
    assert said in server.log.read_text()
