"""The version of the stored data's layout, which a server checks before it touches anything.

`VERSION` grows when a release writes data that the release before it cannot read. A server reads all versions up to its own, and
then writes its own version. It refuses newer data: it would lose what it does not know.

| version | written by | read as |
|---|---|---|
| 1 | 0.1.0, which stored no version | it is: fields that it lacks have defaults, and indexes are built again |
| 2 | the releases since | |
"""

from __future__ import annotations

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client

VERSION = 2

RESTORING = b"restoring"
"""The version of a store that a backup is being restored to."""

# Raises the version; a server that checks late does not lower it. KEYS: version. ARGV: this server's version
# Returns the version that was stored, or nothing.
_RAISE = """
local found = redis.call('GET', KEYS[1])
if not found or (tonumber(found) and tonumber(found) < tonumber(ARGV[1])) then redis.call('SET', KEYS[1], ARGV[1]) end
return found
"""


class SchemaError(Exception):
    """The stored data cannot be used by this version of everlong."""


async def check_schema(redis: Client) -> int:
    """Check that this server can read the stored data, and return its version. Changes nothing.

    Raises `SchemaError` and `RedisError`.
    """
    found = await redis.get(keys.SCHEMA)
    require_readable(found)
    return int(found or 1)


async def upgrade_schema(redis: Client) -> None:
    """Check that this server can read the stored data, and mark it as written by this version.

    Raises `SchemaError` and `RedisError`.
    """
    require_readable(await redis.run_script(_RAISE, [keys.SCHEMA], [VERSION]))


def require_readable(found: bytes | None) -> None:
    """Raise `SchemaError` if this version of everlong cannot read data of that layout version. None: there is no version."""
    if found == RESTORING:
        raise SchemaError(
            "a backup was only partly restored to this store: empty Redis and the blob store (or choose another data folder), "
            "and run `everlong restore` again"
        )
    if found is not None and not (found.isdigit() and 1 <= int(found) <= VERSION):
        raise SchemaError(
            f"a newer everlong has written the stored data: its layout has version {found.decode(errors='replace')[:20]}, and "
            f"this server reads versions 1 to {VERSION}. Start the newer version again, or restore a backup of before the upgrade "
            "to an empty store"
        )
