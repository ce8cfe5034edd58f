"""Faults in the processes that read uploaded files: the server logs where they happened, but nothing that may quote a file."""

from __future__ import annotations

import os
import sys
from types import TracebackType

from everlong_server.observability.logs import PrivateFormatter

_MAX_CHARS = 2000
_log = sys.stderr


def keep_private() -> None:
    """Let this process write nothing to its standard error except what `report` writes. Libraries may quote the file there."""
    global _log  # noqa: PLW0603 - one standard error per process
    _log = os.fdopen(os.dup(2), "w")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    sys.excepthook = _report_uncaught


def report(error: BaseException) -> None:
    """Write the traceback of an error, without its message."""
    _report_uncaught(type(error), error, error.__traceback__)


def _report_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    print(PrivateFormatter().formatException((kind, error, trace))[-_MAX_CHARS:], file=_log, flush=True)
