"""The objects of OpenAI's chat completions that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag, model_validator

from everlong_server.api.openai.text_formats import FORMATS, JsonObjectFormat, TextFormat, format_kind
from everlong_server.api.openai.tools.schemas import ChatTool, ChatToolCall, ChatToolChoice
from everlong_server.api.schemas import Citation, Evidence, Nullable, Recall, Wire
from everlong_server.api.translation.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    CallId,
    ClientSampling,
    by_type,
    content_kind,
)

MAX_CHOICES = 16
MAX_METADATA = 16
MetadataName = Annotated[str, Field(min_length=1, max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]
Metadata = Annotated[dict[MetadataName, MetadataValue], Field(max_length=MAX_METADATA)]
"""Pairs of texts that a client attaches to an object."""
Model = TypeVar("Model", bound=BaseModel)


ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast"]
CacheRetention = Literal["in_memory", "in-memory", "24h"]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
REASONING_EFFORT = "ignored: the models do not reason before they answer"
_THOUGHTS = "ignored: the model does not see what another model thought"
Verbosity = Literal["low", "medium", "high"]
VERBOSITY = "ignored: ask for a short or a long answer in the message"
SERVICE_TIER = "ignored: the server has one tier"
CACHE_RETENTION = "ignored: the server's settings decide how long it caches prompts"
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63), AfterValidator(lambda seed: seed % 2**63)]
"""A seed of OpenAI's API, where it may be negative."""


class TextPart(Nullable, Wire):
    """A text part of a message."""

    type: Literal["text"]
    text: str
    prompt_cache_breakpoint: Any = Field(None, description="ignored: the server caches prompts by itself")
    cache_control: Any = Field(None, description="ignored: the server caches prompts by itself")


class FileReference(Nullable, Wire):
    """A file: the id of one that was uploaded to `/v1/files`, or its content."""

    file_id: str | None = Field(None, min_length=1, max_length=128)
    file_data: str | None = Field(None, min_length=1, description="the content as base64, or as a data URL with base64")
    filename: str | None = Field(None, max_length=255, description="name of the content")

    @model_validator(mode="after")
    def _one(self) -> Self:
        return require_one(self, "file_id", "file_data")


def _refuse_store(value: object) -> object:
    if value is True:
        raise ValueError(
            "chat completions are not stored: leave the field out, or use /v1/responses, which stores answers"
        )
    return value


def require_one(value: Model, *names: str) -> Model:
    """Return `value` if exactly one of its fields `names` is given. Raises `ValueError`."""
    if sum(getattr(value, name) is not None for name in names) != 1:
        raise ValueError(f"exactly one of {', '.join(names)} is required")
    return value


class FilePart(Nullable, Wire):
    """A file part of a message: a document that the chat is about."""

    type: Literal["file"]
    file: FileReference


Part = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[FilePart, Tag("FilePart")],
    Discriminator(
        by_type({"text": "TextPart", "file": "FilePart"}),
        custom_error_type="part",
        custom_error_message="type must be 'text' or 'file': images and audio are not supported",
    ),
]
Content = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[Part], Field(max_length=MAX_MESSAGES), Tag("Parts")],
    Discriminator(
        content_kind, custom_error_type="content", custom_error_message="content must be a string or a list of parts"
    ),
]


