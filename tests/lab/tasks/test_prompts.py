"""Prompts written by `everlong prompts`: reading, sampling, targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from everlong_lab.tasks import Setting, make_task
from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_lab.tasks.prompts import Prompts, PromptsConfig
from everlong_models import load_model
from everlong_models.errors import DataError, TokenError
from everlong_models.text.tokenizer import Tokenizer
from tests.tinymodel import make_tokenizer

S = 32


def line(number: int, turns: int = 1) -> dict:
    return {
        "source": f"story {number}",
        "turns": [
            {"prompt": f"The hen {number} has a hat.\n\nQuestion: {turn}?", "answers": [f"hat {turn}"]}
            for turn in range(turns)
        ],
    }


def write(folder: Path, *lines: object) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text("\n".join(json.dumps(line) for line in lines))
    return file


@pytest.fixture
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer())


def make(data: Path, tokenizer: Tokenizer, seed: int = 0, **config: object) -> Prompts:
    task = make_task(PromptsConfig(**config), Setting(tokenizer, S, data, seed))
    assert isinstance(task, Prompts)
    return task


def test_answers_are_targets_and_all_else_is_the_servers_chat(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path, *(line(n, turns=1 + n % 2) for n in range(80)))
    batch = make(tmp_path, tokenizer).batch(0, 12, segments=8)
    encoder, seen = ChatEncoder(tokenizer), set()
    for ids, length, targets in zip(batch.tokens, batch.lengths, batch.targets, strict=True):
        text = tokenizer.decode(ids[:length].tolist(), skip_special=False)
        number = int(text.split("hen ")[1].split()[0])
        wanted: list[int] = []
        marks: list[bool] = []
        for turn in line(number, turns=1 + number % 2)["turns"]:
            asked = [*(encoder.turn if wanted else encoder.head()), *tokenizer.encode(turn["prompt"])]
            asked += encoder.question("", document=False)
            given = encoder.answer(turn["answers"][0])
            wanted += asked + given
            marks += [False] * len(asked) + [True] * len(given)
        assert ids[:length].tolist() == wanted
        assert targets[:length].tolist() == marks
        seen.add(number % 2)
    assert seen == {0, 1}
    assert batch.lengths.tolist() == sorted(batch.lengths.tolist())


def test_batches_follow_from_seed_and_step_and_sources_are_held_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    file = write(tmp_path, *(line(n) for n in range(80)))
    one, other = make(tmp_path, tokenizer), make(tmp_path, tokenizer, file=str(file))
    assert torch.equal(one.batch(3, 4, 8).tokens, other.batch(3, 4, 8).tokens)
    assert not torch.equal(one.batch(3, 4, 8).lengths, one.batch(4, 8, 8).lengths)
    learnt, held = ({turns[0].prompt for turns in lines} for lines in (one._learnt, one._held_out))
    assert learnt
    assert held
    assert learnt.isdisjoint(held)


def test_what_does_not_fit_is_left_out_from_its_turn_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    write(tmp_path, *(line(n, turns=3) for n in range(80)))
    task = make(tmp_path, tokenizer)
    whole, some = task.batch(0, 4, 20), task.batch(0, 4, 2)
    assert int(some.lengths.max()) <= 2 * S < int(whole.lengths.max())
    with pytest.raises(TokenError, match=r"no prompt of .* fits into"):
        make(tmp_path, tokenizer, answer=2).batch(0, 1, 20)


def test_held_out_answers_are_scored(tmp_path: Path, tokenizer: Tokenizer, tiny_model: Path) -> None:
    write(tmp_path, *(line(n) for n in range(80)))
    model = load_model(str(tiny_model), models_dir=tmp_path)
    scores = make(tmp_path, model.tokenizer).evaluate(model.memory, samples=3, segments=8)
    assert scores == make(tmp_path, model.tokenizer, seed=5).evaluate(model.memory, samples=3, segments=8)
    assert 1 < scores["perplexity"] < 1e6


def test_the_file_that_is_named_is_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """A path is not replaced by a file of the same name elsewhere; texts may contain line separators."""
    (tmp_path / "an-archive").mkdir()
    (tmp_path / "an-archive" / "prompts.jsonl").write_text("{")
    lines = [line(n) for n in range(40)]
    lines[3]["turns"][0]["prompt"] += "\u2028\x85"
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(each, ensure_ascii=False) for each in lines))
    make(tmp_path, tokenizer)
    (tmp_path / "b[1].jsonl").write_text((tmp_path / "prompts.jsonl").read_text())
    make(tmp_path, tokenizer, file="b[1].jsonl")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "is empty"),
        ("{", "line 1"),
        (json.dumps({"source": "a", "turns": []}), "line 1: no turns"),
        (json.dumps({"source": "a", "turns": [{"prompt": "b", "answers": []}]}), "line 1: a turn lacks answers"),
        (json.dumps({"turns": [{"prompt": "b", "answers": ["c"]}]}), "line 1: no 'source'"),
        (
            json.dumps({"source": "a", "turns": [{"prompt": "b", "answers": "Paris"}]}),
            "line 1: answers must be a list, found 'Paris'",
        ),
        (json.dumps(line(1)), "one source in 20 is held out"),
    ],
)
def test_a_file_that_is_no_prompts_is_refused(
    tmp_path: Path, tokenizer: Tokenizer, content: str, complaint: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text(content)
    with pytest.raises(DataError, match=r"prompts\.jsonl") as caught:
        make(tmp_path, tokenizer)
    assert complaint in str(caught.value)
