"""What is computed in its own type though the rest runs under autocast, as training on a GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def under_autocast(device: torch.device) -> bool:
    """Whether what is computed there now has another type than its inputs."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


@contextmanager
def in_full(device: torch.device) -> Iterator[None]:
    """Without autocast: what adds up over thousands of segments, or is badly conditioned, needs its bits."""
    if not under_autocast(device):
        yield
        return
    with torch.autocast(device.type, enabled=False):
        yield
