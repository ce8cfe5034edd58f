"""`ForkServer`: server processes for the price of one import.

One process imports the server once and forks another for each line on its stdin: what is born is `everlong serve`, with
a pid, memory and sockets of its own, a second after it was asked for instead of ten.
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
    """Forks servers until it is closed, which ends them with -9."""

    def __init__(self, prefix: Sequence[str]) -> None:
        """`prefix`: of the command that is started (`Clock.prefix`)."""
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def fork(self, flags: list[str], log: Path, environment: Mapping[str, str]) -> int:
        """The pid of a new `everlong serve` with these flags. It says what it has to say in `log`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([flags, str(log), dict(environment)]).encode() + b"\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """Ends all that it has made."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


def main() -> None:
    """Until stdin ends."""
    from transformers.models.llama import modeling_llama  # noqa: F401, PLC0415 - what a server imports late

    from everlong_server.process import listening, serving  # noqa: F401, PLC0415

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel buries the dead
    for line in sys.stdin:
        flags, log, environment = json.loads(line)
        pid = os.fork()
        if pid == 0:
            for name, value in environment.items():
                os.putenv(name, value)  # for libraries: nothing of ours reads it
            _serve(flags, log)
        print(pid, flush=True)  # noqa: T201 - to the parent


def _serve(flags: list[str], log: str) -> Any:
    """In the child."""
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
