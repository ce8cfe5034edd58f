"""∞-former obeys the laws."""
from __future__ import annotations

import pytest
import torch

from everlong_models.infinite import InfiniteConfig, InfiniteFormer
from tests.models.laws import Laws, tokens
from tests.models.tiny import FAMILIES, llama

SMALL = {"segment_length": 12, "basis": 10, "widths": (0.05, 0.1), "samples": 9, "bins": 7, "output": "random"}


class TestInfinite(Laws):
    @pytest.fixture(params=[(f, s) for f in FAMILIES for s in ("off", "independent", "stratified")], ids="-".join)
    def model(self, request):
        family, sticky = request.param
        return InfiniteFormer(InfiniteConfig(**SMALL, sticky=sticky, parallel_tokens=24), FAMILIES[family]()).eval()
