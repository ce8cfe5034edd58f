"""Quantised weights for GPUs reach the models that a server loads, and are refused on a CPU."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from everlong_models.errors import ConfigError
from everlong_server.process import loading
from everlong_server.settings import Settings, SettingsError, load_settings
from tests.models.model_folders import backbone


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What `load_model` and `model_bytes` were called with. Neither is run."""
    calls: list[dict[str, Any]] = []
    for name in ("load_model", "model_bytes"):
        monkeypatch.setattr(loading, name, lambda *_, **how: calls.append(how) or SimpleNamespace())
    monkeypatch.setattr(loading, "load_embedder", lambda name: None)
    return calls


def settings(tmp_path: Path, **more: Any) -> Settings:
    first = {"model": str(backbone()), "models": (str(backbone("gpt2")),), "models_dir": tmp_path}
    return Settings(**(first | more))


def test_the_first_model_and_the_others_are_quantised(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    given = settings(tmp_path, device="cuda", gpu_quantize="int8")
    loading.load(given, lambda message: None)
    loads: list[Any] = []

    def start(load: Any) -> Future[Any]:
        loads.append(load)
        raise RuntimeError("not here")

    source = loading.model_source(given, start)
    with pytest.raises(RuntimeError, match="not here"):
        source.load(str(backbone("gpt2")))
    loads[0]()
    assert [(each["device"], each["gpu_quantize"]) for each in asked] == 3 * [("cuda", "int8")]


def test_a_cpu_has_other_quantised_weights(tmp_path: Path, asked: list[dict[str, Any]]) -> None:
    given = settings(tmp_path, device="cpu", gpu_quantize="int4")
    for refused in (loading.load, loading.model_source):
        with pytest.raises(ConfigError, match=r"gpu_quantize.*'?int4'?.* needs a GPU \(--device cuda\); on a CPU"):
            refused(given, lambda *_: None)
    assert asked == []


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings([]).gpu_quantize is None
    assert load_settings(["--gpu-quantize", "fp8"]).gpu_quantize == "fp8"
    assert load_settings(["--no-quantize"]).quantize is False
    monkeypatch.setenv("EVERLONG_GPU_QUANTIZE", "int4")
    assert load_settings([]).gpu_quantize == "int4"
    message = r"--gpu-quantize \(EVERLONG_GPU_QUANTIZE\)='int3': Input should be 'int8', 'fp8' or 'int4'"
    with pytest.raises(SettingsError, match=message):
        load_settings(["--gpu-quantize", "int3"])
