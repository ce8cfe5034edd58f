"""`Batch`: a file of requests that are answered in the background, and how far they are answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from everlong_server.store.records import Hash

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")
"""The statuses of a batch that has not ended."""
TIMES = (
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at", "cancelled_at",
)  # fmt: skip
_COUNTS = ("total", "completed", "failed", "line", "offset", "result_bytes")


@dataclass(frozen=True, slots=True)
class BatchError:
    """Why a batch failed. `line`: of its input file, counted from 1. `param`: the field of that line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch. Times are Unix times in seconds.

    `model`: fingerprint of the model in whose queue it waits. `output_seconds`: how long its output files are kept. `line`, `offset`:
    number of the input's lines, and of its bytes, whose results are in the blob store. `parts`: the blobs that have them, in order.
    `result_bytes`: size of the results that are still in Redis.
    """

    id: str
    input_file: str
    endpoint: str
    model: str
    created_at: float
    expires_at: float
    output_seconds: float
    metadata: dict[str, str] | None = None
    trace: str = ""
    tenant: str = ""
    status: Status = "validating"
    output_file: str | None = None
    error_file: str | None = None
    errors: tuple[BatchError, ...] = ()
    times: Mapping[str, float] = field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    line: int = 0
    offset: int = 0
    result_bytes: int = 0
    parts: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether it has not ended."""
        return self.status in OPEN

    def request_fields(self) -> dict[str, Any]:
        """Return the fields of its hash that never change, and its first status."""
        facts = {name: getattr(self, name) for name in _FACTS}
        return {"batch": json.dumps(facts), "tenant": self.tenant, "status": self.status, "expires_at": self.expires_at}

    @staticmethod
    def of(stored: Hash) -> Batch:
        """Decode a hash."""
        text = {name.decode(): value.decode() for name, value in stored.items()}
        counts: dict[str, Any] = {name: int(text[name]) for name in _COUNTS if name in text}
        return Batch(
            **json.loads(text["batch"]),
            **counts,
            tenant=text["tenant"],
            status=text["status"],  # type: ignore[arg-type]
            output_file=text.get("output_file"),
            error_file=text.get("error_file"),
            errors=tuple(BatchError(**each) for each in json.loads(text.get("errors", "[]"))),
            times={name: float(text[name]) for name in TIMES if name in text},
            parts=tuple(json.loads(text.get("parts", "[]"))),
        )


_FACTS = (
    "id", "input_file", "endpoint", "model", "created_at", "expires_at", "output_seconds", "metadata", "trace",
)  # fmt: skip


def encoded_errors(errors: tuple[BatchError, ...]) -> str:
    """Return errors as they are stored."""
    return json.dumps([asdict(error) for error in errors])


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one line. `text`: the line of the output file, or, if `failed`, of the error file."""

    line: int
    failed: bool
    text: str
