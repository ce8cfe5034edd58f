"""The web page at `/`, which clients/web builds into `everlong_server/web`."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FOLDER = Path(__file__).parents[1] / "web"

HEADERS = {
    # No third-party content, nothing inline, and no strings as markup: the text of documents and models stays text.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> Response:
    """The page. It loads everything else."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


class Assets:
    """ASGI application that serves scripts and style sheets with the page's headers."""

    def __init__(self) -> None:
        self._files = StaticFiles(directory=FOLDER / "assets")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `GET /assets/…`. Raises 404 and 405 as HTTP exceptions of the application."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
            await send(message)

        await self._files(scope, receive, with_headers)
