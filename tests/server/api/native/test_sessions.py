"""Sessions and messages over HTTP and SSE."""

from __future__ import annotations

import concurrent.futures
import json

import httpx
import pytest

from everlong_server.api.native.new_session import PastMessage, past_messages
from everlong_server.errors import TooLarge
from everlong_server.store.redis import keys
from tests.process import Server, wait_for
from tests.tinymodel import STORY

TEXT = STORY.read_text()[:8_000]
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def document(shared_server: Server) -> str:
    return shared_server.read(TEXT)["id"]


def events_of(response: httpx.Response) -> list[dict]:
    return [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]


def test_a_session_is_a_fork_of_its_documents_state(server: Server, document: str) -> None:
    read = server.document(document)
    a, b = server.session(document), server.session(document)
    assert a["status"] == "ready"
    assert a["state_digest"] == b["state_digest"] == read["state_digest"]
    assert a["position"] == read["tokens"] + 4
    first = server.say(a["id"], "Who is Alice?", **GREEDY)
    assert server.get_session(b["id"]) == b, "a message to one session changed the other"
    assert server.document(document) == read
    assert server.say(b["id"], "Who is Alice?", **GREEDY)["content"] == first["content"]


def test_a_message_tells_what_it_used(server: Server, document: str) -> None:
    session = server.session(document)
    message = server.say(session["id"], "Who?", **GREEDY, seed=5)
    assert message["object"] == "message"
    assert message["role"] == "assistant"
    assert message["finish_reason"] == "length"
    assert message["seed"] == 5
    usage = message["usage"]
    assert usage["completion_tokens"] == 24
    assert usage["prompt_tokens"] > session["position"] >= usage["reused_tokens"] > session["position"] - 64
    after = server.get_session(session["id"])
    assert after["position"] == usage["prompt_tokens"] + 24
    assert after["messages"] == 2
    assert after["state_bytes"] == session["state_bytes"] == 1024


def test_a_chat_continues_across_segment_borders(server: Server, document: str) -> None:
    """A long conversation gives the same state as its text read at once: the state depends on the tokens alone."""
    session = server.session(document)
    for n in range(4):
        server.say(session["id"], f"Question {n}: " + "and then? " * 30, temperature=0, max_tokens=100, ignore_eos=True)
    after = server.get_session(session["id"])
    assert after["position"] - session["position"] > 8 * 64
    dialogue = server.http.get(f"/v1/sessions/{session['id']}/messages").json()["data"]
    assert [m["role"] for m in dialogue] == ["user", "assistant"] * 4
    assert dialogue[0]["content"].startswith("Question 0")


def test_same_seed_same_answer_other_seed_other_answer(server: Server, document: str) -> None:
    sampled = {"temperature": 1.5, "top_p": 1, "max_tokens": 40, "ignore_eos": True}
    answers = [
        server.say(server.session(document)["id"], "Go on.", **sampled, seed=seed)["content"] for seed in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]
    unseeded = server.say(server.session(document)["id"], "Go on.", **sampled)
    again = server.say(server.session(document)["id"], "Go on.", **sampled, seed=unseeded["seed"])
    assert again["content"] == unseeded["content"]


def test_streaming_says_the_same_as_json(server: Server, document: str) -> None:
    whole = server.say(server.session(document)["id"], "Tell me.", **GREEDY, seed=1)
    session = server.session(document)["id"]
    body = {"content": "Tell me.", "stream": True, "seed": 1, **GREEDY}
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        events = events_of(response)
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.evidence"]
    assert kinds[-1] == "response.completed"
    assert set(kinds[2:-1]) == {"response.output_text.delta"}
    text = "".join(event["delta"] for event in events[2:-1])
    message = events[-1]["message"]
    assert text == message["content"] == whole["content"]
    assert message["usage"] == whole["usage"]
    assert events[0]["response"]["id"] == message["id"]


def test_logprobs(server: Server, document: str) -> None:
    message = server.say(
        server.session(document)["id"], "Hm?", temperature=0, max_tokens=3, logprobs=True, top_logprobs=2
    )
    assert len(message["logprobs"]) == message["usage"]["completion_tokens"]
    for entry in message["logprobs"]:
        assert entry["logprob"] <= 0
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] >= entry["top_logprobs"][1]["logprob"]
        assert entry["top_logprobs"][0]["id"] == entry["id"]  # greedy takes the likeliest


def test_stop_strings_and_stop_tokens(server: Server, document: str) -> None:
    whole = server.say(server.session(document)["id"], "Speak.", temperature=0, max_tokens=60, ignore_eos=True)[
        "content"
    ]
    stop = whole[10:13]
    message = server.say(
        server.session(document)["id"], "Speak.", temperature=0, max_tokens=60, ignore_eos=True, stop=stop
    )
    assert message["finish_reason"] == "stop"
    assert message["content"] == whole[: whole.index(stop)]


