"""`everlong backup` and `restore`: everything at one moment, while servers run; refused when damaged, newer or not empty."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.exceptions import ConnectionError as RedisAway

from everlong_server.store.backup import create
from everlong_server.store.backup.archive import ArchiveWriter, Manifest, verify
from everlong_server.store.backup.create import back_up
from everlong_server.store.backup.restore import restore
from everlong_server.store.backup.running import BackupError, is_running, marked
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.schema import RESTORING, VERSION, SchemaError
from everlong_server.store.texts.blobs import Blobs
from tests.process import Forked, Server, everlong, wait_for
from tests.tinymodel import STORY

pytestmark = pytest.mark.long

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
TEXT = STORY.read_text()[:9000]


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(f"file://{tmp_path / 'files'}")


def say(_: str) -> None:
    pass


class Load:
    """Clients that upload, ask and delete until `stop`. Each answer must be a success."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ending = threading.Event()
        self.failures: list[str] = []
        self.done = 0
        self._threads = [threading.Thread(target=self._work) for _ in range(2)]
        for thread in self._threads:
            thread.start()

    def _work(self) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60) as http:
            while not self._ending.is_set():
                document = self._send(http.post("/v1/documents", content=TEXT, headers={"content-type": "text/plain"}))
                session = self._send(http.post("/v1/sessions", json={}))
                self._send(http.post(f"/v1/sessions/{session}/messages", json={"content": "Who?", **GREEDY}))
                for path in (f"/v1/documents/{document}", f"/v1/sessions/{session}"):
                    self._send(http.delete(path))
                self.done += 1

    def _send(self, answer: httpx.Response) -> str:
        if not answer.is_success:
            self.failures.append(answer.text)
        return str(answer.json().get("id"))

    def stop(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()


def test_a_store_that_is_in_use_continues_elsewhere_bit_for_bit(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server(recall_passages=2).start()
    document = server.read(TEXT)["id"]
    session = server.session(document)["id"]
    server.say(session, "Who is it about?", **GREEDY)
    response = server.http.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 16}).json()
    upload = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = server.http.post("/v1/uploads", json=upload).json()["id"]
    part = server.http.post(f"/v1/uploads/{upload}/parts", files={"data": b"ten words."}).json()["id"]
    body = {"model": "tiny-rmt", "prompt": "Once", "max_tokens": 60, "ignore_eos": True}
    lines = [{"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body} for n in range(60)]
    requests = {"file": "\n".join(map(json.dumps, lines))}
    input_file = server.http.post("/v1/files", files=requests, data={"purpose": "batch"}).json()["id"]
    batch = {"input_file_id": input_file, "endpoint": "/v1/completions", "completion_window": "24h"}
    batch = server.http.post("/v1/batches", json=batch).json()["id"]
    stored = {
        path: server.http.get(path).json()
        for path in (f"/v1/documents/{document}", f"/v1/documents/{document}/text?end_byte=9000", f"/v1/sessions/{session}",
                     f"/v1/sessions/{session}/messages", f"/v1/sessions/{session}/memory", f"/v1/responses/{response['id']}",
                     f"/v1/files/{input_file}")
    }  # fmt: skip
    load = Load(server)
    wait_for(lambda: load.done)
    file = tmp_path / "one.backup"
    done = everlong("backup", str(file), EVERLONG_DATA_DIR=str(server.environment["EVERLONG_DATA_DIR"]))
    before = load.done
    wait_for(lambda: load.done > before)
    load.stop()
    assert load.failures == []
    assert done.returncode == 0, done.stderr
    assert file.stat().st_mode & 0o777 == 0o600
    assert server.redis.get(keys.BACKUP) is None

    restored = new_server(recall_passages=2)
    folder = str(restored.environment["EVERLONG_DATA_DIR"])
    done = everlong("restore", str(file), EVERLONG_DATA_DIR=folder)
    assert done.returncode == 0, done.stderr
    again = everlong("restore", str(file), EVERLONG_DATA_DIR=folder)
    assert (again.returncode, "not empty" in again.stderr) == (1, True), again.stderr
    restored.start()
    for path, answer in stored.items():
        assert restored.http.get(path).json() == answer, path
    one, two = (each.say(session, "And then?", **GREEDY) for each in (server, restored))
    assert (two["content"], two["evidence"]) == (one["content"], one["evidence"])
    one, two = (each.get_session(session)["state_digest"] for each in (server, restored))
    assert one == two
    for each in (server, restored):
        answered = wait_for(lambda each=each: each.http.get(f"/v1/batches/{batch}").json()["output_file_id"])
        results = each.http.get(f"/v1/files/{answered}/content").text.splitlines()
        assert [json.loads(line)["custom_id"] for line in results] == [str(n) for n in range(60)]
    completed = restored.http.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})
    assert completed.json()["status"] == "completed", completed.text
    for each in restored.http.get("/v1/documents").json()[
        "data"
    ]:  # the texts of what the clients had uploaded are there, too
        assert restored.wait_read(each["id"])["status"] == "ready"
    restored.check_keys()


