"""A recurrent model is served from a plain folder: its state survives `kill -9`, forks, and is described to people."""

from __future__ import annotations

import pytest

from tests.models.tiny_recurrent import CONFIGS, save_recurrent
from tests.tinymodel import STORY

GREEDY = {"temperature": 0, "max_tokens": 40, "ignore_eos": True}


@pytest.mark.parametrize("family", ["mamba2", "lfm2"])
@pytest.mark.long
def test_after_a_kill_a_session_answers_as_if_nothing_had_happened(family: str, new_server, tmp_path) -> None:
    server = new_server(
        save_recurrent(tmp_path / family, family), memory_options='{"segment_length": 64, "window": 200}'
    ).start()
    log = server.log.read_text()
    assert f"{family} has a recurrent state of its own, which is its memory (--memory native)" in " ".join(log.split())
    model = server.http.get("/v1/models").json()["data"][0]
    assert (model["memory"], model["memory_trained"]) == ("native", True)
    assert ("2 layers with attention see the first 32 tokens, the last 200" in model["description"]) == (
        family == "lfm2"
    )
    document = server.read(STORY.read_text()[:20_000])
    session, twin = (server.session(document["id"])["id"] for _ in range(2))
    fork = server.http.post(f"/v1/sessions/{session}/fork").json()["id"]
    first = server.say(twin, "What does Alice see?", **GREEDY)
    assert first["evidence"], "the search finds passages as for other memories"
    server.kill9()
    server.start()
    for each in (session, fork):
        answer = server.say(each, "What does Alice see?", **GREEDY)
        assert (answer["content"], answer["evidence"]) == (first["content"], first["evidence"])
        assert server.get_session(each)["state_digest"] == server.get_session(twin)["state_digest"]
    body = {
        "model": model["id"],
        "messages": [{"role": "user", "content": "Who is Alice?"}],
        "max_tokens": 5,
        "temperature": 0,
    }
    chats = [server.http.post("/v1/chat/completions", json=body).raise_for_status().json() for _ in range(2)]
    assert chats[0]["choices"][0]["message"]["content"] == chats[1]["choices"][0]["message"]["content"]
    seen = server.http.get(f"/v1/sessions/{session}/memory").json()
    sizes = [part["bytes"] for part in seen["parts"]]
    assert sum(sizes) == seen["bytes"] - 8, "all but the number of tokens read"
    layers = {part["layer"] for part in seen["parts"]}
    assert layers == set(range(CONFIGS[family].get("num_hidden_layers", 2)))
    decays = [part["half_life"] for part in seen["parts"] if part["name"] == "recurrence"]
    assert (all(decay > 0 for decay in decays) and decays) if family == "mamba2" else not decays
    server.check_keys()


@pytest.mark.long
def test_another_build_of_the_model_refuses_the_state(new_server, tmp_path) -> None:
    first = new_server(save_recurrent(tmp_path / "mamba", "mamba"), tmp_path / "data").start()
    document = first.read(STORY.read_text()[:3000])
    session = first.session(document["id"])["id"]
    first.terminate()
    second = new_server(save_recurrent(tmp_path / "again" / "mamba", "mamba", state_size=4), tmp_path / "data").start()
    again = second.wait_read(document["id"])
    assert again["state_digest"] != document["state_digest"]
    answer = second.http.post(f"/v1/sessions/{session}/messages", json={"content": "?"})
    second.error(answer, 409, "state_unusable")
