"""Low-rank updates around one copy of a GGUF file's weights: the same model as with float weights, and the same errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import AdapterError
from everlong_models.kernels.cpu.job import Layer
from everlong_models.memories.base import SegmentReader
from everlong_models.model import MEMORIES, Model, load_model
from everlong_models.weights import WEIGHTS, load_weights, read_manifest
from tests.models import tiny_gguf
from tests.models.backbone.rounding import CLOSE, ROUNDINGS, round_to
from tests.models.model_folders import change_weights, manifest

WINDOW = {"name": "window", "segment_length": 32, "window": 64, "sinks": 4}
COMPACT = {"name": "compact", "segment_length": 32, "entries": 48}
QUERY = "lora.model.layers.0.self_attn.q_proj"


def updates(file: Path, rank: int = 4) -> dict[str, Tensor]:
    """Return an update of every linear layer, half as large as its weight."""
    generator, found = torch.Generator().manual_seed(7), {}
    for name, layer in tiny_gguf.float_model(file).named_modules():
        if isinstance(layer, nn.Linear | Conv1D):
            outputs, inputs = layer.weight.shape if isinstance(layer, nn.Linear) else layer.weight.t().shape
            a = torch.randn(rank, inputs, generator=generator)
            b = torch.randn(outputs, rank, generator=generator) * layer.weight.detach().std() / 2
            found |= {f"lora.{name}.A": a, f"lora.{name}.B": b}
    return found


def make(folder: Path, family: str = "qwen2", memory: dict[str, object] = WINDOW, **gguf: object) -> Path:
    """Write a model folder around a GGUF file, with updates and the scale 0.5. `gguf`: for `tiny_gguf.write`."""
    folder.mkdir()
    file = tiny_gguf.write(folder / "tiny.gguf", family, **gguf)
    manifest(folder, backbone="tiny.gguf", memory=memory, lora_scale=0.5)
    change_weights(folder, **updates(file))
    return folder


def load(folder: Path, **options: object) -> Model:
    return load_model(str(folder), models_dir=folder / "models", **options)


def with_floats(folder: Path) -> SegmentReader:
    """Return the folder's memory around float weights with the same updates."""
    spec = dict(read_manifest(folder).memory)
    kind, backbone = MEMORIES[spec.pop("name")], Backbone(tiny_gguf.float_model(folder / "tiny.gguf"))
    memory = kind.build(kind.config(**spec), backbone.requires_grad_(False)).eval()
    assert load_weights(folder, memory, backbone, 0.5)
    return memory


@pytest.fixture
def folder(tmp_path):
    return make(tmp_path / "mine")


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found.float() - expected).norm() / expected.norm())


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    ("family", "value", "tied"),
    [
        ("qwen2", Kind.Q6_K, False), ("qwen2", Kind.Q4_K, True), ("llama", Kind.Q4_K, False), ("gpt2", Kind.Q4_K, True),
        ("gptneox", Kind.Q4_K, False), ("falcon", Kind.Q4_K, False),
    ],
)  # fmt: skip
@torch.no_grad()
@pytest.mark.long
def test_it_computes_what_float_weights_with_these_updates_compute(
    family, value, tied, rounding, tmp_path, monkeypatch
):
    monkeypatch.setitem(tiny_gguf.KINDS, "attn_v", value)
    folder, rounded = make(tmp_path / "mine", family, tied=tied), round_to(rounding, monkeypatch)
    exact, found = with_floats(folder).backbone, load(folder, bfloat16=rounded).memory.backbone
    (folder / WEIGHTS).unlink()
    plain = load(folder, bfloat16=rounded).memory.backbone
    assert found.digest
    assert (Layer.V in found._optimised.decoding.layers[0]) == (value == Kind.Q6_K), (
        "values stacked with queries, or apart"
    )
    tokens = torch.randint(0, tiny_gguf.VOCABULARY, (2, 90), generator=torch.Generator().manual_seed(1))
    x, close = exact.embed(tokens), CLOSE[rounding]
    for count in (90, 9):  # at least `MANY` rows, or fewer
        kvs = [backbone.new_kv(2, 100) for backbone in (exact, found, plain)]
        expected, hidden, without = (
            backbone.hidden(x[:, :count], kv=kv) for backbone, kv in zip((exact, found, plain), kvs, strict=True)
        )
        assert distance(hidden, expected) < close
        copies = kvs[0].shape[3] // kvs[1].shape[3]  # transformers copies Falcon's keys to all heads
        assert distance(kvs[1], kvs[0][:, :, :, ::copies]) < close
        assert distance(without, expected) > (4 if rounding == "int8" else 5) * close
    scores, found_scores = exact.logits(expected), found.logits(hidden)
    assert distance(found_scores, scores) < close
    at = torch.tensor([9, 4])
    for count in (1, 3):  # a decode step; several positions
        step, expected = (
            backbone.hidden(x[:, :count], kv=kv, at=at) for backbone, kv in zip((found, exact), kvs[1::-1], strict=True)
        )
        assert distance(step, expected) < close
        assert distance(found.logits(step[:, -1]), exact.logits(expected[:, -1])) < close


