"""Analyses what a message asks: the query to search for, and whether a text could answer it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from everlong_server.store.search.figures.find import Figure, figures_in
from everlong_server.store.search.query import Query
from everlong_server.store.search.terms import other_stop_words, words
from everlong_server.store.texts.passage import Passage

# Words that are not searched for if a message has others: grammar, words of questions, greetings.
STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    a about above after again against all also am an and another any anybody anyone anything are aren as at be because
    been before being below between both but by can cannot could couldn d did didn do does doesn doing don down during
    each either else even ever every few for from further get gets give go going gone got had hadn has hasn have haven
    having he her here hers herself him himself his how however i if in into is isn it its itself just know let like ll
    m many may maybe me might mine more most much must mustn my myself need neither no nor not now of off on once
    or other ought our ours ourselves out over own per perhaps please re really s said same say says shall
    she should shouldn so some somebody someone something still such t take tell than that the their theirs them
    themselves then there these they thing things think this those though through to too under until up upon us ve very
    want wants was wasn we well were weren what whatever when where whether which while who whom whose why will with
    within without won would wouldn yes yet you your yours yourself yourselves
    arent cant couldnt didnt doesnt dont hasnt havent hows im isnt ive lets shouldnt thats theres theyre wasnt werent
    whats whens wheres whos whys wont wouldnt youre
    bye cheers cool fine good goodbye great hello hey hi lol nice ok okay sorry sure thank thanks welcome yeah
        """,
    )
)
# A question with one of these refers to the question before, unless the word refers to something in the same question.
_REFERRING_WORDS = {
    "he", "her", "him", "his", "it", "its", "she", "that", "their", "them", "these", "they", "this", "those",
}  # fmt: skip
_POSSESSIVES = frozenset(["his", "her", "its", "their"])
_CONJUNCTIONS = frozenset([
    "after", "as", "because", "before", "if", "once", "since", "than", "though", "until", "when", "where", "while",
])  # fmt: skip
"""Words before a clause whose pronoun can refer to a name in the main clause: "What did Peter do when he came home?"."""
_COPULAS = frozenset(["is", "are", "was", "were"])
_OF_PLACES = frozenset(["in", "at", "from", "to", "on"])
"""After one of these, a name is more often a place than a person."""
_PERSONAL_WORDS = {"i", "me", "mine", "my", "our", "ours", "us", "we", "you", "your", "yours"}
"""A question with one of these can be about the conversation itself, which no document holds."""
_ADDRESSING_WORDS = {"you", "your", "yours", "yourself"}
"""Such a question is a request to the model, not one about the documents."""
_LATIN_END = 0x250
"""First code point after the Latin letters. A refusal is only right for a language whose words the search knows."""
_QUESTION_MARKS = re.compile("[?\uff1f\u061f\u037e]")
_ENGLISH_INTERROGATIVES = frozenset([
    "who", "whom", "whose", "what", "when", "where", "why", "which", "how", "does", "did",
    "whos", "whats", "whens", "wheres", "whys", "hows",
])  # fmt: skip
_SUBJECTS = frozenset(["i", "he", "she", "it", "we", "they", "there"])
"""After one of `_AUXILIARIES` at the beginning, they make a message a question, also without a question mark."""
_AUXILIARIES = frozenset([
    "am", "are", "can", "could", "did", "do", "does", "had", "has", "have", "is", "may", "might", "must", "s",
    "shall", "should", "was", "were", "will", "would",
])  # fmt: skip
"""Words that begin a yes-or-no question in English; "s" as in "what's"."""
_CONNECTIVES = frozenset(["and", "but", "or", "so"])
"""Words that begin a question that refers to the one before: "And on Sundays?"."""
_NOT_ASKED = frozenset(["a", "an", "i", "he", "she", "it", "they", "we"])
"""After an interrogative, they begin a statement or an exclamation."""
_OF_SUBJECTS = frozenset(["who", "whose"])
"""Interrogatives that need no auxiliary verb after them: "who owns the inn"."""
_CONJUNCTIVE = frozenset(["when", "where", "why"])
"""Interrogatives that also begin clauses: "When the lease was signed, …"."""
_REQUESTS = frozenset([
    "compare", "describe", "explain", "find", "give", "list", "name", "show", "summarise", "summarize", "tell",
])  # fmt: skip
"""Words that begin a request for what a text says: "List the open orders"."""
_LEADS = frozenset([
    "about", "after", "and", "approximately", "around", "at", "before", "between", "but", "by", "for", "from", "in", "of", "on", "or", "over", "roughly",
    "since", "so", "to", "under", "until", "with", "within",
])  # fmt: skip
"""Words before the interrogative of a question: "roughly how much", "since when"."""
_INTERROGATIVES = _ENGLISH_INTERROGATIVES | frozenset([
    "wer", "wen", "wem", "wessen", "wann", "wo", "wohin", "woher", "warum", "wieso", "weshalb", "wie", "welche",
    "welcher", "welches", "qui", "quoi", "quand", "où", "pourquoi", "combien", "quel", "quelle", "quels",
    "quelles", "quién", "quiénes", "qué", "cuándo", "dónde", "cómo", "cuál", "cuáles", "cuánto", "cuánta",
    "cuántos", "cuántas", "chi", "cosa", "quando", "perché", "quali", "quanto", "quanti", "quem", "quais", "onde",
])  # fmt: skip
"""Words that make a message a question if it begins with one, also without a question mark: English, German, French, Spanish, Italian and
Portuguese. Not those that also begin English remarks, such as "is", "can", "comment" and "dove"."""
_MAX_WORDS = 16
"""Maximum number of search words, with those of the previous question. Longer questions use their first and last words."""
_MAX_CHARS = 1000
"""Characters of a question whose meaning is compared, from its end."""
_FEW_WORDS = 3
"""A question with fewer words of its own also uses those of the previous question, unless it is a whole sentence that names its subject."""
_ARTICLES = frozenset(["the", "a", "an"])
_DETERMINERS = frozenset(["the", "any", "all", "both", "my", "our", "their", "this", "these", "those"])
"""Like `_SUBJECTS` after one of these verbs, if at least two more words follow: "is the pool heated". Not "a", which also begins remarks."""
_BEFORE_DETERMINERS = frozenset(["are", "can", "could", "did", "does", "is", "should", "will"])
"""Not "was": "was the best day ever" is a remark."""
_BEFORE_PLURALS = frozenset(["can", "could", "should"])
"""Auxiliaries that also begin a question before a plural noun, which an adjective can precede: "can new members bring guests"."""
_PRO_FORMS = frozenset([
    "again", "also", "another", "any", "both", "either", "else", "first", "former", "instead", "last", "latter", "neither", "next", "none",
    "one", "ones", "other", "others", "rest", "same", "second", "then", "third", "too",
])  # fmt: skip
"""Words that stand for something that was said before, or refer to it."""
_PREVIOUS_WEIGHT = 0.5
"""Weight of the words of the previous question."""

