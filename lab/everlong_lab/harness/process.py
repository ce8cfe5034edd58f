"""`Process`: a program with an HTTP port, started, measured, killed and started again."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil


class Process:
    """`command` with "{port}" where the port belongs; `ready`: the path that answers 200 once it can be used. `fresh`: each
    request has a connection of its own."""

    def __init__(self, command: Sequence[str], *, ready: str, what: str, fresh: bool = False) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self._command = [part.replace("{port}", str(self._port)) for part in command]
        self._ready, self._what = ready, what
        self._process: psutil.Popen | None = None
        self.http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}",
            timeout=3600,
            limits=httpx.Limits(max_keepalive_connections=0 if fresh else None),
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
            with contextlib.suppress(httpx.TransportError):
                if self.http.get(self._ready, timeout=5).status_code == 200:
                    return time.perf_counter() - began
            time.sleep(
                0.05
            )  # also where it answers that it is not ready: who asks without a pause takes the time that it loads in

    def read(self, text: str, progress: Callable[[float], None] = lambda share: None) -> dict[str, Any]:
        """Of `everlong serve`: the document of `text`, once it is read. `progress`: told now and then which share is read."""
        began = time.perf_counter()
        made = self.http.post("/v1/documents", content=text.encode(), headers={"content-type": "text/plain"})
        made.raise_for_status()
        document: dict[str, Any] = made.json()
        while document["status"] != "ready":
            if document["status"] == "failed":
                raise RuntimeError(f"reading failed: {document['error']}")
            progress(document["progress"])
            # Asking costs what is measured: seldom enough for that, and often enough for a hundredth of the time.
            time.sleep(max(0.005, (time.perf_counter() - began) / 100))
            document = self.http.get(f"/v1/documents/{document['id']}").json()
        return document

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
