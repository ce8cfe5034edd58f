"""The tools of a request, from OpenAI's formats to the engine's."""

from __future__ import annotations

import json
from collections.abc import Sequence

from everlong_models import Tool, ToolCall
from everlong_server.api.openai.chat_schemas import ChatMessage, CreateChatCompletion
from everlong_server.api.openai.response_schemas import CreateResponse
from everlong_server.api.openai.tools.schemas import FunctionDefinition, FunctionTool, NamedTool
from everlong_server.api.turn_parameters import require_json
from everlong_server.engine.answering.tools import ToolChoice, ToolUse, require_distinct, require_tool_format
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.records import Message

_MAX_SCHEMAS = 200_000
"""Maximum number of characters in all schemas of a request's tools, which already take seconds to compile."""


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
    functions = [(tool.function, f"tools.{number}.function") for number, tool in enumerate(body.tools)]
    choice = body.tool_choice
    named = None if isinstance(choice, str) else choice.function.name
    mode = choice if isinstance(choice, str) else "required"
    return await tool_use(services, functions, mode, named, conversation, parallel=body.parallel_tool_calls)


async def response_tool_use(
    services: Services, body: CreateResponse, conversation: Sequence[Message]
) -> ToolUse | None:
    """Return the tools of a response's answer. Raises `InvalidRequest`."""
    functions = [(tool, f"tools.{n}") for n, tool in enumerate(body.tools) if isinstance(tool, FunctionTool)]
    choice = body.tool_choice
    named = choice.name if isinstance(choice, NamedTool) else None
    mode: ToolChoice = "required" if isinstance(choice, NamedTool) else choice if isinstance(choice, str) else "auto"
    if not functions and body.tools and mode == "required":
        mode = "auto"  # the server searches anyway
    return await tool_use(services, functions, mode, named, conversation, parallel=body.parallel_tool_calls)


async def tool_use(
    services: Services,
    functions: Sequence[tuple[FunctionDefinition, str]],
    mode: ToolChoice,
    named: str | None,
    conversation: Sequence[Message],
    *,
    parallel: bool,
    schema: str = "parameters",
) -> ToolUse | None:
    """Return the use of `functions`, each with the name of its field. `named`: the one that must be called. `schema`: the
    request's name for the field `parameters`. Raises `InvalidRequest`."""
    model = services.shared.model
    if not functions:
        if named is not None or mode == "required":
            raise InvalidRequest("tool_choice: the request has no functions to call", param="tool_choice")
        # Without tools, the earlier calls of a conversation must not lead the model to call anything.
        called = model.tools is not None and any(
            message.role == "assistant" and model.tools.open in message.content for message in conversation
        )
        return ToolUse((), "none") if called else None
    require_tool_format(model, "tools")
    tools = list[Tool]()
    for function, name in functions:
        require_json(function.parameters, f"{name}.{schema}")
        if function.parameters.get("type", "object") != "object":
            raise InvalidRequest(
                f"{name}.{schema}.type: must be 'object', got {str(function.parameters['type'])[:60]!r}",
                param=f"{name}.{schema}.type",
            )
        tools.append(Tool(function.name, function.description, function.parameters, function.strict))
    require_distinct(tools, "tools")
    use = ToolUse(tuple(tools), mode, parallel)
    if named is not None:
        try:
            use = use.only(named)
        except KeyError:
            raise InvalidRequest(f"tool_choice: no function {named!r} among the tools", param="tool_choice") from None
    characters = sum(len(json.dumps(tool.parameters)) for tool in tools)
    if characters > _MAX_SCHEMAS:
        raise InvalidRequest(
            f"tools: their schemas have {characters} characters in all, the limit is {_MAX_SCHEMAS}", param="tools"
        )
    if (failed := await services.shared.engine.check_tools(tools)) is not None:
        number, error = failed
        field = f"{functions[number][1]}.{schema}"
        raise InvalidRequest(f"{field}: {error}", param=field) from error
    return use
