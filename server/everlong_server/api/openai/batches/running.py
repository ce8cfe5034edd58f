"""`running_batches`: answers batches while the server runs. Each of their requests goes through the application like one over HTTP."""

from __future__ import annotations

import contextlib
import json
from contextlib import AbstractAsyncContextManager

import httpx
from starlette.types import ASGIApp, Receive, Scope, Send

from everlong_server.api.access import INTERNAL_CALLER
from everlong_server.api.streams.json_line import escape_line_ends
from everlong_server.engine.batches.run import Ask, Reply, Request
from everlong_server.services import Shared
from everlong_server.services.background import batch_worker, running
from everlong_server.store.tenants.credentials import SCOPES, Caller


def running_batches(app: ASGIApp, shared: Shared) -> AbstractAsyncContextManager[None]:
    """Answer batches for the duration of the context."""
    return running([batch_worker(shared, asks(app)).run])


def asks(app: ASGIApp) -> Ask:
    """Return a function that sends a request to the application. It needs no API key and counts as no HTTP request of its tenant."""

    async def ask(request: Request) -> Reply:
        async def call(scope: Scope, receive: Receive, send: Send) -> None:
            scope[INTERNAL_CALLER] = Caller(request.tenant, frozenset(SCOPES))
            await app(scope, receive, send)

        headers = {"content-type": "application/json"} | (
            {} if request.key is None else {"idempotency-key": request.key}
        )
        sent = httpx.Request("POST", f"http://everlong{request.endpoint}", content=request.body, headers=headers)
        # Without a client, which would load certificates for every request.
        response = await httpx.ASGITransport(call, raise_app_exceptions=False).handle_async_request(sent)
        await response.aread()
        retry_after: float | None = None
        with contextlib.suppress(KeyError, ValueError):
            retry_after = float(response.headers["retry-after"])
        text = escape_line_ends(response.text)  # a result is one line of a file
        body = text if "\n" not in text and text.startswith("{") else json.dumps({"error": {"message": text[:1000]}})
        return Reply(response.status_code, response.headers["x-request-id"], body, retry_after)

    return ask
