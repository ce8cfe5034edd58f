"""`listen`: the API on its sockets, from the model that is being loaded to the last answer."""

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
from everlong_models.memories.window import Window
from everlong_server.app import create_app
from everlong_server.errors import Unavailable
from everlong_server.observability.logs import Voice
from everlong_server.observability.tracing import TracingError
from everlong_server.process.protocol import BoundedHeads
from everlong_server.services import NoKeys, Services
from everlong_server.settings import Settings
from everlong_server.store.redis.embedded import EmbeddedRedis
from everlong_server.store.vault import VaultError

log = logging.getLogger(__name__)


def listen(
    settings: Settings,
    redis_url: str,
    load: Callable[[], Awaitable[Model]],
    embedded: EmbeddedRedis | None,
    voice: Voice,
    began: float,
) -> int:
    """Serves until SIGTERM or SIGINT; the exit status. `began`: on the monotonic clock."""
    failed: list[BaseException] = []

    def on_ready(services: Services) -> None:
        _banner(server, services, time.monotonic() - began, voice)

    def on_failure(error: BaseException) -> None:
        failed.append(error)
        if isinstance(error, EverlongModelError | NoKeys | VaultError | TracingError):
            voice.fail(error)
        else:
            log.error("the server could not start", exc_info=error)
        server.should_exit = True

    try:
        app = create_app(settings, redis_url, load, on_ready=on_ready, on_failure=on_failure)
    except TracingError as error:
        voice.fail(error)
        return 1
    server = _Server(app, settings, embedded, voice)
    try:
        server.run(server.sockets())
    except SystemExit:  # uvicorn's, which has said why: a port that is taken
        return 1
    return 1 if failed or server.failed or not server.started else 0


# Longer than clients (httpx: 5 s) and proxies (nginx: 60 s) keep a connection that is not used: whoever ends it first must be
# them, or a request meets a connection that the server is just closing.
_IDLE_SECONDS = 75


class _Server(uvicorn.Server):
    """Drains before it ends: at the first signal new work is refused and running answers may finish."""

    def __init__(self, app: FastAPI, settings: Settings, embedded: EmbeddedRedis | None, voice: Voice) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=settings.host,
                port=settings.port,
                http=BoundedHeads,
                log_config=None,
                log_level="warning",
                access_log=False,
                ws_max_size=settings.max_body_bytes,
                ws_per_message_deflate=False,  # nothing to gain with a few bytes a frame, and no bombs
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
        self._voice = voice
        self.failed = False
        """Whether it has ended because it could not go on."""

    async def on_tick(self, counter: int) -> bool:
        """Every tenth of a second: the embedded Redis is looked after, too. Meanwhile requests that need it get 503.

        A device that has failed ends the server: what restarts it (Docker, Kubernetes, systemd) can do so, and until then others
        take over its documents.
        """
        services: Services | None = self._app.state.services
        if services is not None and not services.engine.alive and not self.should_exit:
            log.error("the device has failed; the server ends, to be started again")
            self.failed = self.should_exit = True
        if self._embedded is not None and counter % 10 == 0 and self._embedded.revive():
            log.error("the embedded Redis had ended by itself; it is started again")
        return await super().on_tick(counter)

    def sockets(self) -> list[socket.socket] | None:
        """Where to listen, if on more than one port."""
        if self._settings.metrics_port is None:
            return None
        return [
            uvicorn.Config(self._app, host=self._settings.host, port=port, log_level="warning").bind_socket()
            for port in (self._settings.port, self._settings.metrics_port)
        ]

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, the second one ends. (Uvicorn's own would raise the signal again at the very end.)"""
        services: Services | None = self._app.state.services
        if self._drain is not None or services is None or services.engine.answering == 0:
            self.force_exit = self.should_exit
            self.should_exit = True
        else:
            self._voice.say(f"{signal.Signals(sig).name}: finishing {services.engine.answering} answers")
            self._drain = asyncio.get_running_loop().create_task(self._finish(services))
        if services is not None:
            services.engine.draining = True

    async def _finish(self, services: Services) -> None:
        deadline = time.monotonic() + self._drain_seconds
        while services.engine.answering and time.monotonic() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(0.05)
        # What is not finished ends with an error that its caller is told, and leaves its session as it was.
        services.engine.abort(Unavailable("the server is shutting down", code="draining", retry_after=5))
        await asyncio.sleep(0.2)
        self.should_exit = True


def _banner(server: _Server, services: Services, seconds: float, voice: Voice) -> None:
    model, settings = services.model, services.settings
    voice.say(
        f"[bold]everlong[/] serves [bold]{escape(model.name)}[/] with memory [bold]{model.memory_name}[/], ready after {seconds:.0f} s"
    )
    voice.say(_honesty(model))
    port = server.servers[0].sockets[0].getsockname()[1] if server.servers else settings.port
    url = settings.reached_at(port)
    voice.show(
        f"""
Open http://{url} in a browser; or upload a document, chat about it, or open a WebSocket:

  curl -sT BOOK.txt -H 'content-type: text/plain' -X POST 'http://{url}/v1/documents?filename=BOOK.txt'
  {_command("everlong")} chat BOOK.txt --url http://{url}
  {_command("python")} -m websockets ws://{url}/v1/sessions/SESSION_ID/stream    # then: {{"type": "message.create", "content": "…"}}

  API: http://{url}/docs    data: {settings.data_dir.expanduser().absolute()}    end: Ctrl-C
"""
    )


def _command(name: str) -> str:
    """A program of this environment as it can be typed here: by name where that finds it, else by path."""
    ours = Path(sys.executable).with_name(name)
    found = shutil.which(name)
    return name if found is not None and Path(found).absolute() == ours.absolute() else os.path.relpath(ours)


def _honesty(model: Model) -> str:
    """What the model can't do, plainly."""
    if isinstance(model.memory, Window):
        config = model.memory.config
        return (
            f"It answers from what lies in its window: the first {config.sinks} tokens, the last {config.window}, and the open segment.\n"
            "It has no long-term memory: of what was read before, it knows only the passages found for a question, and may invent the rest."
        )
    if model.trained is False:
        return (
            "[bold yellow]warning:[/] the memory has no trained weights. It is exact, fast and durable, and its answers are nonsense: "
            "for training and tests only."
        )
    return model.description or "The memory is trained; what it was measured to do stands in docs/results.md."
