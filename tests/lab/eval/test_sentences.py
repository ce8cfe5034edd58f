"""`everlong sentences`: which answers become sentences, and how a model is asked for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from everlong_lab.eval.grounded.sentences import SentenceWriter, read, says_the_same, write
from everlong_lab.tasks.reading import REFUSAL
from everlong_models.backbone.loading import load_backbone
from everlong_models.errors import DataError
from tests.models import model_folders

ASKED = "Who lives in the tower?"


@pytest.mark.parametrize(
    ("answer", "sentence", "same"),
    [
        ("an owl", "An owl lives in the tower.", True),
        ("an owl", "The one who lives in the tower is an owl.", True),
        ("an owl", "“An owl lives in the tower.”", True),
        ("She fled. The owl did not.", "In the tower, she fled. The owl did not.", True),
        ("an owl", "A bird lives in the tower.", False),
        ("an owl", "An owl lives in the tower, where it hunts white mice every night.", False),
        ("an owl", "An owl lives in the tower", False),
        ("an owl", "An owl lives in the tower. It hunts.", False),
        ("an owl", "An owl lives\nin the tower.", False),
        ("an owl", "", False),
        ("No.", "Who lives in the tower is no owl.", False),
        ("He did not hear wolves.", "He heard wolves in the tower.", False),
        ("He didn't hear wolves.", "In the tower, he did not hear wolves.", True),
    ],
)
def test_a_sentence_says_what_the_answer_says(answer: str, sentence: str, same: bool) -> None:
    assert says_the_same(ASKED, answer, sentence) is same


def test_answers_become_sentences_unless_few_words_are_asked_for(tmp_path: Path) -> None:
    lines = [
        {"source": "a", "turns": [{"prompt": f"… {ASKED}", "answers": ["an owl", "owls"], "question": ASKED}]},
        {"source": "b", "turns": [{"prompt": f"… {ASKED} Answer briefly.", "answers": ["an owl"]}]},
        {"source": "c", "turns": [{"prompt": f"… {ASKED}", "answers": [REFUSAL], "question": ASKED}]},
    ]
    file, to, asked = tmp_path / "prompts.jsonl", tmp_path / "sentences.jsonl", []
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def sentences(pairs):
        asked.extend(pairs)
        return ["An owl lives in the tower.", "Nobody lives there."]

    assert write(read(file), to, sentences) == (1, 2)
    assert asked == [(ASKED, "an owl"), (ASKED, "owls")]
    first, second, third = (json.loads(line)["turns"][0]["answers"] for line in to.read_text().splitlines())
    assert first == ["An owl lives in the tower.", "Owls."], "what says something else is not used"
    assert second == ["an owl"]
    assert third == [REFUSAL]


def test_sentences_do_not_depend_on_what_is_written_beside_them(tmp_path: Path) -> None:
    backbone, tokenizer = load_backbone(str(model_folders.backbone()), models_dir=tmp_path, dtype=torch.float64)
    with torch.no_grad():
        for parameter in backbone.model.base_model.layers.parameters():
            parameter.mul_(20)  # so that what it writes depends on what it reads
    done: list[float] = []
    writer = SentenceWriter(backbone, tokenizer, done.append)
    pairs = [(ASKED, "an owl"), ("Why?", "It rained all day on the old mill."), (ASKED, "mice")]
    together = writer(pairs)
    assert done == [1.0]
    assert together == [writer([pair])[0] for pair in pairs]
    assert len(set(together)) == 3


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"source": "a"}\n')
    with pytest.raises(DataError, match=r"prompts\.jsonl, line 1: no 'turns'"):
        read(tmp_path / "prompts.jsonl")
