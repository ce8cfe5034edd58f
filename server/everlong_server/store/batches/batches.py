"""`Batches`: the batches of one tenant, in Redis.

The results of lines are collected in Redis, each in one step with its line's number, so that no line has two. When there are many,
the worker moves them to a blob, a *part*.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from everlong_server.errors import NotFound
from everlong_server.store.batches.files import REMOVE_EXPIRED, BatchFile, BatchFiles
from everlong_server.store.batches.records import Batch, Result
from everlong_server.store.jobs import Claim, StaleClaim, claim_work, newer_claimant
from everlong_server.store.records import now
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.hashes import owned_hash
from everlong_server.store.redis.index import stored_page
from everlong_server.store.redis.scripts import CLAIMING, flat
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.vault import MESSAGES, Vault

_RECORD_BYTES = 1024
"""What a batch counts towards its tenant's bytes."""

# Defines `is_open(batch)`.
_OPEN = """
local function is_open(batch)
  local status = redis.call('HGET', batch, 'status')
  return status == 'validating' or status == 'in_progress' or status == 'finalizing' or status == 'cancelling'
end
"""

# Stores a batch and queues it, in one step. KEYS: batch, batches, jobs. ARGV: id, tenant, creation time, milliseconds to live, fields
# and values
_CREATE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return end -- a retry: the reply was lost
redis.call('HSET', KEYS[1], unpack(ARGV, 5))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
redis.call('XADD', KEYS[3], '*', 'batch', ARGV[1], 'tenant', ARGV[2])
"""

# KEYS: batch, fence. ARGV: claimant
# Returns {token, attempts} for the claimant, who alone may write from now on; or nothing if the batch has ended or is gone.
_CLAIM = (
    CLAIMING
    + _OPEN
    + """
if not is_open(KEYS[1]) then return nil end
return claim(KEYS[1], KEYS[2], ARGV[1])
"""
)

# KEYS: batch. ARGV: token, '1' to write only to a batch that is not being cancelled, fields and values
# Returns the status, or nothing if the batch was claimed by another, or is gone.
_WRITE = """
local now = redis.call('HMGET', KEYS[1], 'status', 'fence')
if now[2] ~= ARGV[1] then return nil end
if #ARGV > 2 and not (ARGV[2] == '1' and now[1] == 'cancelling') then redis.call('HSET', KEYS[1], unpack(ARGV, 3)) end
return redis.call('HGET', KEYS[1], 'status')
"""

# Stores the result of a line, unless it has one. A result is progress: it sets the count of attempts back.
# KEYS: batch, results, done. ARGV: token, line, result, 'completed' or 'failed', size of the result
# Returns 1, or 0 if the batch was claimed by another, or is gone.
_ADD_RESULT = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'line')
if now[1] ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) <= tonumber(now[2] or 0) then return 1 end -- a late retry: the result is in the blob store
if redis.call('SADD', KEYS[3], ARGV[2]) == 0 then return 1 end -- a retry: the reply was lost
redis.call('RPUSH', KEYS[2], ARGV[3])
local life = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[2], life)
redis.call('PEXPIRE', KEYS[3], life)
redis.call('HSET', KEYS[1], 'attempts', 0)
redis.call('HINCRBY', KEYS[1], ARGV[4], 1)
redis.call('HINCRBY', KEYS[1], 'result_bytes', ARGV[5])
return 1
"""

# Removes the results that are in the blob store now. KEYS: batch, results, done. ARGV: token, parts until now, fields and values
# Returns 1, or 0 if the batch was claimed by another, or is gone.
_CHECKPOINT = """
local now = redis.call('HMGET', KEYS[1], 'fence', 'parts')
if now[1] ~= ARGV[1] then return 0 end
if (now[2] or '[]') ~= ARGV[2] then return 1 end -- a retry: the reply was lost, and there may be new results
redis.call('HSET', KEYS[1], 'result_bytes', 0, unpack(ARGV, 3))
redis.call('DEL', KEYS[2], KEYS[3])
return 1
"""

