"""`DocumentServer`: an MCP server whose tools and resources are the documents and sessions of an everlong server."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer, ServerRequestContext
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, ListResourcesResult, PaginatedRequestParams, Resource, ToolAnnotations
from pydantic import Field

from everlong_client.async_client import AsyncEverlong
from everlong_client.errors import EverlongError, NotFoundError
from everlong_client.mcp import results
from everlong_client.transport.wire import VERSION
from everlong_client.types.event import TextDelta
from everlong_client.types.search import SearchFilters

MAX_PART = 64 << 10
"""Bytes of a document's text in one result, which is the server's own limit."""
MAX_RESOURCE = 1 << 20
"""Bytes of a document that can be read as one resource."""
_RESOURCES = 100
"""Resources in one page of the list."""
_PROGRESS_SECONDS = 1.0

_URI = "everlong://documents/"
_INSTRUCTIONS = """\
everlong stores long documents and answers questions about them. Use `list_documents` to find a document's id. Use `ask` with \
ids of documents for an answer with its sources, and with the `session` of that answer for further questions. Use `search_documents` for \
passages without an answer, and `read_document` for the text itself, part by part."""

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_ADDS = ToolAnnotations(read_only_hint=False, destructive_hint=False, open_world_hint=False)

DocumentId = Annotated[str, Field(description="id of a document, such as doc_…", min_length=1, max_length=128)]


