"""The blocks of messages in Anthropic's API that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from everlong_server.api.schemas import Nullable, Wire
from everlong_server.api.translation.fields import MAX_MESSAGES, CallId, ToolName, by_type, content_kind

MAX_TITLE = 255


class CacheControl(Nullable, Wire):
    """Accepted without effect: the server always caches what it has read."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CachedBlock(Nullable, Wire):
    cache_control: CacheControl | None = Field(None, description="no effect: the server caches prompts by itself")


class TextBlock(CachedBlock):
    """A text block of a message. Blocks of answers can be sent back unchanged."""

    type: Literal["text"]
    text: str
    citations: Any = Field(None, description="ignored")


TextBlocks = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES), Tag("Blocks")],
    Discriminator(
        lambda value: {str: "Text", list: "Blocks"}.get(type(value)),
        custom_error_type="content",
        custom_error_message="expected a string or a list of blocks of the type 'text'",
    ),
]


class CitationsConfig(Nullable, Wire):
    """Whether the answer cites the document."""

    enabled: bool = False


class SearchResultBlock(CachedBlock):
    """A result of the client's own search. The model reads its title, source and text as a part of the message."""

    type: Literal["search_result"]
    source: str = Field(description="where the text comes from: a URL or a name")
    title: str
    content: list[TextBlock] = Field(max_length=MAX_MESSAGES)
    citations: CitationsConfig | None = Field(None, description="ignored: answers cite documents only")


ResultBlocks = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[
        list[
            Annotated[
                Annotated[TextBlock, Tag("TextBlock")] | Annotated[SearchResultBlock, Tag("SearchResultBlock")],
                Discriminator(
                    by_type({"text": "TextBlock", "search_result": "SearchResultBlock"}),
                    custom_error_type="block",
                    custom_error_message="type must be 'text' or 'search_result': images and documents are not supported here",
                ),
            ]
        ],
        Field(max_length=MAX_MESSAGES),
        Tag("Blocks"),
    ],
    Discriminator(
        lambda value: {str: "Text", list: "Blocks"}.get(type(value)),
        custom_error_type="content",
        custom_error_message="expected a string or a list of blocks of the types 'text' and 'search_result'",
    ),
]


class TextSource(Nullable, Wire):
    """A document's text."""

    type: Literal["text"]
    media_type: Literal["text/plain"] = "text/plain"
    data: str = Field(min_length=1)


class Base64Source(Nullable, Wire):
    """A PDF document."""

    type: Literal["base64"]
    media_type: Literal["application/pdf"]
    data: str = Field(min_length=1, description="the file, in base64")


class ContentSource(Nullable, Wire):
    """A document in blocks, which citations refer to by their index."""

    type: Literal["content"]
    content: str | Annotated[list[TextBlock], Field(min_length=1, max_length=MAX_MESSAGES)]


class FileSource(Nullable, Wire):
    """A document that was uploaded to `/v1/documents` or `/v1/files`."""

    type: Literal["file"]
    file_id: str = Field(min_length=1, max_length=128)


Source = Annotated[
    Annotated[TextSource, Tag("TextSource")]
    | Annotated[Base64Source, Tag("Base64Source")]
    | Annotated[ContentSource, Tag("ContentSource")]
    | Annotated[FileSource, Tag("FileSource")],
    Discriminator(
        by_type({"text": "TextSource", "base64": "Base64Source", "content": "ContentSource", "file": "FileSource"}),
        custom_error_type="source",
        custom_error_message="type must be 'text', 'base64', 'content' or 'file'; upload files from a URL with "
        "POST /v1/documents/fetch",
    ),
]


class DocumentBlock(CachedBlock):
    """A document that the message is about."""

    type: Literal["document"]
    source: Source
    title: str | None = Field(None, max_length=MAX_TITLE, description="name of the document, which citations repeat")
    context: str | None = Field(None, description="text about the document, put before the message and never cited")
    citations: CitationsConfig = Field(default_factory=CitationsConfig)


class ToolUseBlock(CachedBlock):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(CachedBlock):
    """The result of a call, in the message after it."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: ResultBlocks = ""
    is_error: bool = Field(False, description="true: the model is told that the call failed")


class ThinkingBlock(Nullable, Wire):
    """What another model thought before its answer. Ignored."""

    type: Literal["thinking", "redacted_thinking"]
    thinking: str | None = Field(None, description="ignored")
    signature: str | None = Field(None, description="ignored")
    data: str | None = Field(None, description="ignored")


class ImageBlock(Wire):
    """Refused: the models read text."""

    type: Literal["image"]

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: object) -> object:
        raise ValueError("images are not supported: the models of this server read text")


_BLOCKS = {
    "text": "TextBlock", "document": "DocumentBlock", "image": "ImageBlock", "tool_use": "ToolUseBlock",
    "tool_result": "ToolResultBlock", "search_result": "SearchResultBlock", "thinking": "ThinkingBlock", "redacted_thinking": "ThinkingBlock",
}  # fmt: skip
Block = Annotated[
    Annotated[TextBlock, Tag("TextBlock")]
    | Annotated[DocumentBlock, Tag("DocumentBlock")]
    | Annotated[ToolUseBlock, Tag("ToolUseBlock")]
    | Annotated[ToolResultBlock, Tag("ToolResultBlock")]
    | Annotated[SearchResultBlock, Tag("SearchResultBlock")]
    | Annotated[ThinkingBlock, Tag("ThinkingBlock")]
    | Annotated[ImageBlock, Tag("ImageBlock")],
    Discriminator(
        by_type(_BLOCKS),
        custom_error_type="block",
        custom_error_message="type must be 'text', 'document', 'search_result', 'tool_use', 'tool_result', 'thinking' or "
        "'redacted_thinking'",
    ),
]
Content = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[Block], Field(min_length=1, max_length=MAX_MESSAGES), Tag("Blocks")],
    Discriminator(
        lambda value: "Blocks" if (kind := content_kind(value)) == "Parts" else kind,
        custom_error_type="content",
        custom_error_message="content must be a string or a list of blocks",
    ),
]
