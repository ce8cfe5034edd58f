"""The tools of a request, from OpenAI's formats to the engine's."""

from __future__ import annotations

from collections.abc import Sequence

from everlong_models import Tool, ToolCall
from everlong_server.api.openai.chat_schemas import ChatMessage, CreateChatCompletion
from everlong_server.api.openai.response_schemas import CreateResponse
from everlong_server.api.openai.tools.schemas import FunctionDefinition, FunctionTool, NamedTool
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
    choice = body.tool_choice
    named = None if isinstance(choice, str) else choice.function.name
    mode = choice if isinstance(choice, str) else "required"
    return await tool_use(services, functions, mode, named, conversation, parallel=body.parallel_tool_calls)


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
    if not functions and body.tools and mode == "required":
        mode = "auto"  # the server searches anyway
    return await tool_use(services, functions, mode, named, conversation, parallel=body.parallel_tool_calls)


def _tool(function: FunctionDefinition) -> Tool:
    return Tool(function.name, function.description, function.parameters, function.strict)
