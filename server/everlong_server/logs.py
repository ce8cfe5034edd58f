"""Where logs go, and what does not: the words of users, and secrets."""

from __future__ import annotations

import logging
import sys
import traceback
from types import TracebackType

from redis.exceptions import RedisError
from rich.console import Console
from rich.logging import RichHandler

from everlong_models import EverlongModelError

OURS = ("everlong_server", "everlong_models")
_QUIET = ("httpx", "uvicorn.error")
_HARMLESS = (OSError, RedisError, EverlongModelError, MemoryError, AssertionError)
"""Errors whose messages are about machines. What others say may be what somebody has written."""

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class Discreet(logging.Formatter):
    """Prints where an error came from and of what type it is; its message only if that cannot hold a user's words."""

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 - logging's name
        """The traceback, causes first."""
        chain: list[BaseException] = []
        error = ei[1]
        while error is not None and error not in chain:
            chain.append(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(_lines(error) for error in reversed(chain))


def _lines(error: BaseException) -> str:
    where = "".join(traceback.format_tb(error.__traceback__))
    said = f": {error}" if isinstance(error, _HARMLESS) else " (its message is not logged)"
    return f"{where}{type(error).__name__}{said}"


def configure(level: str, console: Console) -> None:
    """Sends everything to stderr. `level` is for our own loggers: at debug, libraries log what they are sent."""
    if sys.stderr.isatty():
        handler: logging.Handler = RichHandler(console=console, show_path=False)
        handler.setFormatter(Discreet("%(message)s"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(Discreet("%(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(logging.INFO, logging.getLevelNamesMapping()[level.upper()]))
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel("WARNING")
    # Who gets in is told whatever the level.
    logging.getLogger("everlong_server.audit").setLevel("INFO")
