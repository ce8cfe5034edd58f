"""`everlong keys`: who gets in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Column, Table

from everlong_server.cli.common import err, fail, out

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.credentials import Credentials

T = TypeVar("T")

keys = typer.Typer(add_completion=False, no_args_is_help=True, help="API keys: make, list and revoke them.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}

Tenant = Annotated[str, typer.Option(help="whose the key is: it sees what this tenant has, and nothing else")]


@keys.command()
def create(
    tenant: Tenant,
    scopes: Annotated[str, typer.Option(help="of read, write, admin, with commas")] = "read,write",
    expires: Annotated[str | None, typer.Option(help="when it ends: 12h, 30d, 1y; default: never")] = None,
    name: Annotated[str, typer.Option(help="what it is for, for people")] = "",
) -> None:
    """Make a key. It is printed once and stored nowhere: only its digest is."""
    seconds = _seconds(expires)
    wanted = [scope.strip() for scope in scopes.split(",")]
    settings = _settings()
    made, secret = _with(settings, lambda c: c.create(tenant, name=name, scopes=wanted, seconds=seconds))
    err.print(f"key {made.id} of tenant {made.tenant} ({', '.join(made.scopes)}), good until {_time(made.expires_at)}; "
              "it is shown only now:")  # fmt: skip
    out.print(secret, soft_wrap=True)
    if not settings.asks_for_keys:
        err.print("A server with these settings asks for no key; EVERLONG_AUTH=keys makes it ask.")


@keys.command("list")
def list_keys(tenant: Annotated[str | None, typer.Option(help="this tenant's only")] = None) -> None:
    """The keys, the newest first; also those that are no longer good."""
    table = Table(Column("id", no_wrap=True), "tenant", "scopes", "name", "made", "ends", "state")
    moment = datetime.now(UTC).timestamp()
    for key in _with(_settings(), lambda c: c.all(tenant)):
        table.add_row(
            key.id, key.tenant, " ".join(key.scopes), key.name, _time(key.created_at), _time(key.expires_at),
            key.state(moment),
        )  # fmt: skip
    out.print(table)


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(help="its id, as `keys list` shows it", metavar="ID")]) -> None:
    """End a key: no replica takes it from now on."""
    revoked = _with(_settings(), lambda c: c.revoke(key_id))
    err.print(f"key {revoked.id} of tenant {revoked.tenant} is revoked")


def _seconds(expires: str | None) -> float | None:
    if expires is None:
        return None
    form = re.fullmatch(r"(\d{1,6})([smhdy])", expires)
    if form is None or int(form[1]) == 0:
        raise fail(f"--expires {expires}: say 12h, 30d or 1y")
    return float(form[1]) * _UNITS[form[2]]


def _time(moment: float | None) -> str:
    return "never" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def _settings() -> Settings:
    from everlong_server.settings import SettingsError, load_settings

    try:
        return load_settings()
    except SettingsError as error:
        raise fail(str(error)) from None


def _with(settings: Settings, work: Callable[[Credentials], Awaitable[T]]) -> T:
    """What `work` does with the credentials of the server that has these settings, whether it runs or not."""
    from redis.exceptions import RedisError

    from everlong_server.errors import ServerError
    from everlong_server.store.connection import connect
    from everlong_server.store.credentials import Credentials
    from everlong_server.store.documents import adopt
    from everlong_server.store.embedded import EmbeddedRedisError

    async def run(url: str) -> T:
        redis = connect(url, settings.redis_copies)
        try:
            await adopt(redis)
            return await work(Credentials(redis))
        finally:
            await redis.aclose()

    _log_to_stderr()
    try:
        with _redis(settings) as url:
            return asyncio.run(run(url))
    except ServerError as error:
        raise fail(error.message) from None
    except (EmbeddedRedisError, OSError, RedisError, ValueError) as error:
        raise fail(f"the server's Redis: {error}") from None


@contextmanager
def _redis(settings: Settings) -> Iterator[str]:
    """The Redis of these settings: the one they name, that of a running server, or the server's own, started for now."""
    from everlong_server.store.embedded import EmbeddedRedis

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


def _log_to_stderr() -> None:
    """The audit log's lines go where the server's do."""
    import logging

    logging.basicConfig(level="INFO", format="%(levelname)s %(name)s: %(message)s")
