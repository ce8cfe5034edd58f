"""Sorting and language modelling, measured on models as they are loaded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from everlong_lab.eval.language import draw_language, extended, language
from everlong_lab.eval.seeds import SeededModel
from everlong_lab.eval.sorting import draw_sorting, sorting
from everlong_lab.tasks.language import Language, LanguageConfig
from everlong_lab.tasks.sorting import Sorting, SortingConfig
from everlong_models.errors import ConfigError, DataError, RunError
from everlong_models.memories.armt import ARMTConfig
from everlong_models.memories.infinite.scratch import InfiniteScratch, InfiniteScratchConfig
from everlong_models.memories.relative.lamemo import LaMemo, LaMemoConfig
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.text.tokenizer import Tokenizer

SIZES = {"segment_length": 8, "width": 16, "layers": 2, "heads": 2, "feed_forward": 16, "initial_std": 0.3}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    for index in range(3):
        (tmp_path / "texts").mkdir(exist_ok=True)
        (tmp_path / "texts" / f"{index}.txt").write_text(f"text {index} of three. " * 100)
    return tmp_path


def symbols(count: int) -> Tokenizer:
    return Tokenizer(Sorting.make_tokenizer(SortingConfig(symbols=count), Path()))


def test_sorting_has_a_row_for_each_length() -> None:
    model = TransformerXL(TransformerXLConfig(vocab_size=5, memory_length=8, **SIZES)).eval()
    rows = sorting([SeededModel("XL", model, symbols(4))], lengths=[16, 64], samples=5, windows=[8, 64])
    columns = ["model", "symbols", "accuracy", "least", "most", "loss", "counting 8", "counting 64"]
    assert [list(row) for row in rows] == [columns] * 2
    assert [(row["model"], row["symbols"]) for row in rows] == [("XL", 16), ("XL", 64)]
    assert all(0 <= row["accuracy"] <= 1 for row in rows)
    assert rows[1]["counting 8"] < rows[1]["counting 64"]


def test_seeds_of_one_name_are_one_row_and_a_plot_shows_them(tmp_path: Path) -> None:
    made = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = TransformerXL(TransformerXLConfig(vocab_size=5, memory_length=8, **SIZES)).eval()
        made.append(SeededModel("two" if seed else "one", model, symbols(4)))
    how = {"lengths": [16, 64], "samples": 16, "windows": [8]}
    rows = sorting(made, **how)
    alone = [sorting([model], **how)[1] for model in made]
    assert [(row["model"], row["symbols"]) for row in rows] == [("one", 16), ("one", 64), ("two", 16), ("two", 64)]
    assert rows[1] == alone[0]
    wider = TransformerXL(TransformerXLConfig(vocab_size=5, memory_length=16, **SIZES)).eval()
    with pytest.raises(RunError, match="models named 'two' differ by more than their seed"):
        sorting([*made, SeededModel("two", wider, symbols(4))], **how)
    values = [row["accuracy"] for row in alone[1:]]
    assert values[0] != values[1]
    assert (rows[3]["least"], rows[3]["most"]) == (min(values), max(values))
    assert rows[3]["accuracy"] == pytest.approx(sum(values) / 2)
    draw_sorting(rows, tmp_path / "sorting.png")
    assert (tmp_path / "sorting.png").read_bytes().startswith(b"\x89PNG")


def test_sorting_refuses_other_lengths_and_other_models(texts: Path) -> None:
    model = TransformerXL(TransformerXLConfig(vocab_size=5, memory_length=8, **SIZES)).eval()
    with pytest.raises(ConfigError, match="lengths=20: must be a multiple of the model's segment length, 8 symbols"):
        sorting([SeededModel("", model, symbols(4))], lengths=[20], samples=2)
    english = Tokenizer(Language.make_tokenizer(LanguageConfig(texts="texts", vocabulary=257), texts))
    with pytest.raises(ConfigError, match="was not trained to sort"):
        sorting([SeededModel("", model, english)], lengths=[16], samples=2)


@pytest.mark.parametrize("kind", [(TransformerXL, TransformerXLConfig), (LaMemo, LaMemoConfig)])
def test_a_longer_memory_has_the_same_weights(kind: tuple[type, type]) -> None:
    """Both agree within the shorter memory's reach; beyond it only the longer one still predicts well."""
    torch.manual_seed(0)
    model = kind[0](kind[1](vocab_size=11, memory_length=8, **SIZES)).eval()
    longer = extended(model, 24)
    tokens = torch.randint(11, (2, 40))
    said = []
    for one in (model, longer):
        state, logits = one.initial_state(2), []
        for segment in tokens.split(8, dim=1):
            out, state = one.segment(segment, state)
            logits.append(out)
        said.append(logits)
    for early in range(2):
        torch.testing.assert_close(said[0][early], said[1][early])
    assert not torch.allclose(said[0][3], said[1][3], atol=1e-4)


def test_language_measures_files_and_longer_memories(texts: Path) -> None:
    config = LanguageConfig(texts="texts", vocabulary=270)
    tokenizer = Tokenizer(Language.make_tokenizer(config, texts))
    model = TransformerXL(TransformerXLConfig(vocab_size=270, memory_length=8, **SIZES)).eval()

    def rows(**changes: object) -> list[dict[str, float]]:
        how = {"data": texts, "texts": "texts", "samples": 2, "segments": 4} | changes
        return language([SeededModel("XL", model, tokenizer)], **how)  # type: ignore[arg-type]

    (plain,) = rows()
    short, long = rows(memory_lengths=[8, 16])
    assert plain["tokens"] == 2 * (4 * 8 - 1)
    assert short == {"memory": 8} | plain
    assert plain["least"] == plain["perplexity"] == plain["most"]
    draw_language([short, long], texts / "memory.png")
    assert (texts / "memory.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="memory_lengths=None: must be given"):
        draw_language([plain], texts / "none.png")
    assert long["perplexity"] != short["perplexity"]
    assert rows(texts="texts/0.txt") != rows(texts="texts/1.txt")
    assert rows(forget=["seen"])[0]["perplexity"] != plain["perplexity"]
    (texts / "texts" / "lines.txt").write_text("one line\n" * 200)
    (words,), (ends,) = (rows(texts="texts/lines.txt", line_ends=line_ends) for line_ends in (False, True))
    assert words["perplexity"] == ends["perplexity"]
    # Three words a line where there were two; at the ends of the runs some are cut.
    assert math.log(words["word_perplexity"]) / math.log(ends["word_perplexity"]) == pytest.approx(1.5, rel=0.05)
    with pytest.raises(DataError, match=r"cannot read .*texts/none\.txt"):
        rows(texts="texts/none.txt")
    with pytest.raises(DataError, match="no data set 'poems'"):
        rows(texts="poems")


def test_a_memory_without_a_length_cannot_be_extended() -> None:
    assert "memory_length" not in ARMTConfig.model_fields
    sizes = {"segment_length": 8, "short_term": 8, "layers": 1, "heads": 2, "width": 8, "basis": 8, "samples": 8}
    model = InfiniteScratch(InfiniteScratchConfig(vocab_size=11, **sizes))
    with pytest.raises(ConfigError, match="InfiniteScratch has no memory_length"):
        extended(model, 16)
