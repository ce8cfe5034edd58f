"""Archives whose files become documents: all of them or none, also within limits and after interruptions."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError as ConnectionError_

from everlong_server.engine.documents.archives import StoredArchive, add_archive
from everlong_server.engine.documents.inline import InlineFile
from everlong_server.errors import RateLimited, TooLarge
from everlong_server.store.chats import Chats
from everlong_server.store.documents import Documents
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.search.passages import Passages
from everlong_server.store.vault import Vault
from tests import files
from tests.server.store.search.test_dropped import Side

TEXTS = {"a.txt": "The harbour was closed.", "b.txt": "The mill stood still.", "c.txt": "The bridge was open."}
ARCHIVE = files.zipped(TEXTS)
SIZE = sum(map(len, TEXTS.values()))


def deflated(texts: Mapping[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in texts.items():
            packed.writestr(name, text)
    return out.getvalue()


class Uploads:
    """Uploads archives to one of several servers that share a Redis and a blob store."""

    def __init__(self, redis: Client, folder: Path, replica: str = "r1", **limits: int) -> None:
        self.side = Side(redis, folder, replica, **limits)
        offsets: Any = SimpleNamespace(delete=self.side.blobs.delete)
        self.ingest = replace(
            self.side.ingest, chats=Chats(redis, "ann", 60, Vault()), passages=Passages(self.side.blobs, self.side.ingest.documents),
            token_offsets=offsets,
        )  # fmt: skip

    async def add(self, data: bytes = ARCHIVE, key: str | None = None) -> StoredArchive:
        file = InlineFile(data, "all.zip", "application/zip")
        async with await self.side.attempts.begin(key) as record:
            stored = await add_archive(self.ingest, file, record)
            assert stored is not None
            return stored

    def files(self) -> list[str]:
        """The names of the texts, and of files that nothing belongs to."""
        return [name for name in self.side.files() if not name.endswith(".marks")]


async def stored_bytes(redis: Client) -> int:
    return int(await redis.get(keys.stored("ann")) or 0)


@pytest.mark.long
async def test_an_archive_that_does_not_fit_stores_nothing(redis: Client, tmp_path: Path) -> None:
    with pytest.raises(RateLimited) as refused:
        await Uploads(redis, tmp_path, bytes=600).add(files.zipped(TEXTS | {"long.txt": "word " * 110}))
    assert refused.value.code == "bytes_limit"
    with pytest.raises(RateLimited) as refused:
        await Uploads(redis, tmp_path, queued=2).add()
    assert (refused.value.code, refused.value.retry_after) == ("queued_limit", None), "waiting does not help"
    assert "the archive has 3" in refused.value.message
    waiting = Uploads(redis, tmp_path, queued=4)
    assert len((await waiting.add(files.zipped({"d.txt": "One.", "e.txt": "Two."}))).documents) == 2
    before = waiting.files(), await stored_bytes(redis)
    with pytest.raises(RateLimited) as refused:
        await waiting.add()
    assert (refused.value.code, refused.value.retry_after) == ("queued_limit", 5)
    assert (waiting.files(), await stored_bytes(redis)) == before


async def test_an_archive_that_fits_counts_its_documents(redis: Client, tmp_path: Path) -> None:
    texts = {name: text * 100 for name, text in TEXTS.items()}
    uploads = Uploads(redis, tmp_path, queued=3, bytes=100 * SIZE)
    documents = (await uploads.add(deflated(texts))).documents
    assert [document.filename for document in documents] == list(TEXTS)
    assert await stored_bytes(redis) == 100 * SIZE
    assert await redis.scard(keys.queued("ann", "model")) == 3
    assert uploads.files() == sorted(document.id for document in documents)
    assert await redis.zcard(keys.reservations("ann")) == 0


async def test_an_archive_expands_within_its_limits(redis: Client, tmp_path: Path) -> None:
    """All files together: each of these alone would be short enough."""
    uploads = Uploads(redis, tmp_path)
    with pytest.raises(TooLarge):
        await uploads.add(deflated({f"{n}.txt": "word " * 50_000 for n in range(6)}))
    assert uploads.files() == []
    assert await redis.zcard(keys.documents("ann")) == 0


@pytest.mark.parametrize("key", ["key", None])
async def test_an_interrupted_upload(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """With a key, a retry makes the missing documents. Without one, those that were made are deleted."""
    uploads, create, created = Uploads(redis, tmp_path), Documents.create, list[str]()
    await redis.set(keys.replica("r1"), 1, px=60_000)

    async def breaks(self: Documents, document: Any, *arguments: Any, **options: Any) -> bool:
        if len(created) == 2:
            raise ConnectionError_("it broke")
        created.append(document.id)
        return await create(self, document, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "create", breaks)
        with pytest.raises(ConnectionError_):
            await uploads.add(key=key)
    assert await redis.zcard(keys.documents("ann")) == (2 if key else 0)
    if key is None:
        assert uploads.files() == []
        assert await stored_bytes(redis) == 0
        return
    other = Uploads(redis, tmp_path, "r2")
    documents = (await other.add(key=key)).documents
    assert [document.id for document in documents][:2] == created
    assert await redis.zcard(keys.documents("ann")) == 3
    assert await stored_bytes(redis) == SIZE
    assert other.files() == sorted(document.id for document in documents)


async def test_a_document_that_is_refused_takes_the_others_with_it(
    redis: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request may take the room that was free when the upload began."""
    uploads, create, created = Uploads(redis, tmp_path, queued=3), Documents.create, list[str]()

    async def refuses(self: Documents, document: Any, *arguments: Any, **options: Any) -> bool:
        if created:
            raise await uploads.ingest.quota.queue_full("model")
        created.append(document.id)
        return await create(self, document, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Documents, "create", refuses)
        with pytest.raises(RateLimited):
            await uploads.add(key="key")
    assert created
    assert await redis.zcard(keys.documents("ann")) == 0
    assert uploads.files() == []
    assert len((await uploads.add(key="key")).documents) == 3
