"""Encodes memories into snapshots, to store them, and decodes them again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from everlong_models import MemoryState, Model, decode_state, encode_state
from everlong_server.store.snapshot import Snapshot


async def encode_snapshot(
    state: MemoryState,
    fingerprint: str,
    open: Sequence[int],
    position: int,
    *,
    digest: bool = True,
    context_start: int | None = None,
) -> Snapshot:
    """Return the snapshot of a memory of the model with that fingerprint. `digest`: also compute the digest of its state."""
    return Snapshot(
        state=await asyncio.to_thread(encode_state, state, fingerprint),
        size=state.nbytes,
        digest=await asyncio.to_thread(state.digest) if digest else None,
        open=tuple(open),
        position=position,
        context_start=context_start,
    )


def decode_snapshot(snapshot: Snapshot, model: Model) -> MemoryState:
    """Return the memory of a snapshot, on the CPU; an empty one if the snapshot has no state. Raises `EverlongModelError`."""
    if snapshot.state is None and not snapshot.size:
        return model.memory.initial_state(1).to("cpu")
    return decode_state(snapshot.state or b"", model.fingerprint)
