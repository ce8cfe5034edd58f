"""Models are loaded on demand, within a memory limit, and unloaded when nothing uses them. Over HTTP, with loads that the test controls."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from everlong_models import Model, load_model
from everlong_models.errors import BackboneError
from everlong_server.app import create_app
from everlong_server.services import ModelSource
from everlong_server.settings import Settings
from everlong_server.store.redis.connection import connect
from tests.tinymodel import make_model

MB = 1_000_000
SIZES = {"tiny-rmt": 100 * MB, "tiny-two": 60 * MB, "tiny-three": 50 * MB}


class Loads:
    """Loads models while `open` is set. `begun`: names of the loads. `loaded`: the models, while they exist."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.open = asyncio.Event()
        self.open.set()
        self.failing: Exception | None = None
        self.begun: list[str] = []
        self.loaded: list[weakref.ref[Any]] = []

    async def load(self, name: str) -> Model:
        self.begun.append(name)
        await self.open.wait()
        if self.failing is not None:
            raise self.failing
        model = await asyncio.to_thread(load_model, str(self._folder / name), models_dir=self._folder)
        self.loaded.append(weakref.ref(model.memory))
        return model

    def source(self, **more: Any) -> ModelSource:
        """Return the source of two models besides the first."""
        names = {name: name for name in ("tiny-two", "tiny-three")}
        return ModelSource(names, self.load, lambda name: SIZES[Path(name).name], lambda: 1000 * MB, **more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three models."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(SIZES):
        make_model(folder, name=name, seed=seed)
    return folder


@pytest.fixture(scope="module")
def first(folder: Path) -> Model:
    """The first model, which stays loaded."""
    return load_model(str(folder / "tiny-rmt"), models_dir=folder)


class Client:
    """Sends requests to a server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ask(self, model: str, **more: Any) -> httpx.Response:
        return await self.http.post("/v1/chat/completions", json=_chat(model, **more))

    async def text(self, model: str) -> str:
        answer = await self.ask(model, temperature=0, max_tokens=40, ignore_eos=True)
        assert answer.status_code == 200, answer.text
        text: str = answer.json()["choices"][0]["message"]["content"]
        return text

    @asynccontextmanager
    async def answering(self, model: str) -> AsyncIterator[None]:
        """Hold a long answer of `model`."""
        body = _chat(model, stream=True, ignore_eos=True, max_tokens=1_000_000, temperature=2)  # does not loop
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            lines = response.aiter_lines()  # closes the response when it is collected
            assert await anext(lines)
            yield

    async def loaded(self) -> list[str]:
        models = (await self.http.get("/v1/models")).json()["data"]
        return [model["id"] for model in models if model["loaded"]]

    async def until_loaded(self, *names: str) -> None:
        await until(self.loaded, list(names))


def _chat(model: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Who is she?"}], "max_tokens": 3, **more}


async def until(ask: Callable[[], Any], wanted: Any) -> None:
    """Wait until `ask` returns `wanted`."""
    async with asyncio.timeout(60):
        while (found := await ask()) != wanted:
            del found
            await asyncio.sleep(0.02)


@asynccontextmanager
async def serving(
    source: ModelSource, first: Model, folder: Path, redis_url: str, data: Path, **settings: Any
) -> AsyncIterator[Client]:
    """Run a server in this process."""
    redis = connect(redis_url)
    await redis.flushdb()
    await redis.aclose()

    async def load() -> Model:
        return first

    given = {"model": str(folder / "tiny-rmt"), "data_dir": data, "recall_passages": 0, **settings}
    app = create_app(Settings(**given), redis_url, load, source)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None))
    server.capture_signals = nullcontext  # type: ignore[method-assign]
    running = asyncio.create_task(server.serve())
    try:
        async with asyncio.timeout(60):
            while app.state.shared is None or not server.started:
                await asyncio.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            yield Client(http)
    finally:
        server.should_exit = True
        await running


@pytest.fixture
def loads(folder: Path) -> Loads:
    return Loads(folder)


@pytest.mark.long
async def test_requests_wait_for_a_model_that_loads_and_others_are_answered_meanwhile(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    loads.open.clear()
    async with serving(loads.source(), first, folder, redis_url, tmp_path) as client:
        waiting = [asyncio.create_task(client.ask("tiny-two")) for _ in range(3)]
        async with asyncio.timeout(60):
            while not loads.begun:
                await asyncio.sleep(0.01)
        assert (await client.ask("tiny-rmt")).status_code == 200
        assert await client.loaded() == ["tiny-rmt"]
        leaving = waiting.pop()
        leaving.cancel()
        assert not any(task.done() for task in waiting)
        loads.open.set()
        assert [answer.json()["model"] for answer in await asyncio.gather(*waiting)] == ["tiny-two", "tiny-two"]
        assert loads.begun == ["tiny-two"]
        assert await client.loaded() == ["tiny-rmt", "tiny-two"]


async def test_models_that_answer_at_once_answer_as_if_alone(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    names = list(SIZES)
    async with serving(loads.source(), first, folder, redis_url, tmp_path) as client:
        alone = [await client.text(name) for name in names]
        assert len(set(alone)) == 3
        assert await asyncio.gather(*(client.text(name) for name in [*names, *names])) == [*alone, *alone]


@pytest.mark.long
async def test_an_unused_model_makes_room_and_a_used_one_does_not(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    source = loads.source(limit=160 * MB, idle_seconds=1000)
    async with serving(source, first, folder, redis_url, tmp_path) as client:
        assert (await client.ask("tiny-two")).status_code == 200
        assert (await client.ask("tiny-three")).status_code == 200
        assert await client.loaded() == ["tiny-rmt", "tiny-three"]
        async with client.answering("tiny-three"):
            refused = await client.ask("tiny-two")
            assert (refused.status_code, refused.headers.get("retry-after")) == (503, "10"), refused.text
            assert refused.json()["error"] == {
                "message": "the model 'tiny-two' does not fit into memory: it takes about 60.0 MB, and 10.0 MB of 160.0 MB "
                "(EVERLONG_MODELS_MEMORY) is left; 'tiny-rmt' about 100.0 MB and 'tiny-three' about 50.0 MB are in use: "
                "retry later",
                "type": "service_unavailable_error",
                "param": "model",
                "code": "model_does_not_fit",
            }
            assert (await client.ask("tiny-three")).status_code == 200
        await until(lambda: _status(client, "tiny-two"), 200)
        assert await client.loaded() == ["tiny-rmt", "tiny-two"]
        assert loads.begun == ["tiny-two", "tiny-three", "tiny-two"]


async def _status(client: Client, model: str) -> int:
    return (await client.ask(model)).status_code


async def test_a_model_that_can_never_fit_is_refused_with_the_sizes(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    async with serving(loads.source(limit=159 * MB), first, folder, redis_url, tmp_path) as client:
        refused = await client.ask("tiny-two")
        assert refused.status_code == 503
        assert "retry-after" not in refused.headers
        message = refused.json()["error"]["message"]
        assert "takes about 60.0 MB, and 59.0 MB of 159.0 MB" in message
        assert message.endswith("'tiny-rmt' about 100.0 MB stays loaded")
        assert (await client.ask("tiny-three")).status_code == 200


@pytest.mark.long
async def test_an_idle_model_is_unloaded_and_its_memory_freed(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    async with serving(loads.source(idle_seconds=0), first, folder, redis_url, tmp_path) as client:
        text = await client.text("tiny-two")
        session = (await client.http.post("/v1/sessions", json={"model": "tiny-two"})).json()
        await client.until_loaded("tiny-rmt")

        async def gone() -> bool:
            gc.collect()
            return all(model() is None for model in loads.loaded)

        await until(gone, wanted=True)
        async with client.answering("tiny-two"):
            await client.until_loaded("tiny-rmt", "tiny-two")
            assert (await client.ask("tiny-three")).status_code == 200
            await client.until_loaded("tiny-rmt", "tiny-two")  # the third was idle, the second is not
        await client.until_loaded("tiny-rmt")
        assert await client.text("tiny-two") == text
        answer = await client.http.post(f"/v1/sessions/{session['id']}/messages", json={"content": "Who?"})
        assert answer.json()["model"] == "tiny-two"


async def test_a_failed_load_is_reported_and_tried_again(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loads.failing = BackboneError("the weights lack a tensor")
    async with serving(loads.source(), first, folder, redis_url, tmp_path) as client:
        for _ in range(2):
            failed = await client.ask("tiny-two")
            assert (failed.status_code, failed.json()["error"]["code"]) == (503, "model_failed")
            assert "'tiny-two' could not be loaded" in failed.text
            assert "tensor" not in failed.text
        assert "the weights lack a tensor" in caplog.text
        loads.failing = None
        assert (await client.ask("tiny-two")).status_code == 200
        assert len(loads.begun) == 3


async def test_a_tenants_limit_of_answers_counts_all_models(
    loads: Loads, first: Model, folder: Path, redis_url: str, tmp_path: Path
) -> None:
    async with serving(loads.source(), first, folder, redis_url, tmp_path, tenant_streams=1) as client:
        async with client.answering("tiny-two"):
            refused = await client.ask("tiny-rmt")
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "streams_limit")
        await until(lambda: _status(client, "tiny-rmt"), 200)
