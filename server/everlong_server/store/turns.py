"""`RunningTurns`: the questions that are being answered, with the text of their answers so far.

Only turns that their client's disconnect does not cancel are stored, so that a client that comes back can show and cancel them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.vault import Vault

# KEYS: turn, its session. ARGV: id of the answer, the turn, milliseconds to live
# Returns 1 if the turn shall go on, 0 if a client has cancelled it or deleted the session
_WRITE = """
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
if redis.call('HGET', KEYS[1], 'id') ~= ARGV[1] then redis.call('DEL', KEYS[1]) end
redis.call('HSET', KEYS[1], 'id', ARGV[1], 'message', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1 - redis.call('HEXISTS', KEYS[1], 'cancelled')
"""

# KEYS: turn. ARGV: id of the answer
_REMOVE = """
if redis.call('HGET', KEYS[1], 'id') == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 1
"""

# KEYS: turn
_CANCEL = """
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('HSET', KEYS[1], 'cancelled', 1) end
return 1
"""


@dataclass(frozen=True, slots=True)
class RunningTurn:
    """A question that is being answered. `id`: of its answer; `evidence`: None before the search; `text`: the answer so far.
    `continues`: it extends the session's last answer, whose text it begins with."""

    id: str
    question: str
    created_at: float
    evidence: list[dict[str, Any]] | None
    text: str
    continues: bool = False


@dataclass(eq=False)
class RunningTurns:
    """The running turns of sessions. `lease_ms`: how long a turn is stored after it was last written.

    Callers have checked that the session belongs to their tenant.
    """

    redis: Client
    lease_ms: int
    vault: Vault

    async def write(self, session_id: str, turn: RunningTurn) -> bool:
        """Store the turn, and return whether to continue it: False if a client has cancelled it or deleted its session."""
        sealed = self.vault.seal(json.dumps(asdict(turn)), "message")
        both = [keys.session_turn(session_id), keys.session(session_id)]
        return bool(await self.redis.run_script(_WRITE, both, [turn.id, sealed, self.lease_ms]))

    async def remove(self, session_id: str, turn_id: str) -> None:
        """Remove a turn that has ended."""
        await self.redis.run_script(_REMOVE, [keys.session_turn(session_id)], [turn_id])

    async def get(self, session_id: str) -> RunningTurn | None:
        """Return the session's running turn, or None."""
        stored = await self.redis.hget(keys.session_turn(session_id), "message")
        return None if stored is None else RunningTurn(**json.loads(self.vault.unseal(stored, "message")))

    async def cancel(self, session_id: str) -> None:
        """Ask the server that runs the session's turn to end it."""
        await self.redis.run_script(_CANCEL, [keys.session_turn(session_id)], [])