def test_many_sessions_at_once_say_what_each_says_alone(server: Server, document: str) -> None:
    questions = [f"Question number {n}?" for n in range(6)]
    alone = [server.say(server.session(document)["id"], question, **GREEDY)["content"] for question in questions]

    def ask(question: str) -> str:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            session = client.post("/v1/sessions", json={"documents": [document]}).json()["id"]
            return client.post(f"/v1/sessions/{session}/messages", json={"content": question, **GREEDY}).json()[
                "content"
            ]

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert list(pool.map(ask, questions)) == alone


def test_a_fork_is_independent(server: Server, document: str) -> None:
    session = server.session(document)
    server.say(session["id"], "First.", **GREEDY)
    base = server.get_session(session["id"])
    fork = server.http.post(f"/v1/sessions/{session['id']}/fork").json()
    assert fork["id"] != base["id"]
    assert fork["parent"] == base["id"]
    assert {**fork, "id": 0, "created_at": 0, "parent": None} == {**base, "id": 0, "created_at": 0}
    a = server.say(session["id"], "Second.", **GREEDY)
    assert server.get_session(fork["id"]) == fork
    assert server.say(fork["id"], "Second.", **GREEDY)["content"] == a["content"]
    assert len(server.http.get(f"/v1/sessions/{fork['id']}/messages").json()["data"]) == 4


def test_several_documents_are_read_one_after_the_other(server: Server) -> None:
    a, b = server.upload(TEXT[:3000])["id"], server.upload(TEXT[3000:6000])["id"]
    session = server.session(a, b)
    other = server.session(b, a)
    ready = wait_for(lambda: (s := server.get_session(session["id"]))["status"] == "ready" and s)
    assert ready["position"] == 4 + server.document(a)["tokens"] + 2 + server.document(b)["tokens"]
    swapped = wait_for(lambda: (s := server.get_session(other["id"]))["status"] == "ready" and s)
    assert swapped["state_digest"] != ready["state_digest"], "the order of documents matters"
    assert server.session(a, b)["state_digest"] == ready["state_digest"], "and is read only once"
    server.say(session["id"], "Well?", **GREEDY)


def test_a_session_without_documents(server: Server) -> None:
    session = server.session()
    assert (session["status"], session["position"]) == ("ready", 0)
    message = server.say(session["id"], "Hello.", **GREEDY)
    assert message["usage"]["reused_tokens"] == 0


def test_special_tokens_in_a_message_stay_text(server: Server) -> None:
    plain, spelt = server.session()["id"], server.session()["id"]
    short = server.say(plain, "a", **GREEDY)["usage"]["prompt_tokens"]
    long = server.say(spelt, "a<|im_end|>", **GREEDY)["usage"]["prompt_tokens"]
    assert long > short + 1, "the end-of-turn mark must not become one token"


def test_a_busy_session_says_so(server: Server, document: str) -> None:
    session = server.session(document)["id"]
    body = {"content": "Talk.", "stream": True, "max_tokens": 5000, "ignore_eos": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if "delta" in line)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            answer = other.post(f"/v1/sessions/{session}/messages", json={"content": "Me too."})
            server.error(answer, 409, "session_busy")
            answer = other.post(f"/v1/sessions/{session}/messages", json={"content": "Me too.", "stream": True})
            server.error(answer, 409, "session_busy")
            assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnect_stops_the_answer_and_changes_nothing(server: Server, document: str, stream: bool) -> None:
    session = server.session(document)
    body = {"content": "Talk.", "stream": stream, "max_tokens": 1_000_000, "ignore_eos": True}
    if stream:
        with server.http.stream("POST", f"/v1/sessions/{session['id']}/messages", json=body) as response:
            next(line for line in response.iter_lines() if "delta" in line)
    else:
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(f"/v1/sessions/{session['id']}/messages", json=body, timeout=1)
    wait_for(lambda: "everlong_answering 0.0" in server.http.get("/metrics").text, 10, "for the answer to stop")
    assert server.get_session(session["id"]) == session
    assert server.say(session["id"], "And now?", **GREEDY)["content"]


def test_a_message_before_the_document_is_ready(server: Server) -> None:
    document = server.upload(STORY.read_text() * 10)["id"]
    session = server.session(document)
    assert session["status"] == "reading"
    without_search = {"content": "?", "recall": False}
    answer = server.http.post(f"/v1/sessions/{session['id']}/messages", json=without_search)
    server.error(answer, 409, "document_not_ready")
    server.http.delete(f"/v1/documents/{document}")
    answer = server.http.post(f"/v1/sessions/{session['id']}/messages", json={"content": "?"})
    server.error(answer, 409, "document_failed")
    assert server.get_session(session["id"])["status"] == "failed"


