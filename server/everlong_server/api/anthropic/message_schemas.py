"""The objects of Anthropic's Messages API that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from everlong_models.generate.sampling import MAX_STOP_STRINGS, StopString
from everlong_server.api.schemas import Nullable, Recall, Wire
from everlong_server.api.translation.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    CallId,
    ToolName,
    TopK,
    TopP,
    by_type,
    content_kind,
)

MAX_TITLE = 255


class CacheControl(Nullable, Wire):
    """Accepted without effect: the server always caches what it has read."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class _Block(Nullable, Wire):
    cache_control: CacheControl | None = Field(None, description="no effect: the server keeps what it has read")


class TextBlock(_Block):
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


class SearchResultBlock(_Block):
    """A result of the client's own search. The model reads its title, source and text as a part of the message."""

    type: Literal["search_result"]
    source: str = Field(description="a URL, or another name of where the text comes from")
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


class DocumentBlock(_Block):
    """A document that the message is about."""

    type: Literal["document"]
    source: Source
    title: str | None = Field(None, max_length=MAX_TITLE, description="name of the document, which citations repeat")
    context: str | None = Field(None, description="text about the document, put before the message and never cited")
    citations: CitationsConfig = Field(default_factory=CitationsConfig)


class ToolUseBlock(_Block):
    """A call in an earlier answer."""

    type: Literal["tool_use"]
    id: CallId
    name: ToolName
    input: dict[str, Any]


class ToolResultBlock(_Block):
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


class ConversationMessage(Nullable, Wire):
    """A message of the conversation."""

    role: Literal["user", "assistant", "system"] = Field(
        description="system: instructions, for the question that follows or, without one, the question before"
    )
    content: Content


class AnthropicMetadata(Nullable, Wire):
    """Facts about the request."""

    user_id: str | None = Field(None, max_length=512, description="ignored")


class ThinkingConfig(Nullable, Wire):
    """No effect: the models do not think before they answer, so answers have no thinking blocks."""

    type: Literal["disabled", "enabled", "adaptive", "between_tools"]
    budget_tokens: int | None = Field(None, ge=1, description="ignored")
    display: Literal["summarized", "omitted"] | None = Field(None, description="ignored")


class JsonOutputFormat(Nullable, Wire):
    """A JSON Schema that the answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Nullable, Wire):
    """The form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="ignored: the models do not think before they answer"
    )
    format: JsonOutputFormat | None = None


class AnthropicTool(_Block):
    """A tool that the client runs."""

    type: Literal["custom"] = Field("custom", description="tools that Anthropic runs do not exist here")
    name: ToolName
    description: str | None = Field(None, max_length=10_000)
    input_schema: dict[str, Any] = Field(description="JSON Schema that the input of a call always follows")
    strict: bool = Field(False, description="true: a schema that cannot be enforced is refused")
    eager_input_streaming: bool | None = Field(None, description="ignored: the input streams as it is generated")
    defer_loading: Literal[False] = Field(False, description="the model is shown every tool")
    allowed_callers: list[Literal["direct"]] = Field(["direct"], min_length=1, max_length=1)


class AnthropicToolChoice(Nullable, Wire):
    """Whether the answer calls tools. any: at least one; tool: the one called `name`."""

    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _check_name(self) -> AnthropicToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise ValueError("name must be given with the type 'tool', and with no other")
        return self


class _Conversation(Nullable, Wire):
    """The fields of a request that determine the model's input."""

    model: str = Field(max_length=256)
    messages: list[ConversationMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    system: TextBlocks | None = None
    cache_control: CacheControl | None = Field(None, description="no effect: the server keeps what it has read")
    thinking: ThinkingConfig | None = None
    tools: list[AnthropicTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: AnthropicToolChoice = Field(default_factory=lambda: AnthropicToolChoice(type="auto"))
    output_config: OutputConfig | None = None
    thread: Any = Field(None, description="refused: the client sends the whole conversation each time")
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class CountMessageTokens(_Conversation):
    """A conversation whose tokens are counted."""


class CreateAnthropicMessage(_Conversation):
    """A conversation whose last message is answered."""

    max_tokens: int = Field(ge=1, le=MAX_TOKENS)
    stop_sequences: list[StopString] = Field(default_factory=list, max_length=MAX_STOP_STRINGS)
    stream: bool = False
    temperature: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: TopK | None = None
    top_p: TopP | None = Field(None, description="0: always the likeliest token")
    metadata: AnthropicMetadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = Field(None, description="ignored")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the sampling; not a field of Anthropic's API")


class CharLocation(Wire):
    """A cited part of a text, in characters."""

    type: Literal["char_location"] = "char_location"
    cited_text: str
    document_index: int
    document_title: str | None
    file_id: str | None
    start_char_index: int
    end_char_index: int


class PageLocation(Wire):
    """The cited pages of a PDF. Pages count from 1."""

    type: Literal["page_location"] = "page_location"
    cited_text: str
    document_index: int
    document_title: str | None
    file_id: str | None
    start_page_number: int
    end_page_number: int = Field(description="the page after the last one")


class BlockLocation(Wire):
    """The cited blocks of a document in blocks. Blocks count from 0."""

    type: Literal["content_block_location"] = "content_block_location"
    cited_text: str
    document_index: int
    document_title: str | None
    file_id: str | None
    start_block_index: int
    end_block_index: int = Field(description="the block after the last one")


Location = CharLocation | PageLocation | BlockLocation


class AnswerText(Wire):
    """A part of an answer, and what it cites."""

    type: Literal["text"] = "text"
    text: str
    citations: list[Location] | None = Field(None, description="left out if there are none")


class CalledTool(Wire):
    """A call of a tool."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class AnthropicUsage(Wire):
    """Token counts. The whole input, including documents, has `input_tokens` + `cache_read_input_tokens` tokens."""

    input_tokens: int = Field(description="tokens that were read for this answer")
    cache_creation_input_tokens: Literal[0] = 0
    cache_read_input_tokens: int = Field(description="tokens that had been read before")
    output_tokens: int


class AnthropicMessage(Wire):
    """An answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[AnswerText | CalledTool]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: AnthropicUsage


class TokenCount(Wire):
    """The number of tokens of a request."""

    input_tokens: int


class AnthropicErrorDetails(Wire):
    """The reason, as Anthropic's SDKs know it."""

    error_code: str


class AnthropicError(Wire):
    """What went wrong. `code` and `param` are those of the server's own API."""

    type: str
    message: str
    code: str
    param: str | None
    details: AnthropicErrorDetails | None = Field(None, description="only of a request with `thread`")


class AnthropicErrorBody(Wire):
    """An error, in Anthropic's form."""

    type: Literal["error"] = "error"
    error: AnthropicError
    request_id: str
