"""`free_port`: a TCP port for a server to listen on."""

from __future__ import annotations

import itertools
import os
import socket

_LOWEST, _SLICES, _SLICE = 10_000, 100, 100
"""Each process has a slice of its own. All slices are below the ephemeral ports, one of which the system could assign before
the server binds it; so are the ports that a Redis cluster adds, 10,000 higher."""
_counter = itertools.count()


def free_port() -> int:
    """Return a TCP port that is free now and is not returned again soon."""
    first = _LOWEST + os.getpid() % _SLICES * _SLICE
    for _ in range(_SLICE):
        port = first + next(_counter) % _SLICE
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise OSError(f"all ports from {first} to {first + _SLICE - 1} are in use")
