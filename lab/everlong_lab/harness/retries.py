"""Requests that are sent again, with the same Idempotency-Key, until the answer is final."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from typing import Any

import httpx

PASSING = ("session_busy", "idempotency_in_progress", "document_not_ready", "conflict")
"""Codes of status 409 for which a retry succeeds."""
AGAIN_SECONDS = 0.1


def may_retry(answer: httpx.Response) -> bool:
    """Whether a retry of the request may succeed."""
    return answer.status_code in (429, 503) or (answer.status_code == 409 and code_of(answer) in PASSING)


def code_of(answer: httpx.Response) -> str:
    """Return the code of an error; "" if it has none."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(answer.json()["error"]["code"])
    return ""


async def send_until_final(
    http: httpx.AsyncClient, method: str, url: Callable[[], str], on_retry: Callable[[], None], **request: Any
) -> tuple[httpx.Response, int]:
    """Return the final answer and the number of tries. `url`: chooses where the next try is sent. Never gives up."""
    headers, tries = {"Idempotency-Key": uuid.uuid4().hex, **request.pop("headers", {})}, 0
    while True:
        tries += 1
        with contextlib.suppress(httpx.TransportError):
            answer = await http.request(method, url(), headers=headers, **request)
            if not may_retry(answer):
                return answer, tries
        on_retry()
        await asyncio.sleep(AGAIN_SECONDS)
