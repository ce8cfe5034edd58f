"""Languages: texts are searched in their own language, and however their characters and words are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_server.store.search.normalise import searchable
from everlong_server.store.search.terms import language_of, terms_of, words
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


RULES = {
    "de": [
        "Bei Verlust eines Schlüssels werden 120 Euro berechnet.", "Die Beete im Garten pflegt eine Gruppe von Bewohnern.",
        "Am Dienstag leert die Stadt alle Tonnen im Hof.", "Die Haustür bleibt über Nacht geschlossen.",
    ],
    "fr": [
        "La perte des clés coûte cent vingt euros.", "Un groupe de voisins soigne les fleurs du jardin.",
        "Le mardi, la ville vide toutes les poubelles de la cour.", "La porte reste fermée pendant la nuit.",
    ],
    "es": [
        "La pérdida de las llaves cuesta ciento veinte euros.", "Un grupo de vecinos cuida las flores del jardín.",
        "Los martes, la ciudad vacía todos los cubos del patio.", "La puerta queda cerrada durante la noche.",
    ],
}  # fmt: skip
QUESTIONS = [
    ("de", "Was passiert, wenn ich meinen Schlüssel nicht mehr finde?", "120"),
    ("fr", "Qu'est-ce qui se passe si je ne trouve plus mes clés ?", "cent vingt"),
    ("es", "¿Qué pasa si ya no encuentro mis llaves?", "ciento veinte"),
]


@pytest.mark.parametrize(("language", "question", "answer"), QUESTIONS)
def test_stop_words_of_the_texts_language_do_not_hide_the_one_word_that_counts(
    language: str, question: str, answer: str, tmp_path: Path
) -> None:
    """Stop words such as "wenn", which this text lacks, would count as much as "Schlüssel"."""
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add(f"{text_in(language)}\n\n{RULES[language][0] * 8}")
    found = shelf.ask(question, limit=1)
    assert found
    assert answer in found[0].text


@pytest.mark.parametrize("language", RULES)
def test_a_short_text_in_a_language_without_vectors_is_shown_whole(language: str, tmp_path: Path) -> None:
    """The question has no word of the text."""
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add("\n\n".join(" ".join([rule] * 15) for rule in RULES[language]))
    question = {
        "de": "Wann kommt die Müllabfuhr?",
        "fr": "À quelle heure dois-je rentrer ?",
        "es": "¿A qué hora debo volver?",
    }
    found = "".join(passage.text for passage in shelf.ask(question[language]))
    assert all(rule in found for rule in RULES[language])


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("the ex\u00adam\u00adple", "example"), ("an exam\ufffe\nple", "example"), ("zero\u200bwidth", "zerowidth"), ("the ﬁsh", "fish"),
        ("Ｆｕｌｌ width", "full"), ("1,234,567 people", "1234567"), ("1234567 people", "1 234 567"), ("1.234.567 Leute", "1'234'567"),
        ("call getUserName()", "user name"), ("call get_user_name()", "user"), ("HTTPServer", "server http"), ("STRASSE", "straße"),
        ("naïve", "naive"), ("running boats", "boat runs"), ("le cœur de Cæsar", "coeur caesar"), ("Łódź, Tromsø", "lodz tromso"),
        ("کتاب‌ها ۱۲۳ ", "123"), ("शहर २०२४", "2024"), ("שָׁלוֹם", "שלום"), ("كِتَابٌ", "كتاب"),
        (r'{"name": "caf\u00e9 \ud835\udcb3", "text": "one\nline\ttwo"}', "café 𝒳 line two"), (r"C:\new\temp", "new temp"),
        (r"C:\ubeef and [\u0590-\u05ff]", "ubeef u05ff"),
        ("the know-\n  ledge of it", "knowledge"), ("the know-\r\nledge of it", "know"), ("a well-\nknown place", "well known"),
    ],
)  # fmt: skip
def test_a_word_is_found_whichever_way_it_is_written(written: str, asked: str) -> None:
    terms = terms_of("en")
    assert {term for word in words(asked) for term in terms.of(word)} <= set(terms.of(written))


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("hi", "हिन्दी भाषा"),
        ("bn", "বাংলা ভাষা"),
        ("ta", "தமிழ் மொழி"),
        ("te", "తెలుగు భాష"),
        ("ar", "كِتَابٌ جَدِيد"),
        ("he", "שָׁלוֹם עוֹלָם"),
    ],
)
def test_vowel_signs_are_part_of_their_word(language: str, text: str) -> None:
    assert words(text) == text.split()
    assert len(terms_of(language).of(text)) == 2


def test_words_that_differ_in_a_vowel_sign_alone_are_told_apart(tmp_path: Path) -> None:
    shelf, different = Shelf(f"file://{tmp_path}"), [f"क{sign}लन" for sign in ("ा", "ि", "ु", "े", "ो", "")]
    shelf.add("\n\n".join(f"{word} " * 40 for word in different))
    for word in different:
        assert word in shelf.ask(f"{word}?", limit=1)[0].text.split()


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Sales 120 130 145", {"120", "130", "145"}), ("7,777,888\n8,250,999,x", {"777", "888", "250", "999"}),
        ("12:30 250 people", {"30", "250"}), ("1 234 567 people", {"1234567"}),
        ("7,2026-03-05,120,9", {"05", "120"}), ("14:35:20.123", {"20", "123"}),
    ],
)  # fmt: skip
def test_numbers_side_by_side_are_found_one_by_one(text: str, numbers: set[str]) -> None:
    assert numbers <= set(terms_of("en").of(text))


@pytest.mark.parametrize("row", ["{n} {price} {weight}\n", "{n},{price},{weight}\n"])
def test_a_number_of_a_table_is_found(row: str, tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    rows = [row.format(n=n, price=100 + n, weight=800 - n) for n in range(1, 300)]
    shelf.add("id,price,weight\n" + "".join(rows))
    found = shelf.ask("Which id has the price 277 and weighs 623?", limit=2)
    assert rows[176] in "".join(passage.text for passage in found)


def test_decimals_and_dates_keep_their_parts() -> None:
    assert terms_of("en").of("2.4 metres, 14.03.2026, 10,5") == ["2", "4", "metr", "14", "03", "2026", "10", "5"]
    assert searchable("plain ASCII stays") == "plain ASCII stays"
