"""Vector stores in Redis."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everlong_server.store.records import new_id, now
from everlong_server.store.redis.connection import Client
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.vault import Vault
from everlong_server.store.vector_stores.records import VectorStore
from everlong_server.store.vector_stores.stores import VectorStores


async def test_two_updates_at_once_are_both_kept(redis: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    stores = VectorStores(redis, "ann", Quota(redis, "ann", Limits(), StreamSlots(redis, "r1")), Vault())
    store = VectorStore(new_id("vs"), now(), "old")
    await stores.create(store)
    update, both_have_read, calls = VectorStores._update, asyncio.Barrier(2), list[Any]()

    async def after_both(self: VectorStores, *arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) <= 2:
            await both_have_read.wait()
        return await update(self, *arguments)

    monkeypatch.setattr(VectorStores, "_update", after_both)
    await asyncio.gather(
        stores.update(store.id, {"name": "new"}), stores.update(store.id, {"metadata": {"year": "1899"}})
    )
    kept = await stores.get(store.id)
    assert (kept.name, kept.metadata) == ("new", {"year": "1899"})
    assert len(calls) == 3, "one of them has tried again"
