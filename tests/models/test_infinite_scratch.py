"""The from-scratch ∞-former obeys the laws."""

from __future__ import annotations

import pytest
import torch

from everlong_models.infinite_scratch import InfiniteScratch, InfiniteScratchConfig
from tests.models.laws import Laws

SMALL = {"segment_length": 12, "vocab_size": 40, "layers": 2, "heads": 2, "width": 16, "bins": 7}
SMALL |= {"basis": 10, "widths": (0.05, 0.1), "samples": 9}


class TestInfiniteScratch(Laws):
    @pytest.fixture(params=[("off", 12), ("stratified", 30), ("independent", 5), ("off", 0)], ids=str)
    def model(self, request):
        sticky, short_term = request.param
        return InfiniteScratch(InfiniteScratchConfig(**SMALL, sticky=sticky, short_term=short_term), torch.float64)
