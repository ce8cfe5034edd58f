"""Finds the part of a text that a question names by its number, such as "What happens in chapter 6?".

A heading must have the same word next to the same number: in figures, in Roman numerals, or in English words. So no list of words for
parts is needed. The text must number these parts from 1. Otherwise "How can I pay?" would name the part "How can I apply?".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from everlong_server.store.search.ranking import Indexed
from everlong_server.store.search.terms import terms_of

_WORDS = (
    "", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty",
)  # fmt: skip
_ORDINALS = (
    "", "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
    "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth", "twentieth",
)  # fmt: skip
_ROMAN = tuple(map("".join, product(("", "c"), ("", "x", "xx", "xxx", "xl", "l", "lx", "lxx", "lxxx", "xc"),
    ("", "i", "ii", "iii", "iv", "v", "vi", "vii", "viii", "ix"))))  # fmt: skip
"""Roman numerals from 0 to 199, by their number."""
_NUMBERS = {form: number for forms in (_ROMAN, _WORDS) for number, form in enumerate(forms) if form}
_CHARACTERS = 300
"""A part is looked for only in so many last characters of a message, because a message may be a page long."""
_WORD = r"[^\W\d_]{2,30}"
_AFTER = re.compile(rf"(?:\b[Tt]he\s+)?\b({_WORD})\s+(\d{{1,3}}|[^\W\d_]{{1,9}})\b(?![.,]?\d)")
_BEFORE = re.compile(
    rf"(?:\b[Tt]he\s+)?\b(?:(\d{{1,3}})(?:st|nd|rd|th)|({'|'.join(_ORDINALS[1:])}))\s+({_WORD})\b", re.I
)
_SHORT_RUN = 0.25
"""Length of a run of passages, as a share of the longest one, below which it is an entry of a table of contents."""

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Name:
    """A name that a question may have for a part: `word` and `number`. `question`: with "the text" in its place."""

    word: str
    number: int
    question: str


def named_part(question: str, parts: Sequence[Indexed]) -> tuple[str, Ints | None]:
    """Return the question with "the text" in place of the part's name, and the numbers of the part's passages, over all documents
    of a search. If it names several parts: the question as it is, and the passages of all. If none: the question and None. Blocks."""
    cut = max(0, len(question) - _CHARACTERS)
    named: dict[tuple[str, int], tuple[str, Ints]] = {}
    for name in _names(question[cut:]):
        key = name.word.casefold(), name.number
        if key in named:
            continue
        found, first = list[Ints](), 0
        for part in parts:
            found.append(first + _below_heading(part, name))
            first += part.size
        if any(map(len, found)):
            named[key] = question[:cut] + name.question, np.concatenate(found)
    if not named:
        return question, None
    texts, passages = zip(*named.values(), strict=True)
    return texts[0] if len(texts) == 1 else question, np.unique(np.concatenate(passages))


def _names(question: str) -> Iterator[_Name]:
    for at in range(len(question)):  # the word before a number may itself follow another one: "does chapter two"
        if at and not (question[at - 1].isspace() and question[at].isalnum()):
            continue
        if (found := _AFTER.match(question, at)) and (number := _number(found[2])):
            yield _Name(found[1], number, _replaced(question, found))
        if found := _BEFORE.match(question, at):
            number = int(found[1]) if found[1] else _ORDINALS.index(found[2].lower())
            yield _Name(found[3], number, _replaced(question, found))


def _below_heading(part: Indexed, name: _Name) -> Ints:
    """Return the numbers in the document of the passages below headings with the word and the number; none unless other headings
    have the word with the first number, or the second if this is the first."""
    found = _below(part, name.word, name.number)
    is_numbered = found and _below(part, name.word, 2 if name.number == 1 else 1)
    return _long_runs(np.array(sorted(found) if is_numbered else [], np.int64))


def _below(part: Indexed, word: str, number: int) -> set[int]:
    found = set[int]()
    for phrase in _phrases(word, number):
        terms = terms_of(part.language).of(phrase)
        if len(terms) == 2:
            found |= _adjacent(part.index, *terms)
    return found


def _replaced(question: str, found: re.Match[str]) -> str:
    return f"{question[: found.start()]}the text{question[found.end() :]}"


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else _NUMBERS.get(text.lower())


def _phrases(word: str, number: int) -> Iterator[str]:
    """Yield the forms in which a heading can have the word and the number."""
    yield f"{word} {number}"
    yield from (f"{word} {forms[number]}" for forms in (_ROMAN, _WORDS) if number < len(forms))
    if number < len(_ORDINALS):
        yield f"{_ORDINALS[number]} {word}"


def _adjacent(index: Any, first: str, second: str) -> set[int]:
    """Return the numbers of the passages of a document whose headings have the two terms next to each other."""
    places = []
    for term, shift in ((second, 1), (first, 0)):
        rows = index.execute("SELECT doc, offset FROM places WHERE term = ? AND col = 'headings'", (term,))
        places.append({(doc, offset - shift) for doc, offset in rows})
        if not places[-1]:
            return set()
    return {doc for doc, _ in places[0] & places[1]}


def _long_runs(numbers: Ints) -> Ints:
    """Return the numbers without those that stand in short runs of consecutive ones."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    longest = max(map(len, runs))
    return np.concatenate([run for run in runs if len(run) >= _SHORT_RUN * longest])
