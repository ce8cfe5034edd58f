"""The web page at `/`, and Swagger UI at `/docs`. clients/web builds both into `everlong_server/web`. Nothing comes from elsewhere."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

FOLDER = Path(__file__).parents[1] / "web"

_SELF_ONLY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    # No third-party content, nothing inline, and no strings as markup: the text of documents and models stays text.
    "Content-Security-Policy": (
        f"{_SELF_ONLY}; img-src 'self' blob:; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}

# Swagger UI has icons as data: URLs, and sets descriptions (from our own source) as markup.
_DOCS_HEADERS = HEADERS | {"Content-Security-Policy": f"{_SELF_ONLY}; img-src 'self' data:"}

router = APIRouter(include_in_schema=False)


@router.api_route("/", methods=["GET", "HEAD"])
async def page() -> Response:
    """The page. It loads everything else. The program `ollama` sends HEAD to see whether a server is there."""
    return FileResponse(FOLDER / "index.html", headers=HEADERS)


@router.get("/docs")
async def docs() -> Response:
    """The API's description. Swagger UI's own files come from the Python package fastapi-swagger."""
    return FileResponse(FOLDER / "docs.html", headers=_DOCS_HEADERS)


class Assets:
    """ASGI application that serves scripts and style sheets with the page's headers."""

    def __init__(self) -> None:
        self._files = StaticFiles(directory=FOLDER / "assets", packages=[("fastapi_swagger", "resources")])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer `GET /assets/…`. Raises 404 and 405 as HTTP exceptions of the application."""
        if scope["type"] == "websocket":
            await scope["app"].router.default(scope, receive, send)  # an unknown path
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
            await send(message)

        await self._files(scope, receive, with_headers)
