"""Translates the requests of Ollama's API into turns."""

from __future__ import annotations

from typing import Any

from everlong_models import SamplingParams
from everlong_server.api.ollama.schemas import OllamaChat, OllamaGenerate, OllamaOptions
from everlong_server.api.translation.messages import ParsedMessages, require_length
from everlong_server.api.turn_parameters import answer_recall, require_schema, sampling
from everlong_server.engine.answering.turn import Turn
from everlong_server.services import Services

UNLIMITED = 1_000_000
_OPTIONS = {"num_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""Options whose names differ from ours."""


def plain_name(name: str) -> str:
    """Return a model's name without the tag that clients of Ollama add."""
    return name.removesuffix(":latest")


async def begin(services: Services, body: OllamaChat | OllamaGenerate) -> Turn:
    """Start the turn of a request. Raises `ServerError` if it is invalid or refused."""
    services = await services.with_model(plain_name(body.model))
    params, recall = await _params(services, body), answer_recall(services, body.recall)
    parsed, place = ParsedMessages(services), "messages"
    for number, document in enumerate(body.documents):
        parsed.add_file(document, f"documents.{number}")
    if isinstance(body, OllamaChat):
        for number, message in enumerate(body.messages):
            parsed.add_message(message.role, message.content, f"messages.{number}")
    else:
        place = "prompt"
        require_length(services, body.prompt, place)
        require_length(services, body.system, "system")
        if body.system:
            parsed.add_message("system", body.system, "system")
        parsed.add_message("user", body.prompt, "prompt")
    documents, messages = await parsed.finish(place)
    await services.wait_for_memory(documents)
    return await services.chat_turns.answer(documents, messages, params, recall)


async def _params(services: Services, body: OllamaChat | OllamaGenerate) -> SamplingParams:
    given = _sampling_fields(body.options) | {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    if body.format == "json":
        given["json_schema"] = {"type": "object"}
    elif isinstance(body.format, dict):
        given["json_schema"] = await require_schema(services, body.format, "format")
    return sampling(SamplingParams(**given), name="options.num_predict")


def _sampling_fields(options: OllamaOptions) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that the options set."""
    fields = {_OPTIONS.get(name, name): value for name, value in options.model_dump(exclude_none=True).items()}
    if fields.get("max_tokens", 1) < 1:
        fields["max_tokens"] = UNLIMITED if fields["max_tokens"] < 0 else 1
    if fields.get("seed") == -1:
        del fields["seed"]
    return {name: value for name, value in fields.items() if name in SamplingParams.model_fields}