def test_a_session_outlives_its_document(server: Server) -> None:
    document = server.read(TEXT[:2000])["id"]
    session = server.session(document)
    server.http.delete(f"/v1/documents/{document}")
    assert server.say(session["id"], "Still there?", **GREEDY)["content"]


def test_deleting_a_session(server: Server, document: str) -> None:
    session = server.session(document)["id"]
    server.say(session, "Hi.", **GREEDY)
    assert server.http.delete(f"/v1/sessions/{session}").json()["deleted"] is True
    server.error(server.http.get(f"/v1/sessions/{session}"), 404, "session_not_found")
    server.error(server.http.delete(f"/v1/sessions/{session}"), 404, "session_not_found")
    server.error(server.http.post(f"/v1/sessions/{session}/messages", json={"content": "?"}), 404, "session_not_found")
    server.error(server.http.post(f"/v1/sessions/{session}/fork"), 404, "session_not_found")


@pytest.mark.long
def test_a_session_deleted_while_it_generates(new_server) -> None:
    server = new_server(lease_seconds=300).start()  # the answer's end comes before it is seen that the lease is gone
    session = server.session()["id"]
    body = {"content": "Talk.", "stream": True, "max_tokens": 1000, "ignore_eos": True}
    with server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        lines = response.iter_lines()
        next(line for line in lines if "delta" in line)
        assert server.http.delete(f"/v1/sessions/{session}").status_code == 200
        last = [json.loads(line[6:]) for line in lines if line.startswith("data: ")][-1]
    assert last["type"] == "error"
    assert last["error"]["code"] == "session_not_found"


def test_overload_gets_429_with_retry_after(new_server) -> None:
    server = new_server(max_streams=1, max_queued=0).start()
    one, two = server.session()["id"], server.session()["id"]
    body = {"content": "Talk.", "stream": True, "max_tokens": 1_000_000, "ignore_eos": True}
    with server.http.stream("POST", f"/v1/sessions/{one}/messages", json=body) as response:
        lines = response.iter_lines()  # kept: httpx closes a stream whose iterator is dropped
        next(line for line in lines if "delta" in line)
        with httpx.Client(base_url=server.url, timeout=60) as other:
            server.error(other.post(f"/v1/sessions/{two}/messages", json={"content": "?"}), 429, "overloaded")
    server.check_keys()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.long
def test_a_message_whose_lease_is_lost_while_it_waits_is_refused_and_can_be_sent_again(
    new_server, stream: bool
) -> None:
    """Otherwise it would get an empty answer and not be kept."""
    server = new_server(max_streams=1, lease_seconds=1.5).start()
    document = server.read(TEXT)["id"]
    busy, other = server.session(document)["id"], server.session(document)["id"]
    headers = {"Idempotency-Key": "once"}
    path, body = f"/v1/sessions/{other}/messages", {"content": "Who?", "stream": stream, **GREEDY}
    with (
        server.http.stream(
            "POST",
            f"/v1/sessions/{busy}/messages",
            json={"content": "Go on.", "stream": True, **GREEDY, "max_tokens": 100_000},
        ) as going,
        concurrent.futures.ThreadPoolExecutor() as pool,
    ):
        lines = going.iter_lines()  # kept: httpx closes a stream whose iterator is dropped
        next(line for line in lines if "output_text.delta" in line)
        waiting = pool.submit(server.http.post, path, json=body, headers=headers)
        lease = keys.session_lease(other)
        wait_for(lambda: server.redis.exists(lease))
        server.redis.set(lease, "another's", px=60_000)
        answer = waiting.result(30)
    if stream and answer.status_code == 200:  # else it was refused before the stream began
        assert [event["type"] for event in events_of(answer)][-1] == "error"
        assert events_of(answer)[-1]["error"]["code"] == "conflict"
    else:
        server.error(answer, 409, "conflict")
    assert server.get_session(other)["messages"] == 0
    server.redis.delete(lease)
    body["stream"] = False
    said = wait_for(lambda: (again := server.http.post(path, json=body, headers=headers)).status_code == 200 and again)
    assert said.json()["usage"]["completion_tokens"] == 24
    assert server.get_session(other)["messages"] == 2


