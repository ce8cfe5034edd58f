"""Sends a response about stored data only after confirming that it was read from the current master of Redis (see `Confirmation`)."""

from __future__ import annotations

from redis.exceptions import RedisError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from everlong_server.api.access import scope_of
from everlong_server.api.errors import error_response


class Confirmed:
    """ASGI middleware that confirms what an HTTP response is based on before it sends the response's head.

    It answers 503 instead if Redis has failed over, or may have. Writes are confirmed by themselves; their responses are
    confirmed, too, because an error such as 404, or the stored answer to a repeated request, comes from a read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope_of(scope["method"], scope["path"]) is None:
            await self._app(scope, receive, send)
            return
        refused = False

        async def confirmed(message: Message) -> None:
            nonlocal refused
            shared = scope["app"].state.shared
            if message["type"] == "http.response.start" and message["status"] < 500 and shared is not None:
                try:
                    await shared.confirmation.confirm()
                except RedisError as error:
                    refused = True
                    response, known = error_response(error, scope)
                    shared.metrics.rejections.labels(known.code).inc()
                    await response(scope, receive, send)
            if not refused:
                await send(message)

        await self._app(scope, receive, confirmed)
