"""`/v1/uploads` through OpenAI's SDK: multipart uploads."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import openai
import pytest
from openai import OpenAI
from redis.exceptions import ConnectionError as ConnectionError_

from everlong_server.engine.documents.ingest import Ingest
from everlong_server.engine.documents.multipart_uploads import MultipartUploads
from everlong_server.store.documents import Documents
from everlong_server.store.records import Document, new_id
from everlong_server.store.redis.connection import connect
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.uploads import Part, Upload, Uploads
from everlong_server.store.vault import Vault
from tests.process import Server, wait_for
from tests.server.api.openai.talk import begin_upload, of, sdk
from tests.tinymodel import STORY

TEXT = ("\ufeffΩ 日本語 👩‍👩‍👧 <|im_end|> " + STORY.read_text()[:3000]).encode()


def add(client: OpenAI, upload: str, data: bytes) -> str:
    return client.uploads.parts.create(upload, data=data).id


def blobs(server: Server) -> set[str]:
    return {path.name for path in (server.data / "documents").iterdir()}


def test_a_file_in_parts_is_a_document(client: OpenAI, server: Server) -> None:
    """Cut anywhere, also within a character; in the order of `part_ids`, not of arrival."""
    before = blobs(server)
    upload = begin_upload(client, len(TEXT))
    assert (upload.object, upload.status, upload.file, upload.bytes) == ("upload", "pending", None, len(TEXT))
    assert upload.expires_at - upload.created_at == 3600
    cuts = [0, 1, 4, 6, 11, 1000, len(TEXT)]
    pieces = [TEXT[start:end] for start, end in pairwise(cuts)]
    ids = [add(client, upload.id, piece) for piece in reversed(pieces)][::-1]
    add(client, upload.id, b"sent twice, named nowhere")
    done = client.uploads.complete(upload.id, part_ids=ids, md5=hashlib.md5(TEXT).hexdigest())
    assert (done.status, done.file.object, done.file.filename) == ("completed", "file", "alice.txt")
    assert done.file.bytes == len(TEXT)
    assert client.files.content(done.file.id).content == TEXT
    assert client.uploads.complete(upload.id, part_ids=ids).file.id == done.file.id, "its answer may have been lost"
    assert client.files.wait_for_processing(done.file.id, poll_interval=0.05).status == "processed"
    assert {name for name in blobs(server) - before if done.file.id not in name} == set(), "no part is left"
    for late in (lambda: add(client, upload.id, b"x"), lambda: client.uploads.cancel(upload.id)):
        with pytest.raises(openai.ConflictError) as error:
            late()
        assert of(error) == ("upload_completed", "upload_id")
    client.files.delete(done.file.id)
    assert client.uploads.complete(upload.id, part_ids=ids).file is None


def test_the_sdks_own_parts(client: OpenAI, tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    path.write_bytes(b"So it goes. " * 200_000)
    done = client.uploads.upload_file_chunked(
        file=path, mime_type="text/plain", purpose="user_data", part_size=1_000_000
    )
    assert done.file.bytes == path.stat().st_size > 1 << 20, "a part may be larger than a body"
    client.files.delete(done.file.id)


def test_a_refused_completion_can_be_corrected(client: OpenAI, server: Server) -> None:
    before = server.http.get("/v1/documents").json()
    upload, other = begin_upload(client, 10), begin_upload(client, 10)
    a, b, c = (add(client, upload.id, data) for data in (b"Once ", b"upon.", b"\0\0\0\0\0"))
    foreign = add(client, other.id, b"Once")
    for ids, md5, status, code, param in (
        ([a], None, 422, "size_mismatch", "part_ids"),
        ([a, b, c], None, 422, "size_mismatch", "part_ids"),
        ([a, a], None, 422, "invalid_value", "part_ids.1"),
        ([a, foreign], None, 404, "part_not_found", "part_ids.1"),
        ([a, "part_x"], None, 404, "part_not_found", "part_ids.1"),
        ([a, c], None, 415, "unsupported_media_type", "file"),
        ([a, b], "0" * 32, 422, "checksum_mismatch", "md5"),
        ([a, b], "rubbish", 422, "invalid_value", "md5"),
        ([], None, 422, "invalid_value", "part_ids"),
    ):
        with pytest.raises(openai.APIStatusError) as error:
            client.uploads.complete(upload.id, part_ids=ids, md5=md5 or openai.omit)
        assert (error.value.status_code, *of(error)) == (status, code, param), error.value.message
    assert server.http.get("/v1/documents").json() == before
    done = client.uploads.complete(upload.id, part_ids=[a, b])
    assert client.files.content(done.file.id).content == b"Once upon."
    client.files.delete(done.file.id)
    client.uploads.cancel(other.id)


def test_cancelled_uploads_leave_nothing(new_server: Callable[..., Server]) -> None:
    server = new_server().start()  # of its own: documents of other tests would come and go
    with sdk(server) as client:
        before = blobs(server)
        upload = begin_upload(client, len(TEXT))
        part = add(client, upload.id, TEXT)
        assert blobs(server) != before
        for _ in range(2):
            assert client.uploads.cancel(upload.id).status == "cancelled"
        assert blobs(server) == before
        for late in (lambda: add(client, upload.id, b"x"), lambda: client.uploads.complete(upload.id, part_ids=[part])):
            with pytest.raises(openai.ConflictError) as error:
                late()
            assert of(error) == ("upload_cancelled", "upload_id")
        assert blobs(server) == before


def test_completed_by_several_at_once_it_is_one_file(client: OpenAI, server: Server) -> None:
    upload = begin_upload(client, len(TEXT))
    part = add(client, upload.id, TEXT)
    before = blobs(server)
    with ThreadPoolExecutor(6) as threads:
        (file,) = set(threads.map(lambda _: client.uploads.complete(upload.id, part_ids=[part]).file.id, range(6)))
    # Not at once: the index of a document that an earlier test has deleted may just be complete, and goes then.
    wait_for(lambda: all(file in name for name in blobs(server) - before))
    client.files.delete(file)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"bytes": 0}, 422, "invalid_value", "bytes"),
        ({"bytes": "many"}, 422, "invalid_value", "bytes"),
        ({"bytes": None}, 422, "missing_parameter", "bytes"),
        ({"bytes": 1 << 50}, 413, "too_large", "bytes"),
        ({"filename": ""}, 422, "invalid_value", "filename"),
        ({"filename": "x" * 256}, 422, "invalid_value", "filename"),
        ({"filename": "../.."}, 422, "invalid_value", "filename"),
        ({"filename": "a\n\u202efdp/"}, 422, "invalid_value", "filename"),
        ({"filename": "\u001b[31mred\\"}, 422, "invalid_value", "filename"),
        ({"purpose": "fine-tune"}, 422, "invalid_value", "purpose"),
        ({"mime_type": 7}, 422, "invalid_value", "mime_type"),
        ({"expires_after": {"anchor": "created_at", "seconds": 3600}}, 422, "unknown_parameter", "expires_after"),
        ({"sparkle": 1}, 422, "unknown_parameter", "sparkle"),
    ],
)
def test_invalid_uploads(client: OpenAI, server: Server, fields: dict, status: int, code: str, param: str) -> None:
    body = {"bytes": 10, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data", **fields}
    server.error(server.http.post("/v1/uploads", json=body), status, code, param)


def test_invalid_parts(client: OpenAI, server: Server) -> None:
    upload = begin_upload(client, 10)
    before, path = blobs(server), f"/v1/uploads/{upload.id}/parts"
    post = server.http.post
    server.error(post(path, files={"data": b""}), 422, "invalid_value", "data")
    server.error(post(path, files={"file": b"x"}), 422, "unknown_parameter", "file")
    server.error(post(path, files=[("data", b"x"), ("data", b"y")]), 422, "invalid_value", "data")
    server.error(post(path, content=b"x"), 415, "unsupported_media_type", "content-type")
    server.error(post(path, files={"data": b"x" * 11}), 413, "too_large", "data")
    for size in (10, 10):
        assert post(path, files={"data": b"x" * size}).status_code == 200
    server.error(post(path, files={"data": b"x"}), 413, "too_large", "data")
    assert len(blobs(server) - before) == 2
    client.uploads.cancel(upload.id)
    for identifier in ("x", "upload_" + "0" * 32, "upload_*", "%00", "a" * 5000, "..%2f..%2fetc"):
        for verb, body in (
            ("parts", {"files": {"data": b"x"}}),
            ("complete", {"json": {"part_ids": ["x"]}}),
            ("cancel", {}),
        ):
            answer = post(f"/v1/uploads/{identifier}/{verb}", **body)
            assert answer.status_code == 404, answer.text
            assert answer.json()["error"]["code"].endswith("_not_found")


def test_concurrent_parts_share_the_size_limit(client: OpenAI, server: Server) -> None:
    """Each of them by itself would fit."""
    upload, before = begin_upload(client, 100_000), blobs(server)

    def post(_: int) -> int:
        return server.http.post(f"/v1/uploads/{upload.id}/parts", files={"data": b"x" * 100_000}).status_code

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(post, range(12)))
    assert set(answers) <= {200, 413}
    assert 1 <= answers.count(200) <= 2
    assert len(blobs(server) - before) == answers.count(200)
    client.uploads.cancel(upload.id)
    assert blobs(server) == before


async def test_the_text_of_a_document_that_redis_may_have_created_is_kept(redis_url: str, tmp_path: Path) -> None:
    """Redis created the document of the parts, but its reply was lost, and the caller retries."""
    redis = connect(redis_url)
    await redis.flushdb()
    tenant = Quota(redis, "ann", Limits(), StreamSlots(redis, "r1"))
    files, made = Documents(redis, "ann", tenant, Vault()), []

    class Lost:
        """Documents whose reply to `create` is lost."""

        exists, get, of_content = files.exists, files.get, files.of_content

        async def create(self, document: Document, *arguments: Any, **named: Any) -> None:
            assert await files.create(document, *arguments, **named)
            made.append(document.id)
            raise ConnectionError_("lost")

    engine: Any = SimpleNamespace(require_running=lambda: None, model=SimpleNamespace(fingerprint="f"))
    lost, unused = cast(Any, Lost()), cast(Any, None)
    blobs = Blobs(f"file://{tmp_path}")
    ingest = Ingest(engine, redis, blobs, lost, tenant, unused, unused, unused, 1000)
    multipart = MultipartUploads(ingest, Uploads(redis, "ann", Vault()), 60)
    upload = Upload(new_id("upload"), 5, "a.txt", "user_data", await multipart.uploads.moment(), time.time() + 60)
    await multipart.uploads.create(upload)
    part = Part(new_id("part"), upload.id, 5, 0.0)
    writer = await blobs.create(part.name)
    await writer.write(b"Alice")
    await writer.commit()
    await multipart.uploads.add(part, 10, 9)
    with pytest.raises(ConnectionError_):
        await multipart.complete(upload.id, [part.id], None)
    (document,) = made
    assert blobs.open(document).read() == b"Alice"
    assert (await multipart.uploads.get(upload.id)).file == document
    await redis.aclose()
