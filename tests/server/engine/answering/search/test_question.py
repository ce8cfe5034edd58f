"""What a message asks: search words, follow-up questions, small talk, and questions that a text can answer or not."""

from __future__ import annotations

import unicodedata

import pytest

from everlong_server.engine.answering.search.question import (
    asks_for_fact,
    is_question,
    search_query,
    stands_alone,
    texts_lack_answer,
)
from everlong_server.store.texts.passage import Passage


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        ("Who is the Red Queen?", True), ("Tell me about the Red Queen.", False), ("How are you?", False),
        ("What is the plot of the story?", True), ("Does that make sense?", True), ("Why?", False), ("?", False), ("孔子住在哪里?", True),
    ],
)  # fmt: skip
def test_questions_are_distinguished_from_small_talk(message: str, is_one: bool) -> None:
    assert is_question(message) is is_one


def test_texts_lack_an_answer_only_after_a_conclusive_search() -> None:
    foreign, some = "Which submarine torpedoed Zanzibar?", [Passage("doc", 0, 5, 0, 5, "Alice", score=1.0, share=1.0)]
    for has_history in (False, True):
        assert texts_lack_answer(foreign, [], has_history=has_history)
        assert not texts_lack_answer(foreign, some, has_history=has_history)
        for other in ("孔子住在哪里?", "Где живёт Алиса?", "How are you?", "Tell me about submarines."):
            assert not texts_lack_answer(other, [], has_history=has_history)
    own = "Which submarine did I ask you about?"
    assert texts_lack_answer(own, [], has_history=False)
    assert texts_lack_answer("where was the declaration signed", [], has_history=False), "without a question mark"
    for other in ("Write a poem about the declaration", "When the lease was signed Peter lived in Paris"):
        assert not texts_lack_answer(other, [], has_history=False)
    assert not texts_lack_answer(own, [], has_history=True)