_Item = TypeVar("_Item")


def search_query(question: str, previous: str | None) -> Query | None:
    """Return what to search for, for a question and the one before it; None for a message without words to search for.

    Every question is searched for, also one that has only words of grammar. Whether it is small talk shows in what is found.
    """
    all_words = words(question)
    own = [word for word in dict.fromkeys(all_words) if word.casefold() not in STOP_WORDS]
    marked = _QUESTION_MARKS.search(question) is not None
    asks = marked or _asks([word.casefold() for word in all_words])
    refers_back = _refers_back(all_words, own)
    short = len(own) < _FEW_WORDS and not _names_subject(all_words, own)
    follows = previous is not None and (asks or bool(own)) and (refers_back or short)
    everyday = not own and not follows
    if everyday and asks:
        own = list(dict.fromkeys(all_words))
    weights = dict.fromkeys(_first_and_last(own, _MAX_WORDS), 1.0)
    figures = dict.fromkeys(_first_and_last(_figures(question), _MAX_WORDS), 1.0)
    text, start, alone = question[-_MAX_CHARS:], 0, None
    if follows and previous is not None:
        alone = text if own else None
        earlier = [word for word in words(previous) if word.casefold() not in STOP_WORDS and word not in weights]
        weights |= dict.fromkeys(_first_and_last(earlier, _MAX_WORDS - len(weights)), _PREVIOUS_WEIGHT)
        others = [figure for figure in _figures(previous) if figure not in figures]
        figures |= dict.fromkeys(_first_and_last(others, _MAX_WORDS - len(figures)), _PREVIOUS_WEIGHT)
        before = f"{previous[-_MAX_CHARS:]} "
        text, start = before + text, len(before)
    return Query(text, weights, asks, everyday, start, alone, figures) if weights else None


