"""A GGUF file served from one copy of its weights: the same model as with float weights, in a quarter of the memory."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from everlong_models.backbone import quantised_weights
from everlong_models.backbone.backbone import Backbone
from everlong_models.backbone.gguf.blocks import KINDS, codes_of, floats_of
from everlong_models.backbone.gguf.file import GGUFFile
from everlong_models.backbone.loading import load_backbone
from everlong_models.errors import BackboneError
from everlong_models.kernels.cpu.quantised_matrix import QuantisedMatrix
from everlong_models.model import load_model
from tests.models import tiny_families, tiny_gguf
from tests.models.backbone.rounding import CLOSE, ROUNDINGS, round_to


def load(file, models, *, bfloat16: bool = False) -> Backbone:
    backbone, _ = load_backbone(str(file), models_dir=models, one_copy=True)
    assert backbone.digest
    backbone.optimize(quantize=True, bfloat16=bfloat16)
    return backbone


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def file(models):
    return tiny_gguf.write(models / "tiny.gguf")


def distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_keeps_the_grid_of_its_blocks(kind: Kind) -> None:
    """Every weight is where the file has it, up to a fiftieth of its group's step."""
    rows = tiny_gguf.blocks(40, 512, kind, seed=3)
    exact, matrix = floats_of(rows, kind), QuantisedMatrix.of(codes_of(rows, kind), 40)
    groups = exact.unflatten(1, (-1, 16))
    # Neighbouring values of the grid: a group of 16 with a step d has differences that are multiples of d.
    step = torch.stack([row.unique().diff().min() for row in groups.flatten(0, 1) if len(row.unique()) > 1]).median()
    found = matrix(torch.eye(512)).t()
    assert float((found - exact).abs().max()) < float(step) / 20 + 1e-4 * float(exact.abs().max())
    scratch = torch.empty(48 * 512 + 7, dtype=torch.bfloat16)
    assert distance(matrix.transposed_bfloat16(scratch).float().t(), exact) < 4e-3
    x = torch.randn(200, 512)
    assert distance(matrix(x), x @ exact.t()) < 2e-3
    assert torch.equal(matrix(x)[150:153], matrix(x[150:153]))


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("qwen2", False), ("qwen2", True), ("llama", False), ("qwen3", False), ("qwen3moe", False), ("gemma2", True), ("gemma3", True), ("phi3", False),
        ("granite", True), ("smollm3", True), ("olmo2", False), ("gpt2", False), ("gpt2", True), ("gptneox", False), ("falcon", False), ("falcon", True),
    ],
)  # fmt: skip
@torch.no_grad()
@pytest.mark.long
def test_it_computes_what_float_weights_compute(family, tied, rounding, models, monkeypatch):
    # With all experts in use, rounding cannot choose between two that are nearly as good.
    rounded = round_to(rounding, monkeypatch)
    all_experts = {"qwen3moe.expert_used_count": tiny_gguf.EXPERTS} if family == "qwen3moe" and rounded else {}
    file = tiny_gguf.write(models / f"{family}-{tied}-{rounding}.gguf", family, tied=tied, **all_experts)
    exact, found = Backbone(tiny_gguf.float_model(file)), load(file, models, bfloat16=rounded)
    assert (found.device, found.dtype) == (torch.device("cpu"), torch.float32)
    torch.manual_seed(0)
    tokens = torch.randint(0, tiny_gguf.VOCABULARY, (8, 90))
    x = exact.embed(tokens)
    assert torch.equal(found.embed(tokens), x)
    assert found.embedding_std() == pytest.approx(exact.embedding_std(), rel=1e-3)
    kv, near = exact.new_kv(8, 100), found.new_kv(8, 100)
    close = CLOSE[rounding]
    expected, hidden = exact.hidden(x, kv=kv), found.hidden(x, kv=near)
    assert distance(hidden, expected) < close
    near_by = (hidden - expected).norm(dim=-1) / expected.norm(dim=-1) < 2 * close
    # Where two experts are as good, rounding chooses.
    assert near_by.float().mean() > 0.98 if family == "qwen3moe" else near_by.all(), "at every position"
    copies = kv.shape[3] // near.shape[3]  # transformers copies Falcon's keys to all heads
    assert distance(near.float(), kv[:, :, :, ::copies]) < close
    scores, found_scores = exact.logits(expected), found.logits(hidden)
    chance = scores.softmax(-1)
    divergence = (chance * (scores.log_softmax(-1) - found_scores.log_softmax(-1))).sum(-1).mean()
    assert float(divergence) < {"16 bits": 1e-5, "bfloat16": 1e-3, "int8": 4e-3}[rounding]
    same, (first, second) = scores.argmax(-1) == found_scores.argmax(-1), scores.topk(2).values.unbind(-1)
    margin = (first - second) / scores.std()
    # With 8 bits, each of the two scores may be off by about the error of its position, at most 2 * close.
    assert same[(margin > (4 if rounding == "int8" else 2) * close) & near_by].all()
    assert float((same | (margin < close / 2)).float().mean()) > 0.98, (
        "the likeliest token, unless two are equally likely"
    )
    x, kv, near, at = x[:2], kv[:2], near[:2], torch.tensor([90, 41])
    for count in (1, 3):  # a decode step; several positions
        assert distance(found.hidden(x[:, :count], kv=near, at=at), exact.hidden(x[:, :count], kv=kv, at=at)) < close


