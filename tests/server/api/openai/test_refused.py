"""Missing keys, missing scopes and exceeded quotas, as exceptions of OpenAI's SDKs, for every endpoint."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from everlong_server.store.redis import keys
from tests.process import Server
from tests.server.api.openai.talk import MODEL, of, respond, user
from tests.server.api.openai.test_node import FOLDER, node  # noqa: F401, the fixture
from tests.server.tenants import new_key

ASKS: dict[str, Callable[[OpenAI], Any]] = {
    "models": lambda client: client.models.list(),
    "a model": lambda client: client.models.retrieve(MODEL),
    "files": lambda client: client.files.list(),
    "a file's content": lambda client: client.files.content("doc_x"),
    "chat": lambda client: client.chat.completions.create(model=MODEL, messages=[user("Hi.")], max_tokens=1),
    "a streamed chat": lambda client: client.chat.completions.create(model=MODEL, messages=[user("Hi.")], stream=True),
    "a completion": lambda client: client.completions.create(model=MODEL, prompt="Hi.", max_tokens=1),
    "a streamed completion": lambda client: client.completions.create(model=MODEL, prompt="Hi.", stream=True),
    "a response": lambda client: respond(client, "Hi."),
    "a background response": lambda client: respond(client, "Hi.", background=True),
    "a response of before": lambda client: client.responses.retrieve("resp_x"),
    "embeddings": lambda client: client.embeddings.create(model="all-MiniLM-L6-v2", input="Hi."),
    "vector stores": lambda client: client.vector_stores.list(),
    "a vector store": lambda client: client.vector_stores.create(),
    "a search": lambda client: client.vector_stores.search("vs_x", query="Hi."),
    "a file": lambda client: client.files.create(file=("a.txt", b"Once."), purpose="user_data"),
    "an upload": lambda client: client.uploads.create(
        bytes=1, filename="a.txt", mime_type="text/plain", purpose="user_data"
    ),
    "a part": lambda client: client.uploads.parts.create("upload_x", data=b"x"),
}
WRITES = [
    "chat",
    "a streamed chat",
    "a completion",
    "a streamed completion",
    "a response",
    "a background response",
    "a file",
    "an upload",
    "a part",
]


@pytest.fixture(scope="module")
def locked(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data = tmp_path_factory.mktemp("data")
    with Server(tiny_model, data, auth="keys", tenant_requests_per_minute=1000) as server:
        server.start()
        yield server
        server.check_keys()


def sdk(server: Server, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def spent(locked: Server) -> str:
    """A key of a tenant that has used up its requests."""
    locked.redis.set(keys.requests("spent"), 1000 * (time.time() + 3600), px=3_600_000)  # when the bucket is full again
    return new_key(locked, "spent")


@pytest.mark.parametrize("ask", ASKS)
def test_requests_without_a_valid_key(locked: Server, ask: str) -> None:
    for wrong in ("none", "evl_0123456789abcdef_x", new_key(locked, "ann")[:-1] + "!"):
        with sdk(locked, wrong) as client, pytest.raises(openai.AuthenticationError) as error:
            ASKS[ask](client)
        assert of(error) == ("invalid_api_key", None)


@pytest.mark.parametrize("ask", WRITES)
def test_with_a_key_that_may_read(locked: Server, ask: str) -> None:
    with sdk(locked, new_key(locked, ask.replace(" ", "-"), "read")) as client:
        assert client.models.list().data
        with pytest.raises(openai.PermissionDeniedError) as error:
            ASKS[ask](client)
    assert "'write'" in error.value.message


@pytest.mark.parametrize("ask", ASKS)
def test_beyond_the_limit(locked: Server, spent: str, ask: str) -> None:
    with sdk(locked, spent) as client, pytest.raises(openai.RateLimitError) as error:
        ASKS[ask](client)
    assert of(error) == ("requests_limit", None)
    assert int(error.value.response.headers["retry-after"]) >= 1


def test_the_sdk_for_node(locked: Server, spent: str, node: str) -> None:  # noqa: F811
    environment = {
        **os.environ, "OPENAI_BASE_URL": f"{locked.url}/v1", "KEY": new_key(locked, "node"),
        "READ": new_key(locked, "reader", "read"), "COUNTED": spent,
    }  # fmt: skip
    done = subprocess.run(
        [node, "--test", "refused.mjs"],
        capture_output=True,
        text=True,
        cwd=FOLDER,
        timeout=120,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# pass 0" not in done.stdout