class ChatMessage(Nullable, Wire):
    """A message of a chat. Answers can be sent back unchanged, also as the `parse` of OpenAI's SDKs returns them."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = Field(None, description="null or left out: only in an answer with `tool_calls`")
    name: str | None = Field(None, max_length=256, description="ignored")
    tool_calls: list[ChatToolCall] | None = Field(
        None, max_length=MAX_TOOLS, description="the calls of an answer (role assistant)"
    )
    tool_call_id: CallId | None = Field(None, description="the call whose result this is (role tool)")
    evidence: Any = Field(None, description="ignored")
    citations: Any = Field(None, description="ignored")
    agreement: Any = Field(None, description="ignored")
    annotations: Any = Field(None, description="ignored")
    parsed: Any = Field(None, description="ignored")
    reasoning_content: Any = Field(None, description=_THOUGHTS)
    reasoning: Any = Field(None, description=_THOUGHTS)
    reasoning_details: Any = Field(None, description=_THOUGHTS)
    thinking_blocks: Any = Field(None, description=_THOUGHTS)
    provider_specific_fields: Any = Field(None, description="ignored: LiteLLM puts fields of an answer into it")


class StreamOptions(Nullable, Wire):
    """Options of a stream. Padding that hides the length of tokens is not supported."""

    include_usage: bool = Field(False, description="send the usage in a last chunk without choices")
    include_obfuscation: Literal[False] = False


class JsonSchema(Nullable, Wire):
    """A JSON Schema that the answer follows."""

    name: str = Field(max_length=64, description="ignored")
    description: str | None = Field(None, max_length=10_000, description="ignored: describe the answer in the question")
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema", description="JSON Schema; {} is any JSON")
    strict: bool | None = Field(None, description="ignored: an answer always follows its schema")


class ChatJsonSchemaFormat(Nullable, Wire):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("TextFormat")]
    | Annotated[JsonObjectFormat, Tag("JsonObjectFormat")]
    | Annotated[ChatJsonSchemaFormat, Tag("JsonSchemaFormat")],
    Discriminator(format_kind, custom_error_type="format", custom_error_message=FORMATS),
]


class CreateChatCompletion(Nullable, ClientSampling):
    """A chat whose last message is answered. Takes OpenAI's fields and those of a native message."""

    model: str = Field(max_length=256)
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000, description="newer name of max_tokens")
    n: int = Field(
        1, ge=1, le=MAX_CHOICES, description="number of answers; with a seed, answer i is sampled with seed + i"
    )
    seed: Seed | None = Field(None, description="seed of the sampling; the same seed gives the same answer")
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    response_format: ResponseFormat | None = None
    tools: list[ChatTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ChatToolChoice = Field("auto", description="auto: the model decides; required: at least one call")
    parallel_tool_calls: bool = Field(True, description="false: at most one call in an answer")
    store: Annotated[Literal[False], BeforeValidator(_refuse_store)] = Field(
        False, description="chats are not stored: the client sends them whole"
    )
    metadata: Metadata = Field(default_factory=dict, description="ignored: chats are not stored")
    user: str | None = Field(None, max_length=512, description="ignored")
    safety_identifier: str | None = Field(None, max_length=512, description="ignored")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="ignored: the server finds what it has read by the messages alone"
    )
    prompt_cache_retention: CacheRetention | None = Field(None, description=CACHE_RETENTION)
    prompt_cache_options: Any = Field(None, description=CACHE_RETENTION)
    service_tier: ServiceTier | None = Field(None, description=SERVICE_TIER)
    verbosity: Verbosity | None = Field(None, description=VERBOSITY)
    prediction: Any = Field(None, description="ignored: the server guesses repeated text by itself")
    modalities: list[Literal["text"]] = Field(["text"], min_length=1, max_length=1, description="answers are text")
    reasoning_effort: ReasoningEffort | None = Field(None, description=REASONING_EFFORT)
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class ChatAnswer(Wire):
    """An answer and its evidence."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    tool_calls: list[ChatToolCall] | None = Field(None, description="left out without calls")
    refusal: None = None
    evidence: list[Evidence]
    citations: list[Citation]
    agreement: float | None = Field(None, description="as in `Message`; left out without a vote")


class ChatLogprobs(Wire):
    """Log-probabilities of the answer's tokens."""

    content: list[dict[str, Any]]
    refusal: None = None


class ChatChoice(Wire):
    """One of `n` answers."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls"]
    stop_reason: Literal["repetition"] | None = Field(
        description="repetition: the answer began to repeat itself over and over, and was cut there; `finish_reason` is then "
        "length, a value that OpenAI's SDKs know"
    )


class CachedTokens(Wire):
    """The prompt's tokens that were in memory and not prefilled again."""

    cached_tokens: int


class ChatUsage(Wire):
    """Token counts. Documents count as part of the prompt."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ChatCompletion(Wire):
    """The answers to a chat."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
