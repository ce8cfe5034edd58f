"""Batches in Redis: one result for each line, whoever writes late; and pages of several indexes."""

from __future__ import annotations

import gc
import json
from dataclasses import replace
from pathlib import Path

import pytest

from everlong_server.engine.batches.run import BatchRun, Reply, Request
from everlong_server.errors import NotFound, RateLimited
from everlong_server.store.batches.batches import Batches
from everlong_server.store.batches.files import BatchFile, BatchFiles
from everlong_server.store.batches.records import Batch, Result
from everlong_server.store.jobs import Claim, StaleClaim
from everlong_server.store.records import new_id, now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.index import merged_page
from everlong_server.store.tenants.quota import Limits, Quota, StreamSlots
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault

URL = "/v1/completions"


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(f"file://{tmp_path / 'files'}")


@pytest.fixture
def quota(redis: Client) -> Quota:
    return Quota(redis, "ann", Limits(bytes=10_000), StreamSlots(redis, "r"))


@pytest.fixture
def batches(redis: Client, quota: Quota) -> Batches:
    return Batches(redis, "ann", quota, 200_000, Vault())


async def begun(batches: Batches, blobs: Blobs, lines: int) -> tuple[Batch, Claim]:
    """Return a batch whose input file is checked, and a claim on it."""
    input_file = new_id("file")
    with blobs.fill(input_file) as path:
        rows = [{"custom_id": str(n), "method": "POST", "url": URL, "body": {"n": n}} for n in range(1, lines + 1)]
        path.write_text("\n".join(map(json.dumps, rows)))
    batch = Batch(new_id("batch"), input_file, URL, "model", now(), now() + 86400, 3600, tenant="ann")
    await batches.create(batch)
    claim = await batches.claim(batch.id, "one")
    assert claim is not None
    await batches.write(batch.id, claim, {"status": "in_progress", "total": lines})
    return await batches.get(batch.id), claim


def run_of(batch: Batch, claim: Claim, store: Batches, blobs: Blobs, answered: list[int]) -> BatchRun:
    async def ask(request: Request) -> Reply:
        answered.append(json.loads(request.body)["n"])
        return Reply(200, "req_1", request.body, None)

    async def never(seconds: float) -> bool:
        return False

    return BatchRun(batch, claim, store, blobs, ask, lambda result: None, never, at_once=3)


async def test_a_line_has_one_result_however_often_it_is_stored(batches: Batches, blobs: Blobs) -> None:
    batch, claim = await begun(batches, blobs, 2)
    for text in ("first", "second"):
        await batches.add_result(batch.id, claim, Result(1, failed=False, text=text))
    found = await batches.get(batch.id)
    assert (found.completed, found.failed) == (1, 0)
    assert [result.text for result in await batches.results(batch.id)] == ["first"]


async def test_a_write_that_arrives_again_after_the_next_one_changes_nothing(batches: Batches, blobs: Blobs) -> None:
    """A connection may break after its command was sent, and Redis run this command only after the client's retry."""
    batch, claim = await begun(batches, blobs, 3)
    results = [Result(n, failed=False, text=f"{n}") for n in (1, 2, 3)]
    moved = [replace(batch, line=n, offset=n, parts=tuple(f"part{m}" for m in range(1, n + 1))) for n in (1, 2)]
    for result, checkpoint in zip(results, moved, strict=False):
        await batches.add_result(batch.id, claim, result)
        await batches.checkpoint(checkpoint, claim)
    await batches.add_result(batch.id, claim, results[2])
    await batches.add_result(batch.id, claim, results[0])
    for checkpoint in moved:
        await batches.checkpoint(checkpoint, claim)
    assert await batches.results(batch.id) == results[2:]
    found = await batches.get(batch.id)
    assert (found.completed, found.line, found.offset, found.parts) == (3, 2, 2, ("part1", "part2"))


