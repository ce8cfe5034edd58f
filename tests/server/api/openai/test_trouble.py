"""A server that is overloaded, shutting down or without Redis, as exceptions of OpenAI's SDK."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import openai
import pytest

from tests.process import wait_for
from tests.server.api.openai.talk import chat, of, respond, sdk, user


def test_overload_is_a_rate_limit(new_server: Any) -> None:
    server = new_server(max_streams=1, max_queued=1).start()
    with sdk(server) as client:
        for stream in (True, False):
            with pytest.raises(openai.RateLimitError) as error:
                chat(client, user("Talk."), n=3, stream=stream)
            assert of(error) == ("overloaded", None)
            assert int(error.value.response.headers["retry-after"]) >= 1
            assert chat(client, user("Talk."), n=2).usage.completion_tokens == 24, "the refused ones left their places"
        with respond(client, "Talk.", max_output_tokens=1_000_000, stream=True), pytest.raises(openai.RateLimitError):
            chat(client, user("Talk."), n=2)
    server.check_keys()


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