@pytest.mark.parametrize(
    ("family", "memory"),
    [
        pytest.param(family, memory, marks=[] if family == "qwen2" else [pytest.mark.long])
        for family in ("qwen2", *tiny_gguf.GPT) for memory in (WINDOW, COMPACT) if (family, memory) != ("falcon", COMPACT)
    ],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)  # fmt: skip
@torch.no_grad()
def test_memories_read_and_answer_as_with_float_weights(family, memory, tmp_path):
    """Not `compact` around Falcon: with float weights, transformers does not show its queries."""
    folder = make(tmp_path / "mine", family, memory=memory)
    # Not any tokens: where two entries have nearly equal scores, `compact` keeps another one of them with rounded weights.
    tokens = torch.randint(0, tiny_gguf.VOCABULARY, (1, 110), generator=torch.Generator().manual_seed(1))
    logits = []
    for module in (load(folder, bfloat16=False).memory, with_floats(folder)):
        state = module.read(tokens[:, :96], module.initial_state())
        cache, first = module.open(state, tokens[:, 96:109])
        logits += [torch.stack([first, module.step(cache, tokens[:, 109])])]
    assert distance(*logits) < 0.02


def test_no_weight_is_held_as_float(folder):
    backbone = load(folder).memory.backbone
    assert all(tensor.is_meta for tensor in backbone.parameters())
    backbone.optimize(quantize=True, bfloat16=False)
    ranks = {matrix.update[0].shape[0] for layer in backbone._optimised.decoding.layers for matrix in layer.values()}
    assert ranks == {4, 8}, "updates remain if the backbone is optimised again; those of queries and keys are stacked"


def test_the_fingerprint_covers_updates_and_their_scale(folder):
    whole = load(folder)
    found = [whole.fingerprint, load(folder).fingerprint]
    assert len(set(found)) == 1
    manifest(folder, backbone="tiny.gguf", memory=WINDOW, lora_scale=0.25)
    found += [load(folder).fingerprint]
    change_weights(folder, **{f"{QUERY}.A": None, f"{QUERY}.B": None})
    found += [load(folder).fingerprint]
    (folder / WEIGHTS).unlink()
    found += [load(folder).fingerprint]
    options = {name: value for name, value in WINDOW.items() if name != "name"}
    plain = load_model(str(folder / "tiny.gguf"), models_dir=folder / "models", options=options)
    assert len(set(found)) == 4
    assert found[-1] == plain.fingerprint


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({f"{QUERY}.A": None}, r"the low-rank update of 'model.layers.0.self_attn.q_proj' needs both A and B"),
        (
            {f"{QUERY}.B": torch.ones(256, 3)},
            r"must have A \(r, in\) and B \(out, r\), got A \(4, 256\) and B \(256, 3\)",
        ),
        ({f"{QUERY}.B": torch.ones(250, 4)}, r"must have the layer's shape \(256, 256\), got \(250, 256\)"),
        (
            {f"{QUERY}.A": torch.full((4, 256), torch.nan)},
            r"tensor 'lora.model.layers.0.self_attn.q_proj.A' contains NaN",
        ),
        ({"lora.model.norm.A": torch.ones(1, 1), "lora.model.norm.B": torch.ones(1, 1)}, "which is not a linear layer"),
        ({"lora.model.layers.9.A": torch.ones(1, 1), "lora.model.layers.9.B": torch.ones(1, 1)}, "'model.layers.9'"),
        ({"scale": torch.ones(1)}, "unknown tensors for this memory: scale"),
    ],
)
@pytest.mark.parametrize("quantize", [True, False], ids=["one copy", "floats"])
def test_updates_that_do_not_fit_are_refused(folder, changes, message, quantize):
    change_weights(folder, **changes)
    with pytest.raises(AdapterError, match=f"{folder / WEIGHTS}.*{message}"):
        load(folder, quantize=quantize)
