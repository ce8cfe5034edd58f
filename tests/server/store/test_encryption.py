"""Encryption at rest: the disk and dumps of Redis reveal nothing that users wrote, changed data is refused, and keys rotate."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from everlong_models import load_model
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.errors import KeyMissing
from everlong_server.services import require_vault
from everlong_server.settings import Settings
from everlong_server.store.documents import Documents
from everlong_server.store.jobs import Jobs
from everlong_server.store.messages import AnswerMessage
from everlong_server.store.records import Document, new_id
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.rotation import UNFINISHED, RotationCounts, has_sealable_values
from everlong_server.store.rotation import rotate as rotate_all
from everlong_server.store.sessions import Sessions
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import FIELDS, Vault, VaultError, new_key
from tests.files import pdf, word, zipped
from tests.process import START_SECONDS, Server, wait_for
from tests.server.store.encrypted import MARKER, TEXT, dumped, vault


def encrypted(new_server: Callable[..., Server], data: Path, *lines: str, **more: object) -> Server:
    file = data.with_name("keys")
    file.write_text("".join(f"{line}\n" for line in lines))
    return new_server(data=data, encryption_key_file=file, private_dir=data.with_name("private"), **more)


def talk(server: Server) -> Callable[[Server], list[Any]]:
    """Send the marker through every endpoint that stores text. Return a function that collects what a server with this data
    answers."""
    http = server.http
    document = server.read(TEXT)["id"]
    made = word(("Heading 1", f"Of the {MARKER}"), ("Normal", TEXT))
    file = http.post("/v1/files", files={"file": (f"{MARKER}.docx", made)}, data={"purpose": "user_data"}).json()["id"]
    server.wait_read(file)
    packed = zipped({f"{MARKER}.txt": TEXT, f"{MARKER}.pdf": pdf([TEXT[:40]])})
    archive = http.post("/v1/documents/archive", content=packed, headers={"Idempotency-Key": "archive"}).json()
    for unpacked in archive["data"]:
        server.wait_read(unpacked["id"])
    session = server.session(document, file)["id"]
    wait_for(lambda: server.get_session(session)["status"] == "ready")
    said = {"content": f"Where does the {MARKER} live?", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    said |= {"recall": {"passages": 4, "tokens": 60}}
    answer = http.post(f"/v1/sessions/{session}/messages", json=said, headers={"Idempotency-Key": "once"}).json()
    assert MARKER in str(answer["evidence"])
    chat = {"model": "tiny-rmt", "max_tokens": 5, "messages": [{"role": "user", "content": f"A {MARKER}?"}]}
    assert http.post("/v1/chat/completions", json=chat).status_code == 200
    asked = {
        "model": "tiny-rmt",
        "input": f"What is a {MARKER}?",
        "instructions": f"Say {MARKER}.",
        "max_output_tokens": 16,
    }
    store = http.post("/v1/vector_stores", json={"name": MARKER, "metadata": {MARKER: MARKER}}).json()["id"]
    attributes = {"file_id": document, "attributes": {MARKER: MARKER}}
    assert http.post(f"/v1/vector_stores/{store}/files", json=attributes).status_code == 200
    searching = {"tools": [{"type": "file_search", "vector_store_ids": [store]}]}
    assert http.post("/v1/responses", json=asked | searching).status_code == 200
    response = http.post("/v1/responses", json=asked | {"background": True}).json()["id"]
    wait_for(lambda: http.get(f"/v1/responses/{response}").json()["status"] in ("completed", "incomplete"))
    facts = {"bytes": len(TEXT), "filename": f"{MARKER}.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = http.post("/v1/uploads", json=facts).json()["id"]
    assert http.post(f"/v1/uploads/{upload}/parts", files={"data": TEXT.encode()}).status_code == 200
    echoed = {"model": "tiny-rmt", "prompt": f"The {MARKER}", "echo": True, "max_tokens": 2, "seed": 1}
    request = {"custom_id": MARKER, "method": "POST", "url": "/v1/completions", "body": echoed}
    requests = {"file": (f"{MARKER}.jsonl", json.dumps(request))}
    input_file = http.post("/v1/files", files=requests, data={"purpose": "batch"}).json()["id"]
    batched = {
        "input_file_id": input_file,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        "metadata": {MARKER: MARKER},
    }
    batch = http.post("/v1/batches", json=batched).json()["id"]
    wait_for(lambda: http.get(f"/v1/batches/{batch}").json()["status"] == "completed")
    wrong = {"file": ("b.jsonl", json.dumps(request | {"method": MARKER}))}
    wrong = {"input_file_id": http.post("/v1/files", files=wrong, data={"purpose": "batch"}).json()["id"]}
    refused = http.post("/v1/batches", json=batched | wrong).json()["id"]
    wait_for(lambda: MARKER in str(http.get(f"/v1/batches/{refused}").json()["errors"]))

    def again(server: Server) -> list[Any]:
        http = server.http
        search = {"content": f"the {MARKER}", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        search |= {"recall": said["recall"]}
        fork = http.post(f"/v1/sessions/{session}/fork").json()["id"]
        more = http.post(f"/v1/sessions/{fork}/messages", json=search).json()
        on = http.post("/v1/responses", json={**asked, "temperature": 0, "previous_response_id": response}).json()
        return [
            http.get(f"/v1/documents/{document}/text", params={"start_byte": 0, "end_byte": 100}).json(),
            http.get(f"/v1/files/{file}").json()["filename"],
            http.get(f"/v1/vector_stores/{store}").json(),
            http.get(f"/v1/batches/{batch}").json(),
            http.get(f"/v1/batches/{refused}").json(),
            http.get(f"/v1/files/{input_file}").json()["filename"],
            http.get(f"/v1/files/{http.get(f'/v1/batches/{batch}').json()['output_file_id']}/content").text,
            http.get(f"/v1/vector_stores/{store}/files/{document}").json(),
            http.get(f"/v1/sessions/{session}/messages").json(),
            http.get(f"/v1/responses/{response}").json(),
            http.post(f"/v1/sessions/{session}/messages", json=said, headers={"Idempotency-Key": "once"}).json(),
            more["content"],
            [(passage["text"], passage.get("section")) for passage in more["evidence"]],
            on["output"][0]["content"],
        ]

    return again


def traces(tokenizer: Tokenizer) -> list[bytes]:
    """Byte strings that reveal the marker: its letters, also as stemmed by the index, and its tokens."""
    tokens = [tokenizer.encode(f"{before}{MARKER}") for before in ("", " ", "The ")]
    inner = [t[1:] if len(t) > 3 else t for t in tokens]
    return [MARKER.encode(), MARKER[:-1].encode(), *(struct.pack(f"<{len(t)}I", *t) for t in inner)]


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_model(str(tiny_model), models_dir=tiny_model.parent).tokenizer


@pytest.mark.long
def test_nothing_that_was_said_is_on_disk(
    new_server: Callable[..., Server], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    line = new_key()
    server = encrypted(new_server, tmp_path / "data", line, chat_seconds=600).start()
    again = talk(server)
    before = again(server)
    everything = dumped(server)
    for trace in traces(tokenizer):
        assert trace not in everything, trace
    redis = server.redis
    fields = {field for key in redis.scan_iter("*") if redis.type(key) == b"hash" for field in redis.hkeys(key)}
    assert {field.encode() for field in FIELDS - {"error", "tool_calls"}} <= fields, "not all that is sealed was stored"
    server.check_keys()
    # It is all there for who has the key, also after a restart, and what was not sealed says the same.
    server.kill9()
    server.start()
    assert again(server) == before
    secret = bytes.fromhex(line.split()[1])
    assert secret not in everything
    assert line.split()[1] not in server.log.read_text()
    server.terminate()
    assert not list((tmp_path / "private").glob("*/*")), "copies are left"
    assert "set EVERLONG_ENCRYPTION_KEY_FILE" in refuses(new_server(data=tmp_path / "data"))


@pytest.mark.long
def test_files_inside_an_uploaded_file_stay_in_the_private_folder(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = encrypted(new_server, tmp_path / "data", new_key()).start()
    inner = zipped({f"{number}.txt": TEXT for number in range(20)})
    folders: set[str] = set()

    def upload(path: str) -> None:
        answer = server.http.post(path, content=zipped({"inner.zip": inner}), headers={"Idempotency-Key": path})
        assert answer.is_success, answer.text

    for path in ("/v1/documents", "/v1/documents/archive"):
        with ThreadPoolExecutor(1) as pool:
            uploading = pool.submit(upload, path)
            while not uploading.done():
                folders |= temporary_folders(server)
            uploading.result()
    assert len(folders) == 2, "a conversion each"
    assert all(Path(folder).is_relative_to(tmp_path / "private") for folder in folders), folders


def temporary_folders(server: Server) -> set[str]:
    """Return the temporary folders of the processes that convert files."""
    found = set()
    for process in server.memory.children(recursive=True):
        with suppress(psutil.Error):
            if "everlong_server.engine.documents.formats.worker" in process.cmdline():
                found |= {process.environ()["TMPDIR"]} if process.cmdline()[0] != "env" else set()
    return found


def rotate(server: Server) -> subprocess.CompletedProcess[str]:
    code = "from everlong_server.cli.encryption import encryption; encryption(['rotate'])"
    return subprocess.run(
        [sys.executable, "-c", code],
        env=server.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=START_SECONDS,
    )


def refuses(server: Server) -> str:
    """Start a server that refuses to start, and return its log."""
    server.log.unlink(missing_ok=True)
    server.launch()
    assert server.process is not None
    assert server.process.wait(START_SECONDS) == 1
    server.process = None
    log = server.log.read_text()
    assert "Traceback" not in log
    return " ".join(log.split())


async def test_a_server_refuses_keys_that_do_not_fit_its_store(redis: Client, redis_url: str, tmp_path: Path) -> None:
    one, two, other_one = "one " + "ab" * 32, "two " + "cd" * 32, "one " + "cd" * 32

    def settings_of(*lines: str) -> Settings:
        file = tmp_path / "keys"
        file.write_text("".join(f"{line}\n" for line in lines))
        return Settings(encryption_key_file=file if lines else None, data_dir=tmp_path)

    def store(*lines: str) -> Documents:
        loaded = Vault.load(settings_of(*lines).encryption_key_file)
        return Documents(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), loaded)

    async def rotation(*lines: str) -> RotationCounts:
        loaded = Vault.load(settings_of(*lines).encryption_key_file)
        return await rotate_all(redis, Blobs(settings_of().blobs, loaded), loaded)

    async def refused(*lines: str) -> str:
        with pytest.raises(VaultError) as caught:
            await require_vault(settings_of(*lines), redis_url)
        return str(caught.value)

    await require_vault(settings_of(), redis_url)
    assert await redis.get(keys.VAULT) is None
    await require_vault(settings_of(one), redis_url)
    await require_vault(settings_of(one), redis_url)
    document = Document(new_id("doc"), MARKER, 10, 0, 0.0)
    await store(one).create(document, "model")
    assert "set EVERLONG_ENCRYPTION_KEY_FILE" in await refused()
    assert "with the key 'one'; EVERLONG_ENCRYPTION_KEY_FILE has only two" in await refused(two)
    assert "is encrypted with a different key of the same id" in await refused(other_one)
    # The new key first: what was there is read, and after a rotation the old one is not needed any more.
    await require_vault(settings_of(two, one), redis_url)
    assert await store(two, one).get(document.id) == document
    done = await rotation(two, one)
    assert done.values == 2  # the file name and the notes
    await require_vault(settings_of(two), redis_url)
    assert await store(two).get(document.id) == document
    with pytest.raises(KeyMissing):
        await store(one).get(document.id)
    assert await rotation(two) == RotationCounts(0, 0)
    # A first rotation that was interrupted.
    await redis.set(keys.VAULT, UNFINISHED)
    for lines in ((), (two,)):
        assert "it resumes where it stopped" in await refused(*lines)
    await rotation(two)
    await require_vault(settings_of(two), redis_url)
    # What is not encrypted yet.
    await redis.flushdb()
    await store().create(document, "model")
    assert "`everlong encryption rotate`, which encrypts it" in await refused(one)
    assert (await rotation(one)).values == 2
    await require_vault(settings_of(one), redis_url)
    assert await store(one).get(document.id) == document


async def test_a_rotation_changes_nothing_that_was_changed_meanwhile(redis: Client, tmp_path: Path) -> None:
    """A value that a server writes during a rotation is kept."""
    blobs, both = Blobs(f"file://{tmp_path}/blobs", vault("two", "one")), vault("two", "one")
    name = keys.session("ses_1")
    await redis.hset(name, "state", vault("one").seal(b"old", "state"))
    run = redis.run_script

    async def late(text: str, names: list[str], args: list[Any]) -> Any:
        await redis.hset(name, "state", both.seal(b"new", "state"))
        return await run(text, names, args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redis, "run_script", late)
        assert (await rotate_all(redis, blobs, both)).values == 0
    assert vault("two").unseal(await redis.hget(name, "state"), "state") == b"new"


@pytest.mark.long
async def test_what_is_copied_during_a_rotation_is_sealed_anew_too(redis: Client, tmp_path: Path) -> None:
    """Sessions are forked meanwhile: the copies may have keys that the rotation has visited already."""

    def sessions(*ids: str) -> Sessions:
        return Sessions(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), "r1", 15.0, vault(*ids))

    before, running, after = sessions("one"), sessions("two", "one"), sessions("two")
    await redis.set(keys.VAULT, vault("one").mark())
    made = []
    for _ in range(60):
        session = await before.create("model", "model", [])
        lease = await before.acquire(session.id)
        answer = AnswerMessage("msg_1", session.id, "model", 0.0, 0)
        await before.commit(session, lease, Snapshot(b"state", 5, open=(1,), position=1), MARKER, answer)
        await before.release(lease)
        made.append(session.id)
    over = asyncio.Event()

    async def fork() -> None:
        for id in reversed(made[:]):
            if not over.is_set():
                made.append((await running.fork(id)).id)

    forking = asyncio.create_task(fork())
    both = vault("two", "one")
    assert (await rotate_all(redis, Blobs(f"file://{tmp_path}/blobs", both), both)).values >= 180
    over.set()
    await forking
    assert len(made) > 60
    for id in made:
        assert (await after.get(id, with_state=True)).snapshot.state == b"state"
        assert (await after.messages(id))[0]["content"] == MARKER


async def test_a_rotation_leaves_a_tenants_turn_alone(redis: Client, tmp_path: Path) -> None:
    """A tenant may have the name of a sealed field. Its turn, a number under that name in another hash, is not sealed."""
    jobs = Jobs(redis, "model", "r1", 60.0)
    await jobs.prepare(alone=False)
    for _ in range(2):
        await redis.xadd(keys.jobs("model"), {"reading": "reading", "tenant": "title"})
        job = await jobs.next(10)
        assert job is not None
        await jobs.done(job)
        assert not await has_sealable_values(redis)
        await rotate_all(redis, Blobs(f"file://{tmp_path}/blobs", vault()), vault())


@pytest.mark.long
def test_what_was_not_encrypted_is_by_a_rotation(
    new_server: Callable[..., Server], tmp_path: Path, tokenizer: Tokenizer
) -> None:
    data, line = tmp_path / "data", new_key()
    server = new_server(data=data).start()
    again = talk(server)
    before, everything = again(server), dumped(server)
    for trace in traces(tokenizer)[:2]:  # what the tests look for is there
        assert trace in everything
    assert any(trace in everything for trace in traces(tokenizer)[2:])
    server.terminate()
    sealed = encrypted(new_server, data, line)
    done = rotate(sealed)
    assert done.returncode == 0, done.stderr
    sealed.start()
    # What Redis wrote before is in its log until that is written anew.
    sealed.redis.bgrewriteaof()
    wait_for(lambda: not sealed.redis.info("persistence")["aof_rewrite_in_progress"])
    everything = dumped(sealed)
    for trace in traces(tokenizer):
        assert trace not in everything, trace
    assert again(sealed) == before


@pytest.mark.long
def test_data_changed_on_disk_is_refused(new_server: Callable[..., Server], tmp_path: Path) -> None:
    server = encrypted(new_server, tmp_path / "data", new_key(), recall_passages=0).start()
    document = server.read(TEXT)["id"]
    session = server.session(document)["id"]
    server.say(session, "Hi", max_tokens=2)
    blob = server.data / "documents" / document
    for damaged in (blob.read_bytes()[:-1], b"", TEXT.encode(), bytes(blob.read_bytes()[:-1]) + b"\0"):
        blob.write_bytes(damaged)
        server.error(server.http.get(f"/v1/documents/{document}/text"), 500, "stored_data_damaged")
    # A document that is read anew says that it is damaged.
    second = server.session(document, server.read("Another text.")["id"])["id"]
    wait_for(lambda: server.get_session(second)["status"] == "ready")
    server.redis.hset(keys.session(session), "state", b"EVLSTATE not sealed")
    answer = server.http.post(f"/v1/sessions/{session}/messages", json={"content": "Hi"})
    server.error(answer, 500, "stored_data_damaged")
    # A document that is damaged before it is read fails.
    endless = [server.upload("word " * 200_000)["id"] for _ in range(3)]
    victim = server.upload("what was uploaded")["id"]
    path = server.data / "documents" / victim
    path.write_bytes(path.read_bytes()[:-1])
    for one in endless:
        server.http.delete(f"/v1/documents/{one}")

    def failed() -> dict[str, Any] | None:
        found = server.document(victim)
        assert found["status"] != "ready"
        return found["error"] if found["status"] == "failed" else None

    assert wait_for(failed)["code"] in ("document_damaged", "stored_data_damaged")
