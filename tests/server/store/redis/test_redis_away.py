"""Redis fails and comes back: requests get 503 meanwhile, nothing is lost, and work continues."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis

from everlong_server.store.redis.embedded import DiskSpace, EmbeddedRedis, redis_server
from tests.process import Server, wait_for
from tests.server.store.redis.conftest import OwnRedis
from tests.tinymodel import STORY

pytestmark = pytest.mark.long

GREEDY = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


def test_redis_killed_and_restarted(new_server, own_redis: OwnRedis, server: Server) -> None:
    text = STORY.read_text()
    calm = server.upload(text)["id"]
    other = new_server(redis_url=own_redis.url, checkpoint_seconds=0.05).start()
    session = other.session()["id"]
    first = other.say(session, "Hello.", **GREEDY)
    before = other.get_session(session)
    document = other.upload(text)["id"]
    wait_for(lambda: (other.document(document)["progress"] or 0) > 0.2)

    own_redis.kill()
    other.error(other.http.get("/readyz"), 503, "store_unavailable")
    assert other.http.get("/livez").status_code == 200
    other.error(other.http.get(f"/v1/documents/{document}"), 503, "store_unavailable")
    other.error(other.http.post(f"/v1/sessions/{session}/messages", json={"content": "?"}), 503, "store_unavailable")
    stored = other.stored()
    other.error(other.http.post("/v1/documents", content=b"some text"), 503, "store_unavailable")
    assert other.stored() == stored, "a document that was not acknowledged left a file"

    own_redis.start()
    wait_for(lambda: other.http.get("/readyz").status_code == 200)
    assert other.get_session(session) == before
    assert other.http.get(f"/v1/sessions/{session}/messages").json()["data"][1]["content"] == first["content"]
    assert other.say(session, "And on.", **GREEDY)["content"]
    assert other.wait_read(document)["state_digest"] == server.wait_read(calm)["state_digest"]


def test_a_server_that_starts_before_its_redis_waits_for_it(new_server, own_redis: OwnRedis) -> None:
    own_redis.kill()
    server = new_server(redis_url=own_redis.url)
    server.launch()
    wait_for(lambda: "waiting for Redis" in server.log.read_text(), 60)
    server.error(server.http.get("/readyz"), 503, "loading")
    own_redis.start()
    server.wait_ready()
    assert server.read("some text")["status"] == "ready"


def test_a_redis_that_is_full_refuses_and_keeps_what_it_has(new_server, own_redis: OwnRedis) -> None:
    server = new_server(redis_url=own_redis.url).start()
    document = server.read(STORY.read_text()[:2000])
    client = redis.Redis(port=own_redis.port)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    server.error(server.http.post("/v1/sessions", json={"documents": [document["id"]]}), 503, "store_full")
    server.error(server.http.post("/v1/documents", content=b"more"), 503, "store_full")
    client.config_set("maxmemory", 0)
    assert server.document(document["id"]) == document
    assert server.say(server.session(document["id"])["id"], "?", **GREEDY)["content"]


def test_an_embedded_redis_that_ends_by_itself_is_started_again(new_server) -> None:
    server = new_server().start()
    document = server.read(STORY.read_text()[:2000])
    session = server.session(document["id"])["id"]
    said = server.say(session, "Hello.", **GREEDY)
    psutil.Process(server.redis.info("server")["process_id"]).kill()
    wait_for(lambda: "died and was restarted" in server.log.read_text())
    wait_for(lambda: server.http.get("/readyz").status_code == 200)
    assert server.document(document["id"]) == document
    assert server.http.get(f"/v1/sessions/{session}/messages").json()["data"][1]["content"] == said["content"]
    assert server.say(session, "And on.", **GREEDY)["content"]
    # It dies with a server that is killed, as the first one does.
    restarted = psutil.Process(server.redis.info("server")["process_id"])
    server.kill9()
    wait_for(lambda: not restarted.is_running() or restarted.status() == psutil.STATUS_ZOMBIE)
    server.start()
    assert server.document(document["id"]) == document


def test_a_redis_that_outlived_its_server_is_replaced(new_server, tmp_path: Path) -> None:
    """As on systems where a process does not die with its parent."""
    data = tmp_path / "data"
    with tempfile.TemporaryDirectory(prefix="evl") as short:
        (Path(short) / "d").symlink_to(data)
        server = new_server(data=data).start()
        document = server.read(STORY.read_text()[:2000])
        server.terminate()
        orphan = subprocess.Popen(
            [redis_server(), "--port", "0", "--unixsocket", f"{short}/d/redis/redis.sock", "--dir", str(data / "redis"),
             "--appendonly", "yes"], stdout=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: redis_of(server))
        server.start()
        assert orphan.wait(60) == 0
        assert server.redis.info("server")["process_id"] != orphan.pid
        assert server.document(document["id"]) == document


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 160 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "tmpfs", folder], check=False).returncode:
        pytest.skip("no right to mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_disk_that_is_full_when_redis_is_restarted_is_reported(small_disk: Path) -> None:
    """The new Redis is started with the settings of a full disk. The operator must be told all the same."""
    embedded = EmbeddedRedis(small_disk / "data")
    embedded.start()
    try:
        assert embedded.check_disk() is None
        (small_disk / "filler").write_bytes(bytes(shutil.disk_usage(small_disk).free - (1 << 20)))
        embedded._process.kill()
        embedded._process.wait()
        assert embedded.revive()
        assert embedded.check_disk() is DiskSpace.NONE
        assert embedded.check_disk() is None
        (small_disk / "filler").unlink()
        assert wait_for(embedded.check_disk) is DiskSpace.ENOUGH
    finally:
        embedded.stop()


@pytest.mark.parametrize("left", [16 << 20, 0])
@pytest.mark.parametrize("at_once", [False, True], ids=["noticed", "at once"])
def test_reads_go_on_while_the_disk_is_full(small_disk: Path, new_server, left: int, at_once: bool) -> None:
    """`at_once`: Redis writes before the server notices the full disk, exits, and is restarted."""
    server = new_server(data=small_disk / "data", tenant_requests_per_minute=100_000).start()
    document = server.read(STORY.read_text()[:2000])
    session = server.session(document["id"])["id"]
    server.say(session, "Hello.", **GREEDY)
    before = server.get_session(session)
    client = server.redis

    with (small_disk / "filler").open("wb") as filler:
        free = shutil.disk_usage(small_disk).free
        filler.write(bytes(free - left if left else free))
        filler.flush()
        while not left and shutil.disk_usage(small_disk).free:  # until nothing more fits
            with contextlib.suppress(OSError):
                filler.write(b"0" * 4096)
                filler.flush()
        if at_once and not left:
            with contextlib.suppress(redis.RedisError):
                client.set("{everlong}:test", b"x" * (1 << 20), px=60_000)
        wait_for(lambda: ("nearly full" if left else "is full") in server.log.read_text())
        wait_for(lambda: redis_of(server))
        for _ in range(3):
            assert server.get_session(session) == before
            assert server.document(document["id"]) == document
            messages = server.http.get(f"/v1/sessions/{session}/messages")
            assert len(messages.json()["data"]) == 2
        code = "store_full" if left else "store_read_only"
        server.error(server.http.post("/v1/sessions", json={"documents": [document["id"]]}), 503, code)
        server.error(server.http.post(f"/v1/sessions/{session}/messages", json={"content": "?"}), 503, code)
        assert server.http.post("/v1/documents", content=b"more").status_code == 503
        if left:  # deletions make room
            other = server.http.delete(f"/v1/documents/{document['id']}")
            assert other.status_code == 200
    (small_disk / "filler").unlink()
    wait_for(lambda: "has space again" in server.log.read_text())
    assert server.get_session(session) == before
    assert server.say(session, "And on.", **GREEDY)["content"]
    assert server.read("more text")["status"] == "ready"


def test_an_empty_redis_does_not_cost_the_texts(new_server) -> None:
    """With an empty or a wrong Redis no text is deleted, so all documents are back when Redis is."""
    server = new_server().start()
    document = server.read("Alice was beginning to get very tired.")
    server.kill9()
    wait_for(lambda: not redis_of(server))
    folder = server.data / "redis"
    folder.rename(server.data / "away")
    server.start()
    assert server.http.get(f"/v1/documents/{document['id']}").status_code == 404
    assert "Redis has no record of the blob store" in server.log.read_text()
    server.kill9()
    wait_for(lambda: not redis_of(server))
    shutil.rmtree(folder)
    (server.data / "away").rename(folder)
    server.start()
    assert (
        server.http.get(f"/v1/documents/{document['id']}/text").json()["text"]
        == "Alice was beginning to get very tired."
    )


def redis_of(server) -> bool:
    """Whether a Redis still answers on the server's socket."""
    try:
        return bool(server.redis.ping())
    except redis.exceptions.RedisError:
        return False
