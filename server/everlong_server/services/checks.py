"""Checks before the start: the layout of the stored data, API keys and encryption keys."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from redis.exceptions import RedisError

from everlong_server.settings import Settings
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, connect
from everlong_server.store.redis.schema import upgrade_schema
from everlong_server.store.rotation import has_sealable_values
from everlong_server.store.tenants.credentials import ApiKeyConflict, Credentials, is_secret
from everlong_server.store.vault import Vault

T = TypeVar("T")

log = logging.getLogger(__name__)


class NoKeys(Exception):
    """Requests need an API key, and there is none."""


async def require_schema(settings: Settings, redis_url: str) -> None:
    """Check that this version can read the stored data, and mark it as its own. Waits until Redis can be reached.

    Raises `SchemaError` if a newer version has written it.
    """
    await _wait_for_redis(redis_url, settings, upgrade_schema)


async def require_keys(settings: Settings, redis_url: str) -> None:
    """Create the administrator's key if `settings` name a file for it. Waits until Redis can be reached.

    Raises `NoKeys` if requests need an API key because other machines can reach the server, and no key exists. Only logs a
    warning if the setting `auth` requires keys explicitly.
    """
    if settings.admin_key_file is not None:
        secret = read_api_key(settings.admin_key_file)
        try:
            await _wait_for_redis(
                redis_url, settings, lambda redis: Credentials(redis).ensure(secret, by="EVERLONG_ADMIN_KEY_FILE")
            )
        except ApiKeyConflict as error:
            raise NoKeys(f"EVERLONG_ADMIN_KEY_FILE: {error}") from None
    if not settings.asks_for_keys:
        return
    usable = await _wait_for_redis(redis_url, settings, lambda redis: Credentials(redis).usable())
    # `everlong keys` does not see the flags of `everlong serve`. Without the variable, it would create the key in another folder.
    where = (
        f"EVERLONG_DATA_DIR={shlex.quote(str(settings.data_dir))} " if "data_dir" in settings.model_fields_set else ""
    )
    create = f"`{where}everlong keys create --tenant NAME` creates one"
    if not usable and settings.auth is None:
        raise NoKeys(
            f"other machines can reach {settings.host} (EVERLONG_HOST), so requests need an API key, and there is none: {create}; "
            "EVERLONG_AUTH=keys starts the server without a key, and EVERLONG_AUTH=off requires none"
        )
    if not usable:
        log.warning("there is no API key yet, so every request is refused: %s", create)


def read_api_key(file: Path) -> str:
    """Return the API key in the file. Raises `NoKeys` if the file cannot be read or holds no key."""
    setting = f"--admin-key-file (EVERLONG_ADMIN_KEY_FILE)={str(file)!r}"
    try:
        secret = file.expanduser().read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise NoKeys(f"{setting}: {getattr(error, 'strerror', None) or 'the file is not ASCII'}") from None
    if not is_secret(secret):
        raise NoKeys(f"{setting}: the file does not hold an API key; `everlong keys secret` prints one")
    return secret


async def require_vault(settings: Settings, redis_url: str) -> None:
    """Check that the encryption keys in `settings` match the stored data. Waits until Redis can be reached.

    Raises `VaultError` if the data is encrypted with other keys, if it is encrypted and no keys are set, or the reverse.
    """
    vault = Vault.load(settings.encryption_key_file)

    async def check(redis: Client) -> None:
        if (mark := await redis.get(keys.VAULT)) is None and vault:
            empty = not await has_sealable_values(redis)
            vault.require(None, empty=empty)
            await redis.set(keys.VAULT, vault.mark(), nx=True)  # the first of several starting servers wins
            mark = await redis.get(keys.VAULT)
        vault.require(mark, empty=False)

    await _wait_for_redis(redis_url, settings, check)


async def _wait_for_redis(redis_url: str, settings: Settings, ask: Callable[[Client], Awaitable[T]]) -> T:
    """Return the result of `ask`. Retries until Redis can be reached."""
    redis = connect(redis_url, settings.redis_copies)
    try:
        while True:
            try:
                return await ask(redis)
            except RedisError as error:
                log.warning("waiting for Redis: %s", error)
                await asyncio.sleep(0.5)
    finally:
        with contextlib.suppress(RedisError, TimeoutError):  # loading the model can hold up the event loop for seconds
            await redis.aclose()
