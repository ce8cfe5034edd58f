"""`everlong backup` and `everlong restore`."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlong_server.cli.common import fail, out, run_with_redis, say, settings_or_fail

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.backup.archive import Manifest
    from everlong_server.store.redis.connection import Client

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
    from everlong_server.store.texts.blobs import Blobs

    path = file.expanduser().absolute()
    settings = _settings(data_dir)
    if settings.redis_url is None and not (folder := settings.data_dir.expanduser().absolute() / FOLDER).is_dir():
        raise fail(f"there is nothing to back up: {folder} does not exist. Name the server's folder with --data-dir")
    manifest = run_with_redis(settings, lambda redis: back_up(redis, Blobs(settings.blobs), path, say))
    size = path.stat().st_size
    out.print(f"{path}: {manifest.files} files and Redis, {size / 1e6:,.1f} MB, verified", markup=False, soft_wrap=True)


@restore.command()
def _restore(file: Archive, data_dir: DataDir = None) -> None:
    """Verify a backup and write it to an empty store: another data folder, or an empty Redis and blob store.

    Then start the server with the same settings.
    """
    from everlong_server.store.backup.restore import restore as restore_all
    from everlong_server.store.texts.blobs import Blobs

    path, settings = file.expanduser().absolute(), _settings(data_dir)
    folder = settings.data_dir.expanduser().absolute()

    def run(redis: Client) -> Awaitable[Manifest]:
        folder.mkdir(parents=True, exist_ok=True)
        return restore_all(path, redis, Blobs(settings.blobs), folder, say)

    manifest = run_with_redis(settings, run)
    out.print(f"{manifest.files} files and Redis restored, from {path}", markup=False, soft_wrap=True)


def _settings(data_dir: Path | None) -> Settings:
    settings = settings_or_fail()
    return settings if data_dir is None else settings.model_copy(update={"data_dir": data_dir})
