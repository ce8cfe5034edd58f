"""`everlong bench families` measures every family that has the fast path, also with windows smaller than the prompt."""

from __future__ import annotations

import pytest

from everlong_lab.benchmarks.families.ratio import run, supported
from everlong_models.backbone.description import FAMILIES


@pytest.mark.long
def test_every_family_has_a_ratio_to_llama():
    report = run(families=supported(), width=128, layers=1, tokens=64, turns=1, progress=lambda _: None)
    assert {row["family"] for row in report.rows} == set(FAMILIES) - {"llama"}
    assert all(row[f"{phase}_ratio"] > 0 for row in report.rows for phase in ("decode", "prefill"))
    assert len(report.targets) == 2 * len(report.rows)
