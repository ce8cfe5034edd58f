"""`pausing`: a long pass over a segment lets something shorter have the device between its layers.

    with at_yield_points(step):            # on this thread, `step` is called between the layers of whatever is computed here
        memory.read(tokens, state)

A layer's result depends on nothing but its input, so what is computed stays the same to the bit. Memories that compute
layer by layer call `pause` between them; where all layers are one call, before it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

_thread = threading.local()


@contextlib.contextmanager
def at_yield_points(between: Callable[[], None]) -> Iterator[None]:
    """Within it, `pause` calls `between`; not within `between` itself, whose own passes run through."""
    before = getattr(_thread, "between", None)
    _thread.between = between
    try:
        yield
    finally:
        _thread.between = before


def yield_point() -> None:
    """Between two layers, or before them all: whoever waits for the device may have it now. Nothing happens outside `pausing`."""
    between = getattr(_thread, "between", None)
    if between is None:
        return
    _thread.between = None
    try:
        between()
    finally:
        _thread.between = between
