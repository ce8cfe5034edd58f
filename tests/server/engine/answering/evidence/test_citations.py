"""Each sentence of an answer cites the passages that hold it, and no other does."""

from __future__ import annotations

import pytest

from everlong_server.engine.answering.evidence.citations import cite
from everlong_server.store.texts.passage import Passage

BOATS = (
    "The club owns fourteen boats: six single sculls, four doubles, three quads and one eight named Persephone. "
    "Persephone was built by Empacher in 2019 and may only be taken out with a qualified cox."
)
FEES = "Annual membership costs 340 euros for adults and 120 euros for juniors under eighteen. Payment is due on 15 January."
SAFETY = "Rowing is forbidden when the river gauge at Sutton Weir reads above 2.4 metres, and during thunderstorms."
TEXTS = (BOATS, FEES, SAFETY)
EVIDENCE = [Passage(f"doc_{n}", 1000 * n, 1000 * n + len(text), 0, 0, text) for n, text in enumerate(TEXTS)]


def cited(question: str, answer: str, evidence: list[Passage] = EVIDENCE) -> list[tuple[str, int, str]]:
    """Return the cited sentences: their text, the place of the passage in the evidence, and the part of it."""
    found = []
    for c in cite(question, answer, evidence):
        passage = evidence[c.evidence]
        assert c.document == passage.document
        part = passage.text[c.document_start - passage.start : c.document_end - passage.start]
        found.append((answer[c.start : c.end], c.evidence, part))
    return found


def test_a_sentence_cites_the_sentence_that_it_repeats() -> None:
    question = "How many boats does the club own?"
    first = BOATS[: BOATS.index(" Persephone was")]
    assert cited(question, "The club owns fourteen boats.") == [("The club owns fourteen boats.", 0, first)]
    assert cited(question, "Fourteen") == [("Fourteen", 0, first)]


def test_each_sentence_has_its_own() -> None:
    answer = "Persephone was built by Empacher.\n\n- Juniors pay 120 euros.\n- Mr. Brown pays nothing."
    sentences = [(sentence, number) for sentence, number, _ in cited("Tell me more.", answer)]
    assert sentences == [("Persephone was built by Empacher.", 0), ("- Juniors pay 120 euros.", 1)]


def test_a_sentence_can_rest_on_two_passages() -> None:
    answer = "Adults pay 340 euros, thunderstorms forbid rowing."
    assert {number for _, number, _ in cited("What are the rules?", answer)} == {1, 2}


@pytest.mark.parametrize(
    "answer",
    [
        "The text does not say what the telephone number of the club is.",
        "Yes.",
        "The club has a swimming pool in Paris.",
        "I am happy to help you with boats and other things.",
        "…",
        "",
    ],
)
def test_nothing_is_cited_for_what_no_passage_holds(answer: str) -> None:
    assert cited("What is the club's telephone number?", answer) == []


def test_words_of_the_question_support_nothing() -> None:
    assert cited("How many boats does the club own?", "How many boats does the club own: seventy.") == []


LEASE = "The landlord keeps the roof in repair. The term is forty-six months. "
TENANT = "After it, the tenant may end the tenancy with two months' notice in writing."
LANDLORD = "The landlord must give three months' notice."
TERMS = [
    Passage(
        "doc",
        0,
        500,
        0,
        0,
        f"{LEASE}{TENANT} {LANDLORD} The rent is 1,200 euros for one room. The deposit is two million dollars.",
    )
]


def test_words_of_grammar_support_nothing() -> None:
    assert cited("Who mends the roof?", "It may, with this and after it.", TERMS) == []
    repairs = "The landlord repairs it."
    assert cited("Who mends the roof?", repairs, TERMS) == [(repairs, 0, "The landlord keeps the roof in repair.")]


def test_words_of_grammar_of_other_languages_are_compared() -> None:
    text = "Der Mieter zahlt die Miete am ersten Dienstag. Der Vermieter will die Wohnung so lange nicht verkaufen."
    evidence = [Passage("doc", 0, len(text), 0, 0, text)]
    assert cited("Warum?", "Er will so.", evidence) == [("Er will so.", 0, text[text.index("Der V") :])]


