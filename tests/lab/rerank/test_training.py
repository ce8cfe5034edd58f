"""Tests for training.py: a small encoder learns which sentence answers, resumes exactly, and saves what `Reranker` loads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

from everlong_lab.cli.rerank import train_reranker
from everlong_lab.rerank.examples import Candidate, Example
from everlong_lab.rerank.training import RerankerTraining
from everlong_models.errors import RunError
from everlong_models.text.embedder import find_packaged_embedder
from everlong_models.text.reranker import Reranker

THINGS = ("apple", "boat", "candle", "door", "engine", "fence", "garden", "hammer")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, packaged = tmp_path_factory.mktemp("encoder"), find_packaged_embedder()
    assert packaged is not None
    torch.manual_seed(0)
    BertModel(
        BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=30522)
    ).save_pretrained(folder)
    shutil.copy(packaged / "tokenizer.json", folder)
    return folder


def example(n: int) -> Example:
    """A question about one thing. Sentences about others, and a sentence that may answer it, compete."""
    thing, other = THINGS[n % 8], THINGS[(n + 1 + n // 8) % 8]
    right = f"The {thing} is red. "
    wrong = f"The {other} is blue. "
    return Example(
        f"text {n % 16}",
        f"What about the {thing}?",
        (
            Candidate(right + wrong, ((0, len(right)), (len(right), len(right + wrong))), (1, 0)),
            Candidate(wrong, ((0, len(wrong)),), (0,)),
            Candidate(right, ((0, len(right)),), (-1,)),
        ),
    )


EXAMPLES = [example(n) for n in range(56)]


def trained(encoder: Path, **options: object) -> RerankerTraining:
    training = RerankerTraining(encoder, EXAMPLES, **({"rounds": 12, "lr": 3e-3} | options))  # type: ignore[arg-type]
    for _ in training.steps():
        pass
    return training


@pytest.mark.long
def test_it_learns_and_a_reranker_loads_what_it_saves(encoder: Path, tmp_path: Path) -> None:
    untrained = RerankerTraining(encoder, EXAMPLES)
    training = trained(encoder)
    assert {one.text for one in training.held_out} == {"text 0", "text 3"}
    assert training.score() > max(0.9, untrained.score())
    training.save(tmp_path / "updates.safetensors")
    reranker = Reranker(encoder, tmp_path / "updates.safetensors", device=torch.device("cpu"), dtype=torch.float32)
    for one in EXAMPLES[:8]:
        scores = reranker.scores(one.question, [c.text for c in one.candidates], [c.sentences for c in one.candidates])
        assert scores[0][0] > max(scores[0][1], scores[1][0])
    assert scores[0][0] == pytest.approx(
        float(training._scores([(one.question, one.candidates)])[0][0][0].detach()), abs=0.1
    )


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(encoder: Path, tmp_path: Path) -> None:
    whole = trained(encoder, rounds=2)
    first = RerankerTraining(encoder, EXAMPLES, rounds=2, lr=3e-3, checkpoint=tmp_path / "state")
    seen = [next(first.steps()) for _ in range(3)]
    first.save_checkpoint()
    assert [step.number for step in seen] == [1, 2, 3]
    second = RerankerTraining(encoder, EXAMPLES, rounds=2, lr=3e-3, checkpoint=tmp_path / "state")
    assert next(second.steps()).number == 4
    for _ in second.steps():
        pass
    assert second.finished
    for (name, one), other in zip(whole.model.named_parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other), name
    with pytest.raises(RunError, match="another run"):
        RerankerTraining(encoder, EXAMPLES, rounds=3, lr=3e-3, checkpoint=tmp_path / "state")


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"cut"])
def test_a_damaged_checkpoint_is_named(encoder: Path, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "state"
    RerankerTraining(encoder, EXAMPLES, checkpoint=file).save_checkpoint()
    file.write_bytes(file.read_bytes()[:-1000] if content == b"cut" else content)
    with pytest.raises(RunError, match="state is damaged, or no checkpoint"):
        RerankerTraining(encoder, EXAMPLES, checkpoint=file)


def test_too_few_questions_for_a_step_are_refused(encoder: Path) -> None:
    with pytest.raises(RunError, match="7 questions, 1 times each, are too few: a step takes 8"):
        RerankerTraining(encoder, EXAMPLES[:8], rounds=1)


@pytest.mark.long
def test_the_command_trains_for_a_while_and_says_how_to_go_on(tmp_path: Path) -> None:
    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text("The inn by the harbour belonged to Mrs. Quill. The harbour was full of boats.\n")
    rows = [
        {"text": name, "q": "Who runs the pub?", "a": "quill", "quote": "belonged to Mrs. Quill"}
        for name in ("a.md", "b.md")
    ]
    file, to = tmp_path / "q.jsonl", tmp_path / "made" / "updates.safetensors"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [
        str(file),
        "--texts",
        str(tmp_path),
        "--out",
        str(to),
        "--rounds",
        "16",
        "--checkpoint",
        str(tmp_path / "state"),
    ]
    stopped = CliRunner().invoke(train_reranker, [*arguments, "--max-minutes", "0"])
    assert stopped.exit_code == 0, stopped.output
    assert "run the same command again to continue" in " ".join(stopped.output.split())
    ended = CliRunner().invoke(train_reranker, arguments)
    assert ended.exit_code == 0, ended.output
    assert "of 1 held-out questions" in " ".join(ended.output.split())
    assert "again" not in ended.output
    assert to.stat().st_size > 5_000_000
    wrong = CliRunner().invoke(train_reranker, [*arguments[:-2], "--texts", str(tmp_path / "none"), "--rounds", "0"])
    assert wrong.exit_code == 2
