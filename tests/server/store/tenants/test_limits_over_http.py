"""The limits of a tenant over HTTP: refusals, headers, and what is counted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import pytest
from websockets.sync.client import connect as open_socket

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.tenants.credentials import Credentials
from everlong_server.store.tenants.quota import today
from tests.process import Server, wait_for


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
