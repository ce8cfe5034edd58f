"""`ForkServer`: start server processes without importing the server again.

One process imports the server once and forks a child for each line on its stdin. A child is a complete `everlong serve`
with a pid, memory and sockets of its own, and starts in one second instead of ten.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class ForkServer:
    """Forks servers until it is closed, which kills them."""

    def __init__(self, prefix: Sequence[str]) -> None:
        """`prefix`: start of the command (`Clock.prefix`)."""
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(self, flags: list[str], log: Path, environment: Mapping[str, str], namespace: str | None) -> int:
        """Start `everlong serve` with these flags, writing its output to `log`; return its pid. `namespace`: file of the network
        namespace to run in; None: this process's."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([flags, str(log), dict(environment), namespace]).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Kill the fork server and all its children."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    """Fork a server for each line on stdin, until it ends."""
    from transformers.models.llama import modeling_llama  # noqa: F401, PLC0415 - a server imports it late

    from everlong_lab.chaos import namespaces  # noqa: PLC0415
    from everlong_server.process import listening, serving  # noqa: F401, PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps children
    for line in sys.stdin:
        flags, log, environment, namespace = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for name, value in environment.items():
                os.putenv(name, value)  # for libfaketime; our own code does not read it
            if namespace:
                namespaces.enter(namespace)
            _serve(flags, log)
        print(pid, flush=True)  # noqa: T201 - to the parent


def _serve(flags: list[str], log: str) -> Any:
    """Serve in the child process."""
    from everlong_server.process.serving import serve_forever  # noqa: PLC0415
    from everlong_server.settings import load_settings  # noqa: PLC0415

    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    os._exit(serve_forever(load_settings(flags)))
