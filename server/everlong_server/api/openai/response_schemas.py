"""The objects of OpenAI's responses that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from everlong_server.api.openai.chat_schemas import (
    CACHE_RETENTION,
    SERVICE_TIER,
    CacheRetention,
    Metadata,
    Seed,
    ServiceTier,
    require_one,
)
from everlong_server.api.openai.page_schemas import Page
from everlong_server.api.openai.response_options import (
    Includable,
    Reasoning,
    RequestedText,
    ResponseStreamOptions,
    TextConfig,
)
from everlong_server.api.openai.retrieval.file_search_schemas import FileSearchCall, FileSearchCallInput
from everlong_server.api.openai.tools.schemas import (
    FunctionCall,
    FunctionCallOutput,
    ResponseTool,
    ResponseToolChoice,
)
from everlong_server.api.schemas import Citation, Evidence, Nullable, Recall, Wire
from everlong_server.api.translation.fields import MAX_MESSAGES, MAX_TOOLS, ClientSampling, by_type, content_kind


class InputText(Nullable, Wire):
    """Text of the user or of instructions."""

    type: Literal["input_text"]
    text: str


class OutputText(Nullable, Wire):
    """Text of an answer, sent back unchanged. Its other fields are ignored."""

    type: Literal["output_text"]
    text: str
    annotations: Any = Field(None, description="ignored")
    logprobs: Any = Field(None, description="ignored")
    parsed: Any = Field(None, description="ignored: OpenAI's SDKs add it")


class InputFile(Nullable, Wire):
    """A document that the response is about: a file that was uploaded to `/v1/files`, its content, or its URL."""

    type: Literal["input_file"]
    file_id: str | None = Field(None, min_length=1, max_length=128)
    file_data: str | None = Field(None, min_length=1, description="the content as base64, or as a data URL with base64")
    file_url: str | None = Field(
        None, max_length=2048, description="http:// or https:// URL on a host in EVERLONG_FETCH_HOSTS"
    )
    filename: str | None = Field(None, max_length=255, description="name of the content")

    @model_validator(mode="after")
    def _one(self) -> Self:
        return require_one(self, "file_id", "file_data", "file_url")


InputPart = Annotated[
    Annotated[InputText, Tag("InputText")]
    | Annotated[OutputText, Tag("OutputText")]
    | Annotated[InputFile, Tag("InputFile")],
    Discriminator(
        by_type({"input_text": "InputText", "output_text": "OutputText", "input_file": "InputFile"}),
        custom_error_type="part",
        custom_error_message="type must be 'input_text', 'output_text' or 'input_file': images and audio are not supported",
    ),
]
InputContent = Annotated[
    Annotated[str, Tag("Text")] | Annotated[list[InputPart], Field(max_length=MAX_MESSAGES), Tag("Parts")],
    Discriminator(
        content_kind, custom_error_type="content", custom_error_message="content must be a string or a list of parts"
    ),
]


class InputMessage(Nullable, Wire):
    """A message. Answers can be sent back unchanged: only their text is used."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: InputContent
    id: str | None = Field(None, max_length=128, description="ignored")
    status: str | None = Field(None, max_length=64, description="ignored")
    phase: str | None = Field(None, max_length=64, description="ignored")
    evidence: Any = Field(None, description="ignored")
    citations: Any = Field(None, description="ignored")


class ReasoningItem(Nullable, Wire):
    """What another model thought before an answer. Ignored."""

    type: Literal["reasoning"]
    id: str | None = Field(None, max_length=128)
    summary: Any = None
    content: Any = None
    encrypted_content: Any = None
    status: str | None = Field(None, max_length=64)


class ItemReference(Nullable, Wire):
    """An item of the output of a stored response, by its id."""

    type: Literal["item_reference"]
    id: str = Field(min_length=1, max_length=128)


_ITEMS = {
    "message": "InputMessage", "function_call": "FunctionCall", "function_call_output": "FunctionCallOutput",
    "file_search_call": "FileSearchCall", "reasoning": "ReasoningItem", "item_reference": "ItemReference",
}  # fmt: skip
_input_item = by_type(_ITEMS, default="message")

InputEntry = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[FunctionCall, Tag("FunctionCall")]
    | Annotated[FunctionCallOutput, Tag("FunctionCallOutput")]
    | Annotated[FileSearchCallInput, Tag("FileSearchCall")]
    | Annotated[ReasoningItem, Tag("ReasoningItem")]
    | Annotated[ItemReference, Tag("ItemReference")],
    Discriminator(
        _input_item,
        custom_error_type="item",
        custom_error_message="type must be 'message', 'function_call', 'function_call_output', 'file_search_call', 'reasoning' or "
        "'item_reference'",
    ),
]
Input = Annotated[
    Annotated[str, Field(min_length=1, pattern=r"\S"), Tag("Text")]
    | Annotated[list[InputEntry], Field(min_length=1, max_length=MAX_MESSAGES), Tag("Items")],
    Discriminator(
        lambda value: {str: "Text", list: "Items"}.get(type(value)),
        custom_error_type="input",
        custom_error_message="input must be a string or a list of items",
    ),
]


