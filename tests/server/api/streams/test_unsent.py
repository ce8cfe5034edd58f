"""Streams whose response is never sent, since the client leaves before its head: what they hold is released at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from everlong_models import load_model
from everlong_server.app import create_app
from everlong_server.settings import Settings

SAY = {"content": "Who is she?", "max_tokens": 2, "stream": True}
CHAT = {"model": "tiny-rmt", "messages": [{"role": "user", "content": "Who is she?"}], "max_tokens": 2, "stream": True}


@pytest.fixture
async def app(tiny_model: Path, redis: Any, redis_url: str, tmp_path: Path) -> AsyncIterator[Any]:
    """An application in this process, which answers one request at a time."""

    async def load() -> Any:
        return await asyncio.to_thread(load_model, str(tiny_model), models_dir=tmp_path)

    settings = Settings(model=str(tiny_model), data_dir=tmp_path, recall_passages=0, max_streams=1, max_queued=0)
    app = create_app(settings, redis_url, load)
    async with app.router.lifespan_context(app), asyncio.timeout(60):
        while app.state.shared is None:
            await asyncio.sleep(0.01)
        yield app


@pytest.fixture
async def http(app: Any) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as http:
        yield http


async def post_and_leave(app: Any, path: str, body: dict[str, Any], **headers: str) -> None:
    """Post a request whose client leaves while the head of the response is being sent."""
    sending, asked = asyncio.Event(), False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}
        await sending.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sending.set()
        if message["type"] == "http.response.start":
            assert message["status"] == 200
            await asyncio.Event().wait()

    given = {"host": "localhost", "content-type": "application/json", **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST", "path": path,
        "raw_path": path.encode(), "query_string": b"", "root_path": "", "scheme": "http", "client": ("127.0.0.1", 1),
        "server": ("localhost", 80), "headers": [(name.encode(), value.encode()) for name, value in given.items()],
    }  # fmt: skip
    async with asyncio.timeout(30):
        await app(scope, receive, send)


async def test_the_session_of_an_answer_that_was_never_sent_is_free(app: Any, http: httpx.AsyncClient) -> None:
    session = (await http.post("/v1/sessions", json={})).json()["id"]
    path = f"/v1/sessions/{session}/messages"
    await post_and_leave(app, path, SAY, **{"idempotency-key": "a"})
    answer = await http.post(path, json=SAY | {"stream": False}, headers={"idempotency-key": "b"})
    assert answer.status_code == 200, answer.text
    assert (await http.get(f"/v1/sessions/{session}")).json()["messages"] == 2
    # The key is free, too: its request can be made again.
    again = await http.post(path, json=SAY | {"stream": False}, headers={"idempotency-key": "c"})
    assert again.status_code == 200, again.text
    assert (await http.post(path, json=SAY, headers={"idempotency-key": "a"})).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"model": "tiny-rmt", "input": "Who is she?", "max_output_tokens": 16, "stream": True}),
        ("/v1/messages", CHAT),
        ("/api/chat", {"model": "tiny-rmt", "messages": CHAT["messages"], "options": {"num_predict": 2}}),
    ],
)
async def test_the_slot_of_an_answer_that_was_never_sent_is_free(
    app: Any, http: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    await post_and_leave(app, path, body)
    answer = await http.post("/v1/chat/completions", json=CHAT | {"stream": False})
    assert answer.status_code == 200, answer.text
