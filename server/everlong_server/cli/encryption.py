"""`everlong encryption`: the keys that what is stored is encrypted with."""

from __future__ import annotations

import typer

from everlong_server.cli.common import err, fail, out

encryption = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Encryption at rest: make a key, encrypt what is stored anew."
)


@encryption.command()
def key() -> None:
    """Print a new key, a line for the file EVERLONG_ENCRYPTION_KEY_FILE. Its first line encrypts; each of them decrypts."""
    from everlong_server.store.vault import new_key

    out.print(new_key(), soft_wrap=True)


@encryption.command()
def rotate() -> None:
    """Encrypt all that is stored with the first key of the file, whatever key it is encrypted with, or none.

    Stop all servers before, if it is not encrypted yet; else give all of them the new key before.
    """
    import asyncio

    from redis.exceptions import RedisError

    from everlong_server.cli.common import log_to_stderr, redis_of, settings_or_fail
    from everlong_server.errors import ServerError
    from everlong_server.observability.audit import audit, command_line_user
    from everlong_server.store.redis.connection import connect
    from everlong_server.store.redis.embedded import EmbeddedRedisError
    from everlong_server.store.rotation import Rotated
    from everlong_server.store.rotation import rotate as seal_anew
    from everlong_server.store.texts.blobs import Blobs
    from everlong_server.store.vault import Vault, VaultError

    settings = settings_or_fail()
    log_to_stderr()

    async def run(url: str, vault: Vault) -> Rotated:
        redis = connect(url)
        try:
            return await seal_anew(redis, Blobs(settings.blobs, vault, settings.private_dir), vault)
        finally:
            await redis.aclose()

    try:
        vault = Vault.load(settings.encryption_key_file)
        if not vault:
            raise fail("EVERLONG_ENCRYPTION_KEY_FILE is not set: there is no key to encrypt with")
        with redis_of(settings) as url:
            done = asyncio.run(run(url, vault))
    except (VaultError, EmbeddedRedisError, OSError, RedisError, ServerError, ValueError) as error:
        raise fail(str(error)) from None
    audit("encryption.rotated", command_line_user(), key=vault.first, values=done.values, blobs=done.blobs)
    err.print(
        f"encrypted with the key {vault.first} now: {done.values} values in Redis and {done.blobs} files more than before"
    )
