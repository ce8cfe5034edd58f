"""The small trained models that ship with the package do what their descriptions state."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_lab.eval.facts import draw_facts, facts
from everlong_models.catalogue.entry import TRAINED
from everlong_models.errors import ConfigError
from everlong_models.memories.rmt import RMT
from everlong_models.model import SHIPPED_MODEL, load_model
from everlong_models.weights import MANIFEST

CACHE = Path.home() / ".cache" / "everlong" / "models"  # converting takes half a minute, once per machine


def test_they_are_small():
    sizes = {
        folder.name: sum(f.stat().st_size for f in folder.rglob("*") if f.is_file()) for folder in TRAINED.iterdir()
    }
    assert 0 < sizes.pop(SHIPPED_MODEL) <= 10_000_000  # a tenth of the backbone's file, which everybody needs with it
    assert 0 < sizes.pop("qwen2.5-coder-1.5b-reader") <= 12_000_000  # a hundredth
    assert 0 < sum(sizes.values()) <= 5_000_000


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memorize", "detect"])
def test_a_fact_is_known_far_beyond_the_seven_segments_of_training(kind, tmp_path):
    """Guessing is right one time in six."""
    model = load_model("rmt-detect", models_dir=tmp_path)
    assert model.trained
    rows = facts([(model.memory, model.tokenizer)], kind, lengths=[1, 7, 256], samples=16)
    assert [row["segments"] for row in rows] == [1, 7, 256]
    assert min(row["accuracy"] for row in rows) >= 0.9
    draw_facts(rows, kind, tmp_path / "facts.png")
    assert (tmp_path / "facts.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_of_two_facts_the_one_that_is_asked_for_is_found_beyond_the_training(tmp_path):
    """By chance, a sixth is right; by who does not look at the direction, less than four fifths."""
    model = load_model("rmt-reasoning", models_dir=tmp_path)
    rows = facts([(model.memory, model.tokenizer)], "reasoning", lengths=[7, 32, 256], samples=32, recite=True)
    assert min(row["accuracy"] for row in rows) >= 0.95


@pytest.mark.parametrize("folder", sorted(TRAINED.iterdir()), ids=lambda folder: folder.name)
@pytest.mark.long
def test_each_says_what_it_is(folder):
    assert (folder / MANIFEST).is_file()
    assert load_model(folder.name, models_dir=CACHE).description


def test_facts_that_are_said_again_must_fit_into_a_segment(tmp_path: Path) -> None:
    model = load_model("rmt-reasoning", models_dir=tmp_path)
    short = RMT(model.memory.config.model_copy(update={"segment_length": 24}), model.memory.backbone)
    asked = {"lengths": [2], "samples": 2}
    assert facts([(short, model.tokenizer)], "reasoning", **asked)[0]["accuracy"] >= 0
    with pytest.raises(ConfigError, match="segment_length=24: must hold the facts, the question and its answer"):
        facts([(short, model.tokenizer)], "reasoning", **asked, recite=True)
