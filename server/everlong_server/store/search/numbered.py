"""Finds the part of a text that a question names by its number, such as "What happens in chapter 6?".

A heading must have the same word next to the same number: in figures, in Roman numerals, or in English words. So no list of words for
parts is needed. The text must number these parts from 1. Otherwise "How can I pay?" would name the part "How can I apply?", because "I" is
also the Roman number 1. A page of a PDF file, or of another document that has pages, is a part, too. It needs no heading. For "section 4.2" and
"clause 7", a heading that begins with the number alone is enough.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import count, product
from typing import Any

import numpy as np

from everlong_server.store.search.query import Query
from everlong_server.store.search.ranking import Indexed, Ints
from everlong_server.store.search.terms import terms_of, words
from everlong_server.store.search.word_index import HEADING

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
"""A part is looked for only in this many last characters of a message, because a message may be a page long."""
_WORD = r"[^\W\d_]{2,30}"
# The lookahead lets matches overlap: in "does chapter two", both words are tried with the word behind them.
_AFTER = re.compile(rf"\b(?=((?:the\s+)?({_WORD})\s+(\d{{1,3}}|[^\W\d_]{{1,9}}))\b(?![.,]?\d))", re.I)
_BEFORE = re.compile(
    rf"\b(?=((?:the\s+)?(?:(\d{{1,3}})(?:st|nd|rd|th)|({'|'.join(_ORDINALS[1:])})|last|final)\s+({_WORD}))\b)", re.I
)
_DOTTED = r"\d{1,3}(?:\.[1-9]\d{0,2}){0,3}"
_SECTIONS = (
    "section", "sections", "clause", "clauses", "article", "articles", "chapter", "chapters", "paragraph", "paragraphs", "part", "parts",
    "abschnitt", "abschnitte", "kapitel", "artikel", "klausel", "ziffer", "punkt", "absatz", "sección", "capítulo", "artículo", "cláusula",
    "apartado", "chapitre", "sezione", "capitolo", "articolo", "clausola", "seção", "artigo",
)  # fmt: skip
"""Words for a section: English, German, Spanish, French, Italian and Portuguese. Its heading need not have the word."""
_SECTION = re.compile(
    rf"(?:\b(?:the\s+)?(?:{'|'.join(_SECTIONS)})\s+|§+\s*)({_DOTTED}(?:\s*(?:,|&|\band\b|\bor\b|\bund\b|\by\b|\bet\b)\s*{_DOTTED})*)\b(?![.,]?\d)",
    re.I,
)
_MORE = re.compile(r"\s*(?:,|&|\band\b|\bor\b)\s*(\d{1,3}|[^\W\d_]{2,9})\b(?![.,]?\d)")
"""Another number of the same word, as in "chapters 2 and 3"."""
_LAST = -1
"""The number of the last part."""
_PAGES = ("page", "pages", "seite", "seiten", "página", "páginas", "pagina", "pagine")
"""Words for a page: English, German, French, Spanish, Portuguese and Italian. If a document has pages, these are meant instead of headings."""
_SHORT = 0.25
"""Length of a part, as a share of the longest one of this name, below which it is an entry of a table of contents."""


@dataclass(frozen=True, slots=True)
class NamedPart:
    """A part of the texts of a search. `name`: as the question has it. `question`: with "the text" in place of names of parts.
    `passages`: sorted numbers of its passages, over all documents of the search; never none. `is_all`: the question has no other word to
    search for, like "What is on page 3?"."""

    name: str
    question: str
    passages: Ints
    is_all: bool

    def within(self, start: int, end: int) -> Ints:
        """Return those of its passages that have a number from `start` to below `end`."""
        return self.passages[(self.passages >= start) & (self.passages < end)]


@dataclass(frozen=True, slots=True)
class _Name:
    """A possible name of a part: its position in a question, its word in small letters, and its numbers.

    `sections`: numbers of sections, such as (4, 2), instead of a word and numbers.
    """

    start: int
    end: int
    word: str = ""
    numbers: tuple[int, ...] = ()
    sections: tuple[tuple[int, ...], ...] = ()

    def passages(self, parts: Sequence[Indexed]) -> Ints:
        """Return the numbers of the passages of the parts that it names, sorted, over all documents."""
        of = _of_page if self.word in _PAGES else _of_document
        found = [_over_all(parts, partial(of, word=self.word, number=number)) for number in self.numbers]
        found += [_over_all(parts, partial(_of_section, number=number)) for number in self.sections]
        return np.unique(np.concatenate(found))


def named_part(query: Query, parts: Sequence[Indexed]) -> NamedPart | None:
    """Return the part that a query names; None if the texts have none of this name. Blocks.

    What the message itself names counts before what the question before it names. "chapters 2 and 3" is one part, and so are "chapter 2"
    and "chapter 3". Of names with different words, such as a book and its chapter, the part is what they have in common.
    """
    cut = max(0, len(query.text) - _CHARACTERS)
    found: list[tuple[_Name, Ints]] = []
    for name in sorted(_names(query.text[cut:]), key=lambda name: (name.start, bool(name.sections), -name.end)):
        if not found or name.start >= found[-1][0].end:
            passages = name.passages(parts)
            if len(passages):
                found.append((name, passages))
    own = [entry for entry in found if entry[0].start + cut >= query.message_start]
    by_word: dict[str, Ints] = {}
    for name, passages in own or found:
        by_word[name.word] = np.union1d(by_word.get(name.word, passages), passages)
    if not by_word:
        return None
    common = reduce(np.intersect1d, by_word.values())
    names = {word for name, _ in found for word in words(query.text[cut + name.start : cut + name.end])}
    question = query.text
    for name, _ in reversed(found):
        question = f"{question[: cut + name.start]}the text{question[cut + name.end :]}"
    return NamedPart(
        ", ".join(query.text[cut + name.start : cut + name.end].removeprefix("the ") for name, _ in own or found),
        question,
        common if len(common) else reduce(np.union1d, by_word.values()),
        names.issuperset(query.words),
    )


def _names(question: str) -> Iterator[_Name]:
    """Yield what can be names of parts. Whether they are, the headings tell."""
    for found in _AFTER.finditer(question):
        numbers, end = [_number(found[3])], found.end(1)
        while (more := _MORE.match(question, end)) and (number := _number(more[1])):
            numbers.append(number)
            end = more.end()
        if numbers[0]:
            yield _Name(found.start(), end, found[2].casefold(), tuple(number for number in numbers if number))
    for found in _BEFORE.finditer(question):
        number = int(found[2]) if found[2] else _ORDINALS.index(found[3].lower()) if found[3] else _LAST
        if number:
            yield _Name(found.start(), found.end(1), found[4].casefold(), (number,))
    for found in _SECTION.finditer(question):
        sections = tuple(tuple(map(int, number.split("."))) for number in re.findall(_DOTTED, found[1]))
        yield _Name(found.start(), found.end(), sections=sections)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else _NUMBERS.get(text.lower())


def _over_all(parts: Sequence[Indexed], of: Callable[[Indexed], Ints]) -> Ints:
    """Return what `of` finds in each document, as numbers over all of them."""
    found, first = [np.zeros(0, np.int64)], 0
    for part in parts:
        found.append(first + of(part))
        first += part.size
    return np.concatenate(found)


def _of_page(part: Indexed, word: str, number: int) -> Ints:
    """Return the passages that have half of their text or more on a page, counted from 1; or else those that have any.

    If the document has no pages, headings are looked for.
    """
    pages = [(entry.page, entry.start) for entry in part.outline() if entry.page is not None]
    if not pages:
        return _of_document(part, word, number)
    number = max(page for page, _ in pages) if number == _LAST else number
    start = next((at for page, at in pages if page == number), None)
    end = next((at for page, at in pages if page > number), sys.maxsize)
    if start is None:
        return np.zeros(0, np.int64)
    query = "SELECT id, start, end FROM passages WHERE end > ? AND start < ? ORDER BY id"
    passages = np.array(part.index.execute(query, (start, end)).fetchall(), np.int64).reshape(-1, 3)
    middles = passages[:, 1:].sum(axis=1) / 2
    inside = passages[(start <= middles) & (middles < end)]
    return (inside if len(inside) else passages)[:, 0]


def _of_document(part: Indexed, word: str, number: int) -> Ints:
    """Return the passages from the heading of the part to that of the next part.

    If the numbers start again, as in a second book, the part also ends at the next heading with the number 1.

    Headings in between belong to the part, whatever their level: those of plain texts have none.
    """
    if number == _LAST:
        number = next(n for n in count(1) if not len(_starts(part, word, n + 1)))
    starts, after = _starts(part, word, number), _starts(part, word, number + 1)
    first = _starts(part, word, 1) if number > 1 else starts
    if not len(starts) or not len(first if number > 1 else after):
        return np.zeros(0, np.int64)
    in_contents = np.isin(starts, after)  # a passage that begins both is no part
    starts = starts[~in_contents] if not in_contents.all() else starts
    ends = np.unique(np.concatenate([starts, after, first, [part.size]]))
    runs = [np.arange(start, ends[ends > start][0]) for start in starts]
    longest = max(map(len, runs))
    return np.concatenate([run for run in runs if len(run) >= _SHORT * longest])


def _of_section(part: Indexed, number: Sequence[int]) -> Ints:
    """Return the passages below a heading that begins with a number such as 4.2, with its sections such as 4.2.1.

    It ends at the next heading with a later number: 4.3 or 5. If there is none, headings without a number end it, too.
    """
    below, first = _below(part, number), _below(part, (1,))
    if not len(below) or not len(first):
        return np.zeros(0, np.int64)
    later = [(*number[:level], number[level] + 1) for level in range(len(number))]
    after = np.concatenate([_below(part, one) for one in later])
    runs = []
    for run in np.split(below, np.flatnonzero(np.diff(below) > 1) + 1):
        ends = after[after > run[0]]
        runs.append(np.arange(run[0], max(int(ends.min()) if len(ends) else 0, int(run[-1]) + 1)))
    longest = max(map(len, runs))
    return np.unique(np.concatenate([run for run in runs if len(run) >= _SHORT * longest]))


def _below(part: Indexed, number: Sequence[int]) -> Ints:
    """Return the passages below a heading that begins with the number, or with a word for a section and the number. More numbers can follow."""
    digits, terms = " ".join(map(str, number)), terms_of(part.language)
    words_before = ["", *(f"{' '.join(terms.of(word))} " for word in _SECTIONS)]
    phrases = " OR ".join(dict.fromkeys(f'"{HEADING} {word}{digits}"' for word in words_before))
    rows = part.index.execute(
        "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (f"headings : ({phrases})",)
    ).fetchall()
    return np.array([row for (row,) in rows], np.int64)


def _starts(part: Indexed, word: str, number: int) -> Ints:
    """Return the passages that begin with, or contain, a heading with the word and the number."""
    phrases = []
    for phrase in _phrases(word, number):
        terms = terms_of(part.language).of(phrase)
        if len(terms) == 2:
            phrases.append('"{} {}"'.format(*(term.replace('"', "") for term in terms)))
    rows: list[Any] = []
    if phrases:
        query = f"headings : ({' OR '.join(phrases)})"
        rows = part.index.execute("SELECT rowid FROM words WHERE words MATCH ? ORDER BY rowid", (query,)).fetchall()
    below = np.array([row for (row,) in rows], np.int64)
    return below[np.diff(below, prepend=-2) > 1]


def _phrases(word: str, number: int) -> Iterator[str]:
    """Yield the forms in which a heading can have the word and the number."""
    yield f"{word} {number}"
    yield from (f"{word} {forms[number]}" for forms in (_ROMAN, _WORDS) if number < len(forms))
    if number < len(_ORDINALS):
        yield f"{_ORDINALS[number]} {word}"
