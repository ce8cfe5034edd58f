"""`everlong backup` and `everlong restore`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlong_server.cli.common import fail, out, redis_of, say, settings_or_fail

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.backup.archive import Manifest
    from everlong_server.store.redis.connection import Client
    from everlong_server.store.texts.blobs import Blobs

backup = typer.Typer(add_completion=False)
restore = typer.Typer(add_completion=False)

Archive = Annotated[Path, typer.Argument(metavar="FILE", help="The file of the backup.")]
DataDir = Annotated[Path | None, typer.Option(help="The data folder, instead of EVERLONG_DATA_DIR.")]


@backup.command()
def _backup(file: Archive, data_dir: DataDir = None) -> None:
    """Write everything that is stored, at one moment, to a new file. Servers may keep running.

    Takes Redis and the blob store from the settings (EVERLONG_DATA_DIR, EVERLONG_REDIS_URL, EVERLONG_BLOB_URL). Encrypted data stays
    encrypted: keep the key file, too.
    """
    from everlong_server.store.backup.create import back_up
    from everlong_server.store.redis.embedded import FOLDER

    path = file.expanduser().absolute()
    settings = _settings(data_dir)
    if settings.redis_url is None and not (folder := settings.data_dir.expanduser().absolute() / FOLDER).is_dir():
        raise fail(f"there is nothing to back up: {folder} does not exist. Name the server's folder with --data-dir")
    manifest = _run(settings, lambda redis, blobs, _: back_up(redis, blobs, path, say))
    size = path.stat().st_size
    out.print(f"{path}: {manifest.files} files and Redis, {size / 1e6:,.1f} MB, verified", markup=False, soft_wrap=True)


@restore.command()
def _restore(file: Archive, data_dir: DataDir = None) -> None:
    """Verify a backup and write it to an empty store: another data folder, or an empty Redis and blob store.

    Then start the server with the same settings.
    """
    from everlong_server.store.backup.restore import restore as restore_all

    path = file.expanduser().absolute()

    def run(redis: Client, blobs: Blobs, settings: Settings) -> Awaitable[Manifest]:
        folder = settings.data_dir.expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        return restore_all(path, redis, blobs, folder, say)

    manifest = _run(_settings(data_dir), run)
    out.print(f"{manifest.files} files and Redis restored, from {path}", markup=False, soft_wrap=True)


def _settings(data_dir: Path | None) -> Settings:
    settings = settings_or_fail()
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir})


def _run(settings: Settings, work: Callable[[Client, Blobs, Settings], Awaitable[Manifest]]) -> Manifest:
    """Run `work` with the Redis and the blob store of the settings."""
    import asyncio

    from redis.exceptions import RedisError

    from everlong_server.store.backup.running import BackupError
    from everlong_server.store.redis.connection import connect
    from everlong_server.store.redis.embedded import EmbeddedRedisError
    from everlong_server.store.redis.schema import SchemaError
    from everlong_server.store.texts.blobs import Blobs

    async def run(url: str) -> Manifest:
        async with aclosing(connect(url, settings.redis_copies)) as redis:
            return await work(redis, Blobs(settings.blobs), settings)

    try:
        with redis_of(settings) as url:
            return asyncio.run(run(url))
    except OSError as error:
        raise fail(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
    except (BackupError, SchemaError, EmbeddedRedisError, RedisError, ValueError) as error:
        raise fail(str(error)) from None
