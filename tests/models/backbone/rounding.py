"""Ways in which prefill rounds activations with one copy of the weights. Tests try each that this processor supports."""

from __future__ import annotations

import pytest

from everlong_models.backbone import quantised_llama
from everlong_models.kernels.cpu.products import int8
from everlong_models.kernels.linear import has_bfloat16

ROUNDINGS = [
    "16 bits",
    pytest.param("int8", marks=pytest.mark.skipif(not int8.has_int8(), reason="no AVX-512 VNNI")),
    pytest.param("bfloat16", marks=pytest.mark.skipif(not has_bfloat16(), reason="no bfloat16 instructions")),
]
CLOSE = {"16 bits": 0.005, "int8": 0.06, "bfloat16": 0.03}
"""Largest relative distance between a tiny model's results and those of float weights. bfloat16 errs by at most 1/256 of a number. 8 bits err by at most 1/254 of the
largest number of a group, which is several times as large as most others."""


def round_to(rounding: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Make products of many rows round in this way, whatever the processor would choose. Returns the argument `bfloat16` of `optimize`."""
    monkeypatch.setattr(int8, "has_int8", lambda: rounding == "int8")
    monkeypatch.setattr(quantised_llama, "has_amx", lambda: False)
    monkeypatch.setattr(quantised_llama, "LEAST_WIDTH", 0)
    return rounding != "16 bits"
