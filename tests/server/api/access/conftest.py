"""A server that requires keys, two tenants, invalid keys, and keys without some scopes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong_lab.harness.ports import free_port
from everlong_server.store.redis import keys
from everlong_server.store.tenants.credentials import SCOPES
from tests.process import Server
from tests.server.tenants import Tenant, credentials, new_key, tenant


@pytest.fixture(scope="package")
def locked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires keys, with metrics on a separate port."""
    with Server(tiny_model, tmp_path_factory.mktemp("data"), auth="keys", metrics_port=free_port()) as server:
        server.start()
        yield server
        server.check_keys()


@pytest.fixture(scope="package")
def alice(locked: Server) -> Tenant:
    return tenant(locked, "alice")


@pytest.fixture(scope="package")
def bob(locked: Server) -> Tenant:
    return tenant(locked, "bob")


@pytest.fixture(scope="package")
def bad_keys(locked: Server) -> dict[tuple[str, str], list[tuple[str, str]]]:
    """Invalid headers, by their fault, and the error code of each."""
    good, expired, revoked = (new_key(locked, "alice") for _ in range(3))
    locked.redis.hset(keys.api_key(expired.split("_")[1]), "expires_at", time.time() - 1)
    credentials(locked, lambda c: c.revoke(revoked.split("_")[1]))
    identifier, other = good.split("_", 2)[1], expired.split("_", 2)[2]
    given = {
        ("none", "missing_api_key"): None,
        ("malformed", "invalid_api_key"): "Bearer none",
        ("empty", "invalid_api_key"): "Bearer",
        ("another scheme", "invalid_api_key"): f"Basic {good}",
        ("unknown", "invalid_api_key"): f"Bearer evl_{'0' * 16}_{other}",
        ("wrong", "invalid_api_key"): f"Bearer evl_{identifier}_{other}",
        ("cut", "invalid_api_key"): f"Bearer {good[:-1]}",
        ("expired", "api_key_expired"): f"Bearer {expired}",
        ("revoked", "api_key_revoked"): f"Bearer {revoked}",
    }
    headers = {kind: [] if value is None else [("Authorization", value)] for kind, value in given.items()}
    return headers | {("two", "invalid_api_key"): [("Authorization", f"Bearer {good}")] * 2}


@pytest.fixture(scope="package")
def lacking(locked: Server) -> dict[str, str]:
    """For each scope, a key with all other scopes."""
    return {scope: new_key(locked, "alice", *(other for other in SCOPES if other != scope)) for scope in SCOPES}
