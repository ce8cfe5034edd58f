"""`parse_conversation`: stores the documents of a request, and separates them from its text."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from everlong_models import Tool, ToolCall
from everlong_server.api.anthropic.block_schemas import (
    Base64Source,
    ContentSource,
    DocumentBlock,
    FileSource,
    SearchResultBlock,
    TextBlock,
    TextSource,
    ToolResultBlock,
    ToolUseBlock,
)
from everlong_server.api.anthropic.message_schemas import (
    BlockLocation,
    CharLocation,
    CountMessageTokens,
    CreateAnthropicMessage,
    Location,
    PageLocation,
)
from everlong_server.api.translation.files import decode_base64, name_field, require_file
from everlong_server.api.translation.messages import ParsedMessages
from everlong_server.api.translation.tools import tool_use
from everlong_server.engine.answering.tools import ToolChoice, ToolUse
from everlong_server.engine.documents.inline import InlineFile, add_inline
from everlong_server.engine.documents.text_checker import clean_filename
from everlong_server.errors import InvalidRequest, ServerError
from everlong_server.services import Services
from everlong_server.store.messages import Citation
from everlong_server.store.records import Document, Message
from everlong_server.store.search.passages import Passages
from everlong_server.store.texts.passage import Passage

_BETWEEN_BLOCKS = "\n\n"
_ERROR = "Error: "
"""Prefix of the result of a call that failed."""


@dataclass(frozen=True, slots=True)
class SentDocument:
    """A document block of a request. `blocks`: where the blocks of its text begin, in characters, if it came in blocks."""

    document: Document
    title: str | None
    file_id: str | None
    blocks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Conversation:
    """A parsed request: ids of its documents, messages, and the document blocks in their order. `cites`: whether answers cite them."""

    passages: Passages
    documents: list[str]
    messages: list[Message]
    sent: list[SentDocument]
    cites: bool

    async def location(self, citation: Citation, passage: Passage) -> Location | None:
        """Return a citation in Anthropic's form; None if its document is in no block of the request."""
        index = next((n for n, sent in enumerate(self.sent) if sent.document.id == citation.document), None)
        if index is None:
            return None
        sent = self.sent[index]
        start, end = citation.document_start, citation.document_end
        common: dict[str, Any] = {
            "cited_text": passage.text[max(0, start - passage.start) : end - passage.start],
            "document_index": index, "document_title": sent.title, "file_id": sent.file_id,
        }  # fmt: skip
        if sent.blocks:
            first, last = bisect_right(sent.blocks, start) - 1, bisect_left(sent.blocks, end)
            return BlockLocation(**common, start_block_index=max(0, first), end_block_index=last)
        if sent.document.format == "pdf":
            ends = [replace(passage, start=at, page=None) for at in (start, end - 1)]
            first_page, last_page = (each.page for each in await self.passages.located(ends))
            if first_page is not None and last_page is not None:
                return PageLocation(**common, start_page_number=first_page, end_page_number=last_page + 1)
        return CharLocation(**common, start_char_index=start, end_char_index=end)


async def parse_conversation(services: Services, body: CreateAnthropicMessage | CountMessageTokens) -> Conversation:
    """Return the conversation of a request, with its documents stored. Raises `ServerError`, naming the field."""
    parsed, sent = ParsedMessages(services), list[SentDocument]()
    cites = set[bool]()
    if system := _text(body.system):
        parsed.add_message("system", system, "system")
    for number, message in enumerate(body.messages):
        name, texts, calls, results = f"messages.{number}", list[str](), list[ToolCall](), 0
        for place, block in enumerate([] if isinstance(message.content, str) else message.content):
            if isinstance(block, DocumentBlock):
                path = f"{name}.content.{place}"
                parsed.require_user(message.role, path)
                document = await _sent_document(services, block, path)
                parsed.add_file(document.document.id, path)
                sent.append(document)
                cites.add(block.citations.enabled)
                texts += [block.context, _BETWEEN_BLOCKS] if block.context else []
            elif isinstance(block, TextBlock):
                texts.append(block.text)
            elif isinstance(block, SearchResultBlock):
                _require_role(message.role, "user", f"{name}.content.{place}")
                _add_search_result(texts, block)
            elif isinstance(block, ToolUseBlock):
                _require_role(message.role, "assistant", f"{name}.content.{place}")
                calls.append(ToolCall(block.id, block.name, json.dumps(block.input, ensure_ascii=False)))
            elif isinstance(block, ToolResultBlock):
                _require_role(message.role, "user", f"{name}.content.{place}")
                result = f"{_ERROR if block.is_error else ''}{_text(block.content)}"
                parsed.add_result(block.tool_use_id, result, f"{name}.content.{place}", "tool_use_id")
                results += 1
        text = message.content if isinstance(message.content, str) else _joined(texts)
        if text or not (calls or results):
            parsed.add_message(message.role, text, name)
        if calls:
            parsed.add_calls(calls, f"{name}.content")
    if len(cites) > 1:
        raise InvalidRequest("messages: citations must be enabled for all documents or for none", param="messages")
    documents, messages = await parsed.finish("messages")
    return Conversation(services.passages, documents, messages, sent, cites == {True})


