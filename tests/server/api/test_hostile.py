"""Hostile input: misleading names, compression bombs, endless headers, damaged stores; and what must not be logged."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import logging
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as open_socket

from everlong_models.backbone.loading import load_backbone, load_tokenizer
from everlong_models.errors import EverlongModelError
from everlong_server.observability.logs import PrivateFormatter
from everlong_server.process import protocol
from everlong_server.store.redis import connection
from everlong_server.store.tenants.credentials import Credentials
from everlong_server.store.texts.blobs import Blobs
from tests.process import Server, wait_for

# What never reaches a log

MARKER = "xyzzy-plugh"


@pytest.fixture(scope="module")
def talkative(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with the log level debug."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys", log_level="debug") as server:
        server.start()
        yield server


async def make_key(server: Server) -> str:
    redis = connection.connect(f"unix://{server._link}/redis/redis.sock")
    try:
        return (await Credentials(redis).create("ann", name=MARKER))[1]
    finally:
        await redis.aclose()


async def test_words_and_secrets_are_not_logged(talkative: Server) -> None:
    key = await make_key(talkative)
    http = httpx.Client(base_url=talkative.url, headers={"Authorization": f"Bearer {key}"}, timeout=60)
    text = {"content-type": "text/plain"}
    upload = http.post(
        "/v1/documents",
        content=f"{MARKER} is the magic word of the cave. " * 8 + "Other words. " * 200,
        headers=text,
        params={"filename": MARKER},
    )
    document = upload.json()["id"]
    wait_for(lambda: http.get(f"/v1/documents/{document}").json()["status"] == "ready")
    http.post("/v1/documents", content=MARKER.encode() + b"\xff", headers=text)
    http.post("/v1/documents", content=b"x", headers={"content-type": MARKER})
    http.post("/v1/files", files={"file": (MARKER, MARKER.encode())}, data={"purpose": MARKER})
    http.post("/v1/files", files={MARKER: (MARKER, MARKER.encode())}, data={"purpose": "user_data"})
    session = http.post("/v1/sessions", json={"documents": [document]}).json()["id"]
    path, said = (
        f"/v1/sessions/{session}/messages",
        {"content": f"Is {MARKER} the magic word of the cave?", "max_tokens": 3},
    )
    for _ in range(2):
        assert http.post(path, json=said, headers={"Idempotency-Key": MARKER}).is_success
    evidence = {"recall": {"passages": 4, "tokens": 60}}
    assert MARKER in http.post(path, json=said | evidence | {"stream": True}).text
    assert MARKER in http.get(path).text
    for bad in ({"temperature": MARKER}, {MARKER: 1}, {"content": [MARKER]}, {"content": MARKER * 100_000}):
        assert http.post(path, json=said | bad).is_client_error
    http.post(path, content=f'{{"content": "{MARKER}'.encode(), headers={"content-type": "application/json"})
    http.get(f"/v1/documents/{MARKER}")
    http.get(f"/{MARKER}", params={MARKER: MARKER})
    parts = [{"type": "file", "file": {"file_id": document}}, {"type": "text", "text": f"What is {MARKER}?"}]
    chat = {"model": "tiny-rmt", "max_tokens": 3, "messages": [{"role": "user", "content": parts}]}
    assert http.post("/v1/chat/completions", json=chat).is_success
    assert "[DONE]" in http.post("/v1/chat/completions", json=chat | {"stream": True}).text
    ticket = http.post("/v1/tickets").json()["ticket"]
    with open_socket(f"ws://127.0.0.1:{talkative.port}/v1/sessions/{session}/stream?ticket={ticket}") as socket_:
        for frame in (said | {"type": "message.create"}, {"type": MARKER}, MARKER):
            socket_.send(json.dumps(frame))
            while json.loads(socket_.recv(timeout=60))["type"] not in ("response.completed", "error"):
                pass
    httpx.get(f"{talkative.url}/v1/sessions", headers={"Authorization": f"Bearer {key[:-1]}"}, timeout=60)
    # A document that cannot be read, and a reading that breaks off.
    broken = http.post("/v1/documents", content=f"{MARKER} " * 30_000, headers=text).json()["id"]
    (talkative.data / "documents" / broken).write_text(f"{MARKER} is not what was uploaded")
    metrics = talkative.http.get("/metrics").text
    http.close()
    assert talkative.terminate() == 0
    for log in (talkative.log, talkative.data / "redis" / "redis.log"):
        written = log.read_text()
        for secret in (MARKER, key.split("_", 2)[2], ticket):
            assert secret not in written, [line for line in written.splitlines() if secret in line][:3]
            assert secret not in metrics


def test_what_reads_uploaded_files_logs_no_words_of_theirs() -> None:
    code = f"""