def test_files_of_deleted_documents_stay_until_the_backup_has_ended(new_server: Callable[..., Server]) -> None:
    server = new_server(upload_seconds=1, recall_passages=0).start()
    document = server.read(TEXT)["id"]
    server.redis.set(keys.BACKUP, "token", px=60_000)
    assert server.http.delete(f"/v1/documents/{document}").status_code == 200
    server.error(server.http.get(f"/v1/documents/{document}"), 404, "document_not_found")
    assert document in server.stored()
    server.redis.delete(keys.BACKUP)
    wait_for(lambda: document not in server.stored())


async def test_the_mark_of_a_backup(redis: Client) -> None:
    async with marked(redis):
        assert await is_running(redis)
        assert 0 < await redis.pttl(keys.BACKUP) <= 60_000
        with pytest.raises(BackupError, match="another backup"):
            async with marked(redis):
                pass
    assert not await is_running(redis)
    with pytest.raises(RuntimeError):
        async with marked(redis):
            raise RuntimeError
    assert not await is_running(redis)
    with pytest.raises(BackupError, match="files may be missing"):
        async with marked(redis):
            await redis.delete(keys.BACKUP)


async def filled(redis: Client, blobs: Blobs) -> None:
    """Fill a store with every type of key, one that expires, and files."""
    await redis.set(keys.SCHEMA, VERSION)
    await redis.hset("{everlong}:document:doc_1", mapping={"state": b"\0\xff" * 50_000, "bytes": 1})
    await redis.zadd("{everlong}:documents:default", {"doc_1": 1.5})
    await redis.xadd("{everlong}:jobs:m", {"id": "1"})
    await redis.xgroup_create("{everlong}:jobs:m", "readers", "0")
    await redis.rpush("{everlong}:session:s:messages", "a", "b")
    await redis.set("{everlong}:replica:r", 1, px=50_000)
    await redis.set("else", "of another program")
    for number, content in ((1, b""), (2, b"words" * 1000)):
        blobs.put_stored(f"doc_{number:032}", io.BytesIO(content))


async def dumped(redis: Client) -> dict[bytes, Any]:
    names = [name async for name in redis.scan_iter("{everlong}*") if name.decode() not in (keys.SCHEMA, keys.STORE)]
    # The dump of a hash has its fields in no particular order.
    return {
        name: await redis.hgetall(name) if await redis.type(name) == b"hash" else await redis.dump(name)
        for name in names
    }


