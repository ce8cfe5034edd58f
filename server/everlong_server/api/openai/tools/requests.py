"""The tools of a request, from OpenAI's formats to the engine's."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_models import Tool, ToolCall
from everlong_server.api.openai.chat_schemas import ChatMessage, CreateChatCompletion
from everlong_server.api.openai.response_schemas import CreateResponse
from everlong_server.api.openai.retrieval.file_search_schemas import FileSearchTool, HostedTool
from everlong_server.api.openai.tools.schemas import (
    AllowedTools,
    ChatAllowedTools,
    ChatNamedTool,
    FunctionDefinition,
    FunctionTool,
    NamedTool,
)
from everlong_server.api.translation.tools import tool_use
from everlong_server.engine.answering.tools import ToolChoice, ToolUse
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.records import Message


def chat_calls(message: ChatMessage, name: str) -> list[ToolCall]:
    """Return the calls in a message of a chat. `name`: the field of the request. Raises `InvalidRequest`."""
    calls = message.tool_calls or []
    if calls and message.role != "assistant":
        raise InvalidRequest(f"{name}.tool_calls: only an assistant's message has calls", param=f"{name}.tool_calls")
    return [ToolCall(call.id, call.function.name, call.function.arguments) for call in calls]


async def chat_tool_use(
    services: Services, body: CreateChatCompletion, conversation: Sequence[Message]
) -> ToolUse | None:
    """Return the tools of a chat's answer. Raises `InvalidRequest`."""
    functions = [(_tool(tool.function), f"tools.{n}.function.parameters") for n, tool in enumerate(body.tools)]
    match body.tool_choice:
        case str() as mode:
            return await tool_use(services, functions, mode, None, conversation, parallel=body.parallel_tool_calls)
        case ChatNamedTool(function=function):
            return await tool_use(services, functions, "required", function.name, conversation, parallel=False)
        case ChatAllowedTools(allowed_tools=allowed):
            names = [tool.function.name for tool in allowed.tools]
            return await tool_use(
                services, functions, allowed.mode, None, conversation, parallel=body.parallel_tool_calls, allowed=names
            )


async def response_tool_use(
    services: Services, body: CreateResponse, conversation: Sequence[Message]
) -> ToolUse | None:
    """Return the tools of a response's answer. Raises `InvalidRequest`."""
    functions = [
        (_tool(tool), f"tools.{n}.parameters") for n, tool in enumerate(body.tools) if isinstance(tool, FunctionTool)
    ]
    choice = body.tool_choice
    named = choice.name if isinstance(choice, NamedTool) else None
    mode: ToolChoice = "required" if isinstance(choice, NamedTool) else choice if isinstance(choice, str) else "auto"
    names: list[str] | None = None
    if isinstance(choice, AllowedTools):
        names = [tool.name for tool in choice.tools if isinstance(tool, NamedTool)]
        mode = choice.mode if names else "none"  # only the search is allowed, which is no call of the model
    if not functions and body.tools and mode == "required":
        mode = "auto"  # the server searches anyway
    return await tool_use(
        services, functions, mode, named, conversation, parallel=body.parallel_tool_calls, allowed=names
    )


def searches_stores(body: CreateResponse) -> bool:
    """Return whether the answer may search the stores of the tool `file_search`. Raises `InvalidRequest`."""
    choice = body.tool_choice
    if not isinstance(choice, AllowedTools):
        return choice != "none"
    allowed = any(isinstance(tool, HostedTool) for tool in choice.tools)
    if allowed and not any(isinstance(tool, FileSearchTool) for tool in body.tools):
        raise InvalidRequest("tool_choice: no file_search among the tools", param="tool_choice")
    return allowed


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(function.name, function.description, function.parameters, function.strict)