def _figures(text: str) -> list[Figure]:
    """Return the figures of a message; of a long one, those at its beginning and end."""
    shown = text if len(text) <= 2 * _MAX_CHARS else f"{text[:_MAX_CHARS]} {text[-_MAX_CHARS:]}"
    return figures_in(f" {shown}")  # at the beginning of a line, 1,299.00 could be two cells of a table


def _refers_back(message: Sequence[str], own: Sequence[str]) -> bool:
    """Return whether a word of a message refers to something before the message: "When did he leave?", but not "When did Peter leave his house?".

    `own`: its words that are not of grammar.
    """
    found = [word.casefold() for word in message]
    referring = [n for n, word in enumerate(found) if word in _REFERRING_WORDS]
    if not referring or not _in_english(found):
        return bool(referring)
    before, content = ["", *found[:-1]], set(own)
    places = [n for n, word in enumerate(message) if n and word in content]
    # Neither a place ("in London") nor what is asked for ("What is the name of his dog?") can own something.
    named = next((n for n in places if message[n][:1].isupper() and before[n] not in _OF_PLACES), len(found))
    nouns = (n for n in places if before[n] in _ARTICLES and before[n - 1] not in _COPULAS)
    owner = min(named, next(nouns, len(found)))

    def inside(n: int) -> bool:
        """Return whether the word at `n` refers to something in the message."""
        follows = message[n + 1 : n + 3]
        if found[n] == "that":
            # "the letter that Peter wrote", but not "Why is the lake called that?" and "Who wrote that letter?".
            after_noun = n > 1 and message[n - 1] in content and not _ARTICLES.isdisjoint(found[max(0, n - 3) : n - 1])
            return after_noun and len(follows) == 2
        if found[n] in _POSSESSIVES and follows and follows[0] in content:
            return owner < n - 1 and before[n] != "of" and found[0] not in _COPULAS
        return found[n] in _SUBJECTS and bool(follows) and before[n] in _CONJUNCTIONS and named < n

    return not all(inside(n) for n in referring)


def _names_subject(message: Sequence[str], own: Sequence[str]) -> bool:
    """Return whether the words of a message are a whole question in English with a name, or a noun after an article: "Who is Glinda", "What is the rent".

    `own`: its words that are not of grammar. A question with "I" or "you" may be about the conversation.
    """
    found = [word.casefold() for word in message]
    asks = found[:1] and (
        found[0] in _AUXILIARIES or (found[0] in _ENGLISH_INTERROGATIVES and not _AUXILIARIES.isdisjoint(found[1:4]))
    )
    if not asks or not (_PERSONAL_WORDS | _PRO_FORMS).isdisjoint(found) or not _in_english(found):
        return False
    after = zip(found, message[1:], strict=False)
    return any(word in own and (word[:1].isupper() or before in _ARTICLES) for before, word in after)


def stands_alone(message: str, query: Query) -> bool:
    """Return whether a message, with its query, is a question in English that does not refer to the conversation."""
    found = [word.casefold() for word in words(message)]
    return query.asks and not query.message_start and not is_personal(message) and _in_english(found)


def is_personal(message: str) -> bool:
    """Return whether a message has a word such as "I" or "you", and so may be about the conversation."""
    return not _PERSONAL_WORDS.isdisjoint(map(str.casefold, words(message)))


def passage_query(text: str) -> Query:
    """Return the query of a search without an answer. Unlike a message, its text is searched for even if it has everyday words only."""
    found = search_query(text, None)
    return (
        replace(found, everyday=False)
        if found
        else Query(text[-_MAX_CHARS:], dict.fromkeys(_first_and_last(words(text), _MAX_WORDS), 1.0))
    )


def is_question(message: str) -> bool:
    """Return whether a message is a question about something, which a text can answer or not."""
    return _QUESTION_MARKS.search(message) is not None and not STOP_WORDS.issuperset(map(str.casefold, words(message)))


