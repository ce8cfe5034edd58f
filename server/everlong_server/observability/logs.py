"""Logging set-up and formatters. Users' words and secrets never reach the log."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextvars import ContextVar
from types import TracebackType

from redis.exceptions import RedisError
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.text import Text

from everlong_models.errors import EverlongModelError

log = logging.getLogger(__name__)

REQUEST_ID: ContextVar[str | None] = ContextVar("everlong_request", default=None)
"""The id of the current request."""

OURS = ("everlong_server", "everlong_models")
_QUIET = ("httpx", "uvicorn.error")
_QUIETEST = ("torchao", "torch.utils._pytree")
"""Loggers that warn when torchao is imported, which transformers does wherever it is installed: of kernels that nothing here uses."""
_HARMLESS = (OSError, RedisError, EverlongModelError, MemoryError, AssertionError)
"""Errors whose messages are about the machine. Messages of other errors may quote users' words."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class PrivateFormatter(logging.Formatter):
    """Formats an error as its traceback and type. Adds the message only if it cannot quote a user's words."""

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - logging's name
        """Return the traceback, causes first."""
        chain: list[BaseException] = []
        error = ei[1]
        while error is not None and error not in chain:
            chain.append(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(_lines(error) for error in reversed(chain))


class JsonFormatter(PrivateFormatter):
    """Formats a record as one line of JSON: time, level, logger, message and request id."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` with its extra fields and the traceback of its error, if any."""
        entry = {
            "at": record.created, "level": record.levelname.lower(), "logger": record.name,
            "request_id": REQUEST_ID.get(),
        }  # fmt: skip
        entry |= getattr(record, "entry", None) or {"message": record.getMessage()}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class Reporter:
    """Prints the server's progress on the terminal: styled lines, or log records if the log format is JSON."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self.as_json = as_json

    def announce(self, text: str, level: int = logging.INFO) -> None:
        """Print or log `text`, which may have rich markup."""
        if self.as_json:
            log.log(level, "%s", Text.from_markup(text).plain)
        else:
            self._console.print(text)

    def print(self, text: str) -> None:
        """Print `text` without markup. Prints nothing if the log format is JSON."""
        if not self.as_json:
            self._console.print(text, markup=False)

    def fail(self, error: BaseException) -> None:
        """Print or log the error that ends the server."""
        self.announce(
            escape(str(error)) if self.as_json else f"[bold red]error:[/] {escape(str(error))}", logging.ERROR
        )


def _lines(error: BaseException) -> str:
    stack = "".join(traceback.format_tb(error.__traceback__))
    message = f": {error}" if isinstance(error, _HARMLESS) else " (its message is not logged)"
    return f"{stack}{type(error).__name__}{message}"


def configure(level: str, console: Console, *, as_json: bool = False) -> None:
    """Send all logs to stderr. `level` applies to everlong's loggers only: at debug, libraries would log users' words."""
    if as_json:
        handler: logging.Handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter())
    elif sys.stderr.isatty():
        handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(PrivateFormatter("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(PrivateFormatter("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    for name in _QUIETEST:
        logging.getLogger(name).setLevel("ERROR")
    # The audit log is written at every level.
    logging.getLogger("everlong_server.observability.audit").setLevel("INFO")