class DocumentServer(MCPServer[Any]):
    """Serves the documents of the everlong server at `url`.

    `api_key`: for callers that send none. A key in a request's `Authorization` header replaces it. `folders`: the local folders
    whose files callers may upload.
    """

    def __init__(self, url: str, *, api_key: str | None = None, folders: Sequence[Path] = ()) -> None:
        # Standard output belongs to the protocol; logs go to standard error.
        super().__init__("everlong", title="everlong", version=VERSION, instructions=_INSTRUCTIONS, log_level="WARNING")
        self._url = url
        self._api_key = api_key
        self._folders = [folder.resolve() for folder in folders]
        self.add_tool(self.list_documents, title="List documents", annotations=_READS)
        self.add_tool(self.read_document, title="Read a document", annotations=_READS)
        self.add_tool(self.search_documents, title="Search documents", annotations=_READS)
        self.add_tool(self.add_document, title="Add a document", annotations=_ADDS)
        self.add_tool(self.ask, title="Ask about documents", annotations=_ADDS)
        text = self.resource(
            f"{_URI}{{document}}",
            name="document",
            title="Text of a document",
            description=f"The whole text of a document of at most {MAX_RESOURCE:,} bytes",
            mime_type="text/plain",
        )
        text(self._text)
        # `MCPServer` lists a fixed set of resources; the documents change.
        self._lowlevel_server.add_request_handler("resources/list", PaginatedRequestParams, self._list_resources)

    async def list_documents(
        self,
        ctx: Context[Any, Any],
        limit: Annotated[int, Field(ge=1, le=100, description="maximum number of documents")] = 20,
        after: Annotated[str | None, Field(max_length=128, description="`next` of the previous page")] = None,
    ) -> results.DocumentPage:
        """List the stored documents, newest first, with their ids and how far each was read."""
        async with self._client(ctx) as client:
            # One more than requested tells whether there is a next page.
            found = await client.documents.list(limit=limit + 1, after=after)
        page = found[:limit]
        following = page[-1].id if len(found) > limit else None
        return results.DocumentPage(documents=[results.listed(document) for document in page], next=following)

    async def read_document(
        self,
        ctx: Context[Any, Any],
        document: DocumentId,
        start_byte: Annotated[int, Field(ge=0, description="where the part begins, in bytes of UTF-8")] = 0,
        max_bytes: Annotated[int, Field(ge=4, le=MAX_PART, description="maximum length of the part")] = 16 << 10,
    ) -> results.TextPart:
        """Read a part of a document's text, word for word. Files such as PDF were converted to text."""
        async with self._client(ctx) as client:
            return results.text_part(await client.documents.text(document, start_byte, start_byte + max_bytes))

    async def search_documents(
        self,
        ctx: Context[Any, Any],
        query: Annotated[
            str, Field(min_length=1, description="a question, or words, in the language of the documents")
        ],
        documents: Annotated[list[DocumentId], Field(min_length=1, description="ids of the documents to search")],
        limit: Annotated[int, Field(ge=1, le=100, description="maximum number of passages")] = 10,
        section: Annotated[str | None, Field(description="search only below headings that contain this")] = None,
        first_page: Annotated[int | None, Field(ge=1, description="search only this page and later ones")] = None,
        last_page: Annotated[int | None, Field(ge=1, description="search only this page and earlier ones")] = None,
    ) -> results.SearchResult:
        """Find the passages of documents that fit a query best, by words and by meaning. Returns their text word for word."""
        filters: SearchFilters = {}
        if section:
            filters["section"] = section
        if first_page:
            filters["first_page"] = first_page
        if last_page:
            filters["last_page"] = last_page
        async with self._client(ctx) as client:
            return results.found(await client.search(query, documents, limit=limit, filters=filters or None))

    async def add_document(
        self,
        ctx: Context[Any, Any],
        text: Annotated[str | None, Field(description="the document's text; or give `path`")] = None,
        path: Annotated[
            str | None, Field(description="a file in one of the folders that the user allowed; or give `text`")
        ] = None,
        filename: Annotated[
            str | None, Field(max_length=255, description="name of the document; default: that of the file")
        ] = None,
    ) -> results.ListedDocument:
        """Store a document: a text, or a local file (text, PDF, Word and others). It can be asked about at once."""
        if (text is None) == (path is None):
            raise ToolError("give either `text` or `path`")
        source = self._allowed(path) if path is not None else str(text).encode(errors="replace")
        async with self._client(ctx) as client:
            try:
                return results.listed(await client.documents.upload(source, filename))
            except OSError as error:
                raise ToolError(f"path: cannot read {path!r}: {error.strerror or error}") from error

    async def ask(
        self,
        ctx: Context[Any, Any],
        question: Annotated[str, Field(min_length=1, description="the question, in the language of the documents")],
        documents: Annotated[
            list[DocumentId] | None, Field(description="ids of the documents; starts a new conversation")
        ] = None,
        session: Annotated[
            str | None,
            Field(max_length=128, description="`session` of an earlier answer, to continue its conversation"),
        ] = None,
        max_tokens: Annotated[int | None, Field(ge=1, description="maximum length of the answer")] = None,
    ) -> results.Answer:
        """Ask a question about documents. Returns the answer of a small language model and the passages it was shown: trust
        the passages more than the answer."""
        if bool(documents) == bool(session):
            raise ToolError("give either `documents`, to begin a conversation, or `session`, to continue one")
        async with self._client(ctx) as client:
            asked = session or (await client.sessions.create(documents or ())).id
            reported, tokens = time.monotonic(), 0
            async with client.sessions.stream(asked, question, max_tokens=max_tokens) as events:
                async for event in events:
                    tokens += isinstance(event, TextDelta)
                    # Clients extend their time limit for a call that makes progress.
                    if time.monotonic() - reported > _PROGRESS_SECONDS:
                        reported = time.monotonic()
                        await ctx.report_progress(tokens, message="answering")
                return results.answer(events.message, asked)

    async def _list_resources(
        self, ctx: ServerRequestContext[Any, Any], params: PaginatedRequestParams
    ) -> ListResourcesResult:
        """Return a page of the documents as resources."""
        try:
            async with AsyncEverlong(self._url, api_key=self._key(ctx)) as client:
                found = await client.documents.list(limit=_RESOURCES + 1, after=params.cursor)
        except (EverlongError, ToolError, ValueError) as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from error
        page = found[:_RESOURCES]
        resources = [
            Resource(uri=f"{_URI}{document.id}", name=document.filename or document.id, mime_type="text/plain",
                     size=document.bytes)
            for document in page
        ]  # fmt: skip
        return ListResourcesResult(resources=resources, next_cursor=page[-1].id if len(found) > _RESOURCES else None)

    async def _text(self, document: str, ctx: Context[Any, Any]) -> str:
        """The whole text of a document."""
        parts, start = [], 0
        try:
            async with AsyncEverlong(self._url, api_key=self._key(ctx)) as client:
                while True:
                    part = await client.documents.text(document, start, start + MAX_PART)
                    if part.bytes > MAX_RESOURCE:
                        raise ResourceError(
                            f"{document} has {part.bytes} bytes, the limit of a resource is {MAX_RESOURCE}: "
                            "call the tool read_document for a part of it"
                        )
                    parts.append(part.text)
                    start = part.end_byte
                    if start >= part.bytes:
                        return "".join(parts)
        except NotFoundError as error:
            raise ResourceNotFoundError(str(error)) from error
        except (EverlongError, ToolError, ValueError) as error:
            raise ResourceError(str(error)) from error

    @asynccontextmanager
    async def _client(self, ctx: Context[Any, Any]) -> AsyncIterator[AsyncEverlong]:
        """Yield a client with the caller's key. Its errors become those of the tool, which the caller's model sees."""
        try:
            async with AsyncEverlong(self._url, api_key=self._key(ctx)) as client:
                yield client
        except (EverlongError, ValueError) as error:
            raise ToolError(str(error)) from error

    def _key(self, ctx: Context[Any, Any] | ServerRequestContext[Any, Any]) -> str | None:
        """Return the key in the request's headers, or else that of the process. Raises `ToolError` for another scheme."""
        headers = ctx.headers if isinstance(ctx, Context) else getattr(ctx.request, "headers", None)
        given = (headers or {}).get("authorization")
        if given is None:
            return self._api_key
        scheme, _, key = given.strip().partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise ToolError("send the API key as `Authorization: Bearer evl_…`")
        return key.strip()

    def _allowed(self, path: str) -> Path:
        """Return the file. Raises `ToolError` if it is outside the allowed folders, also through a link, or if it is a pipe or a device."""
        try:
            file = Path(path).expanduser().resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a user without a home, a NUL character
            raise ToolError(f"path: cannot read {path!r}: {error}") from error
        if not any(file.is_relative_to(folder) for folder in self._folders):
            allowed = ", ".join(map(str, self._folders)) or "none"
            raise ToolError(
                f"path: {path!r} is in no folder that the user allowed ({allowed}); "
                "the user can allow one with `everlong mcp --folder`"
            )
        # Opening a pipe blocks until it has a writer.
        if os.path.exists(file) and not (file.is_file() or file.is_dir()):
            raise ToolError(f"path: cannot read {path!r}: it is a pipe or a device, not a file")
        return file