# Ends the batch and stores its output files, in one step. Its claim ends with it.
# KEYS: batch, results, done, files, output files. ARGV: token or '' for any, number of the batch's arguments, these fields and values;
# for each output file: number of its arguments, milliseconds to live, id, creation time, fields and values
# Returns 1, or 0 if the batch was claimed by another, has ended or is gone.
_END = (
    _OPEN
    + """
if redis.call('HGET', KEYS[1], 'ended_by') == ARGV[1] then return 1 end -- a retry: the reply was lost
if not is_open(KEYS[1]) then return 0 end
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'fence') ~= ARGV[1] then return 0 end
local first = 3 + ARGV[2]
redis.call('HDEL', KEYS[1], 'fence')
redis.call('HSET', KEYS[1], 'ended_by', ARGV[1], unpack(ARGV, 3, first - 1))
redis.call('DEL', KEYS[2], KEYS[3])
for n = 5, #KEYS do
  local count = tonumber(ARGV[first])
  redis.call('HSET', KEYS[n], unpack(ARGV, first + 4, first + count))
  redis.call('PEXPIRE', KEYS[n], ARGV[first + 1])
  redis.call('ZADD', KEYS[4], ARGV[first + 3], ARGV[first + 2])
  first = first + 1 + count
end
return 1
"""
)

# KEYS: batch. ARGV: time. Returns the status after it.
_CANCEL = """
local status = redis.call('HGET', KEYS[1], 'status')
if status == 'validating' or status == 'in_progress' then
  redis.call('HSET', KEYS[1], 'status', 'cancelling', 'cancelling_at', ARGV[1])
  return 'cancelling'
end
return status
"""


