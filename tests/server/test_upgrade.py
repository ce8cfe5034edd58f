"""Data that an earlier version has stored is read and answered after an upgrade.

`tests/data/store-0.1.tar.xz` is the data folder of a server of version 0.1.0 with the model rmt-detect; its stored responses expire
in January 2030. `store-0.1.json` holds what that server answered.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from everlong_server.store.redis import keys
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.redis.schema import VERSION
from tests.process import Server, everlong
from tests.tinymodel import DATA, STORY

EXPECTED: dict[str, Any] = json.loads((DATA / "store-0.1.json").read_text())
DOCUMENT, SESSION = EXPECTED["document"], EXPECTED["session"]


def unpacked(data: Path) -> Path:
    """Unpack the data that 0.1.0 stored to a folder, and return it."""
    with tarfile.open(DATA / "store-0.1.tar.xz") as archive:
        archive.extractall(data, filter="data")
    return data


@pytest.fixture(scope="module", params=["in place", "from a backup"])
def upgraded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of today on the stored data, or on what `everlong backup` and `restore` made of it."""
    data = unpacked(tmp_path_factory.mktemp("d"))
    if request.param == "from a backup":
        archive, restored = data.parent / "0.1.backup", tmp_path_factory.mktemp("r")
        for command, folder in (("backup", data), ("restore", restored)):
            done = everlong(command, str(archive), "--data-dir", str(folder))
            assert done.returncode == 0, done.stderr
        archive.unlink()
        data = restored
    with Server("rmt-detect", data, recall_passages=0, chat_seconds=10**8, response_seconds=10**8) as server:
        server.start()
        yield server
        server.check_keys()


def test_the_store_is_marked_as_written_by_this_version(upgraded: Server) -> None:
    assert upgraded.redis.get(keys.SCHEMA) == str(VERSION).encode()


def content(client: redis.Redis) -> dict[bytes, Any]:
    """Return all keys with their values, without what Redis orders or stamps anew when it loads them."""
    read = {b"hash": client.hgetall, b"stream": client.xrange}
    return {name: read.get(client.type(name), client.dump)(name) for name in client.scan_iter("*")}


@pytest.mark.parametrize(
    ("version", "reason"),
    [(str(VERSION + 1), "a newer everlong has written the stored data"), ("restoring", "only partly restored"),
     ("x", "a newer everlong has written the stored data")],
)  # fmt: skip
def test_an_older_server_refuses_newer_data(
    tmp_path_factory: pytest.TempPathFactory, version: str, reason: str
) -> None:
    data = unpacked(tmp_path_factory.mktemp("d"))
    embedded = EmbeddedRedis(data)
    embedded.start()
    with redis.Redis(unix_socket_path=str(embedded.socket)) as client:
        client.set(keys.SCHEMA, version)
        stored = content(client)
    embedded.stop()
    done = everlong("serve", "--port", "0", "--model", "rmt-detect", "--data-dir", str(data))
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    embedded.start()
    with redis.Redis(unix_socket_path=str(embedded.socket)) as client:
        assert content(client) == stored, "nothing was changed"
    embedded.stop()


NEW_FIELDS = {"parent": None, "client": None, "answering": False}
"""Fields of sessions that 0.1.0 did not have, and their values for its sessions."""


def test_a_stored_document_is_ready_and_has_its_text(upgraded: Server) -> None:
    document = upgraded.document(DOCUMENT["id"])
    document.pop("tokens_per_second")
    assert document.pop("notes") == []
    assert document.pop("vectors") is None
    assert document.pop("pages") is False
    assert document == DOCUMENT
    listed = upgraded.http.get("/v1/documents").json()["data"]
    assert [each["id"] for each in listed] == [DOCUMENT["id"]]
    text = upgraded.http.get(f"/v1/documents/{DOCUMENT['id']}/text", params={"start_byte": 0, "end_byte": 6000}).json()
    assert text["text"] == STORY.read_text()[:6000]


def test_a_stored_session_has_its_title_messages_and_state(upgraded: Server) -> None:
    assert upgraded.get_session(SESSION["id"]) == SESSION | NEW_FIELDS
    messages = upgraded.http.get(f"/v1/sessions/{SESSION['id']}/messages").json()["data"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[0]["content"] == SESSION["title"]


def test_a_stored_session_answers_as_before(upgraded: Server) -> None:
    fork = upgraded.http.post(f"/v1/sessions/{SESSION['id']}/fork").json()["id"]
    answer = upgraded.http.post(f"/v1/sessions/{fork}/messages", json=EXPECTED["question"]).json()
    for field in ("content", "finish_reason", "usage"):
        assert answer[field] == EXPECTED["answer"][field]
    assert upgraded.get_session(SESSION["id"]) == SESSION | NEW_FIELDS, "the fork's turn does not change the session"


def test_a_stored_response_is_returned_and_continued(upgraded: Server) -> None:
    first, second = EXPECTED["response"], EXPECTED["next_response"]
    for response in (first, second):
        stored = upgraded.http.get(f"/v1/responses/{response['id']}").json()
        assert stored["output"][0].pop("citations") == []
        assert stored == response
    request = {
        "model": "rmt-detect", "input": "Who else?", "previous_response_id": first["id"], "max_output_tokens": 16,
        "temperature": 0,
    }  # fmt: skip
    continued = upgraded.http.post("/v1/responses", json=request).json()
    assert continued["output"][0]["content"] == second["output"][0]["content"]
    assert continued["usage"] == second["usage"]


def test_a_new_session_starts_from_the_stored_reading(upgraded: Server) -> None:
    session = upgraded.session(DOCUMENT["id"])
    assert (session["status"], session["state_digest"]) == ("ready", DOCUMENT["state_digest"])