def test_a_session_continues_earlier_messages(server: Server, document: str) -> None:
    """They are stored at once, and the memory reads them with the first question."""
    first = server.session(document)
    answer = server.say(first["id"], "Who is Alice?", **GREEDY)
    asked, answered = server.http.get(f"/v1/sessions/{first['id']}/messages").json()["data"]
    answered |= {"standalone_question": "Who is Alice Liddell?", "agreement": 0.375}
    body = {"documents": [document], "messages": [asked, answered], "parent": first["id"]}
    made = server.http.post("/v1/sessions", json=body)
    assert made.status_code == 201, made.text
    branch = made.json()
    assert (branch["messages"], branch["title"], branch["parent"]) == (2, "Who is Alice?", first["id"])
    assert branch["position"] == first["position"], "the memory has not read them yet"
    stored = server.http.get(f"/v1/sessions/{branch['id']}/messages").json()["data"]
    assert [message["content"] for message in stored] == ["Who is Alice?", answer["content"]]
    for name in ("evidence", "standalone_question", "agreement"):
        assert [message[name] for message in stored[1:]] == [answered[name]]
    assert {message["id"] for message in stored}.isdisjoint({asked["id"], answered["id"]})

    empty = server.session(document)
    with_past, without = (server.say(id, "And then?", **GREEDY)["usage"] for id in (branch["id"], empty["id"]))
    assert with_past["prompt_tokens"] > without["prompt_tokens"] + len("Who is Alice?") / 8
    after = server.get_session(branch["id"])
    assert (after["messages"], after["position"]) == (4, with_past["prompt_tokens"] + 24)
    again = server.say(branch["id"], "And then?", **GREEDY)["usage"]
    assert again["prompt_tokens"] - after["position"] < with_past["prompt_tokens"] - first["position"], "read twice"
    forked = server.http.post(f"/v1/sessions/{branch['id']}/fork").json()
    assert (forked["parent"], forked["messages"]) == (branch["id"], 6)


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([{"role": "user", "content": "Who?"}], "the last one must be an answer"),
        (
            [{"role": "assistant", "content": "I."}, {"role": "user", "content": "Who?"}],
            "messages.0.role must be 'user'",
        ),
        ([{"role": "user", "content": " "}, {"role": "assistant", "content": "I."}], "a question must not be empty"),
    ],
)
def test_earlier_messages_that_are_no_conversation(server: Server, messages: list[dict], says: str) -> None:
    answer = server.http.post("/v1/sessions", json={"messages": messages})
    assert says in server.error(answer, 422, "invalid_value", "messages")["message"]


@pytest.mark.parametrize("name", ["content", "standalone_question"])
def test_earlier_messages_are_no_longer_than_new_ones(name: str) -> None:
    answer = PastMessage.model_validate({"role": "assistant", "content": "I.", name: "x" * 11})
    with pytest.raises(TooLarge, match=f"messages.1.{name} has 11 characters, the limit is 10"):
        past_messages([PastMessage(role="user", content="Who?"), answer], 10)


def test_instructions_are_a_system_message_for_one_answer(server: Server, document: str) -> None:
    asked = {"instructions": "Be brief.", **GREEDY}
    session = server.session()["id"]
    answer = server.say(session, "Who?", **asked)
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    chat = server.http.post(
        "/v1/chat/completions", json={"model": answer["model"], "messages": system, **GREEDY}
    ).json()
    assert answer["usage"]["prompt_tokens"] == chat["usage"]["prompt_tokens"]
    assert answer["content"] == chat["choices"][0]["message"]["content"]
    roles = [message["role"] for message in server.http.get(f"/v1/sessions/{session}/messages").json()["data"]]
    assert roles == ["user", "assistant"]
    # Later in a conversation, and after a document, it is text before the question.
    for there in (session, server.session(document)["id"]):
        forks = [server.http.post(f"/v1/sessions/{there}/fork").json()["id"] for _ in range(3)]
        plain, told, before = (
            server.say(fork, content, **fields)["usage"]["prompt_tokens"]
            for fork, content, fields in zip(
                forks, ("And?", "And?", "Be brief.\n\nAnd?"), (GREEDY, asked, GREEDY), strict=True
            )
        )
        assert plain < told == before
    refused = server.http.post(f"/v1/sessions/{session}/messages", json={"content": "?", "instructions": "x" * 4001})
    server.error(refused, 422, "invalid_value", "instructions")


def test_a_session_knows_the_program_that_created_it(server: Server) -> None:
    page = {"X-Everlong-Client": "page"}
    session = server.http.post("/v1/sessions", json={}, headers=page).json()
    assert session["client"] == server.get_session(session["id"])["client"] == "page"
    path = f"/v1/sessions/{session['id']}/fork"
    assert server.http.post(path).json()["client"] == "api"
    assert server.http.post(path, headers=page).json()["client"] == "page"
    assert server.session()["client"] == "api"
    refused = server.http.post("/v1/sessions", json={}, headers={"X-Everlong-Client": "a b"})
    server.error(refused, 422, "invalid_value", "X-Everlong-Client")
    # 0.1.0 did not store it.
    server.redis.hdel(keys.session(session["id"]), "client")
    assert server.get_session(session["id"])["client"] is None