@pytest.mark.parametrize("diskless", ["yes", "no"])  # Redis sends a snapshot with an end mark, or with its size
async def test_every_key_and_file_is_restored(redis: Client, blobs: Blobs, tmp_path: Path, diskless: str) -> None:
    await redis.config_set("repl-diskless-sync", diskless)
    await filled(redis, blobs)
    before, said = await dumped(redis), list[str]()
    manifest = await back_up(redis, blobs, tmp_path / "b", said.append)
    assert manifest.files == 2
    assert any("snapshot of Redis" in line for line in said)
    await redis.flushdb()
    other = Blobs(f"file://{tmp_path / 'other'}")
    await restore(tmp_path / "b", redis, other, tmp_path, said.append)
    assert await dumped(redis) == before
    assert 0 < await redis.pttl("{everlong}:replica:r") <= 50_000
    assert await redis.pttl("{everlong}:documents:default") == -1
    assert await redis.exists("else") == 0
    assert await redis.get(keys.SCHEMA) == str(VERSION).encode()
    assert (await redis.get(keys.STORE)).decode() == other.store_id()
    for name in blobs.names():
        with blobs.open(name) as one, other.open(name) as two:
            assert one.read() == two.read()


async def test_a_restored_store_has_its_copies(
    redis: Client, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failover must not lose what the command has restored. Replicas may lag for some minutes, and no server starts before."""
    monkeypatch.setattr("everlong_server.store.backup.restore._COPYING_SECONDS", 0.0)
    await filled(redis, blobs)
    await back_up(redis, blobs, tmp_path / "b", say)
    await redis.flushdb()
    redis.copies = 1
    with pytest.raises(RedisAway, match="0 Redis replicas have the write, 1 are required"):
        await restore(tmp_path / "b", redis, Blobs(f"file://{tmp_path / 'other'}"), tmp_path, say)
    assert await redis.get(keys.SCHEMA) == RESTORING


async def test_a_store_that_is_not_empty_is_refused(redis: Client, blobs: Blobs, tmp_path: Path) -> None:
    await filled(redis, blobs)
    await back_up(redis, blobs, tmp_path / "b", say)
    with pytest.raises(BackupError, match="exists: choose another name"):
        await back_up(redis, blobs, tmp_path / "b", say)
    with pytest.raises(BackupError, match="Redis is not empty"):
        await restore(tmp_path / "b", redis, Blobs(f"file://{tmp_path / 'new'}"), tmp_path, say)
    await redis.flushdb()
    with pytest.raises(BackupError, match=r"the blob store .* is not empty: it has 2 files"):
        await restore(tmp_path / "b", redis, blobs, tmp_path, say)
    assert await redis.dbsize() == 0


async def test_newer_backups_are_refused(redis: Client, blobs: Blobs, tmp_path: Path) -> None:
    await filled(redis, blobs)
    for name, change, error in (("a", {"schema": VERSION + 1}, SchemaError), ("b", {"format": 2}, BackupError)):
        manifest = Manifest("9.0.0", VERSION, 0, 0.0)
        for field, value in change.items():
            setattr(manifest, field, value)
        with ArchiveWriter(tmp_path / name, manifest) as written:
            written.add("redis.rdb", io.BytesIO(b"x"), 1, lambda count: None)
            written.finish()
        with pytest.raises(error, match="newer"):
            await restore(tmp_path / name, redis, blobs, tmp_path, say)
    await redis.set(keys.SCHEMA, VERSION + 1)
    with pytest.raises(SchemaError, match="newer"):
        await back_up(redis, blobs, tmp_path / "c", say)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "files"}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small archive. Its snapshot of Redis is not one, which only `restore` would notice."""
    path = tmp_path_factory.mktemp("a") / "b"
    with ArchiveWriter(path, Manifest("0.1.0", VERSION, 0, 0.0)) as written:
        for name, content in (("redis.rdb", b"REDIS" * 300), (f"files/doc_{1:032}", b"words" * 700)):
            written.add(name, io.BytesIO(content), len(content), lambda count: None)
        written.finish()
    verify(path, lambda count: None)
    return path.read_bytes()


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_and_truncated_backups_are_refused(
    small: bytes, tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """Cut anywhere within the manifest or before, and with any bit of a member or of the manifest flipped."""
    with tarfile.open(fileobj=io.BytesIO(small)) as tar:
        spans = [(info.offset_data, info.offset_data + info.size) for info in tar]
    path = tmp_path_factory.getbasetemp() / "damaged"
    if data.draw(st.booleans()):
        path.write_bytes(small[: data.draw(st.integers(0, spans[-1][1] - 1))])
    else:
        start, end = data.draw(st.sampled_from(spans))
        changed = bytearray(small)
        changed[data.draw(st.integers(start, end - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(changed)
    with pytest.raises(BackupError, match=r"truncated|damaged"):
        verify(path, lambda count: None)


@pytest.mark.parametrize("content", [b"", b"words", b"\x1f\x8b\x08", json.dumps({}).encode()])
async def test_other_files_are_refused(redis: Client, blobs: Blobs, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "b").write_bytes(content)
    with pytest.raises(BackupError, match=r"no backup|truncated"):
        await restore(tmp_path / "b", redis, blobs, tmp_path, say)
    assert await redis.dbsize() == 0


async def test_an_unreadable_snapshot_leaves_a_store_that_no_server_starts_on(
    small: bytes, redis: Client, blobs: Blobs, tmp_path: Path
) -> None:
    (tmp_path / "b").write_bytes(small)
    with pytest.raises(BackupError, match="cannot load the backup's Redis data"):
        await restore(tmp_path / "b", redis, blobs, tmp_path, say)
    assert await redis.get(keys.SCHEMA) == RESTORING


async def test_a_backup_that_fails_leaves_nothing(
    redis: Client, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(redis, blobs)

    def fail(*_: object) -> None:
        raise RedisAway("away")

    monkeypatch.setattr(create, "_copy_files", fail)
    with pytest.raises(RedisAway):
        await back_up(redis, blobs, tmp_path / "b", say)
    assert {path.name for path in tmp_path.iterdir()} == {"files"}
    assert not await is_running(redis)


async def test_a_file_that_shrinks_while_it_is_copied(tmp_path: Path) -> None:
    with (
        ArchiveWriter(tmp_path / "b", Manifest("", VERSION, 0, 0.0)) as written,
        pytest.raises(BackupError, match="changed"),
    ):
        await asyncio.to_thread(written.add, "files/x", io.BytesIO(b"short"), 6, lambda count: None)


def test_a_restore_that_is_killed_leaves_a_store_that_no_server_starts_on(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    path = tmp_path / "large"
    with ArchiveWriter(path, Manifest("0.1.0", VERSION, 0, 0.0)) as written:
        for name, size in ((f"files/doc_{1:032}", 256 << 20), ("redis.rdb", 100)):
            with (tmp_path / "zeros").open("w+b") as file:
                file.truncate(size)
                written.add(name, file, size, lambda count: None)
        written.finish()
    target = new_server()
    forked = Forked(["restore", str(path)], target.environment, tmp_path / "out", tmp_path / "err", daemon=False)

    def begun() -> bool:
        assert forked.poll() is None, (tmp_path / "err").read_text()
        with suppress(Exception):  # its Redis is not running yet
            return bool(target.redis.get(keys.SCHEMA) == RESTORING)
        return False

    wait_for(begun)
    forked.kill()
    forked.wait(60)
    done = everlong("serve", "--port", "0", "--model", target.environment["EVERLONG_MODEL"],
                    EVERLONG_DATA_DIR=target.environment["EVERLONG_DATA_DIR"])  # fmt: skip
    assert done.returncode == 1
    assert "only partly restored" in done.stderr
    done = everlong("restore", str(path), EVERLONG_DATA_DIR=target.environment["EVERLONG_DATA_DIR"])
    assert (done.returncode, "not empty" in done.stderr) == (1, True)
