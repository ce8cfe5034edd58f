"""`answer_once`, which all APIs with an answer for each request share: a client that leaves ends the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from everlong_server.api.streams.sse import data_stream
from everlong_server.api.translation.answer_once import View, answer_once
from everlong_server.store.idempotency import IdempotencyRecord, IdempotencyRecords
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.vault import Vault


@pytest.mark.parametrize(("stream", "step"), [(False, "begin"), (True, "begin"), (False, "whole")])
async def test_a_client_that_leaves_ends_the_work(redis: Client, stream: bool, step: str) -> None:
    await redis.set(keys.replica("r1"), 1, px=60_000)  # this server is alive, so its records are not taken over
    records, ids, steps = IdempotencyRecords(redis, "ann", "r1", 60, [], Vault()), list[str](), list[str]()
    services: Any = SimpleNamespace(idempotency=records)
    working = asyncio.Event()

    async def receive() -> dict[str, str]:
        await working.wait()
        return {"type": "http.disconnect"}

    async def work(here: str) -> View:
        steps.append(here)
        if here == step:
            working.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                steps.append("cancelled")
                raise
        return {}

    async def begin(record: IdempotencyRecord) -> View:
        ids.append(record.id)
        return await work("begin")

    async def live(_: View, __: IdempotencyRecord) -> AsyncGenerator[View, None]:
        raise AssertionError("the client has left")
        yield {}

    request: Any = SimpleNamespace(receive=receive)
    for _ in range(2):  # the record of the first request is released, so that the retry gets the same id
        steps.clear()
        working.clear()
        with pytest.raises(ClientDisconnect):
            await answer_once(
                services, request, "key", ("chat", "{}"),
                begin=begin,
                whole=lambda _, __: work("whole"),
                live=live,
                replayed=lambda view: live(view, records),  # type: ignore[arg-type]
                send=(lambda events: data_stream(events, 15)) if stream else None,
            )  # fmt: skip
        assert steps == [*["begin", "whole"][: 1 + (step == "whole")], "cancelled"]
    assert ids[0] == ids[1]
