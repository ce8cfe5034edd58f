"""Tests for reranker.py: the packaged one ranks answers first; scores do not depend on what is ranked together; errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from everlong_models.errors import BackboneError
from everlong_models.text import reranker as module
from everlong_models.text.embedder import Embedder, find_packaged_embedder
from everlong_models.text.reranker import MAX_TOKENS, PACKAGED, Reranker

INN = "Mrs. Quill kept the inn by the harbour. The harbour was full of boats that year. Nobody paid for the boats."
CHURCH = "The old church stood on a hill. Its bell had been cast in Bruges by two brothers."


def spans(text: str) -> list[tuple[int, int]]:
    ends = [n + 2 for n in range(len(text)) if text[n : n + 2] == ". " and text[n - 3 : n] != "Mrs"] + [len(text)]
    return list(zip([0, *ends[:-1]], ends, strict=True))


@pytest.fixture(scope="module")
def folder() -> Path:
    folder = find_packaged_embedder()
    assert folder is not None
    return folder


@pytest.fixture(scope="module")
def reranker(folder: Path) -> Reranker:
    return Reranker(folder, PACKAGED, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize(
    ("question", "best"),
    [
        ("Who runs the pub near the water?", "Mrs. Quill kept the inn by the harbour."),
        ("what were the ships like, did anyone pay", "Nobody paid for the boats."),
        ("Where was the bell made?", "Its bell had been cast in Bruges by two brothers."),
    ],
)
def test_the_sentence_that_answers_has_the_largest_score(reranker: Reranker, question: str, best: str) -> None:
    texts = [INN, CHURCH]
    scores = reranker.scores(question, texts, [spans(text) for text in texts])
    assert [len(of) for of in scores] == [3, 2]
    sentences = [text[a:b].strip() for text in texts for a, b in spans(text)]
    assert sentences[int(np.concatenate(scores).argmax())] == best


def test_a_score_depends_on_its_passage_alone(reranker: Reranker) -> None:
    question, together = "Who kept the inn?", [CHURCH, INN, "Short one."]
    many = reranker.scores(question, together, [spans(text) for text in together])
    alone = reranker.scores(question, [INN], [spans(INN)])
    assert many[1] == pytest.approx(alone[0], abs=1e-4)
    assert reranker.scores(question, [], []) == []


def test_what_is_not_read_comes_last(reranker: Reranker) -> None:
    long = "The inn has a garden. " * MAX_TOKENS
    (scores,) = reranker.scores("Who kept the inn?", [long], [spans(long)])
    assert scores[0] > scores[-1] == scores[-2]
    (scores,) = reranker.scores("Who kept the inn? " * 200, [INN], [spans(INN)])
    assert scores[0] > scores[-1] > -20, "a long question leaves room for the passage"
    assert len(reranker.scores("", [""], [[]])[0]) == 0


def test_the_packaged_embedder_brings_it_and_another_one_does_not(folder: Path, tmp_path: Path) -> None:
    packaged = Embedder.packaged()
    assert packaged is not None
    assert packaged.reranker is not None
    assert Embedder(folder).reranker is None


def test_all_rows_of_a_table_are_read(reranker: Reranker) -> None:
    rows = "".join(f"| {year} | 1,{year},345.67 | 0.{year}% |\n" for year in range(1900, 1914))
    ends = [n + 1 for n, letter in enumerate(rows) if letter == "\n"]
    (scores,) = reranker.scores("What was the value in 1913?", [rows], [list(zip([0, *ends], ends, strict=False))])
    assert len(scores) == 14
    assert scores.min() > -20


def test_damaged_packaged_weights_are_noticed_before_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = bytearray(PACKAGED.read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "updates").write_bytes(damaged)
    monkeypatch.setattr(module, "PACKAGED", tmp_path / "updates")
    with pytest.raises(BackboneError, match=r"has the digest [0-9a-f]{64}, and must have .* reinstall everlong"):
        Embedder.packaged()
    monkeypatch.setattr(module, "PACKAGED", tmp_path / "none")
    with pytest.raises(BackboneError, match=r"cannot read the reranker: .*none"):
        Embedder.packaged()


def test_damaged_weights_are_named(folder: Path, tmp_path: Path) -> None:
    updates = load_file(PACKAGED)
    name = next(name for name in updates if name.endswith(".A"))
    wrong = {"missing": None, "cut": PACKAGED.read_bytes()[:1000], "unknown": {"other": torch.zeros(2)},
             "half": {name: updates[name]}, "shape": {"head.weight": torch.zeros(3, 3)}}  # fmt: skip
    for kind, content in wrong.items():
        file = tmp_path / kind
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content is not None:
            save_file(content, file)
        reranker = Reranker(folder, file, device=torch.device("cpu"), dtype=torch.float32)
        with pytest.raises(BackboneError, match=f"cannot load the reranker .*{kind}"):
            reranker.scores("Who?", [INN], [spans(INN)])
