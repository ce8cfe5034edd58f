"""Redis runs a script but its reply is lost: redis-py retries, and the script takes effect once."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from everlong_server import store
from everlong_server.errors import RateLimited, Unauthenticated
from everlong_server.store import documents, sessions, snapshot
from everlong_server.store.batches import batches
from everlong_server.store.documents import Documents
from everlong_server.store.records import DEFAULT_TENANT
from everlong_server.store.redis import index, keys, scripts
from everlong_server.store.redis.connection import connect
from everlong_server.store.responses import Responses
from everlong_server.store.tenants.credentials import Caller, Credentials
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots, today
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores import stores
from tests.lossy_redis_proxy import LossyRedisProxy
from tests.process import Server, everlong, wait_for
from tests.server.api.openai.talk import begin_upload, over, respond, sdk
from tests.server.store.redis.conftest import OwnRedis
from tests.tinymodel import STORY

pytestmark = pytest.mark.long

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
TEXT = STORY.read_text()[:6_000]
PARTS = {
    scripts.CLAIMING, sessions._START, snapshot.COPY_SNAPSHOT, index.REMOVE_FROM_INDEX, stores.DETACH, batches._OPEN,
    documents._COMPLETE,
}  # fmt: skip
"""Lua functions that scripts include; they are no scripts by themselves."""
SCRIPTS = {
    hashlib.sha1(
        text.encode(), usedforsecurity=False
    ).hexdigest(): f"{module.name.removeprefix(store.__name__ + '.')}.{name}"
    for module in pkgutil.walk_packages(store.__path__, f"{store.__name__}.")
    for name, text in vars(importlib.import_module(module.name)).items()
    if isinstance(text, str) and "redis.call" in text and text not in PARTS
}
TESTED_ELSEWHERE = {
    "sessions._DROP_LEASE", "readings._RESET_ATTEMPTS", "rotation._EXCHANGE", "backup.running._RENEW"
}  # fmt: skip
"""Scripts that run only after a longer outage of Redis, in a key rotation or in a backup: see test_leases.py, test_tries.py,
test_encryption.py and test_backup.py."""


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LossyRedisProxy]:
    redis = OwnRedis(tmp_path_factory.mktemp("redis"))
    redis.start()
    with LossyRedisProxy(redis.port) as proxy:
        yield proxy
    redis.kill()


@pytest.fixture(scope="module")
def lossy_server(
    proxy: LossyRedisProxy, tiny_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    limits = {"tenant_requests_per_minute": 100_000, "tenant_streams": 4, "tenant_bytes": 10_000_000}
    with Server(
        tiny_model, tmp_path_factory.mktemp("data"), redis_url=proxy.url, recall_passages=0, **limits
    ) as server:
        yield server.start()


def test_documents_and_sessions(lossy_server: Server, server: Server) -> None:
    there = [server.read(TEXT), lossy_server.read(TEXT)]
    assert there[0]["state_digest"] == there[1]["state_digest"]
    said = []
    for one, document in zip((server, lossy_server), there, strict=True):
        session = one.session(document["id"])["id"]
        answers = [one.say(session, question, **GREEDY)["content"] for question in ("Who?", "And where?")]
        last = one.say(session, "And then?", on_disconnect="finish", **GREEDY)["content"]
        assert one.http.post(f"/v1/sessions/{session}/cancel").json()["answering"] is False
        answers.append(last)
        fork = one.http.post(f"/v1/sessions/{session}/fork")
        assert fork.status_code == 201, fork.text
        answers.append(one.say(fork.json()["id"], "Why?", **GREEDY)["content"])
        titled = one.http.patch(f"/v1/sessions/{session}", json={"title": "Alice"})
        assert titled.json()["title"] == "Alice", titled.text
        assert titled.json()["messages"] == 6
        said.append(answers)
        for path in (f"sessions/{session}", f"sessions/{fork.json()['id']}", f"documents/{document['id']}"):
            gone = one.http.delete(f"/v1/{path}")
            assert gone.status_code == 200, gone.text
            assert one.http.delete(f"/v1/{path}").status_code == 404
    assert said[0] == said[1]


def test_a_request_with_a_key(lossy_server: Server) -> None:
    document = lossy_server.upload(STORY.read_text())["id"]
    key, body = {"Idempotency-Key": "one"}, {"documents": [document]}
    first = lossy_server.http.post("/v1/sessions", json=body, headers=key)
    assert first.status_code == 201, first.text
    assert lossy_server.http.post("/v1/sessions", json=body, headers=key).json()["id"] == first.json()["id"]
    session = first.json()["id"]
    assert wait_for(lambda: (now := lossy_server.get_session(session))["status"] == "ready" and now)["position"] > 0
    said = [
        lossy_server.http.post(
            f"/v1/sessions/{session}/messages", json={"content": "Who?", **GREEDY}, headers={"Idempotency-Key": "two"}
        )
        for _ in range(2)
    ]
    assert said[0].json() == said[1].json()
    assert lossy_server.get_session(session)["messages"] == 2
    for path in (f"sessions/{session}", f"documents/{document}"):
        assert lossy_server.http.delete(f"/v1/{path}").status_code == 200


def test_uploads(lossy_server: Server) -> None:
    with sdk(lossy_server) as client:
        whole = begin_upload(client, len(TEXT.encode()))
        parts = [client.uploads.parts.create(whole.id, data=piece.encode()).id for piece in (TEXT[:2000], TEXT[2000:])]
        done = client.uploads.complete(whole.id, part_ids=parts)
        assert done.status == "completed"
        assert client.files.content(done.file.id).text == TEXT
        again = begin_upload(client, len(TEXT.encode()))
        part = client.uploads.parts.create(again.id, data=TEXT.encode()).id
        reused = client.uploads.complete(again.id, part_ids=[part], extra_query={"reuse": True})
        assert (reused.status, reused.file.id) == ("completed", done.file.id)
        assert client.files.delete(done.file.id).deleted
        cancelled = begin_upload(client, 100)
        client.uploads.parts.create(cancelled.id, data=b"x" * 50)
        assert client.uploads.cancel(cancelled.id).status == "cancelled"


def test_vector_stores(lossy_server: Server, proxy: LossyRedisProxy) -> None:
    redis = Redis(port=proxy.target)
    before = int(redis.get(keys.stored(DEFAULT_TENANT)) or 0)
    kept, deleted = (lossy_server.upload(TEXT)["id"] for _ in range(2))
    with sdk(lossy_server) as client:
        one = client.vector_stores.create(name="one", file_ids=[kept, deleted])
        other = client.vector_stores.create()
        client.vector_stores.files.create(file_id=deleted, vector_store_id=other.id, attributes={"a": 1})
        assert client.vector_stores.update(one.id, name="two").name == "two"
        client.files.delete(deleted)
        assert [client.vector_stores.retrieve(store.id).usage_bytes for store in (one, other)] == [
            len(TEXT.encode()),
            0,
        ]
        client.vector_stores.files.delete(kept, vector_store_id=one.id)
        assert client.vector_stores.retrieve(one.id).usage_bytes == 0
        for store in (one, other):
            client.vector_stores.delete(store.id)
        client.files.delete(kept)
    assert int(redis.get(keys.stored(DEFAULT_TENANT))) == before


def test_responses(lossy_server: Server) -> None:
    with sdk(lossy_server) as client:
        first = respond(client, "Tell me of it.")
        later = over(client, respond(client, "And?", previous_response_id=first.id, background=True).id)
        other = respond(client, "And?", previous_response_id=first.id)
        assert later.output_text == other.output_text
        long = respond(client, "Talk.", background=True, max_output_tokens=1_000_000)
        assert client.responses.cancel(long.id).status == "cancelled"
        for response in (first, later, other, long):
            client.responses.delete(response.id)


def test_what_waits_for_its_document(lossy_server: Server) -> None:
    """Its job is moved to the end of the queue again and again, and stays one job."""
    with sdk(lossy_server) as client:
        file = client.files.create(file=("long.txt", STORY.read_bytes()), purpose="user_data").id
        parts = [{"type": "input_file", "file_id": file}, {"type": "input_text", "text": "Who?"}]
        response = over(client, respond(client, [{"role": "user", "content": parts}], background=True).id)
        assert response.usage.input_tokens > lossy_server.document(file)["tokens"]
        client.files.delete(file)
        client.responses.delete(response.id)


async def test_a_try_counts_once(proxy: LossyRedisProxy) -> None:
    client = connect(proxy.url)
    redis = Redis(port=proxy.target)
    redis.hset(keys.reading("r1"), mapping={"status": "queued", "version": 0, "fence": 0, "attempts": 0})
    redis.hset(keys.response("r1"), mapping={"status": "queued"})
    for claiming in (
        Documents(client, None, Quota(client, DEFAULT_TENANT, Limits(), StreamSlots(client, "r")), Vault()).readings,
        Responses(client, None, 60.0, Vault()),
    ):
        for by, tries in (("one", 1), ("one", 1), ("two", 2)):
            claim = await claiming.claim("r1", by)
            assert claim is not None
            assert claim.attempts == tries
        assert claim.token == int(redis.get(keys.FENCE))
    redis.delete(keys.reading("r1"), keys.response("r1"))
    await client.aclose()


def test_keys(proxy: LossyRedisProxy, tmp_path: Path) -> None:
    where = {"EVERLONG_REDIS_URL": proxy.url, "EVERLONG_DATA_DIR": str(tmp_path), "EVERLONG_LOG_FORMAT": "json"}
    made = everlong("keys", "create", "--tenant", "ann", **where)
    assert made.returncode == 0, made.stderr
    listed = everlong("keys", "list", **where)
    key = next(word for word in listed.stdout.split() if re.fullmatch("[0-9a-f]{16}", word))
    revoked = [everlong("keys", "revoke", key, **where) for _ in range(2)]
    assert [command.returncode for command in revoked] == [0, 0]
    assert [command.stderr.count("key.revoked") for command in revoked] == [1, 0]


def test_batches(lossy_server: Server) -> None:
    with sdk(lossy_server) as client:
        body = {"model": client.models.list().data[0].id, "prompt": "Once", "max_tokens": 2, "temperature": 0}
        rows = [{"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body} for n in range(3)]
        content = "\n".join(map(json.dumps, rows)).encode()
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        batch, cancelled = (
            client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
            for _ in range(2)
        )
        client.batches.cancel(cancelled.id)
        done = wait_for(lambda: (now := client.batches.retrieve(batch.id)).status == "completed" and now)
        assert done.request_counts is not None
        assert (done.request_counts.total, done.request_counts.completed) == (3, 3)
        wait_for(lambda: client.batches.retrieve(cancelled.id).status == "cancelled")
        assert done.output_file_id is not None
        answered = [json.loads(row)["custom_id"] for row in client.files.content(done.output_file_id).text.splitlines()]
        assert sorted(answered) == ["0", "1", "2"]
        for id in [listed.id for listed in client.files.list() if listed.purpose in ("batch", "batch_output")]:
            assert client.files.delete(id).deleted


async def test_a_ticket_is_good_once(proxy: LossyRedisProxy) -> None:
    client = connect(proxy.url)
    credentials = Credentials(client)
    ticket, _ = await credentials.ticket(Caller("ann", frozenset({"read"})))
    assert (await credentials.redeem(ticket)).tenant == "ann"
    with pytest.raises(Unauthenticated):
        await credentials.redeem(ticket)
    await client.aclose()


async def test_a_request_counts_once(proxy: LossyRedisProxy) -> None:
    client = connect(proxy.url)
    quota = Quota(client, "bob", Limits(requests=3), StreamSlots(client, "r"))
    assert [(await quota.request())["x-ratelimit-remaining-requests"] for _ in range(3)] == ["2", "1", "0"]
    with pytest.raises(RateLimited):
        await quota.request()
    await client.aclose()


async def test_an_answer_is_charged_once(proxy: LossyRedisProxy) -> None:
    client = connect(proxy.url)
    quota = Quota(client, "bob", Limits(tokens=100), StreamSlots(client, "r"))
    for before in (0, 60):
        assert int(await client.get(keys.tokens("bob", today())) or 0) == before
        async with quota.stream(1.0) as spent:
            spent.tokens = 60
    with pytest.raises(RateLimited):
        await quota.require_tokens()
    assert 86_400 < await client.ttl(keys.tokens("bob", today())) <= 2 * 86_400
    await client.aclose()


def test_nothing_was_counted_twice(lossy_server: Server, proxy: LossyRedisProxy) -> None:
    redis = Redis(port=proxy.target)
    counts = [name for name in redis.scan_iter("{everlong}:stored:*") if redis.type(name) == b"string"]
    assert counts
    # All was deleted but two batches, which nobody can delete: they count until they expire.
    left = [redis.hget(name, "batch") for name in redis.scan_iter(keys.batch("*")) if redis.type(name) == b"hash"]
    assert len(left) == 2
    assert [int(redis.get(name) or 0) for name in counts] == [sum(1024 + len(each or b"") for each in left)]


def test_every_script_was_sent_again(proxy: LossyRedisProxy) -> None:
    """The tests above cover every script of the store."""
    assert {SCRIPTS[digest] for digest in proxy.lost} == set(SCRIPTS.values()) - TESTED_ELSEWHERE
