"""`ServedModels`: the models of a server by name. The first is always loaded. The others are loaded when a request names them, and
unloaded when nothing has used them for a while or another model needs their memory."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from everlong_models import EverlongModelError, Model
from everlong_models.freed_memory import release_gpu_memory, release_memory
from everlong_server.engine.device.engine import Engine
from everlong_server.errors import NotFound, Unavailable
from everlong_server.observability.metrics import Metrics
from everlong_server.store.jobs import ModelQueues
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.tasks import cancel

if TYPE_CHECKING:
    from everlong_server.services.shared import Shared

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
"""Interval at which idle models are unloaded, and models with waiting jobs are loaded."""
_RETRY_SECONDS = 60.0
"""Pause before a model whose jobs wait is loaded again after a failure."""
_BUSY_SECONDS = 10
"""What a client is told to wait for memory that other models use."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """How to load the models that the settings name besides the first.

    `names`: what requests call them, each with the name in the settings. `load`: loads a model by that name, on a thread of its own.
    `measure`: estimates its bytes, and blocks; None: it is not downloaded yet. `free`: returns the bytes of memory that are free.
    `limit`: the bytes that all models may take; None: what is free.
    """

    names: dict[str, str]
    load: Callable[[str], Awaitable[Model]]
    measure: Callable[[str], int | None]
    free: Callable[[], int]
    limit: int | None = None
    idle_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class NamedModel:
    """One of the models, loaded or not. `source`: its name in the settings. `bytes`: its estimated size; None if it is not known.

    `shared`: the parts of the server with this model, and `parts`: what stops them; None while it is not loaded. `fingerprint`,
    `queues`: None, `state_bytes`: 0, and `tools` (whether it has a tool format): False, before it is first loaded. `users`: number of requests that hold it. `unused_since`,
    `retry_at`: monotonic times.
    """

    name: str
    source: str
    fingerprint: str | None = None
    state_bytes: int = 0
    tools: bool = False
    bytes: int | None = None
    shared: Shared | None = None
    queues: ModelQueues | None = None
    users: int = 0
    unused_since: float = 0.0
    retry_at: float = 0.0
    loading: asyncio.Task[Shared] | None = None
    parts: AsyncExitStack | None = None

    @property
    def idle(self) -> bool:
        """Whether it is loaded and no request uses it. Its queues may have jobs."""
        return self.shared is not None and self.users == 0 and self.shared.engine.admitted == 0


class ServedModels:
    """The models of one server. Use it on the event loop; call `announce` and `start` first, and `close` at the end."""

    def __init__(
        self,
        source: ModelSource | None,
        redis: Client,
        metrics: Metrics,
        queues: Callable[[str], ModelQueues],
        serve: Callable[[Shared, Model, ModelQueues], AbstractAsyncContextManager[Shared]],
    ) -> None:
        """`source`: of the other models; None: there are none. `queues`: opens those of the model with a fingerprint. `serve`: serves a
        loaded model and its queues with the other parts of the given `Shared`, until the context ends."""
        self._source_of_others = source
        self._redis = redis
        self._metrics = metrics
        self._queues = queues
        self._serve = serve
        names = {} if source is None else source.names
        self._others = {name: NamedModel(name, given) for name, given in names.items()}
        self._changing = asyncio.Lock()
        """Held while a model is loaded or unloaded: one at a time, as each needs to know how much memory is left."""
        self._first: NamedModel | None = None

    async def announce(self) -> None:
        """Tell other servers which models this one serves, as far as it knows their fingerprints. Raises `RedisError`."""
        known = await self._redis.hgetall(keys.MODELS) if self._others else {}
        for model in self._others.values():
            if model.fingerprint is None and (fingerprint := known.get(model.name.encode())) is not None:
                self._note(model, fingerprint.decode())
        for queues in self.queues:
            await queues.readings.heartbeat()

    async def start(self, first: Shared, name: str) -> None:
        """Begin with the first model, which the settings call `name`."""
        model = first.model
        self._first = NamedModel(
            model.name, name, model.fingerprint, model.state_bytes, model.tools is not None, shared=first
        )
        self._others.pop(model.name, None)
        for each in self.all:
            if self._others:
                with contextlib.suppress(EverlongModelError):
                    each.bytes = await asyncio.to_thread(self._source.measure, each.source)
            self._metrics.model_loaded.labels(each.name).set(each is self._first)

    @property
    def _source(self) -> ModelSource:
        assert self._source_of_others is not None, "there are no other models"
        return self._source_of_others

    @property
    def first(self) -> Shared:
        """The parts of the server with the first model."""
        assert self._first is not None, "`start` was not called"
        assert self._first.shared is not None
        return self._first.shared

    @property
    def all(self) -> list[NamedModel]:
        """All models, the first one first."""
        return [*([] if self._first is None else [self._first]), *self._others.values()]

    async def queued(self) -> tuple[int, int]:
        """Return how many readings and responses wait for all models but the first, or are being worked on. Raises `RedisError`."""
        lengths = [await queues.lengths() for queues in self.queues]
        return sum(readings for readings, _ in lengths), sum(responses for _, responses in lengths)

    @property
    def queues(self) -> list[ModelQueues]:
        """The queues of all models but the first whose fingerprint is known."""
        return [model.queues for model in self._others.values() if model.queues is not None]

    @property
    def engines(self) -> list[Engine]:
        """The engines of all loaded models."""
        return [model.shared.engine for model in self.all if model.shared is not None]

    def named(self, name: str, param: str = "model") -> NamedModel:
        """Return the model `name`. Raises `NotFound`, which lists the names. `param`: the field with the name."""
        found = next((model for model in self.all if model.name == name), None)
        if found is None:
            message = f"no model {name[:256]!r}; this server serves {self.names}"
            raise NotFound(message, param=param, code="model_not_found")
        return found

    def state_bytes(self, name: str) -> int:
        """Return the size of an empty memory of the model `name`; 0 if it was not loaded yet, or is no model of this server."""
        return next((model.state_bytes for model in self.all if model.name == name), 0)

    @property
    def names(self) -> str:
        """The names of all models, for messages."""
        return " and ".join(repr(model.name) for model in self.all)

    async def acquire(self, name: str, held: AsyncExitStack) -> Shared:
        """Return the parts of the server with the model `name`, which stays loaded until `held` ends. Waits while it loads.

        Raises `NotFound`, and `Unavailable` if it cannot be loaded or does not fit into memory.
        """
        model = self.named(name)
        if model is self._first:
            return self.first
        model.users += 1
        held.callback(self._release, model)
        while model.shared is None:
            self.first.engine.require_running()
            if model.loading is None:
                # In a context of its own: the model's tasks must not inherit the priority or the id of the request.
                model.loading = asyncio.create_task(self._load(model), context=contextvars.Context())
                model.loading.add_done_callback(_retrieve)
            await asyncio.shield(model.loading)
        return model.shared

    def _release(self, model: NamedModel) -> None:
        model.users -= 1
        model.unused_since = time.monotonic()

    # Loading

    async def _load(self, model: NamedModel) -> Shared:
        try:
            async with self._changing:
                await self._make_room(model)
                started = time.monotonic()
                try:
                    loaded = await self._source.load(model.source)
                except Exception as error:
                    log.log(
                        logging.WARNING if isinstance(error, EverlongModelError) else logging.ERROR,
                        "the model %s could not be loaded", model.name, exc_info=error,
                    )  # fmt: skip
                    raise _failed(model) from error
                queues = self._note(model, loaded.fingerprint)
                await self._redis.hset(keys.MODELS, model.name, loaded.fingerprint)
                parts = AsyncExitStack()
                shared = await parts.enter_async_context(self._serve(self.first, loaded, queues))
                model.shared, model.parts, model.unused_since = shared, parts, time.monotonic()
                model.state_bytes, model.tools = loaded.state_bytes, loaded.tools is not None
                shared.engine.draining = self.first.engine.draining
                if model.bytes is None:  # it was downloaded only now
                    model.bytes = await asyncio.to_thread(self._source.measure, model.source)
                seconds = time.monotonic() - started
                self._metrics.record_load(model.name, seconds)
                log.info("loaded the model %s in %.1f s", model.name, seconds)
                return shared
        finally:
            model.loading = None

    def _note(self, model: NamedModel, fingerprint: str) -> ModelQueues:
        """Note the model's fingerprint, and return its queues."""
        if model.queues is None or model.fingerprint != fingerprint:
            model.fingerprint, model.queues = fingerprint, self._queues(fingerprint)
        return model.queues

    async def _make_room(self, model: NamedModel) -> None:
        """Unload unused models, the longest unused first, until `model` fits. Raises `Unavailable`, with the sizes."""
        try:
            size = model.bytes = await asyncio.to_thread(self._source.measure, model.source)
        except EverlongModelError as error:
            log.warning("cannot estimate how much memory the model %s takes: %s", model.name, error)
            raise _failed(model) from error
        while size is not None and (room := self._room()) < size:
            for other in sorted(self._others.values(), key=lambda each: each.unused_since):
                if await self._is_unused(other):
                    await self._unload(other)
                    break
            else:
                raise self._no_room(model, size, room)

    def _room(self) -> int:
        """Return how many bytes another model may take."""
        if self._source.limit is None:
            return self._source.free()
        return self._source.limit - sum(model.bytes or 0 for model in self.all if model.shared is not None)

    def _no_room(self, model: NamedModel, size: int, room: int) -> Unavailable:
        limit, loaded = self._source.limit, [each for each in self.all if each.shared is not None]
        used = " and ".join(f"{each.name!r} about {_size(each.bytes or 0)}" for each in loaded)
        of = "is free" if limit is None else f"of {_size(limit)} (EVERLONG_MODELS_MEMORY) is left"
        wait = len(loaded) > 1
        return Unavailable(
            f"the model {model.name!r} does not fit into memory: it takes about {_size(size)}, and {_size(max(0, room))} {of}; "
            f"{used} {'are in use: retry later' if wait else 'stays loaded'}",
            param="model",
            code="model_does_not_fit",
            retry_after=_BUSY_SECONDS if wait else None,
        )

    # Unloading

    async def _is_unused(self, model: NamedModel) -> bool:
        """Return whether the model is loaded, and no request and no job uses it. Raises `RedisError`."""
        return model.idle and not await _jobs(model) and model.idle

    async def _unload(self, model: NamedModel) -> None:
        """Unload a model that is unused. Call with `_changing` held, and without a pause after `_is_unused`."""
        parts, model.parts, model.shared = model.parts, None, None
        assert parts is not None
        await parts.aclose()
        del parts
        await asyncio.to_thread(_free)
        self._metrics.model_loaded.labels(model.name).set(0)
        log.info("unloaded the model %s", model.name)

    async def run(self) -> None:
        """Until cancelled, unload models that are idle, and load those with waiting jobs, such as after a restart.

        Returns at once if there is only the first model.
        """
        while self._others:
            await asyncio.sleep(_CHECK_SECONDS)
            for model in self._others.values():
                with contextlib.suppress(RedisError):
                    if model.shared is None:
                        await self._load_for_jobs(model)
                    elif model.idle and time.monotonic() - model.unused_since >= self._source.idle_seconds:
                        async with self._changing:
                            if await self._is_unused(model):
                                await self._unload(model)

    async def _load_for_jobs(self, model: NamedModel) -> None:
        """Load the model if a queue of it has jobs: of a server that was killed, or of a replica."""
        if model.loading is not None or time.monotonic() < model.retry_at or not await _jobs(model):
            return
        try:
            async with AsyncExitStack() as held:
                await self.acquire(model.name, held)
        except Unavailable as error:
            log.warning("the jobs of the model %s wait until it can be loaded: %s", model.name, error)
            model.retry_at = time.monotonic() + _RETRY_SECONDS

    # The end

    def drain(self) -> None:
        """Refuse further work."""
        for engine in self.engines:
            engine.draining = True

    def abort(self, error: Exception) -> None:
        """Fail all running answers with `error`."""
        for engine in self.engines:
            engine.abort(error)

    @property
    def admitted(self) -> int:
        """Number of answers that are being generated or wait, by all models."""
        return sum(engine.admitted for engine in self.engines)

    @property
    def rows(self) -> int:
        """Number of answers that are being generated, by all models."""
        return sum(engine.rows for engine in self.engines)

    @property
    def alive(self) -> bool:
        """Whether no device thread has died."""
        return all(engine.alive for engine in self.engines)

    async def close(self) -> None:
        """Stop all models but the first."""
        for model in self._others.values():
            if model.loading is not None:
                await cancel(model.loading)
            if model.parts is not None:
                await model.parts.aclose()
                model.parts = model.shared = None


async def _jobs(model: NamedModel) -> int:
    """Return how many jobs the model has, waiting or being worked on."""
    return 0 if model.queues is None else sum(await model.queues.lengths())


def _failed(model: NamedModel) -> Unavailable:
    """Return the error for clients, which does not tell the reason: that has paths of the server."""
    return Unavailable(
        f"the model {model.name!r} could not be loaded: the server's log has the reason",
        param="model",
        code="model_failed",
    )


def _free() -> None:
    """Give the memory of a model that nothing refers to back to the system."""
    gc.collect()
    release_gpu_memory()
    release_memory()


def _retrieve(task: asyncio.Task[Shared]) -> None:
    """Take note of a task's error: all that waited for it may have left, and asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _size(bytes: int) -> str:
    return f"{bytes / 1e9:.1f} GB" if bytes >= 1e9 else f"{bytes / 1e6:.1f} MB"
