"""`Snapshot`: a memory and the tokens after it, as one value. Readings, sessions, chats and responses each hold one."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

FACTS = (b"position", b"open", b"state_bytes", b"state_digest", b"context_start")
"""The fields of a hash that store a snapshot, except `state`, which is large."""

COPY_SNAPSHOT = f"""
local function copy_snapshot(from, to)
  for _, field in ipairs({{'state', {", ".join(repr(field.decode()) for field in FACTS)}}}) do
    local value = redis.call('HGET', from, field)
    if value then redis.call('HSET', to, field, value) end
  end
end
"""
"""Lua that copies a snapshot with a state from one hash to another."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A memory after `position` tokens, of which the last ones are its open segment. By default, one that has read nothing.

    `state`: the encoded `MemoryState`; None if there is none yet, or if it was not fetched. `size`: the bytes of the decoded
    state; None if there is none yet. `digest`: SHA-256 of the state's tensors, as hex; None before the end of a reading.
    `open`: token ids of the open segment. `context_start`: the position of the first token that the last answer attended to, if it attended to
    all tokens from there on that the memory still keeps; otherwise None.
    """

    state: bytes | None = None
    size: int | None = None
    digest: str | None = None
    open: tuple[int, ...] = ()
    position: int = 0
    context_start: int | None = None

    def fields(self) -> dict[str, str | int | bytes]:
        """Return the fields of a hash that store it. What is None has no field, so that writing them never removes a state. `context_start`
        has an empty one, so that no older value remains."""
        fields = {
            "state": self.state, "position": self.position, "open": struct.pack(f"<{len(self.open)}I", *self.open),
            "state_bytes": self.size, "state_digest": self.digest,
            "context_start": "" if self.context_start is None else self.context_start,
        }  # fmt: skip
        return {name: value for name, value in fields.items() if value is not None}

    @staticmethod
    def of(stored: Mapping[bytes, bytes]) -> Snapshot:
        """Decode the fields of a hash, with or without the state. Raises `KeyError` if a state has no position."""
        open, size, start = stored.get(b"open", b""), stored.get(b"state_bytes"), stored.get(b"context_start")
        return Snapshot(
            state=stored.get(b"state"),
            size=None if size is None else int(size),
            digest=stored.get(b"state_digest", b"").decode() or None,
            open=struct.unpack(f"<{len(open) // 4}I", open),
            position=int(stored.get(b"position", 0) if size is None else stored[b"position"]),
            context_start=int(start) if start else None,
        )
