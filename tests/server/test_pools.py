"""`Pool`: long work does not delay short work."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everlong_server.pools import Pool, SharedPool
from everlong_server.services import background
from everlong_server.store.texts import sidecar
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.sidecar import Sidecar


async def test_it_takes_no_thread_from_others_and_keeps_the_context() -> None:
    pool, go, begun = Pool("test", 2), threading.Event(), threading.Semaphore(0)
    name: contextvars.ContextVar[str] = contextvars.ContextVar("name", default="nobody")
    name.set("Alice")

    def work(number: int) -> tuple[int, str, str]:
        begun.release()
        assert go.wait(30)
        return number, name.get(), threading.current_thread().name.rsplit("_", 1)[0]

    tasks = [asyncio.create_task(pool.run(work, number)) for number in range(40)]
    for _ in range(2):
        assert await asyncio.to_thread(begun.acquire, timeout=30)
    assert not begun.acquire(blocking=False), "two at once"
    assert await asyncio.wait_for(asyncio.to_thread(lambda: "at once"), 30) == "at once"
    go.set()
    assert await asyncio.gather(*tasks) == [(number, "Alice", "test") for number in range(40)]


async def test_a_tenant_whose_client_has_left_waits_for_its_thread() -> None:
    """A request that is cancelled and sent again must not take one more thread each time."""
    pool, go, begun = SharedPool("test", 3, each=1), threading.Event(), threading.Semaphore(0)

    def work() -> None:
        begun.release()
        assert go.wait(30)

    first = asyncio.create_task(pool.run_for("ann", work))
    assert await asyncio.to_thread(begun.acquire, timeout=30)
    first.cancel()
    second, other = (asyncio.create_task(pool.run_for(tenant, work)) for tenant in ("ann", "bob"))
    assert await asyncio.to_thread(begun.acquire, timeout=30), "another tenant's"
    second.cancel()
    await asyncio.wait([second], timeout=30)
    assert second.cancelled(), "it did not run yet"
    assert not first.done()
    assert not begun.acquire(blocking=False)
    go.set()
    await asyncio.wait([first, other], timeout=30)
    assert first.cancelled()
    await pool.run_for("ann", work)


class EveryDocument:
    """Finds a document under every id."""

    async def get(self, document_id: str) -> Any:
        return document_id


async def test_a_queued_build_that_is_cancelled_does_not_wait_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling a task ends its own build, and no other task's."""
    monkeypatch.setattr(sidecar, "_LONG_BUILDS", Pool("test", 1))
    beside, begun, made = Sidecar(Blobs(f"file://{tmp_path}"), EveryDocument()), threading.Event(), []

    def make(path: Path, stop: threading.Event) -> None:
        begun.set()
        assert stop.wait(30)
        made.append(path.name)
        raise sidecar.BuildCancelled

    def ensure(name: str) -> asyncio.Task[None]:
        document: Any = SimpleNamespace(id=name, bytes=1 << 21)
        return asyncio.create_task(beside.ensure(document, f"{name}.x", make))

    first = ensure("doc_1")
    assert await asyncio.to_thread(begun.wait, 30)
    second = ensure("doc_2")
    while "doc_2.x" not in sidecar._LOCKS or not sidecar._LOCKS["doc_2.x"].locked():
        await asyncio.sleep(0.01)
    second.cancel()
    await asyncio.wait([second], timeout=30)
    assert second.cancelled()
    assert not first.done()
    assert made == []
    first.cancel()
    await asyncio.wait([first], timeout=30)
    assert first.cancelled()
    assert len(made) == 1, "it has ended, and the other one never began"


async def test_a_failed_background_task_is_restarted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(background, "_RESTART_DELAY", 0)
    left = [NotImplementedError("no such thing"), ValueError("x")]

    async def work() -> None:
        if left:
            raise left.pop()

    await background.run_forever(work)
    assert left == []
    assert [record.message for record in caplog.records] == ["a background task failed; restarting it"] * 2
