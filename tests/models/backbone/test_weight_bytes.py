"""How much memory the weights of a backbone take is known before they are loaded, unless they must be pulled first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import weight_bytes
from everlong_models.catalogue.entry import entries
from everlong_models.catalogue.machine import weights_needed
from everlong_models.errors import BackboneError
from everlong_models.size import model_bytes
from tests.models import tiny_gguf
from tests.models.model_folders import backbone

LISTED = "qwen2.5-coder-0.5b-instruct"


@pytest.mark.parametrize("name", ["somebody/model", "somebody/model-2.5-0.5B"])
def test_a_model_of_the_hub_is_unknown_until_it_is_pulled(tmp_path: Path, name: str) -> None:
    assert weight_bytes(name, models_dir=tmp_path) is None
    (tmp_path / name.replace("/", "--")).symlink_to(backbone())
    assert weight_bytes(name, models_dir=tmp_path) == weight_bytes(str(backbone()), models_dir=tmp_path)


def test_a_folder(tmp_path: Path) -> None:
    numbers = sum(tensor.numel() for tensor in load_file(backbone() / "model.safetensors").values())
    assert weight_bytes(str(backbone()), models_dir=tmp_path, one_copy=True) == 5 * numbers
    assert weight_bytes(str(backbone()), models_dir=tmp_path, device="cuda") == 2 * numbers


def test_a_model_of_the_catalogue(tmp_path: Path) -> None:
    entry = entries()[LISTED]
    assert weight_bytes(LISTED, models_dir=tmp_path) == 5 * entry.parameters
    assert weight_bytes(LISTED, models_dir=tmp_path, one_copy=True) == weights_needed(entry.bytes)
    assert weight_bytes(LISTED, models_dir=tmp_path, one_copy=True, device="cuda") == 2 * entry.parameters


@pytest.mark.parametrize("how", [{}, {"memory": "window"}])
def test_a_model_around_quantised_weights(tmp_path: Path, how: dict[str, Any]) -> None:
    assert model_bytes(LISTED, models_dir=tmp_path, **how) == weights_needed(entries()[LISTED].bytes)


@pytest.mark.parametrize("how", [{"memory": "rmt"}, {"quantize": False}])
def test_a_model_around_float_weights(tmp_path: Path, how: dict[str, Any]) -> None:
    assert model_bytes(LISTED, models_dir=tmp_path, **how) == 5 * entries()[LISTED].parameters


@pytest.mark.parametrize(("family", "one_copy"), [("qwen2", True), ("gptneox", True), ("starcoder2", False)])
def test_a_file(tmp_path: Path, family: str, one_copy: bool) -> None:
    """One whose family cannot be served from one copy of its weights takes as much as without `one_copy`."""
    file = tiny_gguf.write(tmp_path / "a.gguf", family)
    twice = weight_bytes(str(file), models_dir=tmp_path)
    numbers = sum(tensor.shape[0] * (tensor.shape[1:] or (1,))[0] for tensor in GGUFFile(file).tensors.values())
    assert twice == 5 * numbers
    expected = weights_needed(file.stat().st_size) if one_copy else twice
    assert weight_bytes(str(file), models_dir=tmp_path, one_copy=True) == expected


@pytest.mark.parametrize(("name", "error"), [("nothing", "no model 'nothing'"), ("no/file.gguf", "no GGUF file no")])
def test_a_name_that_cannot_be_found(tmp_path: Path, name: str, error: str) -> None:
    with pytest.raises(BackboneError, match=error):
        weight_bytes(name, models_dir=tmp_path)
