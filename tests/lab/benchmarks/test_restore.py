"""`bench restore`: the GGUF file has the model's weights, and the benchmark measures a killed server."""

from __future__ import annotations

import math

import numpy as np
import pytest

from everlong_lab.benchmarks import restore
from everlong_models.backbone.gguf.file import GGUFFile


def test_llama_cpps_file_has_the_same_weights_under_its_names(tmp_path):
    model = restore._save_model(tmp_path / "model", 64, 3)
    restore._write_gguf(model, tmp_path / "model.gguf")
    file = GGUFFile(tmp_path / "model.gguf")
    assert file.metadata["general.architecture"] == "lfm2"
    weights = model.state_dict()
    numbers = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
    assert numbers == sum(weight.numel() for name, weight in weights.items() if name != "lm_head.weight")
    found = file.rows("blk.0.shortconv.conv.weight").copy().view(np.float32)
    assert np.array_equal(found, weights["model.layers.0.conv.conv.weight"][:, 0].numpy())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_server_answers_the_same(monkeypatch):
    monkeypatch.setattr(restore.importlib.util, "find_spec", lambda name: None)  # llama.cpp may be missing
    report = restore.run(tokens=6000, width=64, layers=3, quick=True, progress=lambda message: None)
    assert [row["server"] for row in report.rows] == ["everlong, native", "transformers"]
    assert report.targets[0].met
    assert report.rows[0]["read_again"] < 300 < report.rows[1]["read_again"]
    assert report.notes[-1] == "llama.cpp was not measured: pip install xllamacpp"
