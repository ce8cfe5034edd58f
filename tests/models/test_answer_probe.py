"""A model folder's probe: what it multiplies, when it is loaded, and which files are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from everlong_models import load_model
from everlong_models.answer_probe import PROBE, AnswerProbe
from everlong_models.errors import AdapterError
from everlong_server.engine.device.decode_rows import DecodeRows

TENSORS = {"layer": torch.tensor(1), "weight": torch.arange(32.0).view(2, 16), "bias": torch.tensor(-3.0)}

LONG = {"long_weight": torch.ones(2, 16), "long_bias": torch.tensor(0.5)}


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny backbone with the memory `window`, as a model folder without weights of its own."""
    target = tmp_path / "tiny-window"
    shutil.copytree(tiny_model / "backbone", target / "backbone")
    spec = {"name": "window", "segment_length": 16, "sinks": 4, "window": 64}
    (target / "everlong.json").write_text(json.dumps({"backbone": "backbone", "memory": spec, "trained": False}))
    return target


def test_it_is_loaded_with_the_memory_window_alone(folder: Path) -> None:
    assert load_model(str(folder), models_dir=folder).probes is None
    fingerprint = load_model(str(folder), models_dir=folder).fingerprint
    save_file(TENSORS, folder / PROBE)
    model = load_model(str(folder), models_dir=folder)
    assert model.probes is not None
    for probe, bias in ((model.probes.few_pages, -3.0), (model.probes.long, -2.0)):
        assert (probe.layer, probe.bias) == (1, bias), "it must be surer about longer texts"
        assert torch.equal(probe.weight, TENSORS["weight"])
    assert model.fingerprint == fingerprint, "it changes no state"
    assert (
        load_model(
            str(folder), models_dir=folder, memory="compact", options={"segment_length": 16, "entries": 20}
        ).probes
        is None
    )


def test_longer_texts_can_have_their_own(folder: Path) -> None:
    save_file(TENSORS | LONG, folder / PROBE)
    probes = load_model(str(folder), models_dir=folder).probes
    assert probes is not None
    assert (probes.few_pages.bias, probes.long.bias, probes.long.layer) == (-3.0, 0.5, 1)
    assert torch.equal(probes.few_pages.weight, TENSORS["weight"])
    assert torch.equal(probes.long.weight, LONG["long_weight"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": torch.zeros(4, 16)}, r"a weight of shape \(2, 16\) and a layer below 2, got \(4, 16\) and layer 1"),
        ({"layer": torch.tensor(2)}, r"got \(2, 16\) and layer 2"),
        ({"bias": None}, "missing tensors: bias"),
        ({"bias": torch.zeros(2)}, "bias must be one number"),
        ({"layer": torch.tensor(0.5)}, "layer must be one integer"),
        ({"long_bias": torch.tensor(0.0)}, "missing tensors: long_weight"),
        (LONG | {"long_weight": torch.zeros(4, 16)}, r"a long_weight of shape \(2, 16\)"),
        (LONG | {"long_bias": torch.zeros(2)}, "long_bias must be one number"),
        ({"weight": torch.full((2, 16), torch.nan)}, "'weight' contains NaN"),
    ],
)
def test_a_wrong_file_is_refused(folder: Path, changes: dict[str, Tensor | None], message: str) -> None:
    tensors = {name: tensor for name, tensor in (TENSORS | changes).items() if tensor is not None}
    save_file(tensors, folder / PROBE)
    with pytest.raises(AdapterError, match=message):
        load_model(str(folder), models_dir=folder)


def test_the_packaged_reader_has_one(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "models/everlong_models/trained/qwen2.5-coder-1.5b-reader"
    from safetensors.torch import load_file

    tensors = load_file(folder / PROBE)
    assert tensors["weight"].shape == (2, 128)
    assert 0 <= int(tensors["layer"]) < 28


@torch.no_grad()
@pytest.mark.parametrize("newest", [None, 0, 20])
def test_it_reads_the_values_of_the_prompts_last_token(folder: Path, newest: int | None) -> None:
    """They are the backbone's own, for what the answer attends to."""
    model = load_model(str(folder), models_dir=folder, quantize=False, bfloat16=False)
    memory = model.memory
    text = torch.randint(5, 500, (1, 48), generator=torch.Generator().manual_seed(0))
    state, tokens = memory.read(text, memory.initial_state(1)), [7, 8, 9]
    rows = DecodeRows(memory, torch.device("cpu"))
    rows.open(state, [11, 12], None, True)
    rows.open(state, tokens, newest, newest is None)
    seen = {None: text[0].tolist(), 0: [], 20: text[0, -20:].tolist()}[newest]
    kv = memory.backbone.new_kv(1, 64)
    memory.backbone.hidden(memory.backbone.embed(torch.tensor([[*seen, *tokens]])), kv=kv)
    for layer in range(2):
        expected = kv[0, layer, 1, :, len(seen) + 2]
        torch.testing.assert_close(rows.last_values(layer), expected)
        assert AnswerProbe(layer, expected, 0.0).holds_answer(rows.last_values(layer))
        assert not AnswerProbe(layer, -expected, 0.0).holds_answer(rows.last_values(layer))
