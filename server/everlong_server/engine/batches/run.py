"""`BatchRun`: answers the lines of one batch until they are answered or the batch's turn is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import IO

from everlong_server.engine.batches.input_file import Line, lines
from everlong_server.pools import Pool
from everlong_server.store.batches.batches import Batches
from everlong_server.store.batches.records import Batch, Result
from everlong_server.store.jobs import Claim
from everlong_server.store.texts.blobs import Blobs
from everlong_server.tasks import cancel

PART_BYTES = 4 << 20
PART_LINES = 1000
"""Results are moved from Redis to the blob store when there are as many."""
_LINES_READ = 64
_SERVER_ERROR_TRIES = 3
"""How often a request is tried that fails with an error of the server."""
_RETRY_SECONDS = 0.5
_MAX_WAIT_SECONDS = 5.0
THREADS = Pool("everlong-batches", 2)


@dataclass(frozen=True, slots=True)
class Request:
    """A request to one of the server's own endpoints. `key`: its Idempotency-Key, if it has one."""

    tenant: str
    endpoint: str
    body: str
    key: str | None


@dataclass(frozen=True, slots=True)
class Reply:
    """The response. `body`: JSON in one line. `retry_after`: seconds after which the request may succeed."""

    status: int
    request_id: str
    body: str
    retry_after: float | None


Ask = Callable[[Request], Awaitable[Reply]]
"""Answers a request as an HTTP request would be answered."""


