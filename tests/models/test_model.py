"""Loading a model: folders, options, and the fingerprint, which determines which models can exchange states."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file

from everlong_models.errors import AdapterError, BackboneError, ConfigError
from everlong_models.kernels.linear import has_bfloat16
from everlong_models.memories.rmt import RMT, RMTConfig
from everlong_models.memories.state import MemoryState, decode_state, encode_state
from everlong_models.model import MEMORIES, MemoryKind, Model, load_model
from everlong_models.weights import MANIFEST, WEIGHTS, Manifest, save_weights
from tests.models.model_folders import RMT as SPEC
from tests.models.model_folders import backbone, change_weights, manifest
from tests.models.tiny_recurrent import save_recurrent
from tests.tinymodel import make_tokenizer


def load(name: object, tmp_path, **options: object) -> Model:
    return load_model(str(name), models_dir=tmp_path / "models", **options)


def plain(tmp_path, **options: object) -> Model:
    """The tiny Llama with a memory that is small enough for it."""
    sizes = {"segment_length": 16} | options.pop("options", {})
    return load(backbone(), tmp_path, **{"memory": "rmt", "options": {"memory_tokens": 2} | sizes, **options})


@pytest.fixture
def folder(tmp_path):
    """A model folder with trained weights, its backbone inside it."""
    target = tmp_path / "mine"
    shutil.copytree(backbone(), target / "backbone")
    memory = plain(tmp_path).memory
    assert isinstance(memory, RMT)
    with torch.no_grad():
        memory.memory.copy_(torch.randn(memory.memory.shape, generator=torch.Generator().manual_seed(5)))
    save_weights(target, Manifest(backbone="backbone", memory=SPEC, description="a test"), memory)
    modes = {file.stat().st_mode & 0o777 for file in (target / WEIGHTS, target / MANIFEST)}
    assert len(modes) == 1, "who may read one may read the other, as a server of another user has to"
    return target


TEXT = torch.arange(48)[None]


class TestFolder:
    @pytest.mark.parametrize(("where", "name"), [(".", "."), ("backbone", ".."), (".", "../link")])
    def test_a_folder_has_a_name_wherever_one_stands(self, folder, tmp_path, monkeypatch, where, name):
        (tmp_path / "link").symlink_to(folder)
        monkeypatch.chdir(folder / where)
        assert load(name, tmp_path).name == ("link" if "link" in name else "mine")

    def test_a_backbone_has_a_name_wherever_one_stands(self, folder, tmp_path, monkeypatch):
        monkeypatch.chdir(folder / "backbone")
        model = load(".", tmp_path, memory="rmt", options={"memory_tokens": 2, "segment_length": 16})
        assert (model.name, model.backbone_name) == ("backbone", "backbone")

    def test_a_saved_model_gives_the_same_outputs(self, folder, tmp_path):
        model = load(folder, tmp_path)
        original = plain(tmp_path).memory
        with torch.no_grad():
            original.memory.copy_(load_file(folder / WEIGHTS)["memory"])
        assert (model.name, model.memory_name, model.backbone_name) == ("mine", "rmt", "backbone")
        assert (model.description, model.trained, model.segment_length) == ("a test", True, 16)
        assert model.state_bytes == 2 * 16 * 4
        state = model.memory.read(TEXT, model.memory.initial_state())
        assert torch.equal(state["memory"], original.read(TEXT, original.initial_state())["memory"])
        assert not model.memory.training
        assert not any(p.requires_grad for p in model.memory.parameters())

    def test_two_loads_have_one_fingerprint_and_exchange_states(self, folder, tmp_path):
        a, b = load(folder, tmp_path), load(folder, tmp_path)
        moved = shutil.copytree(folder, tmp_path / "elsewhere" / "other-name")
        assert a.fingerprint == b.fingerprint == load(moved, tmp_path).fingerprint
        assert re.fullmatch("[0-9a-f]{64}", a.fingerprint)
        blob = encode_state(a.memory.read(TEXT, a.memory.initial_state()), a.fingerprint)
        assert decode_state(blob, b.fingerprint).rows == 1

    def test_another_memory_or_options_are_refused(self, folder, tmp_path):
        assert load(folder, tmp_path, memory="rmt").memory_name == "rmt"
        with pytest.raises(ConfigError, match=r"memory='window': .* has its own memory"):
            load(folder, tmp_path, memory="window")
        with pytest.raises(ConfigError, match="has its own memory"):
            load(folder, tmp_path, options={"segment_length": 8})

    def test_trained_is_what_the_manifest_says(self, folder, tmp_path):
        manifest(folder, backbone="backbone", trained=False)
        assert load(folder, tmp_path).trained is False
        (folder / WEIGHTS).unlink()
        assert load(folder, tmp_path).trained is False

    def test_missing_weights_of_a_trained_model_are_an_error(self, folder, tmp_path):
        (folder / WEIGHTS).unlink()
        with pytest.raises(AdapterError, match=f"{WEIGHTS} does not exist"):
            load(folder, tmp_path)

    def test_a_memory_without_weights_needs_no_file(self, tmp_path):
        spec = {"name": "window", "segment_length": 8, "sinks": 2, "window": 20}
        model = load(manifest(tmp_path / "w", memory=spec), tmp_path)
        assert (model.trained, model.memory_name, model.name) == (None, "window", "w")
        assert load(tmp_path / "w", tmp_path, memory="window", options={"window": 30}).memory.config.window == 30
        with pytest.raises(ConfigError, match="window"):
            load(tmp_path / "w", tmp_path, options={"window": 0})

    def test_a_memory_without_weights_can_be_exchanged_for_another(self, tmp_path):
        spec = {"name": "window", "segment_length": 8, "sinks": 2, "window": 20}
        model = load(
            manifest(tmp_path / "w", memory=spec),
            tmp_path,
            memory="compact",
            options={"entries": 12, "segment_length": 8},
        )
        assert (model.memory_name, model.memory.config.entries) == ("compact", 12)
        assert model.fingerprint != load(tmp_path / "w", tmp_path).fingerprint
        with pytest.raises(ConfigError, match=r"memory='rmt': .* has its own memory"):
            load(tmp_path / "w", tmp_path, memory="rmt")

    def test_the_template_is_what_the_manifest_says_or_follows_from_the_weights(self, folder, tmp_path):
        for template in ("instruct", "few-words"):
            manifest(folder, backbone="backbone", template=template)
            assert load(folder, tmp_path).template == template
        manifest(folder, backbone="backbone", trained=False)
        assert load(folder, tmp_path).template == "few-words"
        (folder / WEIGHTS).unlink()
        assert load(folder, tmp_path).template == "instruct"
        assert plain(tmp_path).template == "instruct"

    def test_low_rank_updates_are_merged(self, folder, tmp_path):
        before = load(folder, tmp_path)
        a, b = torch.ones(1, 16), torch.ones(16, 1)
        change_weights(
            folder, lora__model__layers__0__self_attn__q_proj__A=a, lora__model__layers__0__self_attn__q_proj__B=b
        )
        manifest(folder, backbone="backbone", lora_scale=0.5)
        after = load(folder, tmp_path)
        weights = [m.memory.backbone.model.model.layers[0].self_attn.q_proj.weight for m in (before, after)]
        torch.testing.assert_close(weights[1], weights[0] + 0.5)
        assert after.fingerprint != before.fingerprint

    @pytest.mark.parametrize("damage", ["lora__lm_head__A", "scale"])
    def test_weights_that_do_not_fit(self, folder, tmp_path, damage):
        change_weights(folder, **{damage: torch.zeros(1, 1)})
        with pytest.raises(AdapterError, match=WEIGHTS):
            load(folder, tmp_path)

    def test_a_wrong_manifest(self, folder, tmp_path):
        with pytest.raises(AdapterError, match=f"{MANIFEST}: memry: Extra inputs"):
            load(manifest(folder, memry=1), tmp_path)

    def test_a_backbone_is_needed(self, tmp_path):
        with pytest.raises(BackboneError, match=r"memory rmt needs a backbone"):
            load(manifest(tmp_path / "m", backbone=None), tmp_path)

    @pytest.mark.parametrize(
        ("memory", "field", "limit"),
        [
            ({"segment_length": 8}, "memory=", "one of .*rmt"),
            ({"name": "rmt", "segment_length": 1}, "segment_length=1", "greater than or equal to 2"),
            (
                {"name": "rmt", "segment_length": 2, "memory_tokens": 2},
                "memory_tokens=2",
                "smaller than segment_length=2",
            ),
        ],
    )
    def test_a_manifests_memory_is_checked_like_options(self, tmp_path, memory, field, limit):
        with pytest.raises(ConfigError, match=f"{field}.*{limit}"):
            load(manifest(tmp_path / "m", memory=memory), tmp_path)


class TestPlainBackbone:
    def test_an_untrained_rmt_says_so(self, tmp_path):
        model = plain(tmp_path)
        assert (model.trained, model.memory_name, model.name) == (False, "rmt", "llama")

    def test_window_needs_no_training_and_is_the_default(self, tmp_path):
        model = load(backbone(), tmp_path, options={"segment_length": 8, "sinks": 2, "window": 20})
        assert (model.trained, model.memory_name, model.segment_length) == (None, "window", 8)
        assert [name for name, kind in MEMORIES.items() if kind.training_free] == ["window", "compact", "native"]

    @pytest.mark.parametrize("family", ["mamba", "lfm2"])
    def test_a_recurrent_model_is_its_own_memory_by_default(self, tmp_path, family):
        folder, told = save_recurrent(tmp_path / family, family), []
        options = {"segment_length": 8, "window": 20, "sinks": 2}
        model = load(folder, tmp_path, options=options, progress=told.append)
        assert (model.trained, model.memory_name, model.backbone_name) == (True, "native", family)
        assert any(f"{family} has a recurrent state of its own" in line for line in told)
        assert any("recurrent layers are computed by PyTorch" in line for line in told)
        again = load(folder, tmp_path, memory="native", options=options)
        assert again.fingerprint == model.fingerprint
        assert load(folder, tmp_path, options=options | {"window": 21}).fingerprint != model.fingerprint

    def test_a_recurrent_model_and_another_memory_or_another_model_and_native_are_refused(self, tmp_path):
        for family in ("mamba", "lfm2"):
            with pytest.raises(BackboneError, match=rf"\({family}\): .* use the memory `native`"):
                load(save_recurrent(tmp_path / family, family), tmp_path, memory="window")
        with pytest.raises(BackboneError, match=r"LlamaForCausalLM \(llama\): it has no recurrent layer"):
            load(backbone(), tmp_path, memory="native")

    @pytest.mark.skipif(not has_bfloat16(), reason="this processor has no instructions for bfloat16")
    @pytest.mark.parametrize(("memory", "few"), [("window", True), ("rmt", False)])
    def test_what_a_memory_keeps_is_computed_in_float32_unless_something_else_is_said(self, tmp_path, memory, few):
        own = {"window": 24, "sinks": 2} if memory == "window" else {"memory_tokens": 2}
        options = {"memory": memory, "options": {"segment_length": 16} | own}
        states, logits = {}, {}
        for wanted in (None, True, False):
            model = load(backbone(), tmp_path, **options, bfloat16=wanted)
            with torch.no_grad():
                state = model.memory.read(TEXT[:, :32], model.memory.initial_state())
                logits[wanted], states[wanted] = model.memory.open(state, TEXT[:, 32:40])[1], (state, model.fingerprint)
        assert torch.equal(logits[None], logits[few])
        assert not torch.equal(logits[None], logits[not few])
        assert states[None][0].digest() == states[few][0].digest()
        assert (states[True][0].digest() == states[False][0].digest()) == (memory == "window")
        assert len({fingerprint for _, fingerprint in states.values()}) == 1, "as one machine may and another may not"

    def test_an_unknown_memory(self, tmp_path):
        with pytest.raises(ConfigError, match=r"memory='rnn': must be one of .*rmt.*window") as caught:
            load(backbone(), tmp_path, memory="rnn")
        assert (caught.value.field, caught.value.value) == ("memory", "rnn")

    @pytest.mark.parametrize(
        ("memory", "options", "field", "limit"),
        [
            ("rmt", {"memory_tokens": 0}, "memory_tokens", "greater than or equal to 1"),
            ("rmt", {"memory_tokens": 16}, "memory_tokens", "smaller than segment_length=16"),
            ("rmt", {"segment_length": 1}, "segment_length", "greater than or equal to 2"),
            ("rmt", {"segment_length": "long"}, "segment_length", "valid integer"),
            ("rmt", {"segment_length": 63}, "segment_length", "exceeds the backbone's 64 positions"),
            ("rmt", {"form": "cooked"}, "form", "'raw', 'norm' or 'zero'"),
            ("rmt", {"memory_token": 3}, "memory_token", "Extra inputs are not permitted"),
            ("window", {"sinks": -1, "memory_tokens": None}, "sinks", "greater than or equal to 0"),
            ("window", {"sinks": 17, "memory_tokens": None}, "sinks", "at most segment_length=16"),
            (
                "window",
                {"window": 64, "sinks": 0, "memory_tokens": None},
                "window",
                "exceeds the backbone's 64 positions",
            ),
        ],
    )
    def test_an_option_that_cannot_work_is_named_with_its_limit(self, tmp_path, memory, options, field, limit):
        wanted = {"segment_length": 16, "memory_tokens": 2} | options
        wanted = {name: value for name, value in wanted.items() if value is not None}
        with pytest.raises(ConfigError, match=re.escape(limit)) as caught:
            load(backbone(), tmp_path, memory=memory, options=wanted)
        assert caught.value.field == field
        assert caught.value.value == wanted[field]
        assert f"{field}={wanted[field]!r}" in str(caught.value)

    def test_gpt2(self, tmp_path):
        model = load(backbone("gpt2"), tmp_path, memory="rmt", options={"segment_length": 16, "memory_tokens": 2})
        assert model.memory.read(TEXT, model.memory.initial_state()).rows == 1

    def test_progress_is_reported(self, tmp_path):
        told: list[str] = []
        plain(tmp_path, progress=told.append)
        assert told[-1].startswith("optimising the weights")
        assert any("loading" in line and "float32" in line for line in told)


class TestFingerprint:
    def test_everything_that_affects_a_state_changes_the_fingerprint(self, tmp_path):
        changed = shutil.copytree(backbone(), tmp_path / "weights")
        tensors = load_file(changed / "model.safetensors")
        tensors["model.norm.weight"][0] += 1e-3
        from safetensors.torch import save_file

        save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
        retokened = shutil.copytree(backbone(), tmp_path / "tokens")
        make_tokenizer(299).save_pretrained(retokened)
        templated = shutil.copytree(backbone(), tmp_path / "template")
        (templated / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }} {% endfor %}")
        rebuilt = shutil.copytree(backbone(), tmp_path / "architecture")
        config = json.loads((rebuilt / "config.json").read_text())
        config["rms_norm_eps"] = 1e-3
        (rebuilt / "config.json").write_text(json.dumps(config))

        rmt = {"memory": "rmt", "options": {"segment_length": 16, "memory_tokens": 2}}
        models = {
            "first": plain(tmp_path),
            "segment length": plain(tmp_path, options={"segment_length": 15}),
            "form": plain(tmp_path, options={"form": "norm"}),
            "memory": load(backbone(), tmp_path, options={"segment_length": 16, "sinks": 2, "window": 20}),
            "dtype": plain(tmp_path, dtype=torch.bfloat16),
            "weights": load(changed, tmp_path, **rmt),
            "tokenizer": load(retokened, tmp_path, **rmt),
            "template": load(templated, tmp_path, **rmt),
            "architecture": load(rebuilt, tmp_path, **rmt),
        }
        prints = {name: model.fingerprint for name, model in models.items()}
        assert len(set(prints.values())) == len(prints), prints
        assert plain(tmp_path).fingerprint == prints["first"]
        assert load(shutil.copytree(backbone(), tmp_path / "copy"), tmp_path, **rmt).fingerprint == prints["first"]

    def test_the_states_layout_counts(self, tmp_path, monkeypatch):
        """A version with another state layout must not accept the states of this one."""
        before, initial_state = plain(tmp_path).fingerprint, RMT.initial_state

        def more(self, rows=1):
            return MemoryState({**initial_state(self, rows).tensors, "count": torch.zeros(rows, dtype=torch.int64)})

        monkeypatch.setattr(RMT, "initial_state", more)
        assert plain(tmp_path).fingerprint != before

    def test_memory_weights_count(self, folder, tmp_path):
        before = load(folder, tmp_path).fingerprint
        memory = load_file(folder / WEIGHTS)["memory"]
        change_weights(folder, memory=memory + 1e-4)
        assert load(folder, tmp_path).fingerprint != before

    def test_a_low_rank_update_counts_by_itself(self, folder, tmp_path):
        """Its sum with the weight may round differently on another machine, which must get the same fingerprint."""
        before = load(folder, tmp_path).fingerprint
        name, (a, b) = "model.layers.1.mlp.up_proj", (torch.ones(2, 16), torch.ones(24, 2))
        prints = {}
        for what, changes in {"first": {}, "other": {"b": 2 * b}, "same product": {"a": 2 * a, "b": b / 2}}.items():
            parts = {"a": a, "b": b} | changes
            change_weights(folder, **{f"lora.{name}.{part.upper()}": tensor for part, tensor in parts.items()})
            prints[what] = load(folder, tmp_path).fingerprint
        assert len({before, *prints.values()}) == 4
        assert load(folder, tmp_path, quantize=False).fingerprint == prints["same product"]

    def test_the_name_and_the_description_do_not(self, folder, tmp_path):
        before = load(folder, tmp_path).fingerprint
        assert load(manifest(folder, backbone="backbone", description="other words"), tmp_path).fingerprint == before


def test_the_table_of_memories():
    for config in (kind.config for kind in MEMORIES.values()):
        with pytest.raises(ValueError, match="unheard_of"):
            config(unheard_of=1)
    assert MEMORIES["rmt"] == MemoryKind(RMTConfig, RMT, whole=True)
