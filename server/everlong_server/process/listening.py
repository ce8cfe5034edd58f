"""`listen`: runs the HTTP server, from the start of loading the model to the last answer."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import uvicorn
from fastapi import FastAPI
from rich.markup import escape

from everlong_models import EverlongModelError, Model
from everlong_models.memories.compact import Compact
from everlong_models.memories.native import Native
from everlong_models.memories.window import Window
from everlong_server.app import create_app
from everlong_server.errors import Draining
from everlong_server.observability.logs import Reporter
from everlong_server.observability.tracing import TracingError
from everlong_server.process.folders import FolderError, explain
from everlong_server.process.protocol import BoundedHeadersProtocol, HandshakeProtocol
from everlong_server.services import ModelSource, NoKeys, Shared
from everlong_server.settings import Settings
from everlong_server.store.redis.embedded import DiskSpace, EmbeddedRedis
from everlong_server.store.redis.schema import SchemaError
from everlong_server.store.texts.blobs import BlobStoreError
from everlong_server.store.vault import VaultError

log = logging.getLogger(__name__)


def listen(
    settings: Settings,
    redis_url: str,
    load: Callable[[], Awaitable[Model]],
    others: ModelSource,
    embedded: EmbeddedRedis | None,
    reporter: Reporter,
    started: float,
) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status. `started`: when the process started (monotonic clock)."""
    failed: list[BaseException] = []

    def on_ready(shared: Shared) -> None:
        _banner(server, shared, time.monotonic() - started, reporter)

    def on_failure(error: BaseException) -> None:
        failed.append(error)
        error = explain(error, settings)
        if isinstance(error, _EXPLAINED):
            reporter.fail(error)
        else:
            log.error("the server could not start", exc_info=error)
        server.should_exit = True

    try:
        app = create_app(settings, redis_url, load, others, on_ready=on_ready, on_failure=on_failure)
    except TracingError as error:
        reporter.fail(error)
        return 1
    server = _Server(app, settings, embedded, reporter)
    try:
        server.run(server.sockets())
    except SystemExit:  # from uvicorn, which has printed the reason, such as a port in use
        return 1
    return 1 if failed or server.failed or not server.started else 0


_EXPLAINED = (EverlongModelError, NoKeys, SchemaError, VaultError, TracingError, BlobStoreError, FolderError)
"""Errors whose messages tell the operator what to do. Others are logged with their tracebacks."""

# Longer than clients (httpx: 5 s) and proxies (nginx: 60 s) keep an idle connection. They must be first to close it, or a
# request may arrive on a connection that the server is closing.
_IDLE_SECONDS = 75


_SPACE = {
    DiskSpace.ENOUGH: "the disk of the data folder has space again: all requests are answered",
    DiskSpace.LOW: "the disk of the data folder is nearly full: writes get 503, reads and deletions go on",
    DiskSpace.NONE: "the disk of the data folder is full: writes and deletions get 503, reads go on",
}