import os, sys, warnings
from everlong_server.engine.documents.formats import faults
faults.keep_private()
warnings.warn({MARKER!r})
os.write(2, {MARKER.encode()!r})
try:
    raise ValueError({MARKER!r})
except ValueError as error:
    faults.report(error)
raise KeyError({MARKER!r})
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    for reported in ("line 8", "ValueError", "KeyError"):
        assert reported in ended.stderr
    assert MARKER not in ended.stderr + ended.stdout


def test_error_messages_that_may_quote_users_are_not_logged() -> None:
    def inner() -> None:
        raise ValueError(f"cannot parse {MARKER}")

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise RuntimeError(f"gave up on {MARKER}") from error

    def logged(error: BaseException) -> str:
        record = logging.LogRecord(
            "x", logging.ERROR, "x.py", 1, "it failed", (), (type(error), error, error.__traceback__)
        )
        return PrivateFormatter("%(message)s").format(record)

    with pytest.raises(RuntimeError) as caught:
        outer()
    text = logged(caught.value)
    assert MARKER not in text.replace("{MARKER}", "")
    for words in ("it failed", "ValueError", "RuntimeError", "in inner", "in outer", "test_hostile.py"):
        assert words in text, text
    assert "No space left" in logged(OSError(28, "No space left on device"))


# Names


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ann\\book.txt", "book.txt"),
        ("/", None),
        ("..", None),
        ("  a b  ", "a b"),
        ("e\u0301.txt", "\u00e9.txt"),
        ("字.txt", "字.txt"),
        ("a\u200d👩.txt", "a\u200d👩.txt"),
    ],
)
def test_names_are_names(server: Server, given: str, name: str | None) -> None:
    assert server.upload("words", filename=given)["filename"] == name
    answer = server.http.post("/v1/documents", files={"file": (given, b"words")})
    assert answer.json()["filename"] == name


@pytest.mark.parametrize("bad", ["a\nb", "a\0b", "\x1b[31m", "invoice\u202efdp.exe", "a\u2066b", "a\u2028b", "\x7f"])
def test_misleading_file_names_are_refused(server: Server, bad: str) -> None:
    answer = server.http.post(
        "/v1/documents", content=b"x", params={"filename": bad}, headers={"content-type": "text/plain"}
    )
    error = server.error(answer, 422, "invalid_value", "filename")
    assert "U+" in error["message"]


# Bombs


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "gzip, gzip", "identity, gzip"])
def test_bodies_are_not_decompressed(server: Server, coding: str) -> None:
    bomb, headers = gzip.compress(bytes(1 << 20)), {"Content-Encoding": coding, "content-type": "text/plain"}
    for path in ("/v1/documents", "/v1/sessions"):
        error = server.error(server.http.post(path, content=bomb, headers=headers), 415, "unsupported_media_type")
        assert "Content-Encoding" in error["message"]


