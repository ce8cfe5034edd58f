"""The limits of a tenant: counted in Redis, so that replicas agree, and reported in headers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx
import openai
import pytest
from redis.exceptions import ConnectionError as ConnectionError_
from websockets.sync.client import connect as open_socket

from everlong_server.errors import NotFound, RateLimited
from everlong_server.store.documents import Documents
from everlong_server.store.records import Cursor, Document, new_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.redis.scripts import Scripts
from everlong_server.store.sessions import Sessions
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.tenants.credentials import Credentials
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots, today
from tests.process import Server, wait_for

MODEL = "fingerprint"


@pytest.fixture
async def redis(redis: Client) -> AsyncIterator[Client]:
    yield redis
    for key in await redis.keys("*"):
        (kind,) = [kind for kind in keys.KEYS if kind.matches(key.decode())]
        assert (await redis.pttl(key) >= 0) == kind.expires, key
        assert (await redis.type(key)).decode() == kind.type


def quota(redis: Client, tenant: str = "ann", replica: str = "r1", **limits: int) -> Quota:
    return Quota(redis, tenant, Limits(**limits), StreamSlots(redis, replica))


def documents(redis: Client, tenant: str = "ann", **limits: int) -> Documents:
    return Documents(redis, tenant, quota(redis, tenant, **limits))


def document(size: int = 10) -> Document:
    return Document(new_id("doc"), None, size, 0, now())


async def finish(store: Documents, reading_id: str, status: str = "ready", tokens: int = 7) -> None:
    """End a reading, as a reader does."""
    reading, claim = await store.readings.get(reading_id), await store.readings.claim(reading_id, "reader")
    assert reading is not None
    assert claim is not None
    await store.readings.checkpoint(reading, claim, Cursor(tokens=tokens), Snapshot(b""), status=status)


# Requests


async def test_requests_are_counted_by_the_minute(redis: Client) -> None:
    one, other = quota(redis, requests=5), quota(redis, replica="r2", requests=5)
    start = time.monotonic()
    left = [(await which.request())["x-ratelimit-remaining-requests"] for which in (one, other, one, other, one)]
    assert left == ["4", "3", "2", "1", "0"]
    with pytest.raises(RateLimited) as caught:
        await other.request()
    error, passed = caught.value, time.monotonic() - start
    assert error.code == "requests_limit"
    assert error.retry_after is not None
    assert 12 - passed <= error.retry_after <= 12  # a fifth of a minute
    assert error.headers["x-ratelimit-limit-requests"] == "5"
    assert error.headers["x-ratelimit-remaining-requests"] == "0"
    assert "5 requests a minute" in error.message
    assert "EVERLONG_TENANT_REQUESTS_PER_MINUTE" in error.message
    await one.of("bob").request()

    # Twelve seconds on there is one more, and after a minute all five: the clock is Redis' own, so the bucket is moved.
    async def pass_by(seconds: float) -> None:
        key = keys.requests("ann")
        await redis.set(key, float(await redis.get(key)) - 1000 * seconds, keepttl=True)

    await pass_by(12)
    await one.request()
    with pytest.raises(RateLimited):
        await other.request()
    await pass_by(60)
    for _ in range(5):
        await one.request()
    with pytest.raises(RateLimited):
        await one.request()


async def test_without_limits_nothing_is_counted(redis: Client) -> None:
    free = quota(redis)
    assert await free.request() == {}
    async with free.stream(1.0) as spent:
        spent.tokens = 10
    await free.require_room(1 << 60, MODEL)
    assert await redis.keys("*") == []


# Streams


async def test_a_slot_that_redis_takes_late_is_released(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that was sent on a broken connection takes the slot only after the answer has ended."""
    tenant, run, late = quota(redis, streams=2), Scripts.run, list[Any]()
    await redis.set(keys.replica("r1"), 1, px=60_000)

    async def unheard(self: Scripts, *asked: Any) -> Any:
        late.append(lambda: run(self, *asked))
        raise ConnectionError_("it broke")

    async with tenant.stream(1.0):
        with monkeypatch.context() as patch:
            patch.setattr(Scripts, "run", unheard)
            with pytest.raises(ConnectionError_):
                await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
        await late[0]()
        assert await redis.scard(keys.streams("ann")) == 2
        async with tenant.stream(1.0):
            assert await redis.scard(keys.streams("ann")) == 2
            assert await late[0]() == 0, "it takes nobody's place"
            assert await redis.scard(keys.streams("ann")) == 2
    assert await redis.exists(keys.streams("ann")) == 0


