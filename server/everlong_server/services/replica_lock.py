"""`ReplicaLock`: a locked file for each server process in the data folder, so that a restarted server need not wait for leases.

A lease in Redis ends after `EVERLONG_LEASE_SECONDS`. A file lock ends with its process.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Self

from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client, all_keys

log = logging.getLogger(__name__)

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ReplicaLock:
    """The lock file of this server process. Holds its lock for the duration of the context."""

    def __init__(self, data_dir: Path, replica: str) -> None:
        self._folder = data_dir / "replicas"
        # Locks are reliable among processes of one kernel only; a shared folder may have files of other machines.
        self._boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""
        self._file = self._folder / f"{self._boot}.{replica}"
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Create the file and lock it. A folder that cannot be written is no error."""
        if self._boot:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._descriptor = _locked(self._file, os.O_CREAT)
            except OSError as error:
                log.info(
                    "cannot lock a file in the data folder; after a crash, the next server waits for leases: %s", error
                )
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the file and release the lock."""
        if self._descriptor is not None:
            self._file.unlink(missing_ok=True)
            os.close(self._descriptor)

    async def end_leases_of_the_dead(self, redis: Client) -> None:
        """Mark servers of this machine and folder dead whose locks have ended. Raises `RedisError`."""
        for file in self._folder.glob("*.*") if self._descriptor is not None else ():
            boot, _, replica = file.name.partition(".")
            if boot == self._boot and _is_unlocked(file):
                await redis.delete(*await all_keys(redis, f"{keys.replica(replica)}*"), keys.replica(replica))
            elif boot == self._boot or await redis.exists(keys.replica(replica)):
                continue  # alive, as far as can be told
            file.unlink(missing_ok=True)


def _is_unlocked(file: Path) -> bool:
    with contextlib.suppress(OSError):
        os.close(_locked(file))
        return True
    return False


def _locked(file: Path, flags: int = 0) -> int:
    """Open and lock the file. Raises `OSError` if another process has locked it."""
    descriptor = os.open(file, os.O_RDWR | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