def texts_lack_answer(question: str, found: Sequence[Passage], *, has_history: bool) -> bool:
    """Return whether the texts do not hold the answer to `question`, if searching all of them `found` these passages.

    `has_history`: there are earlier messages, which could hold it.
    """
    return (
        (is_question(question) or asks_for_fact(question, has_history=False))
        and not found
        and not (has_history and is_personal(question))
        and all(ord(letter) < _LATIN_END for letter in question if letter.isalpha())
    )


def asks_for_fact(message: str, *, has_history: bool) -> bool:
    """Return whether a message is a question in English that a text can answer or not, and no request.

    `has_history`: there are earlier messages. Only then can it consist of everyday words, such as "Why?".
    """
    found = [word.casefold() for word in words(message)]
    if not found or not _ADDRESSING_WORDS.isdisjoint(found) or not _in_english(found):
        return False
    interrogative = not _ENGLISH_INTERROGATIVES.isdisjoint(found)
    if STOP_WORDS.issuperset(found) and not (has_history and interrogative and found != ["what"]):
        return False
    if _QUESTION_MARKS.search(message):
        return interrogative or found[0] in _AUXILIARIES or (has_history and found[0] in _CONNECTIVES)
    if message.rstrip().endswith((".", "!", "…")):
        return False
    # "What time does it start", but not "What a nice story" and "When I was a child".
    found = found[_interrogative(found) :]
    asks = (found[0] in _OF_SUBJECTS and len(found) > 2) or (
        found[0] in _ENGLISH_INTERROGATIVES
        and not _AUXILIARIES.isdisjoint(found[1:4])
        and found[1] not in _NOT_ASKED
        and (found[0] not in _CONJUNCTIVE or found[1] in _AUXILIARIES)  # but not "When the lease was signed we left"
    )
    return asks or _inverts(found)


def _asks(message: Sequence[str]) -> bool:
    """Return whether words, in lower case, without a question mark, ask for something that a text can say: a question or a request."""
    begins = not (_INTERROGATIVES | _REQUESTS).isdisjoint(message[:1]) or _inverts(message)
    return begins or _interrogative(message) > 0 or (message[1:2] == ["you"] and message[0] in _AUXILIARIES)


def _interrogative(message: Sequence[str]) -> int:
    """Return the place of the interrogative of words, in lower case, if they are a question in English: "since when do they", "by how much has it".

    0 if there is none, or if it may begin a clause: "I know what you did".
    """
    place = next((place for place, word in enumerate(message) if word not in _LEADS), 0)
    after = message[place + 1 : place + 5]
    asks = (
        message[place : place + 1] and message[place] in _ENGLISH_INTERROGATIVES and not _AUXILIARIES.isdisjoint(after)
    )
    return place if asks and after[0] not in _NOT_ASKED | _ARTICLES else 0


def _inverts(message: Sequence[str]) -> bool:
    """Return whether words, in lower case, begin like a yes-or-no question in English: "is there", "can i", "are the rooms quiet"."""
    if len(message) < 2 or message[0] not in _AUXILIARIES:
        return False
    first, second, *more = message
    if second in _SUBJECTS:
        return [first, second] not in (["do", "it"], ["have", "it"])
    if len(more) < 2 or not _in_english(message):
        return False
    plural = (
        any(word.endswith("s") and word not in STOP_WORDS for word in (second, more[0])) and second not in STOP_WORDS
    )
    return (first in _BEFORE_DETERMINERS and second in _DETERMINERS) or (first in _BEFORE_PLURALS and plural)


def _in_english(message: Sequence[str]) -> bool:
    """Return whether words, in lower case, are English: some are in `STOP_WORDS`, and the stop words of no other language have more of them."""
    known = sum(word in STOP_WORDS for word in message)
    return known > 0 and all(sum(word in others for word in message) <= known for others in other_stop_words())


def _first_and_last(words: Sequence[_Item], most: int) -> list[_Item]:
    """Return `most` different words or figures, half of them from the beginning and half from the end."""
    words = list(dict.fromkeys(words))
    last = most // 2
    return words if len(words) <= most else words[: most - last] + words[len(words) - last :]