async def test_streams_are_counted_across_replicas(redis: Client) -> None:
    one, other = quota(redis, streams=2), quota(redis, replica="r2", streams=2)
    for replica in ("r1", "r2"):
        await redis.set(keys.replica(replica), 1, px=60_000)
    async with one.stream(10.0), other.stream(10.0):
        with pytest.raises(RateLimited) as caught:
            await contextlib.AsyncExitStack().enter_async_context(one.stream(10.0))
        assert (caught.value.code, caught.value.retry_after) == ("streams_limit", 5)
        async with one.of("bob").stream(10.0):
            pass
    async with one.stream(10.0), one.stream(10.0):
        # A replica that was killed gives nothing back: its answers count for as long as it is taken to be alive.
        await redis.delete(keys.replica("r1"))
        async with other.stream(10.0):
            assert await redis.scard(keys.streams("ann")) == 1
    assert await redis.exists(keys.streams("ann")) == 0


async def test_a_slot_that_could_not_be_released_is_released_later(redis: Client) -> None:
    class Away:
        """A Redis that is away for a moment."""

        calls = 0

        async def srem(self, *arguments: Any) -> None:
            self.calls += 1
            if self.calls == 1:
                raise ConnectionError_("away")
            await redis.srem(*arguments)

    from redis.exceptions import ConnectionError as ConnectionError_

    slots = StreamSlots(Away(), "r1")  # type: ignore[arg-type]
    await redis.set(keys.replica("r1"), 1, px=60_000)
    async with Quota(redis, "ann", Limits(streams=1), slots).stream(1.0):
        pass
    assert await redis.scard(keys.streams("ann")) == 1
    await slots.release_pending()
    assert await redis.scard(keys.streams("ann")) == 0


async def test_a_slot_whose_reply_was_lost_is_released(redis: Client, monkeypatch: Any) -> None:
    """The script took the slot, but its reply was lost, or the request was cancelled meanwhile."""
    from redis.exceptions import ConnectionError as Lost

    tenant, run = quota(redis, streams=1), Scripts.run
    await redis.set(keys.replica("r1"), 1, px=60_000)
    for error in (Lost, asyncio.CancelledError):

        async def carried_out(self: Scripts, *arguments: Any, error: Any = error) -> None:
            assert await run(self, *arguments) == 1
            raise error

        monkeypatch.setattr(Scripts, "run", carried_out)
        with pytest.raises(error):
            await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
        monkeypatch.setattr(Scripts, "run", run)
        assert await redis.scard(keys.streams("ann")) == 0
    async with tenant.stream(1.0):
        pass


# Documents and sessions


