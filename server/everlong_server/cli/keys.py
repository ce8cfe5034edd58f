"""`everlong keys`: who gets in."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.table import Column, Table

from everlong_server.cli.common import err, fail, log_to_stderr, out, redis_of, settings_or_fail

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.tenants.credentials import Credentials

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
    settings = settings_or_fail()
    made, secret = _with(settings, lambda c: c.create(tenant, name=name, scopes=wanted, seconds=seconds))
    err.print(f"key {made.id} of tenant {made.tenant} ({', '.join(made.scopes)}), good until {_time(made.expires_at)}; "
              "it is shown only now:")  # fmt: skip
    out.print(secret, soft_wrap=True)
    if not settings.asks_for_keys:
        err.print("A server with these settings asks for no key; EVERLONG_AUTH=keys makes it ask.")


@keys.command()
def secret() -> None:
    """Print a key that is stored nowhere, for the file EVERLONG_ADMIN_KEY_FILE: a server makes it when it starts."""
    from everlong_server.store.tenants.credentials import new_secret

    out.print(new_secret(), soft_wrap=True)


@keys.command("list")
def list_keys(tenant: Annotated[str | None, typer.Option(help="this tenant's only")] = None) -> None:
    """The keys, the newest first; also those that are no longer good."""
    table = Table(Column("id", no_wrap=True), "tenant", "scopes", "name", "made", "ends", "state")
    moment = datetime.now(UTC).timestamp()
    for key in _with(settings_or_fail(), lambda c: c.all(tenant)):
        table.add_row(
            key.id, key.tenant, " ".join(key.scopes), key.name, _time(key.created_at), _time(key.expires_at),
            key.state(moment),
        )  # fmt: skip
    out.print(table)


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(help="its id, as `keys list` shows it", metavar="ID")]) -> None:
    """End a key: no replica takes it from now on."""
    revoked = _with(settings_or_fail(), lambda c: c.revoke(key_id))
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


def _with(settings: Settings, work: Callable[[Credentials], Awaitable[T]]) -> T:
    """What `work` does with the credentials of the server that has these settings, whether it runs or not."""
    from redis.exceptions import RedisError

    from everlong_server.errors import ServerError
    from everlong_server.store.redis.connection import connect
    from everlong_server.store.redis.embedded import EmbeddedRedisError
    from everlong_server.store.tenants.credentials import Credentials

    async def run(url: str) -> T:
        redis = connect(url, settings.redis_copies)
        try:
            return await work(Credentials(redis))
        finally:
            await redis.aclose()

    log_to_stderr()
    try:
        with redis_of(settings) as url:
            return asyncio.run(run(url))
    except ServerError as error:
        raise fail(error.message) from None
    except (EmbeddedRedisError, OSError, RedisError, ValueError) as error:
        raise fail(f"the server's Redis: {error}") from None
