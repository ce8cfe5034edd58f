"""`free_port`: where a server can be told to listen."""

from __future__ import annotations

import itertools
import os
import socket

_LOWEST, _SLICES, _SLICE = 10_000, 100, 100
"""A slice for each process. All are below the ports that systems give to connections, which could have one before it is bound;
and so are those that a Redis of a cluster adds, 10,000 on."""
_turn = itertools.count()


def free_port() -> int:
    """A TCP port that nobody listens on now, and that is not given out again soon."""
    first = _LOWEST + os.getpid() % _SLICES * _SLICE
    for _ in range(_SLICE):
        port = first + next(_turn) % _SLICE
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(f"somebody listens on each port from {first} to {first + _SLICE - 1}")
