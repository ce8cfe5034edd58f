"""Tools for the tests, and requests with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from openai import OpenAI
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tests.process import Server

MODEL = "tiny-tools"
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER: dict[str, Any] = {"name": "get_weather", "description": "Tells the weather.", "parameters": PARAMETERS}
CLOCK: dict[str, Any] = {"name": "get_time", "parameters": {"type": "object", "properties": {}}}
SCHEMAS = {"get_weather": PARAMETERS, "get_time": {"type": "object", "additionalProperties": False}}
CHAT_TOOLS = [{"type": "function", "function": function} for function in (WEATHER, CLOCK)]
TOOLS = [{"type": "function", **function} for function in (WEATHER, CLOCK)]


def tokenizer_of(server: Server) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(Path(server.environment["EVERLONG_MODEL"]))


def bias(server: Server, **of: float) -> dict[str, float]:
    """Return a logit bias: `call` for the marker of a call, `end` for the end of an answer."""
    tokenizer, words = tokenizer_of(server), {"call": "<tool_call>", "end": "<|im_end|>"}
    return {str(tokenizer.convert_tokens_to_ids(words[name])): value for name, value in of.items()}


def ask(client: OpenAI, *messages: Any, **more: Any) -> Any:
    given = {"model": MODEL, "max_tokens": 200, "temperature": 0, "tools": CHAT_TOOLS, **more}
    return client.chat.completions.create(messages=list(messages), **given)


def respond(client: Any, input: Any, **more: Any) -> Any:
    given = {"model": MODEL, "max_output_tokens": 200, "temperature": 0, "tools": TOOLS, **more}
    return client.responses.create(input=input, **given)


def check_call(name: str, arguments: str) -> None:
    """Check that the arguments follow the tool's schema."""
    jsonschema.validate(json.loads(arguments), SCHEMAS[name])
