"""Move a thread to another network namespace (Linux, as root). Python has these calls from 3.12 on."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
OWN = "/proc/thread-self/ns/net"


def enter(namespace: str) -> None:
    """Move this thread to the namespace of a file. Raises `OSError`."""
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        _check(ctypes.CDLL(None, use_errno=True).setns(descriptor, _NEW_NETWORK))
    finally:
        os.close(descriptor)


@contextmanager
def own_namespace() -> Iterator[None]:
    """Move this thread to a new, empty namespace for the duration of the block. Raises `OSError`."""
    before = os.open(OWN, os.O_RDONLY)
    try:
        _check(ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK))
        try:
            yield
        finally:
            enter(f"/proc/self/fd/{before}")
    finally:
        os.close(before)


def _check(status: int) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
