"""A memory's weights on disk: saved weights are loaded exactly, and wrong files are refused."""

from __future__ import annotations

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save

from everlong_models.errors import AdapterError
from everlong_models.kernels.low_rank import merge
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.weights import (
    MANIFEST,
    WEIGHTS,
    Manifest,
    load_weights,
    own_parameters,
    read_manifest,
    save_weights,
)
from tests.models.model_folders import change_weights, manifest
from tests.models.tiny import FAMILIES

LAYERS = {  # family: a layer, its (out, in), and a function from its weight to W
    "llama": ("model.layers.1.self_attn.k_proj", (16, 48), lambda weight: weight),
    "gpt2": ("transformer.h.1.mlp.c_fc", (192, 48), lambda weight: weight.T),
}


def memory(family: str = "llama", **config: object) -> RMT:
    return RMT(RMTConfig(**({"segment_length": 12, "memory_tokens": 3, "form": "norm"} | config)), FAMILIES[family]())


@pytest.fixture
def trained():
    model = memory()
    with torch.no_grad():
        for tensor in own_parameters(model).values():
            tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(9)))
    return model


@pytest.fixture
def folder(tmp_path, trained):
    """A folder with the weights of `trained`."""
    save_weights(tmp_path / "m", Manifest(memory={"name": "rmt"}, description="x"), trained)
    return tmp_path / "m"


def load(folder, family: str = "llama", scale: float = 1.0, **config: object) -> RMT:
    model = memory(family, **config)
    assert load_weights(folder, model, model.backbone, scale)
    return model


class TestSaveAndLoad:
    def test_what_was_saved_is_loaded(self, folder, trained):
        loaded = load(folder)
        for name, tensor in own_parameters(trained).items():
            assert torch.equal(own_parameters(loaded)[name], tensor), name
        assert not torch.equal(own_parameters(memory())["memory"], trained.memory)

    def test_only_the_memorys_own_tensors_are_saved(self, folder):
        assert set(load_file(folder / WEIGHTS)) == {"memory", "scale"}
        assert {file.name for file in folder.iterdir()} == {MANIFEST, WEIGHTS}

    def test_loading_without_a_weights_file_returns_false(self, tmp_path):
        assert load_weights(tmp_path, memory(), None, 1.0) is False

    def test_weights_take_on_the_memorys_type(self, folder, trained):
        change_weights(folder, memory=trained.memory.detach().half())
        assert load(folder).memory.dtype == torch.float64


class TestDamage:
    @pytest.mark.parametrize("keep", [0, 1, 7, 8, 60, -1])
    def test_truncated(self, folder, keep):
        data = (folder / WEIGHTS).read_bytes()
        (folder / WEIGHTS).write_bytes(data[:keep])
        with pytest.raises(AdapterError, match=f"cannot read .*{WEIGHTS} as safetensors"):
            load(folder)

    @pytest.mark.parametrize(
        "data", [b"\x80\x04K\x01.", b"PK\x03\x04" * 9, b"\xff" * 64], ids=["pickle", "zip", "noise"]
    )
    def test_no_safetensors(self, folder, data):
        (folder / WEIGHTS).write_bytes(data)
        with pytest.raises(AdapterError, match="as safetensors"):
            load(folder)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_not_finite(self, folder, trained, value):
        poisoned = trained.memory.detach().clone()
        poisoned[-1, -1] = value
        change_weights(folder, memory=poisoned)
        with pytest.raises(AdapterError, match="'memory' contains NaN or infinity"):
            load(folder)

    def test_missing(self, folder):
        change_weights(folder, scale=None)
        with pytest.raises(AdapterError, match="missing tensors: scale"):
            load(folder)

    @pytest.mark.parametrize("name", ["other", "backbone__model__lm_head__weight", "lora__lm_head__C", "lora__x"])
    def test_unknown(self, folder, name):
        change_weights(folder, **{name: torch.zeros(1)})
        with pytest.raises(AdapterError, match=f"unknown tensors for this memory: {name.replace('__', '.')}"):
            load(folder)

    def test_of_another_shape(self, folder):
        with pytest.raises(
            AdapterError, match=re.escape("'memory' must have shape (5, 48) for this memory, got (3, 48)")
        ):
            load(folder, memory_tokens=5)


