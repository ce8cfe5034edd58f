"""`everlong keys`: create, list and revoke API keys."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.markup import escape
from rich.table import Column, Table

from everlong_server.cli.common import err, fail, log_to_stderr, out, run_with_redis, settings_or_fail

if TYPE_CHECKING:
    from everlong_server.settings import Settings
    from everlong_server.store.tenants.credentials import Credentials

T = TypeVar("T")

keys = typer.Typer(add_completion=False, no_args_is_help=True, help="API keys: create, list and revoke them.")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "y": 365 * 86400}

Tenant = Annotated[str, typer.Option(help="Tenant of the key: the key gives access to this tenant's data only.")]


@keys.command()
def create(
    tenant: Tenant,
    scopes: Annotated[
        str, typer.Option(help="Scopes of the key, separated by commas: read, write, admin.")
    ] = "read,write",
    expires: Annotated[
        str | None, typer.Option(help="Lifetime, such as 12h, 30d or 1y; default: the key does not expire.")
    ] = None,
    name: Annotated[str, typer.Option(help="Note on the key's purpose.")] = "",
) -> None:
    """Create a key and print it. It cannot be shown again: only its digest is stored."""
    seconds = _seconds(expires)
    wanted = [scope.strip() for scope in scopes.split(",")]
    settings = settings_or_fail()
    made, secret = _with(settings, lambda c: c.create(tenant, name=name, scopes=wanted, seconds=seconds))
    err.print(f"key {made.id} of tenant {made.tenant} ({', '.join(made.scopes)}), expires: {_time(made.expires_at)}. "
              "It is shown only now:")  # fmt: skip
    out.print(secret, soft_wrap=True)
    if not settings.asks_for_keys:
        err.print("A server with these settings requires no key; set EVERLONG_AUTH=keys to require one.")


@keys.command()
def secret() -> None:
    """Print a new key for the file EVERLONG_ADMIN_KEY_FILE, without storing it. The server stores it when it starts."""
    from everlong_server.store.tenants.credentials import new_secret

    out.print(new_secret(), soft_wrap=True)


@keys.command("list")
def list_keys(tenant: Annotated[str | None, typer.Option(help="List only the keys of this tenant.")] = None) -> None:
    """List the keys, newest first, with expired and revoked ones."""
    table = Table(Column("id", no_wrap=True), "tenant", "scopes", "name", "created", "expires", "state")
    moment = datetime.now(UTC).timestamp()
    for key in _with(settings_or_fail(), lambda c: c.all(tenant)):
        table.add_row(
            key.id, key.tenant, " ".join(key.scopes), escape(key.name), _time(key.created_at), _time(key.expires_at),
            key.state(moment),
        )  # fmt: skip
    out.print(table)


@keys.command()
def revoke(
    key_id: Annotated[str, typer.Argument(help="Id of the key, as `everlong keys list` shows it.", metavar="ID")],
) -> None:
    """Revoke a key. Every replica refuses it from the next request on."""
    revoked = _with(settings_or_fail(), lambda c: c.revoke(key_id))
    err.print(f"key {revoked.id} of tenant {revoked.tenant} is revoked")


def _seconds(expires: str | None) -> float | None:
    if expires is None:
        return None
    form = re.fullmatch(r"(\d{1,6})([smhdy])", expires)
    if form is None or int(form[1]) == 0:
        raise fail(f"--expires {expires}: give a number and a unit (s, m, h, d or y), such as 12h, 30d or 1y")
    return float(form[1]) * _UNITS[form[2]]


def _time(moment: float | None) -> str:
    return "never" if moment is None else f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M} UTC"


def _with(settings: Settings, work: Callable[[Credentials], Awaitable[T]]) -> T:
    """Return the result of `work` on the credentials of the server with these settings, which need not be running."""
    from everlong_server.store.tenants.credentials import Credentials

    log_to_stderr()
    return run_with_redis(settings, lambda redis: work(Credentials(redis)))
