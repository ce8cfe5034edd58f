"""`parse_json`: the only parser of JSON that clients send. `JsonRoute` applies it to request bodies, `JsonSocket` to frames."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json


def parse_json(data: bytes | str) -> Any:
    """Parse JSON strictly. Raises `JSONDecodeError` for anything that could not be stored or sent again.

    These are NaN, infinities, bytes that are not UTF-8, more than 200 levels of nesting, and lone surrogates (`"\\ud800"`) in
    any string or key, which RFC 7493 forbids and UTF-8 cannot encode.
    """
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        reason = str(error)
        if "hex escape" in reason:
            reason = f"a \\u escape is not a character, but for example one half of a surrogate pair: {reason}"
        raise json.JSONDecodeError(reason, "", 0) from None


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Parse the body. Raises `JSONDecodeError`, which FastAPI turns into a validation error."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class JsonRoute(APIRoute):
    """A route whose body is parsed by `parse_json`. Every router with a JSON body has this `route_class`.

    The body is JSON whatever its `Content-Type` says: `curl -d`, as in the examples of Ollama's documentation, says that it is a form.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of requests."""
        handle, has_json = super().get_route_handler(), self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            scope = request.scope
            if has_json:
                headers = [header for header in scope["headers"] if header[0] != b"content-type"]
                scope = {**scope, "headers": [*headers, (b"content-type", b"application/json")]}
            return await handle(_JsonRequest(scope, request.receive))

        return handle_strictly