class TestLowRank:
    def pair(self, family: str, rank: int = 2, **changes: torch.Tensor | None):
        name, (out, into), _ = LAYERS[family]
        generator = torch.Generator().manual_seed(4)
        a, b = (torch.randn(shape, generator=generator) for shape in ((rank, into), (out, rank)))
        return {f"lora.{name}.A": changes.get("A", a), f"lora.{name}.B": changes.get("B", b)}

    @pytest.mark.parametrize("family", FAMILIES)
    def test_the_layer_becomes_w_plus_scale_b_a(self, tmp_path, family):
        model, (name, _, as_w) = memory(family), LAYERS[family]
        pair = self.pair(family)
        save_weights(tmp_path, Manifest(memory={}), model, pair)
        before = {n: t.clone() for n, t in model.backbone.state_dict().items()}
        loaded = load(tmp_path, family, scale=0.25).backbone.requires_grad_(False)
        tokens = torch.arange(8)[None]
        apart = loaded.hidden(loaded.embed(tokens))
        merge(loaded)
        torch.testing.assert_close(loaded.hidden(loaded.embed(tokens)), apart)
        assert type(loaded.model.get_submodule(name)) is type(model.backbone.model.get_submodule(name))
        after = loaded.state_dict()
        assert after.keys() == before.keys()
        a, b = pair.values()
        for key, tensor in before.items():
            expected = tensor
            if key == f"model.{name}.weight":
                expected = as_w(as_w(tensor) + 0.25 * (b @ a))
                assert not torch.equal(expected, tensor)
            torch.testing.assert_close(after[key], expected, msg=key)

    def test_an_update_of_a_head_leaves_the_embeddings_that_it_shares_a_matrix_with(self, tmp_path):
        backbone = FAMILIES["llama"](tie_word_embeddings=True).requires_grad_(False)
        model, head = (
            RMT(RMTConfig(segment_length=12, memory_tokens=3), backbone),
            backbone.model.get_output_embeddings(),
        )
        assert head.weight is backbone.model.get_input_embeddings().weight
        before, (out, into) = head.weight.clone(), head.weight.shape
        pair = {"lora.lm_head.A": torch.randn(2, into).double(), "lora.lm_head.B": torch.randn(out, 2).double()}
        save_weights(tmp_path, Manifest(memory={}), model, pair)
        assert load_weights(tmp_path, model, backbone, 0.5)
        for _ in range(2):  # as a separate update, then merged
            torch.testing.assert_close(head.weight, before + 0.5 * pair["lora.lm_head.B"] @ pair["lora.lm_head.A"])
            assert torch.equal(backbone.model.get_input_embeddings().weight, before)
            merge(backbone)

    @pytest.mark.parametrize("half", "AB")
    def test_half_a_pair(self, folder, half):
        change_weights(folder, **{k: None if k.endswith(half) else v for k, v in self.pair("llama").items()})
        with pytest.raises(AdapterError, match=r"'model.layers.1.self_attn.k_proj' needs both A and B"):
            load(folder)

    @pytest.mark.parametrize("layer", ["model.layers.7.self_attn.k_proj", "model.norm", "model.layers", ""])
    def test_no_such_layer(self, folder, layer):
        change_weights(
            folder, **{f"lora.{layer}.{half}": t for half, t in zip("AB", self.pair("llama").values(), strict=True)}
        )
        with pytest.raises(AdapterError, match=f"'{layer}', which is not a linear layer"):
            load(folder)

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize(
        ("half", "shape"),
        [("A", (3, 48)), ("A", (48, 2)), ("A", (2, 47)), ("A", (2,)), ("B", (9, 2)), ("B", (2,)), ("B", (16, 2, 1))],
        ids=str,
    )
    def test_of_another_shape(self, tmp_path, family, half, shape):
        model = memory(family)
        save_weights(tmp_path, Manifest(memory={}), model, self.pair(family, **{half: torch.ones(shape)}))
        with pytest.raises(AdapterError, match=re.escape(LAYERS[family][0])):
            load(tmp_path, family)

    def test_not_finite(self, folder):
        change_weights(folder, **self.pair("llama", A=torch.full((2, 48), float("nan"))))
        with pytest.raises(AdapterError, match=r"k_proj.A' contains NaN"):
            load(folder)

    def test_without_a_backbone(self, folder):
        change_weights(folder, **self.pair("llama"))
        with pytest.raises(AdapterError, match="need a backbone"):
            load_weights(folder, memory(), None, 1.0)


class TestManifest:
    def test_round_trip(self, folder):
        assert read_manifest(folder) == Manifest(memory={"name": "rmt"}, description="x")

    @pytest.mark.parametrize("template", ["few-words", "instruct", None])
    def test_a_template_is_written_if_it_is_set(self, tmp_path, trained, template):
        """Version 0.1.0 refuses fields that it does not know."""
        written = Manifest(memory={"name": "rmt"}, template=template)
        save_weights(tmp_path, written, trained)
        fields = json.loads((tmp_path / MANIFEST).read_text())
        released = {"format", "version", "backbone", "memory", "lora_scale", "trained", "description"}
        assert fields.keys() == released | ({"template"} if template else set())
        assert read_manifest(tmp_path) == written

    def test_missing(self, tmp_path):
        with pytest.raises(AdapterError, match=f"cannot read .*{MANIFEST}"):
            read_manifest(tmp_path)

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"memory": {}', "\xff\xfe", '{"memory": {}} more'])
    def test_no_json_object(self, tmp_path, text):
        (tmp_path / MANIFEST).write_bytes(text.encode("latin-1"))
        with pytest.raises(AdapterError, match=MANIFEST):
            read_manifest(tmp_path)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("format", "other"),
            ("version", 2),
            ("version", "1"),
            ("memory", "rmt"),
            ("memory", None),
            ("backbone", 3),
            ("lora_scale", 0),
            ("lora_scale", -1),
            ("lora_scale", float("inf")),
            ("lora_scale", float("nan")),
            ("trained", "perhaps"),
            ("template", "told"),
            ("lora_skale", 1),
        ],
    )
    def test_a_wrong_field_is_named(self, tmp_path, field, value):
        with pytest.raises(AdapterError, match=f"{MANIFEST}: {field}: "):
            read_manifest(manifest(tmp_path, **{field: value}))

    def test_memory_is_needed(self, tmp_path):
        (tmp_path / MANIFEST).write_text(json.dumps({"format": "everlong.model"}))
        with pytest.raises(AdapterError, match="memory: Field required"):
            read_manifest(tmp_path)


def test_bytes_are_the_same_each_time(tmp_path, trained):
    for name in "ab":
        save_weights(tmp_path / name, Manifest(memory={}), trained)
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert len((tmp_path / "a" / WEIGHTS).read_bytes()) < len(save(own_parameters(trained))) + 100
