"""`everlong eval grounded`: reading data, building documents, and a run."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import random
import shutil
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from everlong_lab.cli.eval import eval as command
from everlong_lab.eval.grounded import grounded, prompts
from everlong_lab.eval.grounded.hiding import Novels, books, documents
from everlong_lab.eval.grounded.questions import texts
from everlong_lab.eval.grounded.report import WAYS, GroundedPlan
from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_lab.tasks.reading import REFUSAL
from everlong_models import load_model
from everlong_server.engine.answering.events import ResponseCompleted
from everlong_server.engine.answering.evidence.templates import INSTRUCT, TEMPLATE
from everlong_server.settings import Settings
from everlong_server.store.search.passages import Found, Passages

FACTS = [
    ("Harbours", "The lighthouse of Brimsund was painted green by Oda Kvist in 1911.", "Who painted Brimsund's lighthouse?", "Oda Kvist"),
    ("Harbours", "Ferries from Tolvik leave at dawn and carry mostly salted herring.", "What do Tolvik ferries carry?", "salted herring"),
    ("Bridges", "The rope bridge at Vangra fell down after three weeks of rain.", "What did the Vangra bridge do?", "fell down"),
    ("Bridges", "Engineer Malo built seven bridges and was afraid of water.", "How many bridges did Malo build?", "seven"),
    ("Ferries", "The ferryman Ansgar Lund sold his boat to a travelling circus.", "Who sold his boat?", "Ansgar Lund"),
]  # fmt: skip


def make_squad(folder: Path) -> None:
    articles: dict[str, list[dict]] = {}
    for title, text, question, answer in FACTS:
        answers = [{"text": answer, "answer_start": text.index(answer)}]
        asked = [
            {"id": "1", "question": question, "answers": answers, "is_impossible": False},
            {"id": "2", "question": f"Who disliked {answer}?", "answers": [], "is_impossible": True},
        ]
        articles.setdefault(title, []).append({"context": text, "qas": asked})
    folder.mkdir(parents=True)
    data = [{"title": title, "paragraphs": paragraphs} for title, paragraphs in articles.items()]
    (folder / "dev-v2.0.json").write_text(json.dumps({"data": data}))


def make_xquad(folder: Path) -> None:
    """Return ten articles, of which some are held out."""
    data = []
    for n in range(10):
        text = f"The keeper of mill {n} was Tilde Varga {n}, who counted sacks at night."
        answers = [{"text": f"Tilde Varga {n}", "answer_start": text.index("Tilde")}]
        asked = [{"id": "1", "question": f"Who was the keeper of mill {n}?", "answers": answers}]
        data.append({"title": f"Mill {n}", "paragraphs": [{"context": text, "qas": asked}]})
    folder.mkdir(parents=True)
    (folder / "xquad.en.json").write_text(json.dumps({"data": data}))


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_csv(file: Path, *rows: tuple) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows(rows)


def make_story(folder: Path, part: str = "test") -> None:
    base = folder / "fairytaleqa" / "data-by-train-split"
    write_csv(
        base / "section-stories" / part / "the-miller-story.csv",
        ("section", "text"), ("1", "A miller had a blue cat."), ("2", "The cat stole his hat, and he wept for a week."),
    )  # fmt: skip
    write_csv(
        base / "questions" / part / "the-miller-questions.csv", ("question", "cor_section", "answer1", "answer2"),
        ("What did the cat steal?", "2", "his  hat", ""), ("How long was he sad?", "2", "seven days of weeping", ""),
        ("What is it all about?", "1, 2", "a cat", ""),
    )  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with invented facts and an invented novel."""
    folder = tmp_path_factory.mktemp("data")
    make_squad(folder / "squad2_dev_half" / "data")
    words = [
        "grass",
        "wind",
        "hill",
        "morning",
        "grey",
        "walked",
        "slowly",
        "over",
        "and",
        "the",
        "old",
        "road",
        "was",
        "long",
    ]
    draw = random.Random(0)
    paragraphs = [" ".join(draw.choices(words, k=40)).capitalize() + "." for _ in range(400)]
    (folder / "books").mkdir()
    (folder / "books" / "novel.md").write_text("\n\n".join(paragraphs))
    return folder


# What is read


def test_questions_of_squad_know_where_their_answers_stand(data: Path) -> None:
    train, tune, test = (texts(data, "squad", split) for split in ("train", "tune", "test"))
    assert {source.name.split()[0] for source in train} == {"Harbours"}
    assert {source.name.split()[0] for source in tune} == {"Ferries"}
    assert {source.name.split()[0] for source in test} == {"Bridges"}
    for source in train + tune + test:
        question, impossible = source.questions
        assert [source.text[a:b] for a, b in question.places] == list(question.answers)
        assert (impossible.answers, impossible.places) == ((), ())


