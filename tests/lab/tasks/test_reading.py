"""Questions about documents, continuation, and the mixture of tasks."""

from __future__ import annotations

import csv
import json
from collections import Counter

import numpy as np
import pytest
import torch

from everlong_lab.corpora import sources
from everlong_lab.corpora.sources import Source, SourceQuestion
from everlong_lab.eval.babilong import in_window
from everlong_lab.tasks import Setting, make_task
from everlong_lab.tasks.continuation import Continuation, ContinuationConfig
from everlong_lab.tasks.mixture import MixtureConfig
from everlong_lab.tasks.reading import REFUSAL, Reading, ReadingConfig
from everlong_lab.train.recipe import load_recipe, recipe_names
from everlong_models.backbone.loading import load_backbone
from everlong_models.errors import DataError, RecipeError, TokenError
from everlong_models.text.tokenizer import Tokenizer
from tests.models import model_folders
from tests.tinymodel import NOVEL, STORY, make_tokenizer

S = 64


def write(file, content):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def rows(file, *table):
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(table)


def squad_article(title, paragraphs=2):
    return {
        "title": title,
        "paragraphs": [
            {
                "context": f"In {title} {n} there are {n + 3} towers.",
                "qas": [
                    {
                        "id": "a",
                        "question": f"How many towers has {title} {n}?",
                        "answers": [{"text": f"{n + 3}", "answer_start": len(f"In {title} {n} there are ")}],
                    },
                    {"id": "b", "question": f"Who built {title} {n}?", "answers": []},
                ],
            }
            for n in range(paragraphs)
        ],
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for file in (NOVEL, STORY):
        write(folder / "books-260" / file.name, file.read_text()[:60_000])
    for part in ("train", "val"):
        for number in range(6):
            root, name = folder / "fairytaleqa" / "data-by-train-split", f"{part}-{number}"
            texts = [f"Section {n} of {name}: the fox met a hen called {name}{n}." for n in (1, 2, 3, 4)]
            rows(
                root / "section-stories" / part / f"{name}-story.csv",
                ("section", "text"),
                *enumerate(texts, 1),
            )
            rows(
                root / "questions" / part / f"{name}-questions.csv",
                ("question", "cor_section", "answer1"),
                *((f"Whom did the fox meet in section {n}?", f"{n}", f"{name}{n}") for n in (1, 3)),
                ("Whom did the fox meet in the end?", "3,4", f"{name}4"),
            )
    write(folder / "squad2_dev_half" / "dev-v2.0.json", {"data": [squad_article(f"City {n}") for n in range(30)]})
    write(
        folder / "xquad_en" / "xquad.en.json",
        {"data": [squad_article("Warsaw"), squad_article("Normans")] + [squad_article(f"Town {n}") for n in range(12)]},
    )
    write(
        folder / "instruct_rasbt" / "instruction-data.json",
        [{"instruction": f"Double {n}.", "input": "" if n % 2 else "Now.", "output": f"{2 * n}"} for n in range(40)],
    )
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(make_tokenizer(model_folders.VOCAB))


@pytest.fixture
def make(data, tokenizer):
    def reading(seed=0, **fields):
        config = ReadingConfig(noise_characters=60_000, **fields)
        return Reading(config, Setting(tokenizer, S, data, seed))

    return reading


def lines(batch, tokenizer):
    """Return each document's text before the answer, and the answer."""
    for ids, length, targets in zip(batch.tokens, batch.lengths.tolist(), batch.targets, strict=True):
        begin = int(targets.nonzero()[0])
        assert targets[begin:length].all()
        assert not targets[length:].any()
        yield tokenizer.decode(ids[:begin].tolist()), tokenizer.decode(ids[begin:length].tolist())


def test_the_text_answers_the_question_wherever_it_stands(make, tokenizer):
    starts, ends = [], set()
    batch = make(elsewhere=0.0, padded=1.0).batch(0, 48, 16)
    assert all(15 * S < length <= 16 * S for length in batch.lengths.tolist())
    for told, answer in lines(batch, tokenizer):
        assert f"called {answer}." in told
        where = told.split("section ")[-1][0] if "in section" in told else "4"
        assert answer.endswith(where)
        starts.append(told.index("Section") / len(told))
        ends.add(len(told))
    assert min(starts) < 0.2
    assert max(starts) > 0.6
    assert len(ends) > 10


def test_a_long_text_is_cut_around_what_is_needed(make, tokenizer):
    first, held = set(), Counter()
    for segments in (2, 3, 5):
        for told, answer in lines(make(elsewhere=0.0, padded=0.0).batch(0, 24, segments), tokenizer):
            assert f"called {answer}." in told
            numbers = [int(part[0]) for part in told.split("Section ")[1:]]
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            first.add(numbers[0])
            held[len(numbers)] += 1
    assert len(first) > 1
    assert len(held) > 1
    assert max(held) == 4
    with pytest.raises(TokenError, match="no question of fairytaleqa fits into 1 segments of 64 tokens"):
        make().batch(0, 4, 1)


def test_what_the_text_does_not_hold_is_refused(make, tokenizer):
    squad = dict(lines(make(sources={"squad2_dev_half": 1}, elsewhere=0.0, padded=0.0).batch(0, 40, 4), tokenizer))
    assert {told.split("\n\n")[-1].startswith("Who built") for told, answer in squad.items() if answer == REFUSAL} == {
        True
    }
    assert {told.split("\n\n")[-1].startswith("How many") for told, answer in squad.items() if answer != REFUSAL} == {
        True
    }
    for told, answer in lines(make(elsewhere=1.0).batch(0, 10, 6), tokenizer):
        assert answer == REFUSAL
        assert "Section" in told


def test_instructions_are_asked_with_and_without_something_read_before(make, tokenizer):
    padded = 0
    for told, answer in lines(make(sources={"instruct_rasbt": 1}, padded=0.5).batch(0, 40, 4), tokenizer):
        number = int(told.split("Double ")[-1].split(".")[0])
        assert int(answer) == 2 * number
        assert ("Now." in told) == (number % 2 == 0)
        padded += len(told) > 100
    assert 8 < padded < 32


def test_what_is_held_out_is_not_learnt_from(data, make):
    for name in ("fairytaleqa", "squad2_dev_half", "xquad_en", "instruct_rasbt"):
        kept, held = (sources.read(data, name, part) for part in ("train", "validation"))
        assert not {source.name for source in kept} & {source.name for source in held}
    kept, held, tested = (
        {source.name.rsplit(" ", 1)[0] for source in sources.read(data, "squad2_dev_half", part)}
        for part in ("train", "validation", "test")
    )
    assert kept | held == {f"City {n}" for n in range(0, 30, 2)}
    assert tested == {f"City {n}" for n in range(1, 30, 2)}
    towns = {source.name[:4] for part in ("train", "validation") for source in sources.read(data, "xquad_en", part)}
    assert towns == {"Town"}


def test_readers_of_other_formats(tmp_path):
    write(
        tmp_path / "squality" / "txt" / "train.jsonl",
        json.dumps(
            {
                "metadata": {"passage_id": "9"},
                "document": "One.\n\nTwo.",
                "questions": [
                    {"question_text": "What?", "responses": [{"response_text": "A."}, {"response_text": "B."}]}
                ],
            }
        ),
    )
    (story,) = sources.read(tmp_path, "squality", "train")
    assert story == Source("9", ("One.", "Two."), "\n\n", (SourceQuestion("What?", ("A.", "B.")),))
    meeting = {
        "meeting_transcripts": [{"speaker": who, "content": f"Words of {who}."} for who in "ABCD"],
        "general_query_list": [{"query": "Summarize.", "answer": "They met."}],
        "specific_query_list": [
            {"query": "What of B?", "answer": "It spoke.", "relevant_text_span": [["1", "1"], ["2", "2"]]}
        ],
    }
    write(tmp_path / "qmsum" / "ALL" / "train" / "m.json", meeting)
    (met,) = sources.read(tmp_path, "qmsum", "train")
    assert met.parts[1] == "B: Words of B."
    assert met.questions == (
        SourceQuestion("Summarize.", ("They met.",)),
        SourceQuestion("What of B?", ("It spoke.",), (1, 2)),
    )
    around = "A tower stands in the north of the town. " * 4
    passages = [
        f"{around}Tower {n} is the one of all of them that a person sees first who comes by sea. {around}"
        for n in range(20)
    ]
    write(
        tmp_path / "t0_docqa" / "data_per_template" / "a.jsonl",
        "".join(
            json.dumps(
                {"prompt": f"Read this:\n\n{head}{passage}{tail}\n\nWhere is it?", "completion": "north<|endoftext|>"}
            )
            + "\n"
            for passage in passages
            for head, tail in (("", ""), ("", ", can you guess it?"), ("Text: ", ""))
        ),
    )
    kept, held = (sources.read(tmp_path, "t0_docqa", part) for part in ("train", "validation"))
    assert len(kept) + len(held) == 60
    told = [{passage for passage in passages for source in part if passage in source.parts[0]} for part in (kept, held)]
    assert told[0].isdisjoint(told[1]), "a passage is held out in all of its prompts, or in none"
    assert [len(part) for part in told] == [len(kept) / 3, len(held) / 3]
    assert held
    assert kept[0].parts[0].startswith("A tower stands")
    assert kept[0].questions[0].question.startswith("Read this:\nWhere is it")
    assert kept[0].questions[0].answers == ("north",)


def test_broken_lines_are_named(tmp_path, data):
    stories = tmp_path / "fairytaleqa" / "section-stories" / "train" / "a-story.csv"
    asked = tmp_path / "fairytaleqa" / "questions" / "train" / "a-questions.csv"
    rows(stories, ("section", "text"), ("1", "Once."))
    for table, said in (
        ([("question", "answer1"), ("What?", "It.")], r"line 1: column 'cor_section' is missing"),
        (
            [("question", "cor_section", "answer1"), ("What?", "1", "It."), ("", "1", "It.")],
            r"line 3: column 'question' is empty",
        ),
        (
            [("question", "cor_section", "answer1"), ("What?", "2", "It.")],
            r"line 2: section '2' is not in a-story\.csv",
        ),
    ):
        rows(asked, *table)
        with pytest.raises(DataError, match=rf"a-questions\.csv, {said}"):
            sources.read(tmp_path, "fairytaleqa", "train")
    write(asked, 'question,cor_section,answer1\nWhat?,1,"It' + "s" * 140_000 + "\n")
    with pytest.raises(DataError, match=r"a-questions\.csv, line \d+: field larger than field limit"):
        sources.read(tmp_path, "fairytaleqa", "train")
    rows(asked, ("question", "cor_section", "answer1"), ("What?", "1", "It."))
    stories.unlink()
    with pytest.raises(DataError, match=r"cannot read .*a-story\.csv"):
        sources.read(tmp_path, "fairytaleqa", "train")
    lines = tmp_path / "squality" / "txt" / "train.jsonl"
    for content, said in (
        ("\n{\n", "line 2: Expecting"),
        ("[]\n", "line 1: must be an object"),
        ("{}\n", "line 1: no 'document'"),
    ):
        write(lines, content)
        with pytest.raises(DataError, match=rf"train\.jsonl, {said}"):
            sources.read(tmp_path, "squality", "train")
    write(lines, "")
    with pytest.raises(DataError, match=r"train\.jsonl is empty"):
        sources.read(tmp_path, "squality", "train")
    write(tmp_path / "policyqa" / "data" / "dev.json", '{"data": [{"title": "a"}]}')
    with pytest.raises(DataError, match=r"dev\.json: no 'paragraphs'"):
        [sources.read(tmp_path, "policyqa", part) for part in ("train", "validation")]
    with pytest.raises(DataError, match=r"has no dev-v2\.0\.json"):
        (tmp_path / "squad2_dev_half").mkdir()
        sources.read(tmp_path, "squad2_dev_half", "train")
    shifted = {"id": "q7", "question": "Where?", "answers": [{"text": "there", "answer_start": 1}]}
    article = {"title": "a", "paragraphs": [{"context": "It is there.", "qas": [shifted]}]}
    write(tmp_path / "squad2_dev_half" / "dev-v2.0.json", {"data": [article, article]})
    with pytest.raises(DataError, match=r"question q7: the answer 'there' is not at character 1"):
        sources.read(tmp_path, "squad2_dev_half", "test")
    with pytest.raises(DataError, match=r"policyqa has no questions in the split 'test'"):
        write(tmp_path / "policyqa" / "data" / "dev.json", {"data": []})
        sources.read(tmp_path, "policyqa", "test")
    with pytest.raises(DataError, match="no data set 'qmsum'"):
        Reading(ReadingConfig(sources={"qmsum": 1}), Setting(Tokenizer(make_tokenizer()), S, tmp_path, 0))
    with pytest.raises(ValueError, match="no data set 'novels'; must be one of"):
        ReadingConfig(sources={"novels": 1})
    with pytest.raises(ValueError, match="weight of qmsum must be positive"):
        ReadingConfig(sources={"qmsum": 0})


def test_books_are_continued_and_the_last_tokens_count(data, tokenizer):
    task = Continuation(ContinuationConfig(characters=60_000, targets=10), Setting(tokenizer, S, data, 0))
    batch = task.batch(0, 3, 2)
    assert batch.tokens.shape == (3, 2 * S)
    assert batch.targets.nonzero()[:, 1].tolist() == list(range(2 * S - 10, 2 * S)) * 3
    assert torch.equal(batch.tokens, task.batch(0, 3, 2).tokens)
    assert not torch.equal(batch.tokens, task.batch(1, 3, 2).tokens)
    windows = np.lib.stride_tricks.sliding_window_view
    seen = {tuple(window) for window in windows(task._stream, 60)}
    assert not any(tuple(window) in seen for window in windows(task._held_out, 60))


@pytest.fixture
def mixture(data, tokenizer):
    def make(*weights, **fields):
        parts = [
            {"weight": weights[0], "task": {"name": "reading", "elsewhere": 0, "noise_characters": 60_000}},
            {"weight": weights[1], "task": {"name": "continuation", "characters": 60_000, "targets": 50}},
        ]
        return make_task(MixtureConfig(parts=parts, **fields), Setting(tokenizer, S, data, 0))

    return make


def test_a_mixture_has_its_weights_and_no_answer_outweighs_others(mixture, tokenizer):
    task, read = mixture(3, 1, targets=8), 0
    for step in range(10):
        batch = task.batch(step, 20, 4)
        assert batch.tokens.shape == batch.targets.shape
        assert batch.lengths.tolist() == sorted(batch.lengths.tolist())
        assert int(batch.targets.sum(1).max()) <= 8
        assert int(batch.targets.sum(1).min()) >= 1
        for ids, length, targets in zip(batch.tokens, batch.lengths.tolist(), batch.targets, strict=True):
            assert not targets[length:].any()
            read += "Whom did the fox" in tokenizer.decode(ids.tolist())
    assert 120 < read < 175
    assert torch.equal(task.batch(2, 8, 3).targets, task.batch(2, 8, 3).targets)


def test_a_mixtures_scores_are_those_of_its_parts(mixture, data, tokenizer):
    backbone, _ = load_backbone(str(model_folders.backbone()), models_dir=data)
    task = mixture(1, 1)
    window = in_window(backbone, 64)  # segments of 63 for documents of 64: it must not matter
    scores = task.evaluate(window, samples=8, segments=3)
    assert set(scores) == {"reading.perplexity", "continuation.perplexity"}
    assert all(50 < score < 2000 for score in scores.values())  # random weights, 300 tokens


def test_parts_must_be_tasks_that_begin_anew(data, tokenizer):
    with pytest.raises(ValueError, match="language"):
        MixtureConfig(parts=[{"task": {"name": "language"}}])
    with pytest.raises(ValueError, match="weight"):
        MixtureConfig(parts=[{"weight": 0, "task": {"name": "continuation"}}])
    with pytest.raises(ValueError, match="parts"):
        MixtureConfig(parts=[])


def test_the_recipes_of_the_package_are_valid():
    for name in recipe_names():
        load_recipe(name)
    default = load_recipe("default-rmt")
    assert isinstance(default.task, MixtureConfig)
    assert [stage.segments for stage in default.stages] == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(RecipeError, match=r"task.*weigth"):
        load_recipe("default-rmt", ["task.parts.0.weigth=1"])
