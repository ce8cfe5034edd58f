"""`everlong bench one-copy`: what it compares with is the model of the file, in every family."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_lab.benchmarks import one_copy
from tests.models import tiny_families, tiny_gguf


@pytest.mark.parametrize("family", tiny_families.mark_rare_long(["granite", "qwen2", *tiny_gguf.GPT]))
def test_it_finds_the_same_model(family: str, tmp_path: Path) -> None:
    """Granite scales embeddings and logits. GPT-2 has learned positions, and other families have other modules."""
    file = tiny_gguf.write(tmp_path / "model.gguf", family, tied=family != "qwen2")
    report = one_copy.run(file, "he said " * 40, models_dir=tmp_path / "models", tokens=64, progress=lambda line: None)
    (row,) = report.rows
    assert row["prefill_kl"] < 0.01
    assert row["decode_kl"] < 0.01
    assert row["prefill_agreement"] > 0.9
