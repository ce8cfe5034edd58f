"""Tools and calls of tools in OpenAI's formats, for chats and responses: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from everlong_server.api.openai.retrieval.file_search_schemas import FileSearchTool, HostedTool
from everlong_server.api.schemas import Nullable, Wire
from everlong_server.api.translation.fields import MAX_TOOLS, CallId, ToolName, by_type


class FunctionDefinition(Nullable, Wire):
    """A function that the model may call."""

    name: ToolName
    description: str | None = Field(None, max_length=100_000)
    parameters: dict[str, Any] = Field(
        default_factory=lambda: {"type": "object", "properties": {}},
        description="JSON Schema that the arguments always follow",
    )
    strict: bool = Field(
        False, description="true: a schema that cannot be enforced is refused; false: the arguments are then any object"
    )


class ChatFunctionTool(Nullable, Wire):
    """A function tool of a chat."""

    type: Literal["function"]
    function: FunctionDefinition


ChatTool = ChatFunctionTool


class _Function(Wire):
    type: Literal["function"]


class FunctionTool(FunctionDefinition, _Function):  # in this order, errors name `type` first
    """A function tool of a response."""


ResponseTool = Annotated[
    Annotated[FunctionTool, Tag("FunctionTool")] | Annotated[FileSearchTool, Tag("FileSearchTool")],
    Discriminator(
        by_type({"function": "FunctionTool", "file_search": "FileSearchTool"}),
        custom_error_type="tool",
        custom_error_message="type must be 'function' or 'file_search'",
    ),
]


class FunctionName(Nullable, Wire):
    """The name of a function."""

    name: ToolName


class ChatNamedTool(Nullable, Wire):
    """The function that an answer of a chat must call."""

    type: Literal["function"]
    function: FunctionName


class NamedTool(FunctionName, _Function):
    """The function that a response must call."""


AllowedMode = Literal["auto", "required"]


class ChatAllowed(Nullable, Wire):
    """The functions that an answer of a chat may call."""

    mode: AllowedMode = Field(description="auto: the model decides; required: at least one call")
    tools: list[ChatNamedTool] = Field(min_length=1, max_length=MAX_TOOLS)


class ChatAllowedTools(Nullable, Wire):
    """Limits the answer of a chat to some of the functions. The model still sees all of them."""

    type: Literal["allowed_tools"]
    allowed_tools: ChatAllowed


AllowedTool = Annotated[
    Annotated[NamedTool, Tag("Named")] | Annotated[HostedTool, Tag("Hosted")],
    Discriminator(
        by_type({"function": "Named", "file_search": "Hosted"}),
        custom_error_type="tool",
        custom_error_message="type must be 'function' or 'file_search'",
    ),
]


class AllowedTools(Nullable, Wire):
    """Limits a response to some of the tools. The model still sees all functions, unless only `file_search` is allowed."""

    type: Literal["allowed_tools"]
    mode: AllowedMode = Field(description="auto: the model decides; required: at least one call")
    tools: list[AllowedTool] = Field(min_length=1, max_length=MAX_TOOLS)


def _choice(value: object) -> str | None:
    if isinstance(value, str):
        return "Mode"
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    if kind == "allowed_tools":
        return "Allowed"
    return "Named" if isinstance(value, dict) or kind is not None else None


def _response_choice(value: object) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "Hosted" if kind == "file_search" else _choice(value)


_CHOICES = "tool_choice must be 'auto', 'none', 'required', an object with a function's name, or one of the type 'allowed_tools'"
ToolMode = Literal["auto", "none", "required"]
ChatToolChoice = Annotated[
    Annotated[ToolMode, Tag("Mode")]
    | Annotated[ChatNamedTool, Tag("Named")]
    | Annotated[ChatAllowedTools, Tag("Allowed")],
    Discriminator(_choice, custom_error_type="tool_choice", custom_error_message=_CHOICES),
]
ResponseToolChoice = Annotated[
    Annotated[ToolMode, Tag("Mode")]
    | Annotated[NamedTool, Tag("Named")]
    | Annotated[HostedTool, Tag("Hosted")]
    | Annotated[AllowedTools, Tag("Allowed")],
    Discriminator(_response_choice, custom_error_type="tool_choice", custom_error_message=_CHOICES),
]


class CalledFunction(Nullable, Wire):
    """The name and the arguments of a call."""

    name: ToolName
    arguments: str = Field(description="a JSON object, as text")
    parsed_arguments: Any = Field(None, description="ignored: OpenAI's SDKs add it")


class ChatToolCall(Nullable, Wire):
    """A call in an answer of a chat."""

    id: CallId
    type: Literal["function"] = "function"
    function: CalledFunction


class FunctionCall(Nullable, Wire):
    """A call in a response: an item of its output. It can be sent back as input."""

    type: Literal["function_call"]
    id: str | None = Field(None, max_length=128)
    call_id: CallId
    name: ToolName
    arguments: str = Field(description="a JSON object, as text")
    parsed_arguments: Any = Field(None, description="ignored: OpenAI's SDKs add it")
    status: str | None = Field(None, max_length=64)


class OutputPart(Nullable, Wire):
    """A part of a call's result."""

    type: Literal["input_text"]
    text: str


class FunctionCallOutput(Nullable, Wire):
    """The result of a call: an input item."""

    type: Literal["function_call_output"]
    id: str | None = Field(None, max_length=128, description="ignored")
    call_id: CallId
    output: str | list[OutputPart]
    status: str | None = Field(None, max_length=64, description="ignored")
