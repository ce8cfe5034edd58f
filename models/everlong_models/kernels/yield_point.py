"""Yield points: between the layers of a long pass, shorter work may use the device.

    with at_yield_points(step):            # on this thread, `step` is called between the layers of whatever is computed here
        memory.read(tokens, state)

A layer's result depends only on its input, so the results are the same to the bit. Memories that compute layer by layer call
`yield_point` between layers; where one call computes all layers, before that call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_thread = threading.local()


@contextlib.contextmanager
def at_yield_points(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` at this thread's yield points. Passes that `callback` itself computes have none."""
    before = getattr(_thread, "callback", None)
    _thread.callback = callback
    try:
        yield
    finally:
        _thread.callback = before


def yield_point() -> None:
    """Let shorter work use the device now. Does nothing outside `at_yield_points`."""
    callback = getattr(_thread, "callback", None)
    if callback is None:
        return
    _thread.callback = None
    try:
        callback()
    finally:
        _thread.callback = callback
