"""An embedder is identified by all that its vectors depend on, and a damaged one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_models.errors import BackboneError
from everlong_models.text import embedder
from everlong_models.text.embedder import Embedder, _digest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "bert", "hidden_size": 8}')
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    return tmp_path


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors", "1_Pooling/config.json"])
def test_another_file_of_the_same_size_makes_another_embedder(folder: Path, name: str) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": false}')
    before = Embedder(folder)
    assert (before.dimension, before.digest) == (8, Embedder(folder).digest)
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[::-1])
    assert _digest(folder) != before.digest


@pytest.mark.parametrize("text", ["", "{", "[]", '{"model_type": "no-such-type"}'])
def test_a_damaged_config_is_refused(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(BackboneError, match=f"no embedder in '{folder}'"):
        Embedder(folder)


def test_a_packaged_embedder_with_other_files_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Embedder.packaged() is not None
    monkeypatch.setattr(embedder, "find_packaged_embedder", lambda: folder)
    with pytest.raises(BackboneError, match=r"has the digest [0-9a-f]{64}, and must have .* reinstall the package"):
        Embedder.packaged()


def test_fixed_texts_are_embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = Embedder.packaged()
    assert packaged is not None
    texts = ("What is the text about?", "Summarise the text.")
    expected = packaged.embed(texts)
    assert (packaged.embed_fixed(texts) == expected).all()
    monkeypatch.setattr(packaged, "embed_rows", lambda rows: pytest.fail("they were embedded again"))
    assert (packaged.embed_fixed(texts) == expected).all()
