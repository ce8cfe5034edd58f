"""`tool_use`, `require_tool_format`: check the tools of a request."""

from __future__ import annotations

import json
from collections.abc import Sequence

from everlong_models import Model, Tool, ToolFormat
from everlong_server.api.turn_parameters import require_json
from everlong_server.engine.answering.tools import ToolChoice, ToolUse
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.records import Message

_MAX_SCHEMAS = 200_000
"""Maximum number of characters in all schemas of a request's tools, which already take seconds to compile."""


def require_tool_format(model: Model, name: str) -> ToolFormat:
    """Return the model's tool format. Raises `InvalidRequest`, naming the field `name`, if it has none."""
    if model.tools is None:
        raise InvalidRequest(
            f"{name}: the model {model.name} has no tool format; leave the field out, or serve a model whose chat template has tools, "
            "such as qwen2.5-coder-1.5b-reader", param=name, code="tools_not_supported",
        )  # fmt: skip
    return model.tools


async def tool_use(
    services: Services,
    tools: Sequence[tuple[Tool, str]],
    mode: ToolChoice,
    named: str | None,
    conversation: Sequence[Message],
    *,
    parallel: bool,
    allowed: Sequence[str] | None = None,
) -> ToolUse | None:
    """Return the use of `tools`, each with the name of the field that has its schema. Raises `InvalidRequest`.

    `named`: the tool that must be called. `allowed`: the tools that may be called. None: any of them.
    """
    model = services.shared.model
    if not tools:
        if named is not None or allowed or mode == "required":
            raise InvalidRequest("tool_choice: the request has no functions to call", param="tool_choice")
        # Without tools, the earlier calls of a conversation must not lead the model to call anything.
        called = model.tools is not None and any(
            message.role == "assistant" and model.tools.open in message.content for message in conversation
        )
        return ToolUse((), "none") if called else None
    require_tool_format(model, "tools")
    for tool, field in tools:
        require_json(tool.parameters, field)
        if tool.parameters.get("type", "object") != "object":
            raise InvalidRequest(
                f"{field}.type must be 'object', got {str(tool.parameters['type'])[:60]!r}", param=f"{field}.type"
            )
    functions = tuple(tool for tool, _ in tools)
    _require_distinct(functions)
    use = ToolUse(functions, mode, parallel)
    try:
        if named is not None:
            use = use.only(named)
        elif allowed is not None:
            use = use.among(allowed)
    except KeyError as unknown:
        message = f"tool_choice: no function {unknown.args[0]!r} among the tools"
        raise InvalidRequest(message, param="tool_choice") from None
    characters = sum(len(json.dumps(tool.parameters)) for tool in functions)
    if characters > _MAX_SCHEMAS:
        raise InvalidRequest(
            f"tools: their schemas have {characters} characters in all, the limit is {_MAX_SCHEMAS}", param="tools"
        )
    if (failed := await services.shared.engine.check_tools(functions)) is not None:
        number, reason = failed
        field = tools[number][1]
        raise InvalidRequest(f"{field}: {reason}", param=field) from reason
    return use


def _require_distinct(tools: Sequence[Tool]) -> None:
    names: set[str] = set()
    for number, tool in enumerate(tools):
        if tool.name in names:
            raise InvalidRequest(f"tools.{number}: a second tool named {tool.name!r}", param=f"tools.{number}")
        names.add(tool.name)