@pytest.mark.parametrize("rounding", ROUNDINGS)
@torch.no_grad()
def test_rows_and_later_positions_change_nothing(file, models, rounding, monkeypatch):
    """Up to rounding. `keep` returns the same last positions; the same input gives the same bits."""
    backbone = load(file, models, bfloat16=round_to(rounding, monkeypatch))
    x = torch.randn(3, 80, tiny_gguf.WIDTH)
    whole = backbone.hidden(x)
    # Activations of fewer than `MANY` rows are not rounded to 8 bits or bfloat16. A library may also add in another order if there are other rows.
    near = {"16 bits": 2e-3, "bfloat16": 0.02, "int8": 0.06}[rounding]
    same = {"rtol": near, "atol": near}
    torch.testing.assert_close(backbone.hidden(x[1:2]), whole[1:2], **same)
    torch.testing.assert_close(backbone.hidden(x[:, :60]), whole[:, :60], **same)
    torch.testing.assert_close(backbone.hidden(x, keep=2), whole[:, -2:], **same)
    kv = backbone.new_kv(3, 85)
    backbone.hidden(x[:, :10], kv=kv)
    later = backbone.hidden(x[:, 10:], kv=kv, at=torch.full((3,), 10))
    torch.testing.assert_close(later, whole[:, 10:], **same)
    assert torch.equal(backbone.hidden(x), whole)


@torch.no_grad()
def test_steps_of_several_rows_are_those_of_each(file, models):
    backbone = load(file, models)
    kv, at = backbone.new_kv(3, 64), torch.tensor([20, 31, 7])
    kv.normal_()
    x = torch.randn(3, 1, tiny_gguf.WIDTH)
    together = backbone.hidden(x, kv=kv.clone(), at=at)
    for row in range(3):
        alone = backbone.hidden(x[row : row + 1], kv=kv[row : row + 1].clone(), at=at[row : row + 1])
        assert torch.equal(alone, together[row : row + 1])


@pytest.mark.parametrize("family", tiny_families.mark_rare_long(["qwen2", *tiny_gguf.GPT]))
def test_no_weight_is_held_as_float(family, tmp_path):
    """Learned positions are: the file has them as floats."""
    backbone = load(tiny_gguf.write(tmp_path / "tiny.gguf", family, length=64), tmp_path)
    assert all(parameter.is_meta for parameter in backbone.parameters())
    numbers = sum(parameter.numel() for parameter in backbone.parameters())
    stored = sum(path.stat().st_size for path in tmp_path.glob("tiny-*/*.safetensors"))
    assert stored < 1.3 * numbers, "a float takes 4 bytes"
    with pytest.raises(BackboneError, match="no weights to save"):
        backbone.model.state_dict()


def test_a_model_is_identified_by_its_file(file, models):
    other = tiny_gguf.write(models / "other.gguf", seed=1)
    first = load_model(str(file), models_dir=models)
    assert first.memory.backbone.digest
    assert load_model(str(file), models_dir=models).fingerprint == first.fingerprint
    assert load_model(str(other), models_dir=models).fingerprint != first.fingerprint
    assert load_model(str(file), models_dir=models, options={"window": 512}).fingerprint != first.fingerprint
    assert first.tokenizer.decode(first.tokenizer.encode("hello")) == "hello"
    assert first.tokenizer.eos_ids == (259,)