def test_a_story_is_its_sections_and_answers_in_own_words_have_no_place(tmp_path: Path) -> None:
    make_story(tmp_path)
    (source,) = texts(tmp_path, "fairytaleqa", "test")
    stolen, sad, every = source.questions
    assert [source.text[a:b] for a, b in stolen.places] == ["his hat"]
    assert sad.places == ()
    assert [source.text[a:b] for a, b in sad.right] == ["The cat stole his hat, and he wept for a week."]
    assert every.right == ((0, len(source.text)),), "sections that follow each other are one part"


def test_the_right_parts_of_a_long_answer_are_those_that_say_most_of_it(tmp_path: Path) -> None:
    draw = random.Random(1)
    noise = [f"w{draw.randrange(300)}" for _ in range(1500)]
    text = " ".join([*noise[:900], "the copper engine exploded beside Maria's greenhouse", *noise[900:]])
    answers = [{"response_text": "A copper engine exploded near the greenhouse of Maria."}] * 4
    questions = [{"question_text": q, "responses": answers} for q in ("What is the plot?", "What exploded?")]
    (tmp_path / "squality" / "txt").mkdir(parents=True)
    story = {"metadata": {"passage_id": 7}, "document": text, "questions": questions}
    (tmp_path / "squality" / "txt" / "test.jsonl").write_text(json.dumps(story))
    (source,) = texts(tmp_path, "squality", "test")
    (question,) = source.questions
    assert question.text == "What exploded?"
    assert any("exploded" in source.text[a:b] for a, b in question.right)
    assert all(len(source.text[a:b].split()) <= 100 for a, b in question.right)


# How documents are made


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("length", [300, 3000])
def test_what_is_asked_stands_in_the_document_and_its_length_is_near(data: Path, length: int) -> None:
    sources = texts(data, "squad", "test") + texts(data, "squad", "train")
    make = lambda seed: list(  # noqa: E731
        islice(documents(sources, Novels(books(data / "books"), words), length, words, seed, answerable=True), 2)
    )
    made = make(0)
    assert make(0) == made != make(1)
    for hidden in made:
        assert abs(hidden.tokens - length) < 0.1 * length + 80
        assert len({asked.question for asked in hidden.questions}) == len(hidden.questions)
        for asked in hidden.questions:
            (fact,) = [fact for fact in FACTS if fact[2] == asked.question]
            assert hidden.passage(asked) == fact[1]
            assert [hidden.text[a:b] for a, b in asked.places] == [fact[3]]


def test_of_a_text_that_is_too_long_a_stretch_is_taken_that_holds_the_answer(tmp_path: Path, data: Path) -> None:
    make_story(tmp_path)
    (source,) = texts(tmp_path, "fairytaleqa", "test")
    (hidden,) = islice(documents([source], Novels(books(data / "books"), words), 12, words, 0, answerable=True), 1)
    assert hidden.tokens <= 12
    assert hidden.text.strip() in source.text
    for asked in hidden.questions:
        assert hidden.passage(asked) == "The cat stole his hat, and he wept for a week."


# A run


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(data_dir=tmp_path_factory.mktemp("d"), recall_tokens=200)


@pytest.mark.long
def test_every_way_is_measured_on_the_same_questions(data: Path, settings: Settings, tiny_model: Path) -> None:
    plan = GroundedPlan(
        sets=("squad",), lengths=(100,), samples=2, searches=3, max_tokens=2, floor=256, recall=grounded.Recall(2, 300)
    )
    report, (cell,) = grounded.evaluate(
        settings.model_copy(update={"model": str(tiny_model)}), plan, data, lambda what, done: None
    )
    rows = {row["way"]: row for row in report.rows}
    refusals = ["refuses wrongly", "refuses what is not in it", "refuses what it nearly holds"]
    assert list(rows) == ["evidence", *WAYS, "recall, no answer", *refusals, "both ÷ ceiling"]
    assert rows["evidence"]["documents"] > 1
    assert rows["recall, no answer"]["n"] == len(cell.declined) == 2
    assert rows["refuses wrongly"]["refused"].startswith("0.000")
    assert rows["evidence"]["n"] == 2, "each of those there are, once"
    assert rows["evidence"]["hit"].startswith("1.000")
    assert {rows[way]["n"] for way in WAYS} == {2}
    asked = {way: [a["question"] for a in cell.answers if a["way"] == way] for way in WAYS}
    assert all(questions == asked["both"] for questions in asked.values())
    assert [target.name for target in report.targets] == [
        "squad at 100: evidence holds the answer", "squad at 100: F1 with both ÷ ceiling",
    ]  # fmt: skip


@pytest.mark.parametrize(("template", "by_sentences"), [("few-words", False), ("instruct", True)])
def test_evidence_is_searched_for_as_the_template_shows_it(
    data: Path, settings: Settings, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, template: str, by_sentences: bool
) -> None:
    find, asked = Passages.find, []

    async def spied(*args: object, **how: bool) -> Found:
        asked.append(how["by_sentences"])
        return await find(*args, **how)

    monkeypatch.setattr(Passages, "find", spied)
    plan = GroundedPlan(
        sets=("squad",), lengths=(100,), ways=(), searches=2, recall=grounded.Recall(2, 300), template=template
    )
    _, (cell,) = grounded.evaluate(
        settings.model_copy(update={"model": str(tiny_model)}), plan, data, lambda what, done: None
    )
    assert cell.ranks == [1, 1]
    assert set(asked) == {by_sentences}


