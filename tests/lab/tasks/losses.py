"""The loss of whole documents, from an unroll."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from everlong_lab.tasks.unroll import unroll
from everlong_models.memories.base import SegmentReader


def document_loss(model: SegmentReader, tokens: Tensor, **how: Any) -> Tensor:
    """Return the mean negative log-likelihood of all targets in the batch, a scalar; `how` as in `unroll`."""
    parts = list(unroll(model, tokens, **how))
    return torch.stack([part.loss.sum() for part in parts]).sum() / sum(int(part.targets.sum()) for part in parts)