@pytest.mark.parametrize("family", tiny_families.mark_rare_long(["qwen2", *tiny_gguf.GPT]))
@torch.no_grad()
def test_a_window_answers_the_same_after_its_state_was_stored(family, models):
    """The law of memories: chunks, saving and loading change nothing; a step is a forward."""
    file = tiny_gguf.write(models / f"law-{family}.gguf", family)
    memory = load_model(str(file), models_dir=models, options={"segment_length": 32, "window": 64, "sinks": 4}).memory
    tokens = torch.randint(0, tiny_gguf.VOCABULARY, (1, 128))
    once = memory.read(tokens, memory.initial_state())
    twice = memory.read(tokens[:, 64:], memory.read(tokens[:, :64], memory.initial_state()))
    assert all(torch.equal(once[name], twice[name]) for name in once)
    segment = tokens[:, :20]
    cache, logits = memory.open(once, segment[:, :10])
    for n in range(10, 20):
        logits = memory.step(cache, segment[:, n])
    assert distance(logits, memory.forward(segment, once)[:, -1]) < 0.05
    again, same = memory.open(once, segment)
    assert torch.equal(memory.open(once, segment)[1], same)
    assert torch.equal(again["tokens"], cache["tokens"])


class TestFiles:
    def test_of_another_architecture_or_kind_are_loaded_with_float_weights(self, tmp_path):
        for change, reason in (
            ({"qwen2.rope.scaling.type": "su"}, "rotary positions with scaling 'su'"),
            ({"family": "gemma"}, "architecture 'gemma'"),
        ):
            file = GGUFFile(tiny_gguf.write(tmp_path / "other.gguf", **change))
            assert quantised_weights.unsupported_reason(file) == reason

    def test_of_float_matrices_are_not_supported(self, file, monkeypatch):
        monkeypatch.setitem(KINDS, Kind.Q4_K, KINDS[Kind.Q4_K])
        monkeypatch.delitem(KINDS, Kind.Q4_K)
        assert "of kind Q4_K" in str(quantised_weights.unsupported_reason(GGUFFile(file)))

    def test_that_lack_a_tensor_are_not_supported(self, file, monkeypatch):
        stored = GGUFFile(file)
        del stored.tensors["blk.1.ffn_up.weight"]
        assert quantised_weights.unsupported_reason(stored) == "tensors without blk.1.ffn_up.weight"

    def test_are_read_as_the_gguf_package_reads_them(self, file):
        ours, theirs = GGUFFile(file), gguf.GGUFReader(file)
        assert {tensor.name for tensor in theirs.tensors} == ours.tensors.keys()
        for tensor in theirs.tensors:
            assert ours.tensors[tensor.name].kind == tensor.tensor_type
            assert np.array_equal(ours.rows(tensor.name).reshape(-1), tensor.data.view(np.uint8).reshape(-1))
        for name, value in ours.metadata.items():
            assert theirs.fields[name].contents() == value

    def test_with_a_bias_that_nothing_reads_are_not_supported(self, file):
        stored = GGUFFile(file)
        stored.tensors["blk.0.ffn_norm.bias"] = stored.tensors["blk.0.ffn_norm.weight"]
        assert quantised_weights.unsupported_reason(stored) == "tensors blk.0.ffn_norm.bias"

    @pytest.mark.parametrize("name", ["layer-001.safetensors", "outside.safetensors", quantised_weights.MANIFEST])
    def test_whose_converted_folder_is_damaged_are_refused(self, tmp_path, name):
        file = tiny_gguf.write(tmp_path / "tiny.gguf")
        load(file, tmp_path)
        (folder,) = tmp_path.glob("tiny-*")
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1])
        with pytest.raises(BackboneError, match=f"cannot load {folder}, converted from {file}: .*Delete it to convert"):
            load(file, tmp_path)
        (folder / name).unlink()
        with pytest.raises(BackboneError, match=f"cannot load {folder}"):
            load(file, tmp_path)

    def test_with_an_alignment_of_0_are_refused(self, tmp_path):
        name, uint32 = b"general.alignment", 4
        field = struct.pack("<Q", len(name)) + name + struct.pack("<II", uint32, 0)
        (tmp_path / "bad.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + field)
        with pytest.raises(BackboneError, match=r"cannot read .*bad\.gguf as GGUF"):
            GGUFFile(tmp_path / "bad.gguf")

    @pytest.mark.parametrize("cut", [0, 3, 20, 1000, -1])
    def test_cut_short_are_refused(self, file, tmp_path, cut):
        short = tmp_path / "short.gguf"
        short.write_bytes(file.read_bytes()[:cut])
        with pytest.raises(BackboneError, match=r"cannot read .*short\.gguf as GGUF"):
            GGUFFile(short)
