"""Helpers of the tests of OpenAI's API."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.process import Server, wait_for
from tests.tinymodel import STORY

MODEL = "tiny-rmt"
SEGMENT = 128
"""Tokens; large enough for passages and a question."""
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
TEXT = STORY.read_text()[:8_000]


def sdk(server: Server) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=120)


def of(error: pytest.ExceptionInfo[openai.APIStatusError]) -> tuple[str | None, str | None]:
    """Return the code and the field of an error."""
    return error.value.code, error.value.param


def user(text: str, *files: str) -> dict[str, Any]:
    if not files:
        return {"role": "user", "content": text}
    parts = [{"type": "file", "file": {"file_id": file}} for file in files]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def chat(client: OpenAI, *messages: Any, **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=list(messages), **{**GREEDY, **more})


def respond(client: OpenAI | AsyncOpenAI, input: Any, **more: Any) -> Any:
    how: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12, "extra_body": {"ignore_eos": True}}
    return client.responses.create(**{"model": MODEL, **how, **more}, input=input)


def over(client: OpenAI, response_id: str) -> Any:
    """Return the response once it has ended."""
    open = ("queued", "in_progress")
    return wait_for(
        lambda: (r := client.responses.retrieve(response_id)).status not in open and r, 120, f"for {response_id}"
    )


def begin_upload(client: OpenAI, size: int, **more: Any) -> Any:
    fields = {"bytes": size, "filename": "alice.txt", "mime_type": "text/plain", "purpose": "user_data", **more}
    return client.uploads.create(**fields)
