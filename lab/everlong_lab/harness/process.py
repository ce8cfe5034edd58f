"""`Process`: a program with an HTTP port that can be started, measured, killed and started again."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from everlong_lab.harness.ports import free_port
from everlong_lab.harness.tiny import save_tiny


class Process:
    """`command` has "{port}" in place of the port. `ready`: path that answers 200 once the program can be used. `what`: its
    name in errors. `fresh`: open a connection for each request."""

    def __init__(self, command: Sequence[str], *, ready: str, what: str, fresh: bool = False) -> None:
        self._port = free_port()
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
        """Return `everlong serve` with its data in `data`."""
        serve = [sys.executable, "-m", "everlong_client", "serve", "--port", "{port}", "--data-dir", str(data)]
        return cls([*serve, *arguments], ready="/readyz", what="the server")

    def start(self) -> float:
        """Start the program; return the seconds until it was ready. Raises `RuntimeError` if it ends instead."""
        began = time.perf_counter()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - lives with the process; nobody would empty a pipe
        self._process = psutil.Popen(self._command, stdout=subprocess.DEVNULL, stderr=errors)
        while True:
            if self._process.poll() is not None:
                errors.seek(0)
                lines = errors.read().decode(errors="replace").strip().splitlines()
                raise RuntimeError(f"{self._what} ended: {lines[-1] if lines else 'no message on stderr'}")
            with contextlib.suppress(httpx.TransportError):
                if self.http.get(self._ready, timeout=5).status_code == 200:
                    return time.perf_counter() - began
            time.sleep(0.05)  # also after "not ready": polling without a pause would slow down the start

    def read(self, text: str, progress: Callable[[float], None] = lambda share: None) -> dict[str, Any]:
        """Upload `text` to `everlong serve` and return its document once it is read. `progress`: called with the share read."""
        began = time.perf_counter()
        made = self.http.post("/v1/documents", content=text.encode(), headers={"content-type": "text/plain"})
        made.raise_for_status()
        document: dict[str, Any] = made.json()
        while document["status"] != "ready":
            if document["status"] == "failed":
                raise RuntimeError(f"reading failed: {document['error']}")
            progress(document["progress"])
            # Polling costs time that is measured: wait 1 % of the elapsed time, at least 5 ms.
            time.sleep(max(0.005, (time.perf_counter() - began) / 100))
            document = self.http.get(f"/v1/documents/{document['id']}").json()
        return document

    @classmethod
    @contextlib.contextmanager
    def served(cls, *arguments: str, tiny: bool = False) -> Iterator[Process]:
        """Run `everlong serve` with an empty data folder for the duration of the block. `tiny`: serve a tiny random model."""
        with tempfile.TemporaryDirectory(prefix="evl") as folder:
            model = ["--model", str(save_tiny(Path(folder) / "model"))] if tiny else []
            server = cls.everlong(Path(folder) / "data", *model, *arguments)
            try:
                server.start()
                yield server
            finally:
                server.kill()

    def kill(self) -> None:
        """Kill the program with SIGKILL."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        """The number of the running process."""
        assert self._process is not None
        return int(self._process.pid)

    def resident(self) -> int:
        """Return the resident memory of the process and its children, in bytes."""
        assert self._process is not None
        return sum(process.memory_info().rss for process in (self._process, *self._process.children(recursive=True)))
