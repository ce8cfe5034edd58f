"""Where logs go, and what does not: the words of users, and secrets."""

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
"""The id of the request that is being answered."""

OURS = ("everlong_server", "everlong_models")
_QUIET = ("httpx", "uvicorn.error")
_HARMLESS = (OSError, RedisError, EverlongModelError, MemoryError, AssertionError)
"""Errors whose messages are about machines. What others say may be what somebody has written."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class PrivateFormatter(logging.Formatter):
    """Prints where an error came from and of what type it is; its message only if that cannot hold a user's words."""

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - logging's name
        """The traceback, causes first."""
        chain: list[BaseException] = []
        error = ei[1]
        while error is not None and error not in chain:
            chain.append(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(_lines(error) for error in reversed(chain))


class JsonFormatter(PrivateFormatter):
    """A line of JSON a record: when, how grave, from where, what, in which request."""

    def format(self, record: logging.LogRecord) -> str:
        """`record`, with its fields and the traceback of its error, if it has any."""
        entry = {
            "at": record.created, "level": record.levelname.lower(), "logger": record.name,
            "request_id": REQUEST_ID.get(),
        }  # fmt: skip
        entry |= getattr(record, "entry", None) or {"message": record.getMessage()}
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class Reporter:
    """What a server says to whoever has started it: styled lines for people, or records of the log where that is JSON."""

    def __init__(self, console: Console, *, as_json: bool) -> None:
        self._console = console
        self.as_json = as_json

    def announce(self, text: str, level: int = logging.INFO) -> None:
        """`text`: with rich's markup."""
        if self.as_json:
            log.log(level, "%s", Text.from_markup(text).plain)
        else:
            self._console.print(text)

    def print(self, text: str) -> None:
        """`text` as it is, to people only."""
        if not self.as_json:
            self._console.print(text, markup=False)

    def fail(self, error: BaseException) -> None:
        """Why it ends."""
        self.announce(
            escape(str(error)) if self.as_json else f"[bold red]error:[/] {escape(str(error))}", logging.ERROR
        )


def _lines(error: BaseException) -> str:
    where = "".join(traceback.format_tb(error.__traceback__))
    said = f": {error}" if isinstance(error, _HARMLESS) else " (its message is not logged)"
    return f"{where}{type(error).__name__}{said}"


def configure(level: str, console: Console, *, as_json: bool = False) -> None:
    """Sends everything to stderr. `level` is for our own loggers: at debug, libraries log what they are sent."""
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
    # Who gets in is told whatever the level.
    logging.getLogger("everlong_server.observability.audit").setLevel("INFO")