class _ResponseInput(Nullable):
    """What a response answers."""

    model: str | None = Field(None, max_length=256, description="default: the served model")
    input: Input
    instructions: str | None = Field(None, description="system message, put before the input")
    previous_response_id: str | None = Field(
        None,
        max_length=128,
        description="response that this one continues from; several responses can continue from one",
    )
    text: RequestedText = Field(default_factory=RequestedText)
    tools: list[ResponseTool] = Field(default_factory=list, max_length=MAX_TOOLS)
    tool_choice: ResponseToolChoice = Field("auto", description="auto: the model decides; required: at least one call")
    parallel_tool_calls: bool = Field(True, description="false: at most one call in an answer")
    truncation: Literal["auto", "disabled"] = Field("disabled", description="no effect: nothing is ever truncated")
    reasoning: Reasoning | None = None
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class CountInputTokens(_ResponseInput, Wire):
    """A response whose input tokens are counted."""


class InputTokens(Wire):
    """The number of input tokens that a response would have."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class CreateResponse(_ResponseInput, ClientSampling):
    """A new response. Takes OpenAI's fields and those of a native message."""

    store: bool = Field(True, description="false: the response cannot be retrieved or continued from")
    background: bool = Field(False, description="true: return at once; `GET` the response for its answer")
    stream: bool = False
    stream_options: ResponseStreamOptions = Field(default_factory=ResponseStreamOptions)
    max_output_tokens: int | None = Field(None, ge=1, le=1_000_000)
    include: list[Includable] = Field(default_factory=list, max_length=16)
    max_tool_calls: int | None = Field(None, ge=1, description="no effect: an answer has one file search at most")
    seed: Seed | None = Field(None, description="seed of the sampling; the same seed gives the same answer")
    metadata: Metadata = Field(default_factory=dict, description="the response repeats it")
    user: str | None = Field(None, max_length=512, description="ignored")
    safety_identifier: str | None = Field(None, max_length=512, description="ignored")
    prompt_cache_key: str | None = Field(
        None, max_length=512, description="ignored: the server finds what it has read by the response that comes before"
    )
    prompt_cache_retention: CacheRetention | None = Field(None, description=CACHE_RETENTION)
    prompt_cache_options: Any = Field(None, description=CACHE_RETENTION)
    service_tier: ServiceTier | None = Field(None, description=SERVICE_TIER)


class FileCitation(Wire):
    """A file that a sentence of the answer rests on. `index`: the end of the sentence, in characters of the text."""

    type: Literal["file_citation"] = "file_citation"
    file_id: str
    filename: str = Field(description="name of the file, or its id if it has no name")
    index: int


class ResponseText(Wire):
    """The text of an answer."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[FileCitation]
    logprobs: list[dict[str, Any]]


class ResponseMessage(Wire):
    """An answer and its evidence."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[ResponseText]
    evidence: list[Evidence]
    citations: list[Citation] = Field(description="the annotations, with the cited parts of the documents")


class ResponseCall(Wire):
    """A call of a function, which the client must answer with a `function_call_output`."""

    id: str
    type: Literal["function_call"] = "function_call"
    call_id: str
    name: str
    arguments: str = Field(description="a JSON object, as text")
    status: Literal["in_progress", "completed", "incomplete"]


class CachedInput(Wire):
    """The input's tokens that were in memory and not prefilled again."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0


class OutputDetails(Wire):
    """The output's tokens. There are no reasoning tokens."""

    reasoning_tokens: Literal[0] = 0


class ResponseUsage(Wire):
    """Token counts. Documents and earlier messages count as part of the input."""

    input_tokens: int
    input_tokens_details: CachedInput
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseFailure(Wire):
    """The error of a failed response."""

    code: str
    message: str


class IncompleteDetails(Wire):
    """The reason that an answer is incomplete."""

    reason: Literal["max_output_tokens", "repetition"] = Field(
        description="repetition: the answer began to repeat itself over and over, and was cut there"
    )


class Response(Wire):
    """A stored answer with an id, from which other responses can continue."""

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
    output: list[ResponseMessage | ResponseCall | FileSearchCall]
    parallel_tool_calls: bool
    previous_response_id: str | None
    store: bool
    temperature: float
    text: TextConfig
    tool_choice: ResponseToolChoice
    tools: list[ResponseTool]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None


class ListedAnswerText(Wire):
    """The text of an earlier answer in the input of a response."""

    type: Literal["output_text"]
    text: str
    annotations: list[FileCitation] = Field([], description="always empty: the server does not keep those of the input")
    logprobs: list[dict[str, Any]] = Field([], description="always empty")


class InputMessageItem(Wire):
    """An input message of a response."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    status: Literal["completed"] = "completed"
    content: list[InputText | ListedAnswerText | InputFile]


class InputCallItem(Wire):
    """A call in the input of a response."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: Literal["completed"] = "completed"


class InputResultItem(Wire):
    """The result of a call in the input of a response."""

    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str
    status: Literal["completed"] = "completed"


InputItem = Annotated[
    Annotated[InputMessageItem, Tag("InputMessage")]
    | Annotated[InputCallItem, Tag("FunctionCall")]
    | Annotated[InputResultItem, Tag("FunctionCallOutput")],
    Discriminator(_input_item),
]


class InputItemList(Page[InputItem]):
    """A page of a response's input items, by default newest first."""


class ResponseDeleted(Wire):
    """The deleted response."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True