@pytest.mark.parametrize(
    ("sentence", "part"),
    [
        ("The landlord must give four months' notice.", None),
        ("The landlord must give 4 months' notice.", None),
        ("The landlord must give 3 months' notice.", LANDLORD),
        ("3. The landlord must give notice.", LANDLORD),
        ("The landlord must give notice [2].", LANDLORD),
        ("46 months", "The term is forty-six months."),
        ("The term is 45 months.", None),
        ("The rent is one thousand two hundred euros.", "The rent is 1,200 euros for one room."),
        ("The rent is 1200 euros.", "The rent is 1,200 euros for one room."),
        ("The rent is twelve hundred euros for a room.", "The rent is 1,200 euros for one room."),
        ("The deposit is 2 million dollars.", "The deposit is two million dollars."),
        ("The deposit is 2.0 million dollars.", "The deposit is two million dollars."),
        ("The deposit is 3 million dollars.", None),
        ("No one keeps the landlord's roof in repair.", "The landlord keeps the roof in repair."),
        ("One of the landlords must give notice.", LANDLORD),
    ],
)
def test_the_numbers_of_a_sentence_are_in_its_part(sentence: str, part: str | None) -> None:
    assert cited("What about it?", sentence, TERMS) == ([] if part is None else [(sentence, 0, part)])


def test_a_number_of_the_question_need_not_be_in_the_part() -> None:
    part = "Twelve of them are new and painted blue."
    sentence = "Of the 46 boats, 12 are new and painted blue."
    evidence = [Passage("doc", 0, len(part), 0, 0, part)]
    assert cited("How many of the 46 boats are new?", sentence, evidence) == [(sentence, 0, part)]
    assert cited("How many boats are new?", sentence, evidence) == []


@pytest.mark.parametrize("answer", ["Will.", "In May."])
def test_an_answer_of_everyday_words_alone(answer: str) -> None:
    part = "In May, Will rows the new boat."
    evidence = [Passage("doc", 0, len(part), 0, 0, part)]
    assert cited("Who, and when?", answer, evidence) == [(answer, 0, part)]


def test_a_number_may_be_in_another_cited_part() -> None:
    sentence = "Adults pay 340 euros, rowing is forbidden above 2.4 metres."
    assert {number for _, number, _ in cited("What are the rules?", sentence)} == {1, 2}


def test_no_evidence_no_citation() -> None:
    assert cited("Who?", "Persephone was built by Empacher.", []) == []


def test_scripts_without_spaces_are_compared_by_characters() -> None:
    text = "俱乐部拥有十四艘船。会费是每年三百四十欧元。下次会议在三月十四日举行。"
    evidence = [Passage("doc", 0, len(text), 0, 0, text)]
    assert cited("会费是多少?", "会费是三百四十欧元。", evidence) == [
        ("会费是三百四十欧元。", 0, "会费是每年三百四十欧元。")
    ]


def test_sentences_of_hindi_are_cited_one_by_one() -> None:
    sentences = ["सदस्यता शुल्क तीन सौ चालीस यूरो है।", "अगली बैठक चौदह मार्च को होगी।"]
    text = "क्लब के पास चौदह नावें हैं। " + " ".join(sentences)
    evidence = [Passage("doc", 0, len(text), 0, 0, text)]
    assert cited("शुल्क कितना है?", " ".join(sentences), evidence) == [(each, 0, each) for each in sentences]


def test_a_long_row_of_marks_is_split_in_linear_time() -> None:
    """In quadratic time, this takes longer than the time limit of a test, and holds the GIL."""
    answer = "Persephone was built by Empacher" + "!" * 200_000 + "x?! Wait... Juniors pay 120 euros?!"
    assert [number for _, number, _ in cited("Tell me more.", answer)] == [0, 1]
