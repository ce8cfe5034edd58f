"""`everlong eval remembers`: documents, likelihoods, shares, and a run that continues where it was interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from everlong_lab.cli.eval import eval as command
from everlong_lab.eval.remembers import run
from everlong_lab.eval.remembers.contexts import InContext, InMemory, likelihood
from everlong_lab.eval.remembers.report import share
from everlong_lab.eval.remembers.texts import documents
from everlong_models.memories.compact import Compact, CompactConfig
from tests.lab.eval.test_grounded import make_squad
from tests.models.memory_contract import tokens
from tests.models.tiny import llama


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_squad(tmp_path / "squad2_dev_half")
    return tmp_path


def make_squality(folder: Path) -> None:
    stories = [
        {
            "metadata": {"passage_id": str(n)},
            "document": f"Keeper {n} counted sacks.\n\nThen the mill burnt down. " * 5,
            "questions": [
                {"question_text": text, "responses": [{"response_text": f"Keeper {n} lost the mill."}]}
                for text in ("What is the plot?", f"Who is keeper {n}?")
            ],
        }
        for n in range(4)
    ]
    (folder / "txt").mkdir(parents=True)
    (folder / "txt" / "test.jsonl").write_text("".join(json.dumps(story) + "\n" for story in stories))


def test_a_document_has_whole_texts_and_only_questions_about_them(data: Path) -> None:
    made = list(documents(data, "squad", 15, "test", count=lambda t: len(t.split()), questions=3, seed=0))
    assert len(made) == 1
    (document,) = made
    assert document.kind == "detail"
    assert all(text in document.text for text in document.sources.values())
    assert len(document.questions) <= 3
    for asked in document.questions:
        assert asked.answers
        assert asked.answers[0] in document.sources[asked.source]
    make_squality(data / "squality")
    stories = list(documents(data, "squality", 60, "test", count=lambda t: len(t.split()), questions=9, seed=0))
    assert [len(one.sources) for one in stories] == [2, 2]
    assert not {asked.question for one in stories for asked in one.questions} & {"What is the plot?"}
    assert not set(stories[0].sources) & set(stories[1].sources)


@pytest.mark.parametrize("length", [20, 30])
def test_a_memory_with_room_for_all_is_as_good_as_the_context(length: int) -> None:
    backbone = llama()
    memory = Compact(CompactConfig(segment_length=12, entries=64), backbone)
    text = tokens(memory, 1, length)[0].tolist()
    with torch.no_grad():
        whole = likelihood(InContext(backbone, text, 40), [1, 2, 3], [4, 5])
        found = likelihood(InMemory.reading(memory, text), [1, 2, 3], [4, 5])
        assert found == pytest.approx(whole, abs=1e-5)
        long = list(range(20))  # longer than a segment
        whole = likelihood(InContext(backbone, text, 40), long, [4, 5])
        assert likelihood(InMemory.reading(memory, text), long, [4, 5]) == pytest.approx(whole, abs=1e-5)
        written = InContext(backbone, text, 40).write([1, 2, 3], (), 14)
        assert InMemory.reading(memory, text).write([1, 2, 3], (), 14) == written


def test_the_share_is_of_the_whole_texts_gain_over_the_control() -> None:
    found = share([-3.0, -2.0], [-4.0, -3.0], [-2.0, -1.0], ["a", "b"])
    assert (found.value, found.low, found.high) == (0.5, 0.5, 0.5)


@pytest.mark.long
def test_a_run_reports_all_ways_and_continues(
    data: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_squality(data / "squality")
    figures = tmp_path / "remembers.json"
    asked = [
        "remembers",
        "--data",
        str(data),
        "--model",
        str(tiny_model / "backbone"),
        "--memory",
        "compact",
        "--sets",
        "squality",
    ]
    asked += ["--lengths", "100", "--whole", "200", "--written", "1", "--json", str(figures)]
    asked += ["--options", '{"entries": 16, "segment_length": 64}']
    real, calls = run.Journal.keep, []

    def interrupted(journal, scores):
        real(journal, scores)
        calls.append((scores.document, *scores.questions[0]["likelihood"]))
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.Journal, "keep", interrupted)
    assert CliRunner().invoke(command, asked).exit_code != 0
    done = CliRunner().invoke(command, asked)
    assert done.exit_code == 0, done.output
    document = json.loads(figures.read_text())
    ways = document["plan"]["ways"]
    assert calls == [(one["document"], *ways[: n + 1]) for one in document["documents"] for n in range(len(ways))], (
        "nothing is asked twice"
    )
    assert {row["way"] for row in document["rows"]} == set(document["plan"]["ways"])
    assert all(
        set(q["likelihood"]) == set(document["plan"]["ways"]) for d in document["documents"] for q in d["questions"]
    )
    assert not figures.with_name("remembers.json.partial").exists()
