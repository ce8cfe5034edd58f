"""Commands that write to the server's Redis demand as many copies of a write as the server does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.vault import new_key
from tests.process import everlong


@pytest.mark.long
@pytest.mark.parametrize("command", [("keys", "create", "--tenant", "ann"), ("encryption", "rotate")])
async def test_a_command_fails_if_a_required_copy_is_missing(
    command: tuple[str, ...], redis: Client, redis_url: str, tmp_path: Path
) -> None:
    """Who drops the old key after a rotation could not read what a failover brings back."""
    (tmp_path / "keys").write_text(new_key() + "\n")
    await redis.rpush(keys.session_messages("ses_1"), b'{"content": "Who?"}')
    where = {
        "EVERLONG_REDIS_URL": redis_url, "EVERLONG_REDIS_COPIES": "1", "EVERLONG_DATA_DIR": str(tmp_path / "data"),
        "EVERLONG_ENCRYPTION_KEY_FILE": str(tmp_path / "keys"),
    }  # fmt: skip
    done = await asyncio.to_thread(everlong, *command, **where)
    assert done.returncode == 1, done.stdout
    assert "0 Redis replicas have the write, 1 are required" in " ".join(done.stderr.split())
