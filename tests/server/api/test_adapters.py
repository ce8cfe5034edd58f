"""LoRA adapters of one backbone in one server: each request is answered with the adapter that it names, and sessions keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.models.test_lora import adapt
from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_tool_model

pytestmark = pytest.mark.long

BASE, ONE, TWO = "tiny-tools", "tiny-tools+one", "tiny-tools+two"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("adapters")
    torch.manual_seed(0)
    backbone = make_tool_model(folder)
    adapters = [adapt(backbone, folder / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    data = tmp_path_factory.mktemp("data")
    with Server(backbone, data, models=[f"{backbone}+{each}" for each in adapters]) as server:
        server.start()
        yield server


def ask(server: Server, model: str) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 12, "temperature": 0, "model": model}
    answer = server.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_each_request_names_its_adapter(server: Server) -> None:
    listed = {model["id"]: model for model in server.http.get("/v1/models").json()["data"]}
    assert list(listed) == [BASE, ONE, TWO]
    answers = [ask(server, name) for name in (BASE, ONE, TWO, ONE)]
    assert [answer["model"] for answer in answers] == [BASE, ONE, TWO, ONE]
    texts = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert texts[1] == texts[3]
    assert len(set(texts)) == 3
    assert len({answer["system_fingerprint"] for answer in answers}) == 3
    described = server.http.get(f"/v1/models/{ONE}").json()
    assert (described["backbone"], described["memory"]) == (BASE, "window")


def test_a_session_keeps_its_adapter_over_a_restart(server: Server) -> None:
    document = server.read(STORY.read_bytes()[:4000])
    made = server.http.post("/v1/sessions", json={"model": ONE, "documents": [document["id"]]}).json()
    wait_for(lambda: server.get_session(made["id"])["status"] == "ready", what="for the adapter's own reading")
    sessions = [made["id"], server.http.post(f"/v1/sessions/{made['id']}/fork").json()["id"]]
    digests = {server.get_session(each)["state_digest"] for each in sessions}
    first = server.say(sessions[0], "Who is she?", max_tokens=8, temperature=0)
    server.kill9()
    server.start()
    second = server.say(sessions[1], "Who is she?", max_tokens=8, temperature=0)
    assert len(digests) == 1
    assert first["model"] == second["model"] == ONE
    assert first["content"] == second["content"]
    refused = server.http.post(f"/v1/sessions/{sessions[0]}/messages", json={"content": "Why?", "model": TWO})
    server.error(refused, 409, "model_of_session", "model")
