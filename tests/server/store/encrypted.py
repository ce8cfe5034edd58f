"""A vault, a word that must not be found in what is stored, and all that is stored."""

from __future__ import annotations

from pathlib import Path

from everlong_server.store.vault import Vault
from tests.process import Server

MARKER = "xylophage"
"""A word that is in no other text."""
TEXT = f"The {MARKER} lives in the valley and eats wood. " + "Nobody has seen it by day. " * 200


def vault(*ids: str) -> Vault:
    return Vault({id: id.encode().ljust(32, b"k") for id in ids or ("one",)})


def stored(data: Path) -> bytes:
    """All bytes of Redis' files and of the blobs."""
    return b"".join(
        path.read_bytes() for folder in ("documents", "redis") for path in (data / folder).rglob("*") if path.is_file()
    )


def dumped(server: Server) -> bytes:
    """All stored bytes, including a fresh dump of Redis next to its append-only file."""
    server.redis.save()
    return stored(server.data)
