"""A server that is full, ending or without its store, as the SDK's own exceptions."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import openai
import pytest

from tests.process import wait_for
from tests.server.openai_api.talk import chat, of, sdk, user


@pytest.mark.parametrize("stream", [True, False])
def test_overload_is_a_rate_limit(new_server: Any, stream: bool) -> None:
    server = new_server(max_streams=1, max_queued=1).start()
    with sdk(server) as client:
        with pytest.raises(openai.RateLimitError) as error:
            chat(client, user("Talk."), n=3, stream=stream)
        assert of(error) == ("overloaded", None)
        assert int(error.value.response.headers["retry-after"]) >= 1
        assert chat(client, user("Talk."), n=2).usage.completion_tokens == 24, "the refused ones left their places"
    server.check_keys()


def test_a_draining_server_ends_a_stream_with_an_error(new_server: Any) -> None:
    server = new_server(drain_seconds=0.2).start()
    with sdk(server) as client:
        chunks = iter(chat(client, user("Talk."), max_tokens=1_000_000, stream=True))
        next(chunk for chunk in chunks if chunk.choices[0].delta.content)
        server.process.terminate()
        with pytest.raises(openai.APIError) as error:
            list(chunks)
        assert error.value.code == "draining"
        server.process.wait(60)
        server.process = None


def test_a_server_without_its_store_is_an_internal_server_error(new_server: Any) -> None:
    server = new_server(redis_url="redis://127.0.0.1:1")
    server.launch()

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return server.http.get("/livez").status_code == 200
        return False

    wait_for(answers, 120, "for the server to listen")
    with sdk(server) as client:
        for ask in (client.models.list, client.files.list, lambda: chat(client, user("Hi."))):
            with pytest.raises(openai.InternalServerError) as error:
                ask()
            assert of(error) == ("loading", None)
            assert int(error.value.response.headers["retry-after"]) >= 1
