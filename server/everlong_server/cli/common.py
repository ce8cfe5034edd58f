"""Shared by the commands: consoles, failure, and common options."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.redis.connection import Client

T = TypeVar("T")

out = Console(highlight=False, emoji=False)
# rich assumes 80 columns without a terminal. Output into a file or a pipe must not be cut off.
if not out.is_terminal and out.width == 80:
    out.width = 200
err = Console(stderr=True, highlight=False, emoji=False)


def fail(message: str) -> typer.Exit:
    """Print an error and return the exception to raise."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return typer.Exit(1)


def say(message: str) -> None:
    """Print how far a command is."""
    err.print(message, markup=False, soft_wrap=True)


ModelsDir = Annotated[Path | None, typer.Option(help="Folder of downloaded and converted models.")]


def chosen_models_dir(given: Path | None) -> Path:
    """Return the given folder, or the one in the settings."""
    return (given or settings_or_fail().models_dir).expanduser()


def settings_or_fail(args: list[str] | None = None) -> Settings:
    """Return the server's settings from the environment and `args`, the arguments of a command line."""
    from everlong_server.settings import SettingsError, load_settings

    try:
        return load_settings(args)
    except SettingsError as error:
        raise fail(str(error)) from None


def log_to_stderr() -> None:
    """Send the audit log to stderr, as the server does."""
    import logging

    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")


def run_with_redis(settings: Settings, work: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of `work` on the server's Redis. If it fails, ends the command with the error."""
    from redis.exceptions import RedisError

    from everlong_server.errors import ServerError
    from everlong_server.store.backup.running import BackupError
    from everlong_server.store.redis.connection import connect
    from everlong_server.store.redis.embedded import EmbeddedRedisError
    from everlong_server.store.redis.schema import SchemaError
    from everlong_server.store.vault import VaultError

    async def run(url: str) -> T:
        async with aclosing(connect(url, settings.redis_copies)) as redis:
            return await work(redis)

    try:
        with _redis_url(settings) as url:
            return asyncio.run(run(url))
    except ServerError as error:
        raise fail(error.message) from None
    except (EmbeddedRedisError, RedisError) as error:
        raise fail(f"cannot use the server's Redis: {error}") from None
    except OSError as error:
        raise fail(f"{error.filename}: {error.strerror}" if error.filename else str(error)) from None
    except (BackupError, SchemaError, VaultError, ValueError) as error:
        raise fail(str(error)) from None


@contextmanager
def _redis_url(settings: Settings) -> Iterator[str]:
    """Yield the URL of the settings' Redis. Without `redis_url`, uses the embedded Redis: a running server's, or one that is
    started for the duration of the context.

    Raises `EmbeddedRedisError` and `OSError`.
    """
    from everlong_server.store.redis.embedded import EmbeddedRedis

    if settings.redis_url is not None:
        yield settings.redis_url
        return
    embedded = EmbeddedRedis(settings.data_dir.expanduser().absolute())
    if embedded.answers():
        yield embedded.url
        return
    embedded.start()
    try:
        yield embedded.url
    finally:
        embedded.stop()