def test_prompts_are_what_the_server_would_ask_with_their_answers(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    make_xquad(folder / "xquad_en")
    make_story(folder, "train")
    novel = (folder / "books" / "novel.md").read_text()
    for number in range(20):
        write(folder / "books-260" / f"{number}.md", novel[number * 200 :])
    (folder / "books-260" / "novel.md").write_text("Heath. " * 3_000)

    def make(seed: int, **changes: object) -> list[dict]:
        to, told = io.StringIO(), []
        plan = prompts.PromptsPlan(questions=12, impossible=2, lengths=(300, 600), seed=seed, **changes)
        told_of = lambda what, done: told.append((what, done))  # noqa: E731
        count = asyncio.run(prompts.write(plan, words, folder, to, told_of))
        lines = [json.loads(line) for line in to.getvalue().splitlines()]
        assert len(lines) == count
        assert [what for what, done in told if done == 1] == ["squad", "xquad", "fairytaleqa", "squad, not answered"]
        return lines

    lines = make(0)
    assert lines == make(0) != make(1)
    turns = [line["turns"][0] for line in lines]
    said = [turn for turn in turns if turn["answers"] != [REFUSAL]]
    assert {line["source"].split(":")[0] for line in lines} == {"squad", "xquad", "fairytaleqa"}
    assert "Heath" not in str(lines), "a book that the test hides texts in is not learnt from"
    assert len(said) > 12
    for turn in said:
        assert turn["prompt"].startswith(TEMPLATE.opening)
        assert any(answer.split()[-1] in turn["prompt"] for answer in turn["answers"])
    refused = [turn["prompt"] for turn in turns if turn["answers"] == [REFUSAL]]
    assert any("disliked" in prompt for prompt in refused), "what people wrote for SQuAD"
    assert any("Question: Who was the keeper" in prompt for prompt in refused), "what is left out on purpose"
    later = [(line["turns"][0]["prompt"], turn) for line in lines for turn in line["turns"][1:]]
    assert later, "some passages answer other questions, too"
    for before, turn in later:
        assert not turn["prompt"].startswith(TEMPLATE.opening)
        assert any(answer.split()[-1] in before for answer in turn["answers"])
    lines = make(0, template="instruct")
    assert all(line["turns"][0]["prompt"].startswith((INSTRUCT.opening, INSTRUCT.nothing)) for line in lines)
    turns = [turn for line in lines for turn in line["turns"]]
    in_sentences = [turn for turn in turns if "question" in turn]
    assert 0 < len(in_sentences) < len(turns)
    assert all(turn["prompt"].endswith(turn["question"]) for turn in in_sentences)


def test_a_session_that_remembers_nothing_begins_empty_and_knows_its_documents(
    data: Path, settings: Settings, tiny_model: Path, tmp_path: Path
) -> None:
    model = load_model(str(tiny_model), models_dir=tmp_path)

    async def positions() -> list[int]:
        async with grounded._served(settings, model) as services:
            document = await SearchCorpus(services.shared.stores.blobs).put("A miller had a blue cat. " * 30)
            await services.documents.create(document, model.fingerprint)
            answers = grounded._Answers(services, GroundedPlan(max_tokens=1), grounded.Recall(1, 60))
            await answers._wait_read(document)
            found = []
            for remember in (True, False):
                session = await services.sessions.create(model.fingerprint, "m", [document.id], remember=remember)
                assert session.started
                turn = await answers._session_turns.send(
                    session.id, "Which cat?", grounded.SamplingParams(max_tokens=1), grounded.Recall(1, 60)
                )
                completed = [event async for event in turn.events][-1]
                assert isinstance(completed, ResponseCompleted)
                assert completed.message.evidence[0].document == document.id
                found.append(completed.message.usage.prompt_tokens)
            return found

    full, empty = asyncio.run(positions())
    assert full - empty > 100


def test_on_the_command_line_what_is_wrong_is_one_line(data: Path, tmp_path: Path) -> None:
    def error(*args: str) -> str:
        done = CliRunner().invoke(command, ["grounded", *args])
        assert done.exit_code == 1
        assert "Traceback" not in done.output
        return " ".join(done.output.split())

    assert "no data set 'squad2_dev_half'" in error(
        "--data", str(tmp_path), "--sets", "squad", "--model", "nowhere.gguf"
    )
    assert "--ways: unknown name 'best'; choose from neither, memory" in error(
        "--data", str(data), "--ways", "both,best"
    )
    assert "--sets: unknown name 'bard'" in error("--data", str(data), "--sets", "bard")
    assert "--lengths: '2k'; must be numbers" in error("--data", str(data), "--lengths", "2k")
    assert "--recall: '8'; must be two positive numbers" in error("--data", str(data), "--recall", "8")
    assert "--template: unknown name 'x'" in error("--data", str(data), "--template", "x")
