"""The objects of Anthropic's Messages API that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from everlong_models.generate.sampling import MAX_STOP_STRINGS, StopString
from everlong_server.api.anthropic.block_schemas import CacheControl, CachedBlock, Content, TextBlocks
from everlong_server.api.schemas import Nullable, Recall, Wire
from everlong_server.api.translation.fields import (
    MAX_MESSAGES,
    MAX_TOKENS,
    MAX_TOOLS,
    ToolName,
    TopK,
    TopP,
)


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


class AnthropicTool(CachedBlock):
    """A tool that the client runs."""

    type: Literal["custom"] = Field("custom", description="tools that Anthropic runs do not exist here")
    name: ToolName
    description: str | None = Field(None, max_length=100_000)
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
    cache_control: CacheControl | None = Field(None, description="no effect: the server caches prompts by itself")
    thinking: ThinkingConfig | None = None
    tools: list[AnthropicTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: AnthropicToolChoice = Field(default_factory=lambda: AnthropicToolChoice(type="auto"))
    output_config: OutputConfig | None = None
    context_management: Any = Field(None, description="ignored: the server always reads the whole conversation")
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
