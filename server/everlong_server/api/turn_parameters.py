"""The parameters of an answer, from the fields of a request: sampling, recall, and JSON schema."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Literal

from everlong_models import SamplingParams
from everlong_server.api import schemas
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.grammar_errors import naming_field
from everlong_server.errors import InvalidRequest
from everlong_server.services import Services
from everlong_server.store.records import RecallChoice, Session

MAX_LOGPROBS = 200_000
"""Log-probabilities of one answer. They stay in memory until it is complete, about half a kilobyte each."""


def turn_arguments(
    services: Services, body: schemas.CreateMessage, session: Session
) -> tuple[str, SamplingParams, Recall]:
    """Return the text, the sampling parameters and the recall of a message's turn. Raises `InvalidRequest`."""
    if body.continue_answer:
        for name in ("instructions", "json_schema"):
            if getattr(body, name) is not None:
                raise InvalidRequest(f"{name} cannot be changed for an answer that is continued", param=name)
    default = services.recall
    if default.passages:  # if the server has recall off, the session cannot turn it on
        default = _override(default, session.recall)
    return body.content, sampling(body), answer_recall(services, body.recall, default)


def sampling(
    body: SamplingParams, newer: str = "max_tokens", *, logprobs: bool = False, name: str | None = None
) -> SamplingParams:
    """Return the sampling parameters of a request. Raises `InvalidRequest`.

    `newer`: a field that replaces `max_tokens` if it is given. `logprobs`: True if another field requests them. `name`: the request's
    field for the limit of tokens; None: it is one of these.
    """
    require_json(body.json_schema, "json_schema")
    limit = "max_tokens" if getattr(body, newer) is None else newer
    given = body.model_dump(include=set(SamplingParams.model_fields))
    params = SamplingParams(**given | {"max_tokens": getattr(body, limit), "logprobs": body.logprobs or logprobs})
    per_token = 1 + params.top_logprobs
    if params.logprobs and params.max_tokens * per_token > MAX_LOGPROBS:
        limit = name or limit
        raise InvalidRequest(
            f"{limit}={params.max_tokens} with {per_token} log-probabilities each is more than the limit of {MAX_LOGPROBS} "
            "log-probabilities in an answer: request fewer tokens, or a lower top_logprobs", param=limit,
        )  # fmt: skip
    return params


def require_json(schema: dict[str, Any] | None, name: str) -> None:
    """Raise `InvalidRequest` if the schema in the field `name` cannot be encoded as JSON again: a number such as 1e999 is
    read as infinity."""
    try:
        json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise InvalidRequest(f"{name}: the schema cannot be encoded as JSON again: {error}", param=name) from None


async def require_schema(services: Services, schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the schema in the field `name`. Raises `InvalidRequest` if no answer can be constrained to it."""
    require_json(schema, name)
    with naming_field(name):
        await services.shared.engine.grammar(schema)
    return schema


def answer_recall(
    services: Services, requested: schemas.Recall | Literal[False] | None, default: Recall | None = None
) -> Recall:
    """Return the recall of an answer: the requested fields, else those of `default`, by default the server's.

    Raises `InvalidRequest` for more tokens than the model's context, and for passages on a server with recall off.
    """
    visible_tokens = services.shared.model.memory.visible_tokens
    if requested and requested.passages and not services.recall.passages:
        raise InvalidRequest(
            f"recall.passages: {requested.passages} passages, but recall is off on this server (EVERLONG_RECALL_PASSAGES=0)",
            param="recall.passages",
        )
    if requested and requested.tokens is not None and requested.tokens > visible_tokens:
        raise InvalidRequest(
            f"recall.tokens: {requested.tokens} tokens are more than the model's context of {visible_tokens}",
            param="recall.tokens",
        )
    return _override(default or services.recall, stored_recall(requested))


def stored_recall(requested: schemas.Recall | Literal[False] | None) -> RecallChoice:
    """Return a recall as a session stores it."""
    return requested.model_dump(exclude_none=True) if isinstance(requested, schemas.Recall) else requested


def _override(default: Recall, requested: RecallChoice) -> Recall:
    """Return `default` with the requested fields replaced."""
    if requested is False:
        return replace(default, passages=0)
    given = requested or {}
    return replace(
        default, passages=given.get("passages", default.passages), tokens=given.get("tokens", default.tokens)
    )
