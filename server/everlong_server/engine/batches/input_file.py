"""The input file of a batch: JSONL, one request a line. Checks the whole file before the first request is answered."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from pydantic_core import from_json

from everlong_server.store.batches.records import BatchError

MAX_ERRORS = 100
"""Number of errors after which the check ends."""
MAX_CUSTOM_ID = 512
_FIELDS = ("custom_id", "method", "url", "body")
_REFUSED = ("stream", "background")
"""Fields that a request of a batch may not set to true."""


@dataclass(frozen=True, slots=True)
class Limits:
    """`lines`: of a file. `line_bytes`: of one line."""

    lines: int
    line_bytes: int


@dataclass(frozen=True, slots=True)
class Line:
    """A request. `number`: counted from 1. `end`: the byte of the file at which the next line begins."""

    number: int
    end: int
    custom_id: str
    body: dict[str, Any]


def check(file: IO[bytes], endpoint: str, limits: Limits) -> tuple[int, list[BatchError]]:
    """Return the number of requests in a file, and what is wrong with it. Blocks."""
    errors: list[BatchError] = []
    seen: set[str] = set()
    models: list[object] = []
    number = 0
    while (raw := file.readline(limits.line_bytes + 1)) and len(errors) < MAX_ERRORS:
        number += 1
        if number > limits.lines:
            message = f"the file has more than {limits.lines} lines, the limit (EVERLONG_MAX_BATCH_LINES)"
            return number, [*errors, BatchError("too_many_lines", message, number)]
        if len(raw) > limits.line_bytes:
            message = f"the line has more than {limits.line_bytes} bytes, the limit (EVERLONG_MAX_BODY_BYTES)"
            return number, [*errors, BatchError("line_too_long", message, number)]
        request, error = _parse(raw, endpoint)
        if error is None and request["custom_id"] in seen:
            error = (
                "duplicate_custom_id",
                f"custom_id {_cut(request['custom_id'])} is on an earlier line, too",
                "custom_id",
            )
        if error is None:
            seen.add(request["custom_id"])
            models = models or [request["body"].get("model")]
            if (model := request["body"].get("model")) != models[0]:
                message = f"all requests of a batch have the same model: the first has {_cut(models[0])}, this one {_cut(model)}"
                error = ("mismatched_model", message, "body.model")
        if error is not None:
            code, message, param = error
            errors.append(BatchError(code, message, number, param))
    if not number:
        errors.append(BatchError("empty_file", "the file has no lines"))
    return number, errors


def lines(file: IO[bytes], number: int, offset: int) -> Iterator[Line]:
    """Yield the requests after line `number`, which ends at byte `offset`. `file`: a checked file, opened at that byte. Blocks."""
    while raw := file.readline():
        number, offset = number + 1, offset + len(raw)
        request = _load(raw)
        yield Line(number, offset, request["custom_id"], request["body"])


_Problem = tuple[str, str, str | None]


def _load(raw: bytes) -> Any:
    """Parse JSON strictly, as request bodies are. Raises `ValueError`."""
    return from_json(raw.removeprefix(BOM_UTF8).rstrip(b"\r\n"), allow_inf_nan=False)


def _parse(raw: bytes, endpoint: str) -> tuple[dict[str, Any], _Problem | None]:
    """Return the request of a line, and what is wrong with it: code, message and field."""
    if not raw.removeprefix(BOM_UTF8).strip():
        return {}, ("invalid_json_line", "the line is empty: remove it", None)
    try:
        request = _load(raw)
    except ValueError as error:
        place = str(error).replace("at line 1 column", "at column")  # the batch error names the line of the file
        return {}, ("invalid_json_line", f"the line is not valid JSON in UTF-8: {place}", None)
    if not isinstance(request, dict):
        return {}, ("invalid_request", f"the line must be a JSON object, got {_cut(request)}", None)
    return request, _problem(request, endpoint)


def _problem(request: dict[str, Any], endpoint: str) -> _Problem | None:
    for name in _FIELDS:
        if name not in request:
            return "missing_required_parameter", f"{name}: Field required", name
    if unknown := next((name for name in request if name not in _FIELDS), None):
        return "unknown_parameter", f"{unknown[:60]}: only {', '.join(_FIELDS)} are allowed", unknown[:60]
    custom_id, method, url, body = (request[name] for name in _FIELDS)
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        return (
            "invalid_custom_id",
            f"custom_id must be a string of 1 to {MAX_CUSTOM_ID} characters, got {_cut(custom_id)}",
            "custom_id",
        )
    if method != "POST":
        return "invalid_method", f"method must be 'POST', got {_cut(method)}", "method"
    if url != endpoint:
        return "invalid_url", f"url must be the endpoint of the batch, {endpoint!r}, got {_cut(url)}", "url"
    if not isinstance(body, dict):
        return "invalid_body", f"body must be a JSON object, got {_cut(body)}", "body"
    if not isinstance(body.get("model"), str) and endpoint != "/v1/responses":
        return "invalid_model", f"body.model must be a string, got {_cut(body.get('model'))}", "body.model"
    for name in _REFUSED:
        if body.get(name):
            return (
                f"{name}_not_supported",
                f"body.{name} must be false or left out in a batch, got {_cut(body[name])}",
                f"body.{name}",
            )
    return None


def _cut(value: object) -> str:
    """Show a value that the file chose, shortened."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