class _Server(uvicorn.Server):
    """Drains before it exits: after the first signal it refuses new work and lets running answers finish."""

    def __init__(self, app: FastAPI, settings: Settings, embedded: EmbeddedRedis | None, reporter: Reporter) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=BoundedHeadersProtocol,
                ws=HandshakeProtocol,
                log_config=None,
                log_level="warning",
                access_log=False,
                ws_max_size=settings.max_body_bytes,
                ws_per_message_deflate=False,  # frames are small, and compression bombs are impossible
                ws_ping_interval=settings.keepalive_seconds,
                ws_ping_timeout=settings.keepalive_seconds,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=5,
                server_header=False,
            )
        )
        self._app = app
        self._settings = settings
        self._drain_seconds = settings.drain_seconds
        self._drain: asyncio.Task[None] | None = None
        self._embedded = embedded
        self._reporter = reporter
        self.failed = False
        """True if the server exits because its device failed."""

    async def on_tick(self, counter: int) -> bool:
        """Restart an embedded Redis that died, and exit if the device failed. Uvicorn calls this every tenth of a second.

        Requests that need Redis get 503 until it is back. After a device failure, Docker, Kubernetes or systemd restarts
        the server, and other replicas take over its documents.
        """
        shared: Shared | None = self._app.state.shared
        if shared is not None and not shared.models.alive and not self.should_exit:
            log.error("the device failed: the server exits and must be restarted")
            self.failed = self.should_exit = True
        if self._embedded is not None:
            if counter % 10 == 0 and self._embedded.revive():
                log.error("the embedded Redis died and was restarted")
            if (space := self._embedded.check_disk()) is not None:
                log.log(logging.INFO if space is DiskSpace.ENOUGH else logging.ERROR, _SPACE[space])
        return await super().on_tick(counter)

    def sockets(self) -> list[socket.socket] | None:
        """Return the sockets to listen on if there is a second port for metrics; else None."""
        if self._settings.metrics_port is None:
            return None
        return [
            uvicorn.Config(
                self._app, host=self._settings.host, port=port, log_config=None, log_level="warning"
            ).bind_socket()
            for port in (self._settings.port, self._settings.metrics_port)
        ]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, exit at the second. (Uvicorn's own handler would raise the signal again at exit.)"""
        shared: Shared | None = self._app.state.shared
        if self._drain is not None or shared is None or shared.models.admitted == 0:
            self.force_exit = self.should_exit
            self.should_exit = True
        else:
            self._reporter.announce(f"{signal.Signals(sig).name}: finishing {shared.models.admitted} answers")
            self._drain = asyncio.get_running_loop().create_task(self._finish(shared))
        if shared is not None:
            shared.models.drain()

    async def _finish(self, shared: Shared) -> None:
        deadline = time.monotonic() + self._drain_seconds
        while shared.models.admitted and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.05)
        # Unfinished answers end with an error for their callers. Their sessions stay unchanged.
        shared.models.abort(Draining())
        await asyncio.sleep(0.2)
        self.should_exit = True


def _banner(server: _Server, shared: Shared, seconds: float, reporter: Reporter) -> None:
    model, settings = shared.model, shared.settings
    reporter.announce(
        f"[bold]everlong[/] serves [bold]{escape(model.name)}[/] with memory [bold]{model.memory_name}[/], ready after {seconds:.0f} s"
    )
    reporter.announce(_limitations(model))
    if others := [each.name for each in shared.models.all[1:]]:
        reporter.announce(f"On demand: {escape(', '.join(others))} (the field `model` of a request)")
    port = server.servers[0].sockets[0].getsockname()[1] if server.servers else settings.port
    url = settings.reached_at(port)
    reporter.print(
        f"""
Open http://{url} in a browser, or upload a document, chat about it, or open a WebSocket:

  curl -sT BOOK.txt -H 'content-type: text/plain' -X POST 'http://{url}/v1/documents?filename=BOOK.txt'
  {_command("everlong")} chat BOOK.txt --url http://{url}
  {_command("python")} -m websockets ws://{url}/v1/sessions/SESSION_ID/stream    # then: {{"type": "message.create", "content": "…"}}

  API: http://{url}/docs    data: {settings.data_dir.expanduser().absolute()}    stop: Ctrl-C
"""
    )


def _command(name: str) -> str:
    """Return how to type a program of this environment: its name if the PATH finds it, else its relative path."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    return name if found is not None and Path(found).absolute() == ours.absolute() else os.path.relpath(ours)


def _limitations(model: Model) -> str:
    """Return a plain sentence on what the model cannot do."""
    if isinstance(model.memory, Window):
        config = model.memory.config
        return (
            "It has no long-term memory. For a question it sees the passages that the search finds, and very short texts whole.\n"
            f'It may invent the rest. With "recall": false, it sees the first {config.sinks} tokens, the last {config.window} before\n'
            "the open segment, and the open segment."
        )
    if isinstance(model.memory, Compact):
        return (
            f"It keeps {model.memory.config.entries} keys and values of the text in each layer, some of every part: what a text\n"
            "of some thousand tokens is about. For details and longer texts, it searches passages. docs/research/lab-notes.md has figures."
        )
    if isinstance(model.memory, Native):
        return (
            f"{model.memory.in_words}\n"
            "The state has a fixed size, so details of older text fade; for those, the server searches for passages for each question."
        )
    if model.trained is False:
        return (
            "[bold yellow]warning:[/] the memory has no trained weights, so its answers are nonsense. "
            "Use it for training and tests only."
        )
    return model.description or "The memory is trained; docs/research/results.md lists its measured results."
