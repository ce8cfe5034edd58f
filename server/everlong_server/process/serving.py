"""`serve_forever`: runs one server process from start to exit."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from collections.abc import Callable
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console

from everlong_models.errors import EverlongModelError
from everlong_server.observability import logs
from everlong_server.observability.logs import Reporter
from everlong_server.process.folders import explain
from everlong_server.process.port import PortError, check_ports
from everlong_server.settings import Settings
from everlong_server.store.redis.embedded import EmbeddedRedis, EmbeddedRedisError
from everlong_server.store.search.word_index import SearchMissing, require_search

if TYPE_CHECKING:
    from everlong_models import Model

_FILES = 1 << 16


def serve_forever(settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT and return the exit status. Prints its progress on stderr.

    Does not return but exits the process if a model is still loading at the end.
    """
    started = time.monotonic()
    console, as_json = Console(stderr=True, highlight=False, soft_wrap=True), settings.log_format == "json"
    logs.configure(settings.log_level, console, as_json=as_json)
    reporter = Reporter(console, as_json=as_json)
    redis: EmbeddedRedis | None = None
    loads = Loads()
    try:
        require_search()
        _raise_files()
        check_ports(settings)
        if settings.redis_url is None:
            reporter.announce("starting the embedded Redis")
            # Started in the main thread, because the child asks the kernel to die with the thread that started it.
            embedded = EmbeddedRedis(settings.data_dir.expanduser().absolute())
            embedded.start()
            redis = embedded  # stop only a Redis that this process started
        model = _start_loading(settings, reporter, loads)
        # Imported while the model loads, which mostly runs outside Python.
        from everlong_server.process.listening import listen  # noqa: PLC0415
        from everlong_server.process.loading import model_source  # noqa: PLC0415

        url = settings.redis_url or (redis.url if redis else "")
        others = model_source(settings, loads.start)
        status = listen(settings, url, lambda: asyncio.wrap_future(model), others, redis, reporter, started)
    except (SearchMissing, PortError, EmbeddedRedisError, EverlongModelError, OSError) as error:
        reporter.fail(explain(error, settings))
        status = 1
    finally:
        if redis is not None:
            redis.stop()
    if loads.running:
        # A normal exit would tear down libraries that a loading thread still uses, and abort.
        os._exit(status)
    return status


def _raise_files() -> None:
    """Raise the limit of open files. Each connection and each searched document needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Loads:
    """Loads models on daemon threads, which do not keep the process alive."""

    def __init__(self) -> None:
        self._futures: list[Future[Model]] = []

    @property
    def running(self) -> bool:
        """Whether a model is being loaded."""
        return any(not future.done() for future in self._futures)

    def start(self, load: Callable[[], Model]) -> Future[Model]:
        """Call `load` on a thread of its own."""
        future: Future[Model] = Future()
        future.set_running_or_notify_cancel()  # so that it cannot be cancelled
        self._futures = [*(each for each in self._futures if not each.done()), future]

        def run() -> None:
            try:
                model = load()
            except BaseException as error:  # reaches the waiting caller
                future.set_exception(error)
            else:
                future.set_result(model)

        Thread(target=run, name="everlong-load", daemon=True).start()
        return future


def _start_loading(settings: Settings, reporter: Reporter, loads: Loads) -> Future[Model]:
    """Load the first model on a thread."""
    reporter.announce("importing PyTorch and transformers")
    from everlong_server.process.loading import load  # noqa: PLC0415 - takes seconds, so the line above comes first

    def run() -> Model:
        try:
            return load(settings, reporter.announce)
        finally:  # `everlong serve` disabled garbage collection; exclude the objects that exist now from it
            gc.freeze()
            gc.enable()

    return loads.start(run)
