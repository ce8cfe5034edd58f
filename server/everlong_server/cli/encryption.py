"""`everlong encryption`: create an encryption key, re-encrypt the stored data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from everlong_server.cli.common import err, fail, out

if TYPE_CHECKING:
    from everlong_server.store.redis.connection import Client

encryption = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Encryption at rest: create a key, re-encrypt the stored data."
)


@encryption.command()
def key() -> None:
    """Print a new key as a line for the file EVERLONG_ENCRYPTION_KEY_FILE.

    The first key of the file encrypts; every key decrypts.
    """
    from everlong_server.store.vault import new_key

    out.print(new_key(), soft_wrap=True)


@encryption.command()
def rotate() -> None:
    """Re-encrypt all stored data with the first key of the file.

    If the data is not encrypted yet, stop all servers first. Otherwise give all servers the new key first.
    """
    from everlong_server.cli.common import log_to_stderr, run_with_redis, settings_or_fail
    from everlong_server.observability.audit import audit, command_line_user
    from everlong_server.store.redis.schema import check_schema
    from everlong_server.store.rotation import RotationCounts
    from everlong_server.store.rotation import rotate as seal_anew
    from everlong_server.store.texts.blobs import Blobs
    from everlong_server.store.vault import Vault, VaultError

    settings = settings_or_fail()
    log_to_stderr()
    try:
        vault = Vault.load(settings.encryption_key_file)
    except VaultError as error:
        raise fail(str(error)) from None
    if not vault:
        raise fail("EVERLONG_ENCRYPTION_KEY_FILE is not set: `everlong encryption key` prints a key for the file")

    async def run(redis: Client) -> RotationCounts:
        await check_schema(redis)
        return await seal_anew(redis, Blobs(settings.blobs, vault, settings.private_dir), vault)

    done = run_with_redis(settings, run)
    audit("encryption.rotated", command_line_user(), key=vault.first, values=done.values, blobs=done.blobs)
    err.print(f"re-encrypted {done.values} values in Redis and {done.blobs} files with the key {vault.first}")