def test_request_heads_are_limited(server: Server) -> None:
    before = server.memory.memory_info().rss
    for begin, piece in (
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: ", b"a" * 65536),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\n", b"X-More: 1\r\n" * 6000),
        (b"GET /", b"a" * 65536),
        (b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Trail: ", b"a" * 65536),
        (b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 65536),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
            peer.sendall(begin)
            sent = 0
            try:
                while sent < 50_000_000:
                    peer.sendall(piece)
                    sent += len(piece)
            except OSError:
                pass
            assert sent < 20_000_000, begin
    assert server.memory.memory_info().rss - before < 30_000_000
    assert server.http.get("/livez").status_code == 200


def test_a_request_head_over_the_limit_gets_431(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nX-Big: ")
        answer = b""
        peer.settimeout(0.02)
        for _ in range(2000):
            try:
                peer.sendall(b"a" * 1000)
                answer = peer.recv(4096)
            except TimeoutError:
                continue
            except OSError:  # it was closed between the two; what was said before can be read all the same
                with contextlib.suppress(OSError):
                    answer = peer.recv(4096)
            break
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_large"


@pytest.mark.parametrize(
    "head", [b"Content-Length: none", b"Content-Length: -1", b"No colon", b"Content-Length: 1\r\nContent-Length: 2"]
)
def test_invalid_http_gets_an_error(server: Server, head: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as peer:
        peer.sendall(b"POST /v1/sessions HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
        answer = b"".join(iter(lambda: peer.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "invalid_http"


def test_long_bodies_in_small_pieces_are_not_taken_for_heads(server: Server) -> None:
    pieces = [b"word " * 20] * 4000
    assert sum(map(len, pieces)) > 2 * protocol.MAX_HEAD_BYTES
    answer = server.http.post("/v1/documents", content=iter(pieces), headers={"content-type": "text/plain"})
    assert answer.status_code == 202
    headers = {f"X-{n}": "a" * 500 for n in range(60)}
    assert server.http.get("/livez", headers=headers).status_code == 200


# Stores


@pytest.mark.parametrize(("damage", "words"), [(b"other words", "bytes"), (b"same lengtH", "checksum")])
def test_a_damaged_text_is_not_read(tmp_path: Path, damage: bytes, words: str) -> None:
    blobs = Blobs(f"file://{tmp_path}")
    (tmp_path / "doc").write_bytes(b"same length")
    digest = hashlib.sha256(b"same length").hexdigest()
    assert blobs.check("doc", 11, digest) is None
    (tmp_path / "doc").write_bytes(damage + (b"." if words == "bytes" else b""))
    assert words in (blobs.check("doc", 11, digest) or "")


@pytest.mark.long
def test_a_document_whose_text_was_changed_fails(server: Server) -> None:
    """Between upload and reading, while the document is queued."""
    endless = server.upload("word " * 200_000)
    others = [server.upload("word " * 100_000) for _ in range(3)]
    victim = server.upload("what was uploaded")["id"]
    (server.data / "documents" / victim).write_bytes(b"what was replaced")
    server.http.delete(f"/v1/documents/{endless['id']}")
    for other in others:
        server.http.delete(f"/v1/documents/{other['id']}")

    def failed() -> dict[str, Any] | None:
        document = server.document(victim)
        assert document["status"] != "ready"
        return document["error"] if document["status"] == "failed" else None

    assert wait_for(failed)["code"] == "document_damaged"


# Model folders


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_model / "backbone", tmp_path / "backbone"))


def edit(file: Path, **fields: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_code_in_a_model_folder_is_not_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w').close()\nclass Evil: pass\n")
    classes = {
        "AutoConfig": "evil.Evil",
        "AutoModelForCausalLM": "evil.Evil",
        "AutoTokenizer": ["evil.Evil", "evil.Evil"],
    }
    edit(folder / "config.json", model_type="evil", architectures=["Evil"], auto_map=classes)
    edit(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map=classes)
    with pytest.raises(EverlongModelError):
        load_backbone(str(folder), models_dir=tmp_path)
    try:
        load_tokenizer(folder)
    except EverlongModelError:
        pass
    assert not ran.exists()


def test_pickles_in_a_model_folder_are_not_loaded(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Evil:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return Path.touch, (ran,)

    for weights in folder.glob("*.safetensors*"):
        weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"model": Evil()}))
    with pytest.raises(EverlongModelError):
        load_backbone(str(folder), models_dir=tmp_path)
    assert not ran.exists()
