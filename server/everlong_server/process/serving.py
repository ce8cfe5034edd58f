"""`serve_forever`: one server process, from its first line to its last."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING

from rich.console import Console

from everlong_server.observability import logs
from everlong_server.observability.logs import Reporter
from everlong_server.settings import Settings
from everlong_server.store.redis.embedded import EmbeddedRedis, EmbeddedRedisError
from everlong_server.store.texts.passages import SearchMissing, require_search

if TYPE_CHECKING:
    from everlong_models import Model

_FILES = 1 << 16


def serve_forever(settings: Settings) -> int:
    """Serves until SIGTERM or SIGINT; the exit status. Says on stderr what it does and what it is.

    A process that is to end while its model is still loading ends here.
    """
    began = time.monotonic()
    console, as_json = Console(stderr=True, highlight=False, soft_wrap=True), settings.log_format == "json"
    logs.configure(settings.log_level, console, as_json=as_json)
    reporter = Reporter(console, as_json=as_json)
    redis: EmbeddedRedis | None = None
    loading: Future[Model] | None = None
    try:
        require_search()
        _raise_files()
        if settings.redis_url is None:
            reporter.announce("starting the embedded Redis")
            # Here, in the main thread: the child asks to die with the thread that made it.
            embedded = EmbeddedRedis(settings.data_dir.expanduser().absolute())
            embedded.start()
            redis = embedded  # only one that was started here is stopped here
        loading = begun = _begin(settings, reporter)
        # Imported while the model is loading, which is mostly no work of Python's.
        from everlong_server.process.listening import listen  # noqa: PLC0415

        url = settings.redis_url or (redis.url if redis else "")
        status = listen(settings, url, lambda: asyncio.wrap_future(begun), redis, reporter, began)
    except (SearchMissing, EmbeddedRedisError, OSError) as error:
        reporter.fail(error)
        status = 1
    finally:
        if redis is not None:
            redis.stop()
    if loading is not None and not loading.done():
        # Python would take down what the thread still computes with, and that is an abort, whatever the status.
        os._exit(status)
    return status


def _raise_files() -> None:
    """As many open files as the system lets us have: a connection is one, and so is each document that is searched."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _begin(settings: Settings, reporter: Reporter) -> Future[Model]:
    """The model, on a thread that does not keep a process alive that is told to end meanwhile."""
    reporter.announce("importing PyTorch and transformers")
    from everlong_server.process.loading import load  # noqa: PLC0415 - seconds, before which something should have been said

    future: Future[Model] = Future()
    future.set_running_or_notify_cancel()  # whoever stops waiting for it does not stop it

    def run() -> None:
        try:
            try:
                model = load(settings, reporter.announce)
            finally:  # `everlong serve` has turned it off; what is there by now is not looked at again
                gc.freeze()
                gc.enable()
        except BaseException as error:  # handed on, whatever it is
            future.set_exception(error)
        else:
            future.set_result(model)

    Thread(target=run, name="everlong-load", daemon=True).start()
    return future
