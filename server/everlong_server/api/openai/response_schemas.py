"""OpenAI's response, as far as there is something behind it: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from everlong_models import SamplingParams
from everlong_server.api.openai.chat_schemas import MAX_MESSAGES, JsonSchema, kind
from everlong_server.api.openai.text_formats import FORMATS, JsonObjectFormat, Nullable, TextFormat, format_kind
from everlong_server.api.schemas import Evidence, Recall, Wire

MAX_METADATA = 16


class InputText(Nullable, Wire):
    """Words of the user or of instructions."""

    type: Literal["input_text"]
    text: str


class OutputText(Nullable, Wire):
    """Words of an answer, as it came: what stands beside them is not looked at."""

    type: Literal["output_text"]
    text: str
    annotations: Any = Field(None, description="ignored")
    logprobs: Any = Field(None, description="ignored")


class InputFile(Nullable, Wire):
    """A document that the dialogue is about: a file that was uploaded to `/v1/files`."""

    type: Literal["input_file"]
    file_id: str = Field(min_length=1, max_length=128)


def _input_part(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else None
    kinds = {"input_text": "InputText", "output_text": "OutputText", "input_file": "InputFile"}
    return kinds.get(kind) if isinstance(kind, str) else None


InputPart = Annotated[
    Annotated[InputText, Tag("InputText")]
    | Annotated[OutputText, Tag("OutputText")]
    | Annotated[InputFile, Tag("InputFile")],
    Discriminator(
        _input_part,
        custom_error_type="part",
        custom_error_message="a part is of type 'input_text', 'output_text' or 'input_file'; others are not known",
    ),
]
InputContent = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[InputPart], Field(max_length=MAX_MESSAGES), Tag("Parts")],
    Discriminator(kind, custom_error_type="content", custom_error_message="content is a string or a list of parts"),
]


class InputMessage(Nullable, Wire):
    """A message. Answers can be sent back as they came: of these, only what was said is looked at."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    id: str | None = Field(None, max_length=128, description="ignored")
    status: str | None = Field(None, max_length=64, description="ignored")
    phase: str | None = Field(None, max_length=64, description="ignored")
    evidence: Any = Field(None, description="ignored")


Input = Annotated[
    Annotated[str, Field(min_length=1), Tag("Text")]
    | Annotated[list[InputMessage], Field(min_length=1, max_length=MAX_MESSAGES), Tag("Items")],
    Discriminator(
        lambda value: {str: "Text", list: "Items"}.get(type(value)),
        custom_error_type="input",
        custom_error_message="input is a string or a list of messages",
    ),
]


class ResponseJsonSchemaFormat(JsonSchema):
    """JSON of a schema."""

    type: Literal["json_schema"]


class TextConfig(Nullable, Wire):
    """What the answer's text is to be."""

    format: Annotated[
        Annotated[TextFormat, Tag("TextFormat")]
        | Annotated[JsonObjectFormat, Tag("JsonObjectFormat")]
        | Annotated[ResponseJsonSchemaFormat, Tag("JsonSchemaFormat")],
        Discriminator(format_kind, custom_error_type="format", custom_error_message=FORMATS),
    ] = Field(default_factory=lambda: TextFormat(type="text"))


class ResponseStreamOptions(Nullable, Wire):
    """Nothing is added to a stream to hide its lengths."""

    include_obfuscation: Literal[False] = False


MetadataValue = Annotated[str, Field(max_length=512)]


class CreateResponse(Nullable, SamplingParams):
    """The next answer of a dialogue. Beside OpenAI's fields it takes those of a native message."""

    model: str | None = Field(None, max_length=256, description="default: the served model")
    input: Input
    instructions: str | None = Field(None, description="stand before everything else")
    previous_response_id: str | None = Field(
        None, max_length=128, description="the response that this one goes on from; any number can"
    )
    store: bool = Field(True, description="false: nothing can go on from it, and nobody can get it")
    background: bool = Field(False, description="answers at once; the answer is got by `GET`")
    stream: bool = False
    stream_options: ResponseStreamOptions = Field(default_factory=ResponseStreamOptions)
    max_output_tokens: int | None = Field(None, ge=1, le=1_000_000)
    include: list[Literal["message.output_text.logprobs"]] = Field(default_factory=list, max_length=16)
    text: TextConfig = Field(default_factory=TextConfig)
    metadata: dict[Annotated[str, Field(min_length=1, max_length=64)], MetadataValue] = Field(
        default_factory=dict, max_length=MAX_METADATA
    )
    truncation: Literal["auto", "disabled"] = Field("disabled", description="nothing is ever left out")
    user: str | None = Field(None, max_length=512, description="ignored")
    safety_identifier: str | None = Field(None, max_length=512, description="ignored")
    prompt_cache_key: str | None = Field(None, max_length=512, description="ignored")
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class ResponseText(Wire):
    """What was said."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[Any] = Field(max_length=0)
    logprobs: list[dict[str, Any]]


class ResponseMessage(Wire):
    """The answer, and the passages that it could rest on."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[ResponseText]
    evidence: list[Evidence]


class CachedInput(Wire):
    """Of the input's tokens, those that were held in memory and not read again."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0


class OutputDetails(Wire):
    """There is no reasoning."""

    reasoning_tokens: Literal[0] = 0


class ResponseUsage(Wire):
    """Tokens. Those of the documents and of all that was said before count as the input's."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Wire):
    """Why there is no answer."""

    code: str
    message: str


class IncompleteDetails(Wire):
    """Why the answer is not whole."""

    reason: Literal["max_output_tokens"]


class Response(Wire):
    """An answer under an id."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int
    metadata: dict[str, str]
    model: str
    output: list[ResponseMessage]
    parallel_tool_calls: Literal[False] = False
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: Literal["none"] = "none"
    tools: list[Any] = Field(max_length=0)
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None


class InputItem(Wire):
    """What was said to a response."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    status: Literal["completed"] = "completed"
    content: list[InputText | OutputText | InputFile]


class InputItemList(Wire):
    """Newest first, unless asked otherwise."""

    object: Literal["list"] = "list"
    data: list[InputItem]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseDeleted(Wire):
    """What was deleted."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
