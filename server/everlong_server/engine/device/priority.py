"""The priority of a task's requests to the engine: tasks in the background wait for all others.

A context variable, since a batch and an HTTP request go through the same endpoints and turns: only the engine looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_IN_BACKGROUND: ContextVar[bool] = ContextVar("in_background", default=False)


@contextmanager
def background_priority() -> Iterator[None]:
    """Give the requests of this task, and of the tasks that it starts, background priority for the length of the block."""
    token = _IN_BACKGROUND.set(True)
    try:
        yield
    finally:
        _IN_BACKGROUND.reset(token)


def in_background() -> bool:
    """Whether the current task has background priority."""
    return _IN_BACKGROUND.get()
