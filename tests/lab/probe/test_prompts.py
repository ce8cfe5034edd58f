"""Prompts with and without the passages that tell the answer."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import pytest

from everlong_lab.probe import prompts
from everlong_lab.probe.prompts import ConversationTurn, LabelledText, ProbePromptsPlan, make_prompts
from everlong_models.errors import DataError
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.evidence.templates import INSTRUCT

INNS = {"Quill": "Anchor", "Barrow": "Lantern", "Finch": "Dolphin", "Marsh": "Crown", "Thorne": "Swan", "Vane": "Bell"}
PEOPLE = tuple(INNS)
REQUESTS = files("everlong_lab.corpora").joinpath("requests.txt").read_text().splitlines()


def plan(folder: Path, people: tuple[str, ...] = PEOPLE) -> ProbePromptsPlan:
    rows = []
    for person in people:
        told = f"The inn called the {INNS[person]} belonged to Mrs. {person}."
        text = (
            f"Chapter one.\n\n{told} She was kind.\n\n"
            + f"A boat full of fish and rope came in, and {person} saw it.\n\n" * 30
        )
        (folder / f"{person}.md").write_text(text)
        rows.append(
            {"text": f"{person}.md", "q": f"Who owned the {INNS[person]}?", "a": f"Mrs. {person}", "quote": told}
        )
    file = folder / "q.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ProbePromptsPlan(file, [folder], None, 100, 16)


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    found = Embedder.packaged("cpu")
    assert found is not None
    return found


@pytest.mark.long
def test_the_label_says_whether_the_passages_tell_the_answer(embedder: Embedder, tmp_path: Path) -> None:
    seen: list[float] = []
    made = make_prompts(plan(tmp_path), lambda text: len(text) // 4, embedder, lambda what, done: seen.append(done))
    assert seen == sorted(seen)
    assert len(seen) == len(PEOPLE)
    questions = [prompt for prompt in made if prompt.question not in REQUESTS]
    for prompt in questions:
        person = prompt.source.removesuffix(".md")
        own = prompt.question == f"Who owned the {INNS[person]}?"
        assert prompt.holds == (own and f"belonged to Mrs. {person}" in prompt.before)
        assert prompt.before.startswith(INSTRUCT.opening)
        assert prompt.before.endswith(INSTRUCT.closing)
    assert sum(prompt.holds for prompt in questions) == len(PEOPLE)
    of_others = [p for p in questions if p.question != (f"Who owned the {INNS[p.source.removesuffix('.md')]}?")]
    assert of_others
    assert len(of_others) < len(questions)
    requests = [prompt for prompt in made if prompt.question in REQUESTS]
    assert all(prompt.holds for prompt in requests)
    assert len(requests) + len(questions) == len(made)


@pytest.mark.long
def test_the_same_seed_gives_the_same_prompts(embedder: Embedder, tmp_path: Path) -> None:
    one, two = (
        make_prompts(plan(tmp_path), lambda text: len(text) // 4, embedder, lambda what, done: None) for _ in "12"
    )
    assert one == two


def test_questions_without_a_place_in_their_text_are_no_prompts(embedder: Embedder, tmp_path: Path) -> None:
    made = plan(tmp_path)
    made.file.write_text(
        json.dumps({"text": "Quill.md", "q": "What is it about?", "answer": "It is about an inn."}) + "\n"
    )
    with pytest.raises(DataError, match="prompts with and without the answer are needed; 0 of one kind"):
        make_prompts(made, len, embedder, lambda what, done: None)


def test_a_conversation_that_does_not_fit_begins_anew_with_the_passages(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "The ferry to the island leaves at nine."
    turns = [
        ConversationTurn("When does the ferry leave?", "At nine.", True),
        ConversationTurn("How long does the crossing take?", "The text does not say.", False),
        ConversationTurn("Thanks!", "You are welcome.", True),
        ConversationTurn("Tell me about ferries.", "Ferries are boats. " * 250, True),
        ConversationTurn("Where does it go?", "To the island.", True),
    ]
    note = LabelledText("note", text, ["When does the ferry leave?"], ["What did the anchor cost?"], turns)
    monkeypatch.setattr(prompts, "packaged_texts", lambda: [note])
    plan = ProbePromptsPlan(None, [], None, 2, 16, packaged=True)
    made = make_prompts(plan, lambda text: len(text) // 4, embedder, lambda what, done: None)
    alone, conversation = made[:2], made[2:]
    assert [prompt.follows for prompt in made] == [False, False, False, True, True, False]
    assert [prompt.question for prompt in conversation] == [
        turn.question for turn in turns if turn.question != "Thanks!"
    ]
    assert [prompt.holds for prompt in conversation] == [True, False, True, True]
    assert alone[0].before == conversation[0].before
    assert [text in prompt.before for prompt in conversation] == [True, False, False, True]
    assert conversation[-1].before.endswith(
        "Tell me about ferries.\nAnswer: " + ("Ferries are boats. " * 250)[:300] + "\nQuestion: "
    )