async def test_a_result_that_is_stored_while_the_batch_ends_is_the_only_one_of_its_line(
    batches: Batches, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, claim = await begun(batches, blobs, 2)
    read = batches.results

    async def late(batch_id: str) -> list[Result]:
        await batches.add_result(batch.id, claim, Result(1, failed=False, text=json.dumps({"custom_id": "1"})))
        return await read(batch_id)

    monkeypatch.setattr(batches, "results", late)
    run = run_of(batch, claim, batches, blobs, [])
    assert await run.end_lines("batch_cancelled", "It was cancelled.") == 1
    (part,) = run.batch.parts
    lines = blobs.open(part).read().decode().splitlines()
    assert [(line[0], json.loads(line[1:])["custom_id"]) for line in lines] == [("+", "1"), ("-", "2")]


async def test_a_worker_whose_claim_was_taken_writes_nothing(
    batches: Batches, blobs: Blobs, caplog: pytest.LogCaptureFixture
) -> None:
    batch, stale = await begun(batches, blobs, 2)
    claim = await batches.claim(batch.id, "two")
    assert claim is not None
    assert await batches.holder(batch.id, stale) == "two"
    assert await batches.holder(batch.id, claim) is None
    result = Result(1, failed=False, text="late")
    with pytest.raises(StaleClaim):
        await batches.add_result(batch.id, stale, result)
    with pytest.raises(StaleClaim):
        await batches.checkpoint(replace(batch, line=2), stale)
    assert not await batches.end(batch.id, stale, {"status": "completed"})
    with pytest.raises(StaleClaim):
        await batches.write(batch.id, stale, {"status": "failed"})
    assert (await batches.get(batch.id)).status == "in_progress"
    with pytest.raises(StaleClaim):
        await run_of(batch, stale, batches, blobs, []).answer_lines()
    gc.collect()
    assert "never retrieved" not in caplog.text, "both lines failed"
    assert await batches.end(batch.id, claim, {"status": "completed"})
    assert await batches.claim(batch.id, "three") is None
    assert not await batches.end(batch.id, None, {"status": "failed"})


async def test_a_worker_continues_after_the_results_that_are_stored(
    batches: Batches, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines 2 and 5 were answered by a worker that was killed. Parts hold few results, so that there are many."""
    monkeypatch.setattr("everlong_server.engine.batches.run.PART_LINES", 4)
    batch, claim = await begun(batches, blobs, 23)
    for n in (2, 5):
        await batches.add_result(batch.id, claim, Result(n, failed=False, text=json.dumps({"custom_id": str(n)})))
    answered: list[int] = []
    again = await batches.claim(batch.id, "two")
    assert again is not None
    run = run_of(batch, again, batches, blobs, answered)
    assert await run.answer_lines()
    assert sorted(answered) == [n for n in range(1, 24) if n not in (2, 5)]
    assert len(run.batch.parts) > 3
    # A part that the first worker writes only now has a name of its own.
    with blobs.fill(f"{batch.id}.0.{claim.token}") as path:
        path.write_text("+late\n")
    lines = [line for part in run.batch.parts for line in blobs.open(part).read().decode().splitlines()]
    assert [int(json.loads(line[1:])["custom_id"]) for line in lines] == list(range(1, 24))
    found = await batches.get(batch.id)
    assert (found.completed, found.line, found.parts) == (23, 23, run.batch.parts)
    assert await batches.results(batch.id) == []
    assert await run_of(found, again, batches, blobs, answered).answer_lines(), "a second time changes nothing"
    assert len(answered) == 21


async def test_a_request_that_must_wait_is_tried_again_in_the_next_turn(batches: Batches, blobs: Blobs) -> None:
    batch, claim = await begun(batches, blobs, 5)
    run = run_of(batch, claim, batches, blobs, answered := [])
    asked = run._ask

    async def limited(request: Request) -> Reply:
        if json.loads(request.body)["n"] == 2:
            return Reply(429, "req_1", "{}", 7.0)
        return await asked(request)

    run._ask = limited
    assert not await run.answer_lines()
    assert run.pause == 5.0
    assert 2 not in answered
    assert await run_of(batch, claim, batches, blobs, answered).answer_lines()
    assert sorted(answered) == [1, 2, 3, 4, 5]


async def test_files_count_until_they_are_deleted_and_expire(redis: Client, blobs: Blobs, quota: Quota) -> None:
    files = BatchFiles(redis, blobs, "ann", quota, Vault())
    moment = now()
    file = BatchFile(new_id("file"), "batch", "a.jsonl", 5000, moment, moment + 3600)
    await files.create(file)
    with pytest.raises(RateLimited):
        await files.create(replace(file, id=new_id("file")))
    assert 3500 < await redis.ttl(keys.batch_file(file.id)) <= 3600
    await files.extend(file, moment + 7200)
    assert 7100 < await redis.ttl(keys.batch_file(file.id)) <= 7200
    await files.extend(file, moment + 1800)
    assert (await files.get(file.id)).expires_at == pytest.approx(moment + 7200)
    with pytest.raises(NotFound):
        await files.of("bob").get(file.id)
    await files.delete(file.id)
    assert await quota.bytes_left() == 10_000
    await redis.zadd(keys.batch_files("ann"), {"file_expired": 1})
    await files.create(file)
    assert await redis.zrange(keys.batch_files("ann"), 0, -1) == [file.id.encode()]


@pytest.mark.parametrize("limit", [1, 2, 3, 50])
async def test_a_page_of_two_indexes_is_a_page_of_all(redis: Client, limit: int) -> None:
    indexes = [keys.documents("ann"), keys.batch_files("ann")]
    scores = {f"{'ab'[n % 3 == 0]}{n:02}": float(n // 4) for n in range(20)}  # several have the same score
    for id, score in scores.items():
        await redis.zadd(indexes[id[0] == "b"], {id: score})
    expected = sorted(scores, key=lambda id: (scores[id], id), reverse=True)
    found: list[str] = []
    more = True
    while more:
        ids, more = await merged_page(redis, indexes, limit, found[-1] if found else None)
        assert len(ids) <= limit
        found += ids
    assert found == expected
    with pytest.raises(NotFound):
        await merged_page(redis, indexes, limit, "nobody")


async def test_cancelling_reaches_only_a_batch_that_is_not_being_written(batches: Batches, blobs: Blobs) -> None:
    batch, claim = await begun(batches, blobs, 1)
    await batches.write(batch.id, claim, {"status": "finalizing"}, unless_cancelling=True)
    assert await batches.cancel(batch.id) == "finalizing"
    other, claim = await begun(batches, blobs, 1)
    assert await batches.cancel(other.id) == "cancelling"
    assert await batches.write(other.id, claim, {"status": "finalizing"}, unless_cancelling=True) == "cancelling"
