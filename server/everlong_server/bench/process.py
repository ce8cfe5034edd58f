"""`Process`: a program with an HTTP port, started, measured, killed and started again."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
import psutil


class Process:
    """`command` with "{port}" where the port belongs; `ready`: the path that answers 200 once it can be used."""

    def __init__(self, command: Sequence[str], *, ready: str, what: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._command = [part.replace("{port}", str(self._port)) for part in command]
        self._ready, self._what = ready, what
        self._process: psutil.Popen | None = None
        # A connection for each request: llama.cpp's server ends one that has been idle for seconds just as it is used again.
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}", timeout=3600, limits=httpx.Limits(max_keepalive_connections=0)
        )

    @classmethod
    def everlong(cls, data: Path, *arguments: str) -> Process:
        """`everlong serve` with its data in `data`."""
        serve = [sys.executable, "-m", "everlong_client", "serve", "--port", "{port}", "--data-dir", str(data)]
        return cls([*serve, *arguments], ready="/readyz", what="the server")

    def start(self) -> float:
        """Starts it; the seconds until it could be used. Raises `RuntimeError` if it ends instead."""
        began = time.perf_counter()
        said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process; not a pipe, which nobody would empty
        self._process = psutil.Popen(self._command, stdout=subprocess.DEVNULL, stderr=said)
        while True:
            if self._process.poll() is not None:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"{self._what} ended: {lines[-1] if lines else 'without a word'}")
            try:
                if self.http.get(self._ready, timeout=5).status_code == 200:
                    return time.perf_counter() - began
            except httpx.TransportError:
                time.sleep(0.05)

    def kill(self) -> None:
        """Kills it with -9."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def resident(self) -> int:
        """Bytes of memory that it and its children have."""
        assert self._process is not None
        return sum(process.memory_info().rss for process in (self._process, *self._process.children(recursive=True)))
