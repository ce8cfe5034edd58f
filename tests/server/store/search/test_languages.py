"""Languages: texts are searched in their own language, and however their characters and words are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_server.store.search.normalise import searchable
from everlong_server.store.search.terms import language_of, terms_of
from tests.server.store.search.languages import FACTS, text_in
from tests.server.store.search.shelf import Shelf


@pytest.mark.parametrize("language", FACTS)
def test_ten_questions_in_the_texts_own_language(language: str, tmp_path: Path) -> None:
    """The first three passages hold the answer."""
    shelf, text = Shelf(f"file://{tmp_path}"), text_in(language)
    shelf.add(text)
    assert language_of(text) == language
    missed = []
    for _, question, answer in FACTS[language]:
        found = shelf.ask(question, limit=3)
        if not any(answer in passage.text for passage in found):
            missed.append((question, [passage.text[:80] for passage in found]))
        assert all(text[passage.start : passage.end] == passage.text for passage in found)
    assert missed == []


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("the ex\u00adam\u00adple", "example"), ("an exam\ufffe\nple", "example"), ("zero\u200bwidth", "zerowidth"), ("the ﬁsh", "fish"),
        ("Ｆｕｌｌ width", "full"), ("1,234,567 people", "1234567"), ("1234567 people", "1 234 567"), ("1.234.567 Leute", "1'234'567"),
        ("call getUserName()", "user name"), ("call get_user_name()", "user"), ("HTTPServer", "server http"), ("STRASSE", "straße"),
        ("naïve", "naive"), ("running boats", "boat runs"),
    ],
)  # fmt: skip
def test_a_word_is_found_whichever_way_it_is_written(written: str, asked: str) -> None:
    terms = terms_of("en")
    assert set(terms.of(asked)) <= set(terms.of(written))


def test_decimals_and_dates_keep_their_parts() -> None:
    assert terms_of("en").of("2.4 metres, 14.03.2026, 10,5") == ["2", "4", "metr", "14", "03", "2026", "10", "5"]
    assert searchable("plain ASCII stays") == "plain ASCII stays"