class BatchRun:
    """One worker's turn on a batch.

    Lines are answered several at a time, in order. Each result is stored as soon as there is one. Results are moved to a blob only
    when no line is being answered: then they cover all lines up to the newest one.
    """

    def __init__(
        self,
        batch: Batch,
        claim: Claim,
        store: Batches,
        blobs: Blobs,
        ask: Ask,
        on_result: Callable[[Result], None],
        turn_is_over: Callable[[float], Awaitable[bool]],
        at_once: int,
    ) -> None:
        """`turn_is_over`: whether to stop after that many seconds, since other batches wait. `at_once`: lines answered at a time."""
        self.batch = batch
        self._claim = claim
        self._store = store
        self._blobs = blobs
        self._ask = ask
        self._on_result = on_result
        self._turn_is_over = turn_is_over
        self._at_once = at_once
        self._tasks: set[asyncio.Task[None]] = set()
        self._wait: float | None = None
        """Seconds to wait before the lines that cannot be answered now are tried again."""

    async def answer_lines(self) -> bool:
        """Answer lines, and return whether all are answered and their results in the blob store.

        Raises `StaleClaim`, and `OSError` of the blob store.
        """
        started, done = time.monotonic(), await self._store.done(self.batch.id)
        file = await THREADS.run(self._blobs.open, self.batch.input_file, self.batch.offset)
        try:
            return await self._answer(file, done, started)
        finally:
            await cancel(*self._tasks)
            file.close()

    async def _answer(self, file: IO[bytes], done: set[int], started: float) -> bool:
        newest_done = max(done, default=0)
        number, offset = self.batch.line, self.batch.offset
        left, count = lines(file, number, offset), len(done)
        while read := await THREADS.run(_next_lines, left):
            for line in read:
                if line.number not in done:
                    # Not before the newest line that has a result: all lines of a part must be answered.
                    if line.number > newest_done and (count >= PART_LINES or self.batch.result_bytes >= PART_BYTES):
                        if not await self._finish_tasks():
                            return False
                        await self.move_results(number, offset)
                        count = 0
                    if self._wait is not None or await self._turn_is_over(time.monotonic() - started):
                        await self._finish_tasks()
                        return False
                    await self._start(line)
                    count += 1
                number, offset = line.number, line.end
        if not await self._finish_tasks():
            return False
        await self.move_results(number, offset)
        return True

    @property
    def pause(self) -> float:
        """Seconds to wait before the next turn."""
        return min(self._wait or 0.0, _MAX_WAIT_SECONDS)

    async def _start(self, line: Line) -> None:
        """Start to answer a line, as soon as there is a place."""
        while len(self._tasks) >= self._at_once:
            await self._wait_for(asyncio.FIRST_COMPLETED)
        self._tasks.add(asyncio.create_task(self._answer_line(line)))

    async def _wait_for(self, what: str) -> None:
        ended, self._tasks = await asyncio.wait(self._tasks, return_when=what)
        for error in [task.exception() for task in ended]:  # all of them, or asyncio logs the others
            if error is not None:
                raise error

    async def _finish_tasks(self) -> bool:
        """Wait for the lines that are being answered. Returns whether all are answered."""
        if self._tasks:
            await self._wait_for(asyncio.ALL_COMPLETED)
        return self._wait is None

    async def _answer_line(self, line: Line) -> None:
        batch = self.batch
        # A response is stored: the key makes sure that a line which is tried again stores no second one.
        key = f"{batch.id}:{line.number}" if batch.endpoint == "/v1/responses" else None
        # Escaped characters could triple the size, beyond the limit of bodies, which the line in the file met.
        body = json.dumps(line.body, ensure_ascii=False, separators=(",", ":"))
        request = Request(batch.tenant, batch.endpoint, body, key)
        for attempt in range(_SERVER_ERROR_TRIES):
            reply = await self._ask(request)
            if reply.status in (409, 429, 503) and reply.retry_after is not None:
                self._wait = max(self._wait or 0.0, reply.retry_after)
                return
            if reply.status < 500 or attempt == _SERVER_ERROR_TRIES - 1:
                break
            await asyncio.sleep(_RETRY_SECONDS)
        response = (
            f'{{"status_code": {reply.status}, "request_id": {json.dumps(reply.request_id)}, "body": {reply.body}}}'
        )
        await self._add(Result(line.number, reply.status != 200, _line(batch, line, response, None)))

    async def _add(self, result: Result) -> None:
        await self._store.add_result(self.batch.id, self._claim, result)
        self.batch = replace(self.batch, result_bytes=self.batch.result_bytes + len(result.text))
        self._on_result(result)

    async def move_results(self, number: int, offset: int) -> None:
        """Move the results from Redis to a blob. They are those of the lines up to `number`, which ends at byte `offset`."""
        results = await self._store.results(self.batch.id)
        if not results:
            return
        moved = replace(await self._with_part(results), line=number, offset=offset, result_bytes=0)
        await self._store.checkpoint(moved, self._claim)
        self.batch = moved

    async def _with_part(self, results: list[Result]) -> Batch:
        """Write results to a blob, and return the batch with this part."""
        # The token in the name: a worker that was thought dead may still write its own.
        name = f"{self.batch.id}.{len(self.batch.parts)}.{self._claim.token}"
        await THREADS.run(_write_part, self._blobs, name, results)
        return replace(self.batch, parts=(*self.batch.parts, name))

    async def end_lines(self, code: str, message: str) -> int:
        """Give every line that is not answered an error as its result, in the blob store. Returns the number of these lines."""
        number, offset = self.batch.line, self.batch.offset
        try:
            file = await THREADS.run(self._blobs.open, self.batch.input_file, offset)
        except FileNotFoundError:  # the file was deleted: nobody knows what its other lines were
            await self.move_results(number, offset)
            return 0
        answered = await self._store.results(self.batch.id)
        done, unanswered = {result.line for result in answered}, list[Result]()
        with file:
            left = lines(file, number, offset)
            while read := await THREADS.run(_next_lines, left):
                for line in read:
                    number, offset = line.number, line.end
                    if line.number not in done:
                        error = json.dumps({"code": code, "message": message})
                        unanswered.append(Result(line.number, failed=True, text=_line(self.batch, line, "null", error)))
        results = sorted([*answered, *unanswered], key=lambda result: result.line)
        self.batch = replace(await self._with_part(results), line=number, offset=offset)
        return len(unanswered)


def _next_lines(left: Iterator[Line]) -> list[Line]:
    return list(islice(left, _LINES_READ))


def _line(batch: Batch, line: Line, response: str, error: str | None) -> str:
    """Return a line of an output file. `response`, `error`: JSON."""
    id = f"batch_req_{batch.id.removeprefix('batch_')}_{line.number}"
    return f'{{"id": {json.dumps(id)}, "custom_id": {json.dumps(line.custom_id)}, "response": {response}, "error": {error or "null"}}}'


def _write_part(blobs: Blobs, name: str, results: list[Result]) -> None:
    """Write results to a blob, one a line. The first character says which file the line belongs to."""
    with blobs.fill(name) as path, path.open("w", encoding="utf-8") as file:
        file.writelines(f"{'-' if result.failed else '+'}{result.text}\n" for result in results)