async def parse_tools(
    services: Services, body: CreateAnthropicMessage | CountMessageTokens, conversation: Conversation
) -> ToolUse | None:
    """Return the tools of a request. Raises `InvalidRequest`."""
    tools = [
        (Tool(tool.name, tool.description, tool.input_schema, tool.strict), f"tools.{number}.input_schema")
        for number, tool in enumerate(body.tools)
    ]
    choice = body.tool_choice
    return await tool_use(
        services, tools, _CHOICES[choice.type], choice.name, conversation.messages,
        parallel=not choice.disable_parallel_tool_use,
    )  # fmt: skip


_CHOICES: dict[str, ToolChoice] = {"auto": "auto", "none": "none", "any": "required", "tool": "required"}


def _require_role(role: str, needed: str, name: str) -> None:
    """Raise `InvalidRequest` for a block of a message of another role."""
    if role != needed:
        raise InvalidRequest(f"{name}: a message of the role {role} cannot have this block", param=name)


def _text(content: str | Sequence[TextBlock | SearchResultBlock] | None) -> str:
    if isinstance(content, str):
        return content
    texts = list[str]()
    for block in content or ():
        if isinstance(block, SearchResultBlock):
            _add_search_result(texts, block)
        else:
            texts.append(block.text)
    return _joined(texts)


def _add_search_result(texts: list[str], block: SearchResultBlock) -> None:
    """Add the text of a search result, with empty lines between it and the other texts."""
    if texts and not texts[-1].endswith(_BETWEEN_BLOCKS):
        texts.append(_BETWEEN_BLOCKS)
    head = f"{block.title}\nSource: {block.source}"
    texts += [_BETWEEN_BLOCKS.join([head, *(part.text for part in block.content)]), _BETWEEN_BLOCKS]


def _joined(texts: Sequence[str]) -> str:
    """Return texts as one, without a separator at the end."""
    return "".join(texts[:-1] if texts and texts[-1] == _BETWEEN_BLOCKS else texts)


async def _sent_document(services: Services, block: DocumentBlock, path: str) -> SentDocument:
    """Store the document of a block, unless it is stored already."""
    blocks: tuple[int, ...] = ()
    match block.source:
        case FileSource(file_id=file_id):
            document = await require_file(services, file_id, f"{path}.source.file_id")
            return SentDocument(document, block.title or document.filename, file_id)
        case TextSource(data=text):
            content, media_type = text.encode(), "text/plain"
        case ContentSource(content=parts):
            texts = [parts] if isinstance(parts, str) else [part.text for part in parts]
            starts, at = [], 0
            for text in texts:
                starts.append(at)
                at += len(text) + len(_BETWEEN_BLOCKS)
            blocks, content, media_type = tuple(starts), _BETWEEN_BLOCKS.join(texts).encode(), "text/plain"
        case Base64Source(data=data):
            content, media_type = await decode_base64(data, f"{path}.source.data"), "application/pdf"
    try:
        name = clean_filename(block.title) if block.title else None
        # Citations refer to the text that the client sent: it is not converted, even if it is the source of a page.
        file = InlineFile(content, name, media_type, plain=media_type == "text/plain")
        document = await add_inline(services.ingest, services.idempotency, file)
    except ServerError as error:
        name_field(error, path)
        raise
    return SentDocument(document, block.title, None, blocks)