@dataclass(eq=False)
class Batches:
    """One tenant's batches, shared by all replicas. `seconds`: how long a batch is kept after its creation.

    `tenant` None: the batches of all tenants, for the workers.
    """

    redis: Client
    tenant: str | None
    quota: Quota
    seconds: float
    vault: Vault

    def of(self, tenant: str) -> Batches:
        """Return the batches of another tenant."""
        return replace(self, tenant=tenant, quota=self.quota.of(tenant))

    async def create(self, batch: Batch) -> None:
        """Store the batch and queue it for a worker, in one step. Does nothing if it exists. Raises `RateLimited`."""
        fields = batch.request_fields()
        await self.quota.reserve(batch.id, _RECORD_BYTES + len(fields["batch"]), self.seconds)
        index = keys.batches(batch.tenant)
        await self.redis.run_script(REMOVE_EXPIRED, [index], [keys.batch("")])
        await self.redis.run_script(
            _CREATE,
            [keys.batch(batch.id), index, keys.batch_jobs(batch.model)],
            [batch.id, batch.tenant, batch.created_at, int(self.seconds * 1000), *flat(self.vault.sealed(fields))],
        )

    async def get(self, batch_id: str) -> Batch:
        """Return the batch. Raises `NotFound`."""
        stored = await owned_hash(self.redis, self.tenant, keys.batch, "batch", batch_id)
        if not stored:
            raise NotFound(f"no batch {batch_id[:64]!r}", param="batch_id", code="batch_not_found")
        return Batch.of(self.vault.opened(stored))

    async def newest(self, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """Return a page of batches, newest first, and whether more follow."""
        assert self.tenant is not None, "a list of batches takes a tenant"
        found, more = await stored_page(self.redis, keys.batches(self.tenant), keys.batch, limit, after)
        return [Batch.of(self.vault.opened(stored)) for stored in found], more

    async def cancel(self, batch_id: str) -> str | None:
        """Ask the worker to end the batch, if it is still being checked or answered. Returns the status after it."""
        status = await self.redis.run_script(_CANCEL, [keys.batch(batch_id)], [now()])
        return None if status is None else str(status.decode())

    # For workers

    async def claim(self, batch_id: str, by: str) -> Claim | None:
        """Claim the batch for the claimant `by`: see `claim_work`."""
        return await claim_work(self.redis, _CLAIM, keys.batch(batch_id), by)

    async def holder(self, batch_id: str, claim: Claim) -> str | None:
        """Return the claimant that has taken the batch over since `claim`; None if it is over, or nobody has."""
        return await newer_claimant(self.redis, keys.batch(batch_id), claim)

    async def write(
        self,
        batch_id: str,
        claim: Claim,
        fields: Mapping[str, Any] | None = None,
        *,
        unless_cancelling: bool = False,
    ) -> str:
        """Write fields of its hash and return its status. Raises `StaleClaim`, having written nothing."""
        args = [claim.token, int(unless_cancelling), *flat(self.vault.sealed(fields or {}))]
        status = await self.redis.run_script(_WRITE, [keys.batch(batch_id)], args)
        if status is None:
            raise stale_claim(batch_id)
        return str(status.decode())

    async def add_result(self, batch_id: str, claim: Claim, result: Result) -> None:
        """Store the result of a line, unless it has one. Raises `StaleClaim`."""
        text = json.dumps([result.line, result.failed, result.text])
        args = [
            claim.token, result.line, self.vault.seal(text, MESSAGES), "failed" if result.failed else "completed", len(text),
        ]  # fmt: skip
        if not await self.redis.run_script(_ADD_RESULT, _own(batch_id), args):
            raise stale_claim(batch_id)

    async def done(self, batch_id: str) -> set[int]:
        """Return the numbers of the lines whose results are in Redis."""
        return {int(line) for line in await self.redis.smembers(keys.batch_done(batch_id))}

    async def results(self, batch_id: str) -> list[Result]:
        """Return the results that are in Redis, by line."""
        stored = await self.redis.lrange(keys.batch_results(batch_id), 0, -1)
        found = [Result(*json.loads(self.vault.unseal(each, MESSAGES))) for each in stored]
        return sorted(found, key=lambda result: result.line)

    async def checkpoint(self, batch: Batch, claim: Claim) -> None:
        """Store how far the results are in the blob store, and remove those from Redis. Raises `StaleClaim`.

        The last of the batch's parts is new: it has the results that are in Redis.
        """
        fields = {"line": batch.line, "offset": batch.offset, "parts": json.dumps(batch.parts)}
        args = [claim.token, json.dumps(batch.parts[:-1]), *flat(fields)]
        if not await self.redis.run_script(_CHECKPOINT, _own(batch.id), args):
            raise stale_claim(batch.id)

    async def end(
        self,
        batch_id: str,
        claim: Claim | None,
        fields: Mapping[str, Any],
        files: BatchFiles | None = None,
        outputs: Sequence[BatchFile] = (),
    ) -> bool:
        """End the batch and store its output `files`, in one step. Returns False if the claim is stale or the batch has ended.

        `claim`: None to end a batch that no server works on. `files`: the files of its tenant.
        """
        own = flat(self.vault.sealed(fields))
        args: list[Any] = ["" if claim is None else claim.token, len(own), *own]
        names = [*_own(batch_id), keys.batch_files(self.tenant or ""), *(keys.batch_file(file.id) for file in outputs)]
        for file in outputs:
            assert files is not None, "output files need the tenant's files"
            creation = files.creation(file)
            args += [len(creation), *creation]
        return bool(await self.redis.run_script(_END, names, args))


def stale_claim(batch_id: str) -> StaleClaim:
    """Return the error for a claim on a batch that no longer holds."""
    return StaleClaim(f"batch {batch_id} was claimed by another worker, or has ended")


def _own(batch_id: str) -> list[str]:
    return [keys.batch(batch_id), keys.batch_results(batch_id), keys.batch_done(batch_id)]