async def test_bytes_are_counted_in_the_step_that_stores_them(redis: Client) -> None:
    store = documents(redis, bytes=25)
    first, second = document(), document()
    await store.create(first, MODEL)
    await store.create(first, MODEL)  # sent again
    await store.create(second, MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 20
    with pytest.raises(RateLimited) as caught:
        await store.create(document(), MODEL)
    assert (caught.value.code, caught.value.retry_after) == ("bytes_limit", None)
    assert caught.value.headers["x-should-retry"] == "false"
    with pytest.raises(RateLimited):
        await quota(redis, bytes=25).require_room(6, MODEL)
    await quota(redis, bytes=25).require_room(5, MODEL)
    await documents(redis, "bob", bytes=25).create(document(), MODEL)
    await store.delete(first.id)
    with pytest.raises(NotFound):
        await store.delete(first.id)
    await store.create(document(15), MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 25


async def test_reserved_bytes_are_counted_until_the_reservation_ends(redis: Client) -> None:
    tenant = quota(redis, bytes=100)
    await tenant.reserve("resp_1", 60, 1000)
    await tenant.reserve("resp_1", 60, 1000)  # sent again
    await tenant.reserve("upload_1", 40, 1000)
    for more in (tenant.reserve("resp_2", 1, 1000), tenant.reserve("upload_1", 41, 1000), tenant.require_bytes(1)):
        with pytest.raises(RateLimited) as caught:
            await more
        assert caught.value.code == "bytes_limit"
    with pytest.raises(RateLimited):
        await documents(redis, bytes=100).create(document(1), MODEL)
    assert int(await redis.get(keys.stored("ann"))) == 100
    await tenant.reserve("resp_1", 70, 1000, limited=False)  # it turned out to be longer
    assert int(await redis.get(keys.stored("ann"))) == 110
    await tenant.reserve("resp_1", 60, 1000)  # less is always allowed
    await tenant.of("bob").reserve("resp_1", 100, 1000)
    for _ in range(2):
        await tenant.release("upload_1")
    await tenant.require_bytes(40)
    # An hour later, by Redis' own clock: one was used again meanwhile and one was not.
    await tenant.reserve("resp_3", 30, 1000)
    await redis.zadd(keys.reservations("ann"), {"resp_1": 1, "resp_3": 1}, xx=True)
    await tenant.extend_reservation("resp_1", 1000)
    await tenant.extend_reservation("resp_none", 1000)
    await tenant.require_bytes(40)
    assert int(await redis.get(keys.stored("ann"))) == 60
    assert await redis.hgetall(keys.reservation_sizes("ann")) == {b"resp_1": b"60"}
    await tenant.release("resp_1")
    assert await redis.exists(keys.reservations("ann"), keys.reservation_sizes("ann")) == 0


async def test_a_full_queue_says_when_there_is_room(redis: Client) -> None:
    store = documents(redis, queued=3)

    async def refused() -> int | None:
        with pytest.raises(RateLimited) as caught:
            await store.create(document(), MODEL)
        return caught.value.retry_after

    for size, read, seconds in ((1_000, 100, 10.0), (1_000, 500, 20.0), (1_000_000, 0, 0.0)):
        queued = document(size)
        await store.create(queued, MODEL)
        reading = await store.readings.get(await store.readings.ensure(MODEL, [queued.id]))
        assert reading is not None
        if read:
            claim = await store.readings.claim(reading.id, "reader")
            assert claim is not None
            await store.readings.checkpoint(reading, claim, Cursor(bytes=read, seconds=seconds), Snapshot(b""))
    assert await refused() == 20, "the second has half to go, and took 20 seconds for the other half"
    await redis.delete(*[key async for key in redis.scan_iter(keys.reading("*"))])
    assert await refused() == 5, "nothing is known of what is queued"


async def test_only_as_many_documents_wait(redis: Client) -> None:
    store = documents(redis, queued=2)
    first, second, third = document(), document(), document()
    await store.create(first, MODEL)
    await store.create(second, MODEL)
    with pytest.raises(RateLimited) as caught:
        await store.create(third, MODEL)
    assert caught.value.code == "queued_limit"
    with pytest.raises(RateLimited):
        await store.readings.ensure(MODEL, [first.id, second.id])
    with pytest.raises(RateLimited):
        await quota(redis, queued=2).require_room(1, MODEL)
    assert await store.readings.get(await store.readings.ensure(MODEL, [first.id])) is not None  # it was there
    await finish(store, await store.readings.ensure(MODEL, [first.id]))
    await store.create(third, MODEL)
    await finish(store, await store.readings.ensure(MODEL, [third.id]), "failed")
    await store.delete(second.id)  # before it was read
    assert await redis.exists(keys.queued("ann", MODEL)) == 0
    # A chain of documents is read one after the other: it waits as one.
    chain = [document() for _ in range(4)]
    roomy = documents(redis)
    for one in chain:
        await roomy.create(one, MODEL)
        await finish(roomy, await roomy.readings.ensure(MODEL, [one.id]))
    await store.readings.ensure(MODEL, [one.id for one in chain])
    with pytest.raises(RateLimited):
        await store.readings.ensure(MODEL, [one.id for one in reversed(chain)])


async def test_sessions_are_counted(redis: Client) -> None:
    store = Sessions(redis, "ann", quota(redis, sessions=2), "r1", 15.0)
    first = await store.create(MODEL, "m", [])
    await store.fork(first.id)
    for more in (store.create(MODEL, "m", []), store.fork(first.id)):
        with pytest.raises(RateLimited) as caught:
            await more
        assert caught.value.code == "sessions_limit"
    await store.of("bob").create(MODEL, "m", [])
    await store.delete(first.id)
    await store.create(MODEL, "m", [])


# Tokens


async def test_tokens_of_documents_are_counted_once(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    store, read = documents(redis, tokens=100), document()
    await store.create(read, MODEL)
    id = await store.readings.ensure(MODEL, [read.id])
    everybodys = Documents(redis, None, quota(redis, tokens=100))
    run = everybodys.readings._scripts.run

    async def sent_again(*script: Any) -> Any:
        await run(*script)
        return await run(*script)

    monkeypatch.setattr(everybodys.readings._scripts, "run", sent_again)
    claim = await everybodys.readings.claim(id, "reader")
    assert claim is not None
    for tokens in (40, 60):
        reading = await everybodys.readings.get(id)
        assert reading is not None
        await everybodys.readings.checkpoint(reading, claim, Cursor(tokens=tokens), Snapshot(b""))
    assert int(await redis.get(keys.tokens("ann", today()))) == 60
    assert await redis.get(keys.tokens("default", today())) is None
    await finish(everybodys, id, tokens=100)
    with pytest.raises(RateLimited) as caught:
        await store.create(document(), MODEL)
    assert caught.value.code == "tokens_limit"
    midnight = 86400 - time.time() % 86400
    assert abs((caught.value.retry_after or 0) - midnight) < 60
    await documents(redis, "bob", tokens=100).create(document(), MODEL)


async def test_an_answer_is_charged_however_it_ends(redis: Client) -> None:
    tenant = quota(redis, tokens=100)
    with pytest.raises(asyncio.CancelledError):
        async with tenant.stream(1.0) as spent:
            spent.tokens = 60
            raise asyncio.CancelledError
    async with tenant.stream(1.0) as spent:
        spent.tokens = 60  # what has begun is finished
    with pytest.raises(RateLimited):
        await contextlib.AsyncExitStack().enter_async_context(tenant.stream(1.0))
    assert int(await redis.get(keys.tokens("ann", today()))) == 120


async def test_an_answer_is_charged_whose_caller_left(redis: Client) -> None:
    """The stream's task is then cancelled, and again at every await."""
    tenant = quota(redis, "eve", tokens=100, streams=1)
    await redis.set(keys.replica("r1"), 1, px=60_000)
    with anyio.CancelScope() as scope:
        async with tenant.stream(1.0) as spent:
            spent.tokens = 60
            scope.cancel()
            await anyio.sleep(60)
    async with asyncio.timeout(10):
        while await redis.get(keys.tokens("eve", today())) != b"60" or await redis.exists(keys.streams("eve")):
            await asyncio.sleep(0.01)


# Over HTTP


@pytest.fixture(scope="module")
def limited(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    limits = {"requests_per_minute": 20, "streams": 1, "bytes": 1000, "sessions": 2, "tokens_per_day": 1000}
    settings = {f"tenant_{name}": value for name, value in limits.items()}
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys", recall_passages=0, **settings) as server:
        server.start()
        yield server
        server.check_keys()


def key_of(server: Server, tenant: str) -> str:
    async def make() -> str:
        client = connect(f"unix://{server._link}/redis/redis.sock")
        try:
            return (await Credentials(client).create(tenant))[1]
        finally:
            await client.aclose()

    return asyncio.run(make())


def http(server: Server, tenant: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key_of(server, tenant)}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=60)


def rejected(server: Server, code: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith(f'everlong_rejections_total{{code="{code}"}}')
    )


def test_requests_over_http(limited: Server) -> None:
    client, before = http(limited, "a"), rejected(limited, "requests_limit")
    for left in range(19, -1, -1):
        answer = client.get("/v1/sessions" if left % 2 else "/v1/nothing")
        assert answer.headers["x-ratelimit-limit-requests"] == "20"
        assert int(answer.headers["x-ratelimit-remaining-requests"]) >= left
    answers = [client.get("/v1/sessions") for _ in range(10)]
    refused = next(answer for answer in answers if answer.status_code == 429)
    limited.error(refused, 429, "requests_limit")
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    assert rejected(limited, "requests_limit") > before
    assert http(limited, "b").get("/v1/sessions").status_code == 200
    sdk = openai.OpenAI(base_url=f"{limited.url}/v1", api_key=client.headers["authorization"][7:], max_retries=0)
    with pytest.raises(openai.RateLimitError):
        for _ in range(30):
            sdk.models.list()


def test_one_answer_at_a_time_over_http(limited: Server) -> None:
    client = http(limited, "c")
    one, two = (client.post("/v1/sessions", json={}).json()["id"] for _ in range(2))
    refused = client.post("/v1/sessions", json={})
    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "sessions_limit"
    assert "retry-after" not in refused.headers
    assert refused.headers["x-should-retry"] == "false"
    endless = {"content": "Talk.", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    with client.stream("POST", f"/v1/sessions/{one}/messages", json=endless) as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()  # kept: to drop it is to close the connection
        assert next(lines)
        limited.error(client.post(f"/v1/sessions/{two}/messages", json={"content": "Hi"}), 429, "streams_limit")
        limited.error(client.get(f"/v1/sessions/{two}/memory"), 429, "streams_limit")
    # It is free again once the answer has ended.
    wait_for(lambda: not limited.redis.exists(keys.streams("c")))
    assert client.get(f"/v1/sessions/{two}/memory").status_code == 200
    assert not limited.redis.exists(keys.streams("c"))
    assert client.post(f"/v1/sessions/{two}/messages", json={"content": "Hi", "max_tokens": 1}).status_code == 200


def test_bytes_and_tokens_over_http(limited: Server) -> None:
    client, plain = http(limited, "d"), {"headers": {"content-type": "text/plain"}}
    document = client.post("/v1/documents", content=b"x" * 600, **plain)
    assert document.status_code == 202
    # A document that is read has names that begin with a dot, too.
    wait_for(lambda: not limited.redis.keys(keys.queued("*", "*")))
    for body in (b"x" * 600, iter([b"x" * 600])):  # known at once, or at the end
        refused = client.post("/v1/documents", content=body, **plain)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes_limit")
    assert len([name for name in (limited.data / "documents").iterdir() if name.name.startswith(".")]) == 0
    # What has been promised to an upload in parts is not promised again.
    fields = {"bytes": 300, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = client.post("/v1/uploads", json=fields).json()["id"]
    refused = client.post("/v1/uploads", json=fields)
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes_limit")
    assert client.post(f"/v1/uploads/{upload}/cancel").status_code == 200
    upload = client.post("/v1/uploads", json=fields).json()["id"]
    assert client.post(f"/v1/uploads/{upload}/cancel").status_code == 200
    # Its tokens counted when they were read.
    limited.redis.set(keys.tokens("d", today()), 1000, ex=100)
    refused = client.post("/v1/documents", content=b"x", **plain)
    limited.error(refused, 429, "tokens_limit")
    session = client.post("/v1/sessions", json={}).json()["id"]
    limited.error(client.post(f"/v1/sessions/{session}/messages", json={"content": "Hi"}), 429, "tokens_limit")
    limited.redis.delete(keys.tokens("d", today()))
    message = {"content": "Hi", "max_tokens": 5, "temperature": 0, "ignore_eos": True}
    usage = client.post(f"/v1/sessions/{session}/messages", json=message).json()["usage"]
    assert int(limited.redis.get(keys.tokens("d", today()))) == usage["prompt_tokens"] + 5


def test_parts_that_come_twice_are_counted(limited: Server) -> None:
    client = http(limited, "f")
    fields = {"bytes": 600, "filename": "a.txt", "mime_type": "text/plain", "purpose": "user_data"}
    upload = client.post("/v1/uploads", json=fields).json()["id"]
    path = f"/v1/uploads/{upload}/parts"
    part = client.post(path, files={"data": b"x" * 600}).json()["id"]
    refused = client.post(path, files={"data": b"x" * 500})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes_limit")
    assert int(limited.redis.get(keys.stored("f"))) == 600
    assert client.post(path, files={"data": b"x" * 300}).status_code == 200
    assert int(limited.redis.get(keys.stored("f"))) == 900
    # Completing it needs no room beside its own.
    assert client.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]}).json()["status"] == "completed"
    assert int(limited.redis.get(keys.stored("f"))) == 600


def test_responses_are_counted_among_the_bytes(new_server: Callable[..., Server]) -> None:
    server = new_server(auth="keys", tenant_bytes=12_000).start()
    client, made = http(server, "g"), []
    body = {"model": "tiny-rmt", "input": "x" * 500, "max_output_tokens": 16}
    while (answer := client.post("/v1/responses", json=body)).status_code == 200:
        made.append(answer.json()["id"])
    refused = answer
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "bytes_limit")
    assert "EVERLONG_TENANT_BYTES" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert len(made) >= 2
    sizes = [sum(len(value) for value in server.redis.hvals(keys.response(id))) for id in made]
    assert abs(int(server.redis.get(keys.stored("g"))) - sum(sizes)) < 500 * len(made)
    assert client.post("/v1/responses", json=body | {"background": True}).status_code == 429
    assert client.post("/v1/responses", json=body | {"stream": True}).status_code == 429
    upload = client.post("/v1/documents", content=b"x" * 3000, headers={"content-type": "text/plain"})
    assert upload.status_code == 429
    # What is not stored takes no room, and what is deleted gives it back.
    assert client.post("/v1/responses", json=body | {"store": False}).status_code == 200
    for response in made[:2]:
        assert client.delete(f"/v1/responses/{response}").status_code == 200
    response = client.post("/v1/responses", json=body | {"background": True}).json()["id"]
    over = ("completed", "incomplete")
    wait_for(lambda: client.get(f"/v1/responses/{response}").json()["status"] in over)
    for id in (*made[2:], response):
        assert client.delete(f"/v1/responses/{id}").status_code == 200
    assert int(server.redis.get(keys.stored("g"))) == 0
    server.check_keys()


def test_messages_over_a_socket_are_requests(limited: Server) -> None:
    key = key_of(limited, "e")
    session = httpx.post(
        f"{limited.url}/v1/sessions", json={}, headers={"Authorization": f"Bearer {key}"}, timeout=60
    ).json()["id"]
    address = f"ws://127.0.0.1:{limited.port}/v1/sessions/{session}/stream"
    with open_socket(address, additional_headers={"Authorization": f"Bearer {key}"}) as socket:
        codes = []
        for _ in range(30):
            socket.send(json.dumps({"type": "message.create", "content": "Hi", "max_tokens": 1}))
            while (event := json.loads(socket.recv(timeout=60)))["type"] not in ("response.completed", "error"):
                pass
            codes.append(event.get("error", {}).get("code"))
        assert "requests_limit" in codes
        assert codes[:10] == [None] * 10
