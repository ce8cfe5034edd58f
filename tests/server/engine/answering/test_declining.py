"""Over HTTP: where the model's probe says that the evidence lacks the answer, the server says so, and only there."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from everlong_models.answer_probe import PROBE
from everlong_server.engine.answering.evidence.templates import REFUSAL
from tests.process import Server, wait_for
from tests.tinymodel import STORY

GREEDY = {"temperature": 0, "max_tokens": 24, "seed": 1}
LONG = STORY.read_text()[:40_000]
MIDDLE = LONG[:20_000]
ALICE = LONG[LONG.index("The way Dinah") :][:3000]
"""So short that every question gets it as evidence."""
QUESTION = "What would Dinah do with the black kitten's face?"
SPEC = {"name": "window", "segment_length": 64, "sinks": 4, "window": 128}


def with_probe(tiny_model: Path, target: Path, bias: float) -> Path:
    """Make a model whose probe has the score `bias` for every prompt: below 0, the evidence lacks the answer."""
    shutil.copytree(tiny_model / "backbone", target / "backbone")
    manifest = {"backbone": "backbone", "memory": SPEC, "trained": False, "template": "instruct"}
    (target / "everlong.json").write_text(json.dumps(manifest))
    save_file({"layer": torch.tensor(1), "weight": torch.zeros(2, 16), "bias": torch.tensor(bias)}, target / PROBE)
    return target


@pytest.fixture(scope="module")
def folder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_probe(tiny_model, tmp_path_factory.mktemp("model") / "tiny-window", -1.0)


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory):
    with Server(folder, tmp_path_factory.mktemp("data"), recall_tokens=96) as server:
        yield server.start()


def test_the_answer_says_so(server: Server) -> None:
    document = server.read(ALICE)["id"]
    session = server.session(document)["id"]
    message = server.say(session, QUESTION, **GREEDY)
    assert message["content"] == REFUSAL
    assert message["finish_reason"] == "stop"
    assert message["citations"] == []
    assert any("Dinah" in passage["text"] for passage in message["evidence"]), "what was found is shown"
    assert message["usage"]["prompt_tokens"] > 60, "it has the evidence"
    assert server.get_session(session)["position"] == sum(
        message["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion")
    )


@pytest.mark.parametrize(
    ("question", "more"),
    [
        ("Tell me what Dinah would do with the black kitten.", {}),
        ("Can you tell what Dinah would do with the black kitten?", {}),
        ("Was macht Dinah mit dem schwarzen Kätzchen?", {}),
        (QUESTION, {"json_schema": {"type": "string", "maxLength": 4}}),
        (QUESTION, {"instructions": "Answer from what you know."}),
    ],
    ids=["no question", "a request", "another language", "a schema", "instructions"],
)
def test_other_messages_get_an_answer_in_any_case(server: Server, question: str, more: dict) -> None:
    document = server.read(ALICE)["id"]
    message = server.say(server.session(document)["id"], question, **GREEDY, **more)
    assert message["evidence"]
    assert message["content"] != REFUSAL


@pytest.mark.parametrize("has_probe", [True, False])
@pytest.mark.long
def test_texts_of_a_few_pages_are_judged_by_search_and_probe(
    new_server, folder: Path, tmp_path: Path, has_probe: bool
) -> None:
    """The probe judges what the search finds, also where the search alone would find nothing. Without a probe, the search decides."""
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    if not has_probe:
        (model / PROBE).unlink()
    server = new_server(model, recall_tokens=96, embeddings="auto").start()
    document = server.read(MIDDLE)["id"]
    wait_for(lambda: server.document(document)["vectors"]["progress"] == 1, 120)
    for question, is_near in ((QUESTION, True), ("Which submarine torpedoed Zanzibar?", False)):
        message = server.say(server.session(document)["id"], question, **GREEDY)
        assert bool(message["evidence"]) is (is_near or has_probe)
        assert (message["content"] == REFUSAL) is has_probe


@pytest.mark.parametrize("bias", [-0.9, -1.1])
def test_the_probe_must_be_surer_about_longer_texts(new_server, folder: Path, tmp_path: Path, bias: float) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder, model)
    save_file({"layer": torch.tensor(1), "weight": torch.zeros(2, 16), "bias": torch.tensor(bias)}, model / PROBE)
    server = new_server(model, recall_tokens=96).start()
    message = server.say(server.session(server.read(LONG)["id"])["id"], QUESTION, **GREEDY)
    assert message["evidence"]
    assert (message["content"] == REFUSAL) is (bias < -1)


@pytest.mark.parametrize("question", [QUESTION, "Why?"])
def test_the_answer_says_so_after_other_messages(server: Server, question: str) -> None:
    session = server.session(server.read(ALICE)["id"])["id"]
    assert server.say(session, "Dinah had washed the kitten.", **GREEDY)["content"] != REFUSAL
    message = server.say(session, question, **GREEDY)
    assert message["evidence"]
    assert message["content"] == REFUSAL


def test_a_chat_with_a_system_message_gets_an_answer_in_any_case(server: Server) -> None:
    """Also later, when the memory has read the system message."""
    document = server.read(ALICE)["id"]
    attached = {"type": "file", "file": {"file_id": document}}
    messages: list[dict] = [{"role": "system", "content": "Answer from what you know."}]
    for question in (QUESTION, "Why?"):
        messages.append({"role": "user", "content": [attached, {"type": "text", "text": question}]})
        body = {"model": "tiny-window", "messages": messages, "temperature": 0, "max_tokens": 24, "seed": 1}
        answer = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"]
        assert answer != REFUSAL
        messages.append({"role": "assistant", "content": answer})
    plain = server.http.post("/v1/chat/completions", json={**body, "messages": messages[1:2]}).json()
    assert plain["choices"][0]["message"]["content"] == REFUSAL


def test_a_response_with_instructions_gets_an_answer_in_any_case(server: Server) -> None:
    """Also those after it, whose instructions are unchanged."""
    file = {"type": "input_file", "file_id": server.read(ALICE)["id"]}

    def answered(question: str, **more: str) -> dict:
        content = (
            [{"type": "input_text", "text": question}]
            if more.get("previous_response_id")
            else [file, {"type": "input_text", "text": question}]
        )
        body = {
            "model": "tiny-window",
            "input": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_output_tokens": 24,
        } | more
        return server.http.post("/v1/responses", json=body).json()

    def text(response: dict) -> str:
        return response["output"][-1]["content"][0]["text"]

    first = answered(QUESTION, instructions="Answer from what you know.")
    second = answered("Why?", previous_response_id=first["id"], instructions="Answer in French.")
    third = answered(QUESTION, previous_response_id=second["id"], instructions="Answer in French.")
    assert REFUSAL not in {text(first), text(second), text(third)}
    assert text(answered(QUESTION)) == REFUSAL


def test_an_answer_with_instructions_that_is_cut_and_extended_is_that_of_one_request(server: Server) -> None:
    """It sees the short text itself, which its continuation must see, too."""
    note, more = server.read(NOTE)["id"], {"instructions": "Answer from what you know."}
    whole = server.say(server.session(note)["id"], QUESTION, **GREEDY, **more)
    session = server.session(note)["id"]
    cut = server.say(session, QUESTION, **GREEDY | {"max_tokens": 3}, **more)
    extended = server.say(session, "-", continue_answer=True, **GREEDY | {"max_tokens": 21})
    assert cut["finish_reason"] == "length"
    assert extended["content"] == whole["content"]


def test_a_later_request_gets_an_answer_in_any_case(server: Server) -> None:
    session = server.session(server.read(ALICE)["id"])["id"]
    server.say(session, "Dinah had washed the kitten.", **GREEDY)
    message = server.say(session, "Can you say more about Dinah?", **GREEDY)
    assert message["evidence"]
    assert message["content"] != REFUSAL


NOTE = "The black kitten's face was washed by Dinah."
"""Shorter than a segment."""


def test_the_answer_says_so_about_a_text_shorter_than_a_segment(server: Server) -> None:
    message = server.say(server.session(server.read(NOTE)["id"])["id"], QUESTION, **GREEDY)
    assert message["evidence"]
    assert message["content"] == REFUSAL


def test_a_text_shorter_than_a_segment_is_seen_as_passages(new_server, tiny_model: Path, tmp_path: Path) -> None:
    """So that the probe knows such prompts. An answer that is cut and extended is that of one request."""
    holds = with_probe(tiny_model, tmp_path / "holds", 1.0)
    server = new_server(holds, recall_tokens=96).start()
    note, other = server.read(NOTE)["id"], server.read("\n\n" + NOTE + "\n")["id"]
    asked = {document: server.say(server.session(document)["id"], QUESTION, **GREEDY) for document in (note, other)}
    assert asked[note]["usage"]["prompt_tokens"] != asked[other]["usage"]["prompt_tokens"]
    assert asked[note]["content"] == asked[other]["content"], "it sees the passages, which are the same, not the texts"
    session = server.session(note)["id"]
    cut = server.say(session, QUESTION, **GREEDY | {"max_tokens": 3})
    extended = server.say(session, "-", continue_answer=True, **GREEDY | {"max_tokens": 21})
    assert cut["finish_reason"] == "length"
    assert extended["content"] == asked[note]["content"]


@pytest.mark.long
def test_a_question_is_answered_several_times_and_the_session_goes_on(
    new_server, tiny_model: Path, tmp_path: Path
) -> None:
    """The random model's answers end at a letter. The same question gets the same answer, also streamed. There is no vote on a CPU that would
    compute the prompt again; `tests/test_newcomer.py` has one in any case."""
    server = new_server(with_probe(tiny_model, tmp_path / "holds", 1.0), recall_tokens=96).start()
    document, params = server.read(ALICE)["id"], {"temperature": 0, "max_tokens": 40, "stop": ["e"]}
    sessions = [server.session(document)["id"] for _ in range(3)]
    messages = [server.say(session, QUESTION, **params) for session in sessions[:2]]
    body = {"content": QUESTION, "stream": True, **params}
    lines = server.http.post(f"/v1/sessions/{sessions[2]}/messages", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = "".join(event.get("delta", "") for event in events if event["type"] == "response.output_text.delta")
    metrics = server.http.get("/metrics").text
    counts = dict(re.findall(r"^everlong_votes_total\{outcome=\"(\w+)\"\} (\S+)", metrics, re.MULTILINE))
    votes = float(counts["kept"]) + float(counts["replaced"])
    assert votes in (0, 3)
    assert float(counts["timeout"]) == 0
    (tokens,) = re.findall(r"^everlong_tokens_voting_total (\S+)", metrics, re.MULTILINE)
    assert float(tokens) >= votes * 8
    assert messages[0]["content"] == messages[1]["content"] == streamed
    agreements = [message.get("agreement") for message in (*messages, events[-1]["message"])]
    assert [agreement is not None for agreement in agreements] == [votes > 0] * 3
    assert server.http.get(f"/v1/sessions/{sessions[0]}/messages").json()["data"][1].get("agreement") == agreements[0]
    for session in sessions[:2]:
        assert server.get_session(session)["position"] == sum(
            messages[0]["usage"][f"{kind}_tokens"] for kind in ("prompt", "completion")
        )
    assert len({server.say(session, "Why?", **params)["content"] for session in sessions}) == 1


def test_texts_in_another_language_get_an_answer_in_any_case(server: Server) -> None:
    text = (
        "Der Fahrradkeller ist von sieben bis zwanzig Uhr geöffnet. Die Miete ist am ersten Tag des Monats fällig. " * 6
    )
    document = server.read(text)["id"]
    question = "Wann ist der Fahrradkeller geöffnet?"
    message = server.say(server.session(document)["id"], question, **GREEDY)
    assert message["evidence"]
    assert message["content"] != REFUSAL


def test_a_model_without_a_probe_answers(new_server, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "without"
    shutil.copytree(folder, other)
    (other / PROBE).unlink()
    server = new_server(other, recall_tokens=96).start()
    document = server.read(ALICE)["id"]
    message = server.say(server.session(document)["id"], QUESTION, **GREEDY)
    assert message["evidence"]
    assert message["content"] != REFUSAL
