"""What commands share: where they print, how they fail, options of more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from everlong_server.settings import Settings

out = Console(highlight=False)
# 80 is what it takes for want of a window: into a file or a pipe, nothing is to be cut off.
if not out.is_terminal and out.width == 80:
    out.width = 200
err = Console(stderr=True, highlight=False)


def fail(message: str) -> typer.Exit:
    """Prints one line; to be raised."""
    err.print(f"[bold red]error:[/] {escape(message)}", soft_wrap=True)
    return typer.Exit(1)


ModelsDir = Annotated[Path | None, typer.Option(help="folder of pulled and converted models")]


def chosen_models_dir(given: Path | None) -> Path:
    """The folder that was given, or the settings'."""
    from everlong_server.settings import SettingsError, load_settings

    try:
        return (given or load_settings().models_dir).expanduser()
    except SettingsError as error:
        raise fail(str(error)) from None


def settings_or_fail() -> Settings:
    """The server's settings, from the environment."""
    from everlong_server.settings import SettingsError, load_settings

    try:
        return load_settings()
    except SettingsError as error:
        raise fail(str(error)) from None


def log_to_stderr() -> None:
    """The audit log's lines go where the server's do."""
    import logging

    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")


@contextmanager
def redis_of(settings: Settings) -> Iterator[str]:
    """The Redis of these settings: the one they name, that of a running server, or the server's own, started for now.

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
