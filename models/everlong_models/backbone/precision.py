"""Exceptions from autocast: computations that keep their dtype while the rest of a training pass runs in lower precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def under_autocast(device: torch.device) -> bool:
    """Return whether autocast is active for this device."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


@contextmanager
def in_full(device: torch.device) -> Iterator[None]:
    """Disable autocast: sums over thousands of segments and ill-conditioned problems need full precision."""
    if not under_autocast(device):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield
