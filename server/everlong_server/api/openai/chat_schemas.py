"""OpenAI's objects, as far as there is something behind them: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from everlong_models import SamplingParams
from everlong_server.api.openai.text_formats import FORMATS, JsonObjectFormat, Nullable, TextFormat, format_kind
from everlong_server.api.schemas import Evidence, Recall, Wire

MAX_MESSAGES = 2048
MAX_CHOICES = 16


class File(Wire):
    """A document under OpenAI's names."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: None = None
    filename: str
    purpose: Literal["user_data"] = "user_data"
    status: str = Field(description="uploaded: it is being read; processed; error")
    status_details: str | None


class FileList(Wire):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[File]
    has_more: bool


class FileDeleted(Wire):
    """What was deleted."""

    id: str
    object: Literal["file"] = "file"
    deleted: Literal[True] = True


class TextPart(Nullable, Wire):
    """Words."""

    type: Literal["text"]
    text: str


class FileReference(Nullable, Wire):
    """A file that was uploaded to `/v1/files`."""

    file_id: str = Field(min_length=1, max_length=128)


class FilePart(Nullable, Wire):
    """A document that the chat is about."""

    type: Literal["file"]
    file: FileReference


def kind(value: object) -> str | None:
    """Which of the two a content is."""
    if isinstance(value, str):
        return "Text"
    return "Parts" if isinstance(value, list) else None


def _part(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    return {"text": "TextPart", "file": "FilePart"}.get(kind) if isinstance(kind, str) else None


# The tags begin with capitals, so that an error's path is made of the request's own fields only.
Part = Annotated[
    Annotated[TextPart, Tag("TextPart")] | Annotated[FilePart, Tag("FilePart")],
    Discriminator(
        _part, custom_error_type="part", custom_error_message="a part is of type 'text' or 'file'; others are not known"
    ),
]
Content = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[Part], Field(max_length=MAX_MESSAGES), Tag("Parts")],
    Discriminator(kind, custom_error_type="content", custom_error_message="content is a string or a list of parts"),
]


class ChatMessage(Nullable, Wire):
    """A message of a dialogue. Answers can be sent back as they came: their `evidence` is not looked at."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    evidence: Any = Field(None, description="ignored")


class StreamOptions(Nullable, Wire):
    """What is streamed beside the answer."""

    include_usage: bool = Field(False, description="a last chunk without choices says what was used")


class JsonSchema(Nullable, Wire):
    """What the answer is."""

    name: str = Field(max_length=64, description="ignored")
    description: str | None = Field(None, max_length=10_000, description="ignored: say in the question what is wanted")
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema", description="JSON Schema; {} is any JSON")
    strict: bool | None = Field(None, description="ignored: an answer always follows its schema")


class ChatJsonSchemaFormat(Nullable, Wire):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[
    Annotated[TextFormat, Tag("TextFormat")]
    | Annotated[JsonObjectFormat, Tag("JsonObjectFormat")]
    | Annotated[ChatJsonSchemaFormat, Tag("JsonSchemaFormat")],
    Discriminator(format_kind, custom_error_type="format", custom_error_message=FORMATS),
]


class CreateChatCompletion(Nullable, SamplingParams):
    """A dialogue, whose last message is to be answered. Beside OpenAI's fields it takes those of a native message."""

    model: str = Field(max_length=256)
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1, le=1_000_000, description="newer name of max_tokens")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="answers; with a seed, the second is drawn with seed + 1, …")
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    response_format: ResponseFormat | None = None
    store: Literal[False] = Field(False, description="a chat is not listed anywhere")
    user: str | None = Field(None, max_length=512, description="ignored")
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class ChatAnswer(Wire):
    """What the model says, and the passages that it could rest on."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None
    evidence: list[Evidence]


class ChatLogprobs(Wire):
    """Of each token of the answer."""

    content: list[dict[str, Any]]
    refusal: None = None


class ChatChoice(Wire):
    """One of `n` answers."""

    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]


class CachedTokens(Wire):
    """Of the prompt's tokens, those that were held in memory and not read again."""

    cached_tokens: int


class ChatUsage(Wire):
    """Tokens. Those of the documents count as the prompt's."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class ChatCompletion(Wire):
    """Answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: ChatUsage
