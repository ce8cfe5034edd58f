"""The benchmark of guesses asks both engines the same, and reports what each took."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_lab.benchmarks import drafts


@pytest.mark.long
def test_it_compares_answers_with_guesses_and_without(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {kind: questions[:1] for kind, questions in drafts.QUESTIONS.items()}
    monkeypatch.setattr(drafts, "QUESTIONS", few)
    monkeypatch.setattr(drafts, "packaged", lambda: "The Count has red eyes. Renfield eats flies and spiders.\n\n" * 20)
    told: list[str] = []
    report = drafts.run(model=str(tiny_model), device="cpu", draft_tokens=3, most=60, turns=2, progress=told.append)
    assert [row["answers"] for row in report.rows] == list(few)
    for row in report.rows:
        assert row["questions"] == 2
        assert row["tokens"] > 0
        assert row["ratio"] > 0
        assert row["drafted"] >= row["accepted"] >= 0
    assert sum(row["drafted"] for row in report.rows) > 0
    assert len(report.targets) == len(few)
    assert any("times as many tokens/s" in line for line in told)


def test_it_stops_at_an_answer_that_differs(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "QUESTIONS", {"free text": ("Why?",)})
    answers = iter(["one", "another"])
    monkeypatch.setattr(drafts, "_answer", lambda *_: next(answers))
    with pytest.raises(RuntimeError, match="the answers differ:\none\nanother"):
        drafts.run(model=str(tiny_model), device="cpu", draft_tokens=3, most=8, turns=1, progress=str)