def test_letters_with_a_thousand_accents_are_composed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Composing them at once takes quadratic time and holds the GIL."""
    lengths, normalize = [], unicodedata.normalize
    monkeypatch.setattr(unicodedata, "normalize", lambda form, text: lengths.append(len(text)) or normalize(form, text))
    query = search_query("Which cafe\u0301 is a" + "\u0301\u0323" * 3000 + "?", None)
    assert query is not None
    assert "caf\u00e9" in query.words
    assert sum(lengths) > 6000
    assert max(lengths) <= 256


@pytest.mark.parametrize(
    ("message", "asks"),
    [
        ("Where does she live?", True), ("where does she live", True), ("whats the wage", True), ("is there wifi", True), ("should new guests call first", True), ("Is nice here in Bergen", False), ("Wo wohnt Anna", True), ("qui a écrit ce livre", True),
        ("roughly how much did it cost", True), ("since when is she here", True), ("List the open orders", True), ("can you explain what was wrong", True),
        ("Anna lives by the sea.", False), ("I know what Anna paid", False), ("This is how Anna won", False), ("Have you eaten", True), ("Read what follows", False), ("Nowhere to go", False),
    ],
)  # fmt: skip
def test_a_question_needs_no_question_mark(message: str, asks: bool) -> None:
    query = search_query(message, None)
    assert query is not None
    assert query.asks is asks


@pytest.mark.parametrize(
    ("message", "previous", "everyday"),
    [
        ("How are you?", None, True),
        ("Why?", None, True),
        ("Why?", "How did Alice escape?", False),
        ("Where is Anna?", None, False),
    ],
)
def test_a_question_of_everyday_words_is_known_unless_it_follows_another(
    message: str, previous: str | None, everyday: bool
) -> None:
    query = search_query(message, previous)
    assert query is not None
    assert query.everyday is everyday


@pytest.mark.parametrize(
    ("message", "follows"),
    [
        ("Who is Glinda?", False), ("Is the pool heated?", False), ("when does the gym open", False), ("What did an elephant eat?", False),
        ("And on Sundays?", True), ("Which is better?", True), ("What is the rent?", False), ("Is the first true?", True), ("What did Dorothy do then?", True), ("What about the gym?", True), ("Why did he leave the club?", True),
        ("What was my first question?", True), ("Is it the gym?", True), ("The gym", True), ("Where?", True),
        ("What did Mother give Bobbie for her birthday?", False), ("Why did the king lose his crown?", False), ("Did the doctor see her?", True),
        ("Why did his brother leave the club?", True), ("What was in the envelope that Felix left?", False), ("Why is the lake called that?", True),
        ("What did old Mr. Peterson run at Pym with when they met?", False), ("Who was there when he came to the club?", True),
        ("What did Peter want for them?", True), ("Why does that ship have two masts?", True), ("Who told Anna that she had won?", True),
        ("What is the name of his dog?", True), ("What was the reason for their fight?", True), ("Is Wendy his wife?", True), ("Why did Alice eat that cake?", True),
        ("Is Peter older than her?", True), ("Where did Dorothy go after this?", True), ("What happened in London after he left?", True),
        ("What did Peter do when he came home?", False),
    ],
)  # fmt: skip
def test_a_whole_question_that_names_its_subject_does_not_follow_the_one_before(message: str, follows: bool) -> None:
    query = search_query(message, "Which ships sank in the storm of May?")
    assert query is not None
    assert bool(query.message_start) is follows
    assert ("ships" in query.text) is follows


@pytest.mark.parametrize(
    ("message", "alone"),
    [
        ("Which ships sank in the storm of May?", True), ("Who is Glinda?", True), ("Why did he leave the club?", False),
        ("Please translate your last answer into French for me", False), ("Write the answer as a bullet list", False),
        ("Und was kostet ein Boot im Winter?", False), ("What did you say about the ships in the storm?", False),
    ],
)  # fmt: skip
def test_only_a_question_in_english_that_refers_to_nothing_stands_alone(message: str, alone: bool) -> None:
    query = search_query(message, "How many boats does the club have?")
    assert query is not None
    assert stands_alone(message, query) is alone


@pytest.mark.parametrize(
    ("message", "alone"),
    [("Who died?", "Who died?"), ("Why?", None), ("Which ships sank in the storm of May?", None)],
)
def test_a_follow_up_with_words_of_its_own_is_also_compared_alone(message: str, alone: str | None) -> None:
    query = search_query(message, "Summarise the letter.")
    assert query is not None
    assert query.alone == alone
    assert query.text.endswith(message)


@pytest.mark.parametrize(
    ("message", "asks"),
    [
        ("Who owns the inn?", True),
        ("In the end, what did Peter steal?", True),
        ("what time does it start", True),
        ("whose car was at the inn", True),
        ("is there a lift at the inn", True),
        ("can i bring my dog", True),
        ("can members bring guests to the inn", True),
        ("is the pool heated", True),
        ("are all the rooms of the inn quiet", True),
        ("is the inn", False),
        ("was a great day at the inn", False),
        ("do the second part again", False),
        ("can be done at the inn", False),
        ("can new members bring guests", True),
        ("can confirm this works", False),
        ("could use some help", False),
        ("should work now thanks", False),
        ("should probably stop here", False),
        ("was the best day ever", False),
        ("was my favourite chapter by far", False),
        ("had the fish yesterday", False),
        ("has his own car", False),
        ("is it open on sundays", True),
        ("roughly how much did the inn cost", True),
        ("by when must guests leave", True),
        ("List the rooms of the inn", False),
        ("Just what the inn is for", False),
        ("who looks after the inn now", True),
        ("Who knows.", False),
        ("who cares", False),
        ("the man who is at the inn", False),
        ("Tenants who have dogs", False),
        ("rooms which are free", False),
        ("No, what is needed is time", False),
        ("Which reminds me of the inn", False),
        ("do it like the inn", False),
        ("How lovely the inn was!", False),
        ("When the weather is bad, guests stay at the inn.", False),
        ("have a nice day at the inn", False),
        ("what's the price of the room", True),
        ("What a nice story.", False),
        ("How interesting!", False),
        ("When I was a child we lived there.", False),
        ("What I want is a summary of the inn.", False),
        ("Tell me a joke, please?", False),
        ("Summarise this inn, please?", False),
        ("Tell me who owns the inn.", False),
        ("Who are you?", False),
        ("How do I reset my password?", True),
        ("What can you tell me about the inn?", False),
        ("Can you write a poem about the inn?", False),
        ("Is the inn open on Monday?", True),
        ("Is dinner included?", True),
        ("Wann ist das Gasthaus offen?", False),
        ("Was kostet das Zimmer?", False),
        ("Will er kommen?", False),
        ("Is het open?", False),
        ("Und am Sonntag?", False),
        ("Pourquoi?", False),
        ("?", False),
        ("", False),
    ],
)
def test_which_messages_ask_for_a_fact(message: str, asks: bool) -> None:
    assert asks_for_fact(message, has_history=False) is asks
    assert asks_for_fact(message, has_history=True) is asks


def test_after_other_messages_a_question_needs_no_words_of_its_own() -> None:
    for message in ("Why?", "What is it?", "How much?", "And on Sundays?"):
        assert not asks_for_fact(message, has_history=False)
        assert asks_for_fact(message, has_history=True)
    for message in ("What?", "Really?", "Is that so?", "Got it?", "So?", "ok?"):
        assert not asks_for_fact(message, has_history=True)
