"""`everlong doctor` reports mistakes of a deployment."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis as blocking

from everlong_server import doctor
from everlong_server.doctor import Check, run_checks
from everlong_server.settings import Settings
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import connect
from everlong_server.store.tenants.credentials import new_secret
from everlong_server.store.vault import Vault, new_key


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of the model have their own tests."""
    monkeypatch.setattr(doctor, "_model", lambda settings: iter(()))


def found(tmp_path: Path, **settings: Any) -> dict[str, Check]:
    given: dict[str, Any] = {"data_dir": tmp_path, "models_dir": tmp_path, "port": 0} | settings
    return {check.name: check for check in run_checks(Settings(**given))}


def wrong(tmp_path: Path, name: str, **settings: Any) -> str:
    check = found(tmp_path, **settings)[name]
    assert not check.ok, check
    return check.detail


@pytest.fixture
def empty(redis_url: str) -> Iterator[str]:
    async def flush() -> None:
        redis = connect(redis_url)
        await redis.flushdb()
        await redis.aclose()

    asyncio.run(flush())
    yield redis_url
    asyncio.run(flush())


def set_in(url: str, key: str, value: bytes | str) -> None:
    async def put() -> None:
        redis = connect(url)
        await redis.set(key, value)
        await redis.aclose()

    asyncio.run(put())


def test_a_local_server_passes_all_checks(tmp_path: Path, empty: str) -> None:
    for settings in ({}, {"redis_url": empty}):
        every = found(tmp_path, **settings)
        assert all(check.ok for check in every.values()), every


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("appendonly", "yes", "no"),
        ("appendfsync", "always", "everysec"),
        ("maxmemory-policy", "noeviction", "allkeys-lru"),
    ],
)
def test_each_setting_of_redis_is_checked(tmp_path: Path, empty: str, name: str, good: str, bad: str) -> None:
    """The three of docs/guide/operations.md."""

    def set_to(value: str) -> None:
        with blocking.Redis.from_url(empty) as redis:
            redis.config_set(name, value)

    set_to(bad)
    try:
        assert wrong(tmp_path, "Redis", redis_url=empty).endswith(
            f"set {name} {good}" if name != "maxmemory-policy" else "set noeviction"
        )
    finally:
        set_to(good)


def test_an_open_server_is_reported(tmp_path: Path) -> None:
    assert "EVERLONG_AUTH=keys" in wrong(tmp_path, "access", host="0.0.0.0", auth="off")
    for settings in ({"host": "0.0.0.0"}, {"host": "0.0.0.0", "auth": "keys"}, {"auth": "off"}):
        assert found(tmp_path, **settings)["access"].ok


@pytest.mark.long
def test_a_redis_without_a_password(tmp_path: Path) -> None:
    assert "requirepass" in wrong(tmp_path, "Redis' password", redis_url="redis://redis.invalid:6379/0")
    for url in ("redis://:secret@redis.invalid:6379/0", "redis://127.0.0.1:1/0", "unix:///nowhere.sock"):
        every = found(tmp_path, redis_url=url)
        assert every["Redis' password"].ok
        assert not every["Redis"].ok  # it is not there
        assert "secret" not in str(every)


def test_a_clock_that_is_wrong(tmp_path: Path, empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(tmp_path, redis_url=empty)["clock"].ok
    real = time.time
    monkeypatch.setattr(doctor.time, "time", lambda: real() + 60)
    detail = wrong(tmp_path, "clock", redis_url=empty)
    before = re.search(r"([\d.]+) s ahead of the clock of Redis", detail)
    assert before, detail
    assert float(before[1]) == pytest.approx(60, abs=5)


@pytest.fixture
def mine() -> Iterator[Path]:
    """A folder of a user who may not write everywhere; the test is theirs."""
    nobody, root = 65534, os.getuid() == 0
    with tempfile.TemporaryDirectory() as folder:
        if root:
            os.chown(folder, nobody, -1)
            os.seteuid(nobody)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)


def test_a_folder_that_cannot_be_written(mine: Path) -> None:
    (mine / "spool").mkdir(mode=0o500)
    assert "Permission denied" in wrong(mine, "blob store", blob_url=f"file://{mine}/spool")
    (mine / "spool").chmod(0o700)
    assert found(mine, blob_url=f"file://{mine}/spool")["blob store"].ok


def test_a_blob_store_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    (tmp_path / "spool").mkdir()
    monkeypatch.setattr("everlong_server.store.texts.blobs.LocalFileSystem.open", full)
    assert "No space left" in wrong(tmp_path, "blob store", blob_url=f"file://{tmp_path}/spool")


def test_a_probe_leaves_nothing(tmp_path: Path) -> None:
    assert found(tmp_path)["blob store"].ok
    assert not list((tmp_path / "documents").iterdir())


def test_a_disk_that_is_nearly_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = doctor.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda folder: usage._replace(free=1 << 20))
    assert "less than 1 GB" in wrong(tmp_path, "data_dir")


def test_encryption_keys_that_do_not_match_the_stored_data(tmp_path: Path, empty: str) -> None:
    file = tmp_path / "keys"
    assert "No such file" in wrong(tmp_path, "encryption", encryption_key_file=file)
    file.write_text(new_key())
    assert found(tmp_path, encryption_key_file=file)["encryption"].ok
    set_in(empty, keys.VAULT, Vault.load(file).mark())
    assert found(tmp_path, redis_url=empty, encryption_key_file=file)["encryption"].ok
    assert "set EVERLONG_ENCRYPTION_KEY_FILE" in wrong(tmp_path, "encryption", redis_url=empty)
    file.write_text(new_key())
    assert "is encrypted with the key" in wrong(tmp_path, "encryption", redis_url=empty, encryption_key_file=file)


def test_an_invalid_administrators_key(tmp_path: Path) -> None:
    file = tmp_path / "admin"
    file.write_text("secret")
    assert "everlong keys secret" in wrong(tmp_path, "administrator's key", admin_key_file=file)
    file.write_text(new_secret())
    assert found(tmp_path, admin_key_file=file)["administrator's key"].ok


def test_traces_without_their_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert "everlong[tracing]" in wrong(tmp_path, "traces")


class Alive(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *_: object) -> None:
        pass


class OfIPv6(HTTPServer):
    address_family = socket.AF_INET6


def test_a_port_of_ipv6(tmp_path: Path) -> None:
    try:
        server = OfIPv6(("::1", 0), Alive)
    except OSError:
        pytest.skip("there is no IPv6 here")
    assert found(tmp_path, host="::1")["port"] == Check("port", True, "[::1]:0 is free")
    port = server.server_port
    with server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for host in ("::1", "::"):
            detail = f"[{host}]:{port}: an everlong server is already running"
            assert found(tmp_path, host=host, port=port)["port"] == Check("port", True, detail)
        server.shutdown()


def test_an_invalid_host(tmp_path: Path) -> None:
    assert wrong(tmp_path, "port", host="no:address:of:any").startswith("[no:address:of:any]:0: ")
