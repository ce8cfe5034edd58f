"""A server killed at any moment loses nothing that it acknowledged, and continues exactly where it stopped."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from everlong_server.store.redis.embedded import EmbeddedRedis
from tests.process import Server, wait_for
from tests.tinymodel import NOVEL, STORY

pytestmark = pytest.mark.long

GREEDY = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
SAMPLED = {"temperature": 1.0, "top_p": 1, "max_tokens": 30, "ignore_eos": True, "seed": 7}


def test_a_reading_interrupted_by_two_kills_gives_the_same_state(server: Server, new_server) -> None:
    text = NOVEL.read_text()
    calm = server.upload(text)

    broken = new_server(checkpoint_seconds=0.05).start()
    # Uploaded in chunks, and acknowledged before it is read.
    data = text.encode()
    answer = broken.http.post("/v1/documents", content=(data[i : i + 10_007] for i in range(0, len(data), 10_007)))
    assert answer.status_code == 202
    document = answer.json()["id"]
    seen = 0
    for share in (0.15, 0.4):
        wait_for(
            lambda share=share: (broken.document(document)["progress"] or 0) > share, 120, "for reading to come so far"
        )
        broken.kill9()
        broken.start()
        now = broken.document(document)
        assert now["status"] in ("queued", "reading")
        assert now["tokens"] > seen, "what was read before the kill was lost"
        seen = now["tokens"]
    done, expected = broken.wait_read(document), server.wait_read(calm["id"])
    assert done["tokens"] == expected["tokens"] >= 100_000
    assert done["segments"] == expected["segments"]
    assert done["state_digest"] == expected["state_digest"]
    broken.check_keys()


@pytest.mark.long
def test_kills_at_random_moments_of_reading(new_server) -> None:
    text = STORY.read_text()
    server = new_server(checkpoint_seconds=0).start()
    expected = server.read(text)
    document = server.upload(text)["id"]
    chance = random.Random(4)
    for _ in range(2):
        tokens = server.document(document)["tokens"] + chance.randrange(2000, 12_000)
        wait_for(lambda tokens=tokens: (d := server.document(document))["tokens"] > tokens or d["status"] == "ready")
        server.kill9()
        server.start()
    done = server.wait_read(document)
    assert done["state_digest"] == expected["state_digest"]
    assert done["tokens"] == expected["tokens"]
    server.check_keys()


@pytest.mark.parametrize("end", ["kill -9", "SIGTERM", "SIGINT"])
def test_a_session_continues_where_it_stopped(new_server, end: str) -> None:
    server = new_server().start()
    document = server.read(STORY.read_text()[:5000])["id"]
    stays, restarts = server.session(document)["id"], server.session(document)["id"]
    for session in (stays, restarts):
        server.say(session, "One.", **SAMPLED)
    reference = [server.say(stays, question, **SAMPLED)["content"] for question in ("Two?", "Three?")]
    before = server.get_session(restarts)

    if end == "kill -9":
        server.kill9()
    else:
        assert server.terminate(getattr(signal, end)) == 0
    server.start()
    assert server.get_session(restarts) == before
    assert server.document(document)["status"] == "ready"
    assert [server.say(restarts, question, **SAMPLED)["content"] for question in ("Two?", "Three?")] == reference
    assert server.get_session(restarts)["state_digest"] == server.get_session(stays)["state_digest"]
    dialogue = server.http.get(f"/v1/sessions/{restarts}/messages").json()["data"]
    assert [m["content"] for m in dialogue if m["role"] == "user"] == ["One.", "Two?", "Three?"]


def test_a_kill_while_answering_leaves_the_session_as_it_was(new_server) -> None:
    server = new_server().start()
    session = server.session(server.read(STORY.read_text()[:3000])["id"])
    body = {"content": "Talk.", "stream": True, "max_tokens": 1_000_000, "ignore_eos": True}
    with (
        pytest.raises(httpx.TransportError),
        server.http.stream("POST", f"/v1/sessions/{session['id']}/messages", json=body) as r,
    ):
        for line in r.iter_lines():
            if "delta" in line and server.process is not None:
                server.kill9()
    server.start()
    assert server.get_session(session["id"]) == session
    # The lease ended with the server, so the next message does not wait for it.
    assert server.say(session["id"], "And now?", **GREEDY)["content"]
    server.check_keys()


def test_sigterm_lets_an_answer_finish_and_refuses_new_ones(new_server) -> None:
    server = new_server(drain_seconds=120).start()
    session, whole, other = (server.session()["id"] for _ in range(3))
    body = {"content": "Talk.", "max_tokens": 1000, "ignore_eos": True}
    with (
        httpx.Client(base_url=server.url, timeout=120) as client,
        ThreadPoolExecutor(1) as threads,
        server.http.stream("POST", f"/v1/sessions/{session}/messages", json=body | {"stream": True}) as response,
    ):
        lines = response.iter_lines()
        next(line for line in lines if "delta" in line)
        said = threads.submit(client.post, f"/v1/sessions/{whole}/messages", json=body)
        wait_for(lambda: "everlong_answering 2.0" in client.get("/metrics").text)
        assert server.process is not None
        server.process.send_signal(signal.SIGTERM)
        wait_for(lambda: client.get("/readyz").status_code == 503)
        server.error(client.get("/readyz"), 503, "draining")
        server.error(client.post(f"/v1/sessions/{other}/messages", json={"content": "?"}), 503, "draining")
        server.error(client.post("/v1/documents", content=b"text"), 503, "draining")
        assert "response.completed" in "".join(lines)
        assert said.result().json()["usage"]["completion_tokens"] == 1000
    assert server.process.wait(60) == 0
    server.process = None
    server.start()
    assert [server.get_session(each)["messages"] for each in (session, whole, other)] == [2, 2, 0]


def test_an_upload_that_is_incomplete_at_shutdown_gets_a_503_with_retry_after(new_server) -> None:
    server = new_server().start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as peer:
        peer.sendall(b"POST /v1/documents HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\nhalf")
        wait_for(lambda: any(path.name.startswith(".") for path in (server.data / "documents").iterdir()))
        assert server.terminate() == 0
        head, _, body = b"".join(iter(lambda: peer.recv(4096), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 5" in head
    assert json.loads(body)["error"]["code"] == "draining"
    assert not [path.name for path in (server.data / "documents").iterdir() if path.name.startswith(".")]


def test_after_a_change_of_model_documents_are_read_again_and_sessions_are_refused(new_server, tmp_path) -> None:
    from tests.tinymodel import make_model

    data = tmp_path / "data"
    first = new_server(data=data).start()
    document = first.read(STORY.read_text()[:3000])
    session = first.session(document["id"])
    first.terminate()
    second = new_server(make_model(tmp_path, segment_length=32, name="other"), data).start()
    again = second.wait_read(document["id"])
    assert again["model"] == "other"
    assert again["state_digest"] != document["state_digest"]
    answer = second.http.post(f"/v1/sessions/{session['id']}/messages", json={"content": "?"})
    error = second.error(answer, 409, "state_unusable")
    assert "tiny-rmt" in error["message"]
    assert second.say(second.session(document["id"])["id"], "?", **GREEDY)["content"]
    second.check_keys()


def test_two_servers_never_share_a_data_folder(new_server, tmp_path) -> None:
    first = new_server(data=tmp_path / "data").start()
    second = new_server(data=tmp_path / "data")
    second.launch()
    assert second.process is not None
    assert second.process.wait(60) == 1
    second.process = None
    assert "another server uses the data folder" in second.log.read_text()
    assert first.http.get("/readyz").status_code == 200


@pytest.mark.parametrize("own_redis", [False, True])
def test_a_restarted_server_does_not_wait_for_its_own_lease(new_server, tmp_path, own_redis: bool) -> None:
    """It takes its jobs at once after `kill -9`, with the embedded Redis and with another one."""
    with contextlib.ExitStack() as stack:
        settings = {}
        if own_redis:
            other = EmbeddedRedis(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evl"))))
            other.start()
            stack.callback(other.stop)
            settings["redis_url"] = other.url
        server = new_server(lease_seconds=3600, checkpoint_seconds=0.05, **settings).start()
        document = server.upload(NOVEL.read_text())["id"]
        wait_for(lambda: (server.document(document)["progress"] or 0) > 0.1)
        server.kill9()
        server.start()
        started = time.monotonic()
        seen = server.document(document)["tokens"]
        wait_for(lambda: server.document(document)["tokens"] > seen, 60, "for the first new checkpoint")
        print(f"first new checkpoint {time.monotonic() - started:.2f} s after the server was ready")
        assert len(list((server.data / "replicas").iterdir())) == 1, "the lock file of the killed server is left"
        server.terminate()
        assert list((server.data / "replicas").iterdir()) == []
