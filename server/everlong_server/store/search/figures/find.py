"""`figures_in`: the figures of several parts in a text, as terms of the index.

The index has such a figure twice: its parts, as words, and the whole figure, as a further term. In a table with a row for each day, all parts
of 2026-03-05 are in many rows, and the whole is in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby

from everlong_server.store.search.figures.dates import named_dates, numeric_dates
from everlong_server.store.search.normalise import (
    PAIRED,
    TRIPLED,
    composed,
    without_certain_separators,
    without_separators,
    words_in,
)

_DIGIT = re.compile("[0-9]")
_DASHES = "\u2010\u2011\u2012\u2013\u2212"
"""Characters that count as a hyphen. Not the em dash, which separates clauses."""
_DASH, _POINT, _COLON = "‐", "·", "∶"
"""What joins the parts in a term. FTS5 takes characters outside ASCII as part of a term, and no word has these. Hyphens, slashes and underscores
count as equal, and so do decimal points and commas."""
_JOINER = {"-": _DASH, "/": _DASH, "_": _DASH, ".": _POINT, ":": _COLON}
_SEPARATOR = re.compile(r"([-./:_])")
_IS_JOINED = re.compile(
    r"[0-9](?:(?<=[^\W0-9][0-9])|(?<=[-./:,][0-9])|(?<![^\W_][0-9])[^\W_]*+(?:[-./:_,][^\W_]|\. [0-9]))"
)
"""A digit after a separator or letter, or in a part that a separator follows. Most numbers of prose have neither."""
# Possessive, and only from the beginning of a part: a long part, or a row of separators, takes linear time.
_CHAIN = r"(?<!{part}){part}++(?:[-./:_]{part}++)++"
_ASCII_CHAIN = re.compile(_CHAIN.format(part="[0-9A-Za-z]"))
_ANY_CHAIN = re.compile(_CHAIN.format(part=rf"[^\W_{PAIRED}{TRIPLED}]"))
_DECIMAL = re.compile(r"([0-9](?<![0-9A-Za-z.,][0-9])[0-9]*+),([0-9]{1,3}+)(?![.,:/]?[0-9])")
"""A number with a decimal comma. In "7,2026-03-05" and "7,14:35", a comma separates two cells of a table."""
_TIME_FOLLOWS = re.compile(r"[T:](?:(?<=[0-9]T)|(?<=[0-9]{4}:))(?=[0-9]{2}:[0-9]{2})")
"""Between date and time, as in 2026-03-05T14:35 and 05/Mar/2026:14:35:20."""
_SPACED = re.compile(
    r"[+(09](?<![^\W_].)(?<![0-9][-/.:,].)(?:(?<=\+)[0-9]{1,3}|(?<=\()0[0-9]{1,5}|(?<=0)(?![0-9][-/][0-9]{2}[-/][0-9]{4})[0-9]{1,5}|(?<=9)7[89])"
    r"(?:[ ()/-]{1,3}[0-9]{1,8}){1,6}(?![^\W_])"
)
"""A phone number or ISBN that can have spaces: it begins with "+", 0, 978 or 979."""
_DIGITS = re.compile("[0-9]+")
_FEWEST_DIGITS, _MOST_DIGITS = 9, 15
"""Digits of a number that people write with and without separators, such as a phone number or an ISBN."""
_LETTERS_BEFORE, _LETTERS_AFTER = re.compile(r"^[^\W\d_]++"), re.compile(r"(?<=[0-9])[^\W\d_]++$")
_MOST_PARTS = 12
"""Parts of a figure that are compared."""
_CACHED, _LONGEST_CACHED = 1 << 14, 64
"""Figures that are remembered, and their longest length in characters."""
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of several parts, as it is `written`.

    `terms`: those of the whole figure; a date has one for each of its readings. `beginnings`: terms of the shorter figure that a query can
    mean it by: 3.11 for 3.11.7, 14:35 for 14:35:20, and "5 March" for 2026-03-05.
    """

    written: str
    terms: tuple[str, ...]
    beginnings: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Return its parts, as the words of a text."""
        return words_in(without_separators(self.written))


def figures_in(text: str) -> list[Figure]:
    """Return the figures of a text as people wrote it."""
    readable = composed(text)
    return _figures(readable, without_separators(readable))


def figure_terms(text: str, plain: str) -> list[str]:
    """Return the terms that the index has for the figures of a text. `text`: `composed`; `plain`: also `without_separators`."""
    return [term for figure in _figures(text, plain) for term in (*figure.terms, *figure.beginnings)]


def _figures(text: str, plain: str) -> list[Figure]:
    """Return the figures of a text. One without digits has none, and costs nearly nothing."""
    if not _DIGIT.search(text):
        return []
    certain = text if text == plain else without_certain_separators(text)
    found = _in_reading(certain)
    if plain != certain:
        known = {term for figure in found for term in figure.terms}
        found += [figure for figure in _joined(plain).values() if known.isdisjoint(figure.terms)]
    return found


def _in_reading(text: str) -> list[Figure]:
    """Return the figures of a text that has separators of thousands only where these can be something else."""
    for dash in () if text.isascii() else _DASHES:
        text = text.replace(dash, "-")
    is_joined = _IS_JOINED.search(text) is not None
    found = _joined(text) if is_joined else {}
    for number in _SPACED.finditer(text):
        if terms := _without_spaces(number[0].replace("(0)", "")):
            _add(found, number.span(), Figure(number[0], terms))
    for date in chain(numeric_dates(text) if is_joined else (), named_dates(text)):
        terms = tuple(reading.replace("-", _DASH) for reading in date.readings)
        without_year = tuple(term[4:] for term in terms if term[0] != _DASH)
        _add(found, (date.start, date.end), Figure(text[date.start : date.end], terms, without_year))
    return [found[span] for span in sorted(found)]


def _add(found: dict[_Span, Figure], span: _Span, figure: Figure) -> None:
    """Add another meaning of the figure in a place. The beginnings that it had do not count: 05.03 is no beginning of a date."""
    if span in found:
        terms = dict.fromkeys([*found[span].terms, *figure.terms])
        figure = Figure(figure.written, tuple(terms), figure.beginnings)
    found[span] = figure


def _joined(text: str) -> dict[_Span, Figure]:
    """Return the figures whose parts have no spaces between them, by their place."""
    found = dict[_Span, Figure]()
    text = _TIME_FOLLOWS.sub(" ", text) if ":" in text else text
    for parts in (_ASCII_CHAIN if text.isascii() else _ANY_CHAIN).finditer(text):
        start, written = parts.start(), parts[0]
        if _DIGIT.search(written):
            of_chain = _of_chain if len(written) <= _LONGEST_CACHED else _of_chain.__wrapped__
            for at, figure in of_chain(written):
                found[start + at, start + at + len(figure.written)] = figure
    for number in _DECIMAL.finditer(text) if "," in text else ():
        found[number.span()] = Figure(number[0], (f"{number[1]}{_POINT}{number[2]}",))
    return found


@lru_cache(_CACHED)
def _of_chain(written: str) -> tuple[tuple[int, Figure], ...]:
    """Return the parts of a chain that have equal separators, such as the address in 10.0.17.5:8080, and the chain. Each with its place."""
    pieces = _SEPARATOR.split(written)
    joiners = [_JOINER[separator] for separator in pieces[1::2]]
    found = list[tuple[int, Figure]]()
    first = at = 0
    for joiner, equal in groupby(joiners):
        last = first + 2 * len(list(equal))
        found += ((at, figure) for figure in _of_run(pieces[first : last + 1], joiner))
        at += sum(map(len, pieces[first:last]))
        first = last
    if len(set(joiners)) > 1 and len(joiners) < _MOST_PARTS:
        found.append((0, Figure(written, ("".join(_JOINER.get(piece, piece) for piece in pieces).casefold(),))))
    return tuple(found)


def _of_run(pieces: Sequence[str], joiner: str) -> Iterator[Figure]:
    """Yield the figure whose parts are joined in one way. `pieces`: its parts, and the separators between them."""
    parts = [part.casefold() for part in pieces[: 2 * _MOST_PARTS : 2]]
    with_digits = sum(_DIGIT.search(part) is not None for part in parts)
    if joiner == _DASH:
        number = "".join(parts)
        is_long = _FEWEST_DIGITS <= len(number) <= _MOST_DIGITS and number.removesuffix("x").isdecimal()
        if with_digits:
            yield Figure("".join(pieces), (joiner.join(parts), *([number] if is_long else ())))
    elif with_digits > 1 or with_digits == 1 < len(parts) - 1:
        if joiner == _COLON and len(parts[0]) == 2:
            parts[0] = parts[0].removeprefix("0")  # 09:05 is 9:05
        core = _core(parts)
        terms = dict.fromkeys(joiner.join(of) for of in (parts, core) if of)
        yield Figure("".join(pieces), tuple(terms), (joiner.join(core[:-1]),) if len(core) > 2 else ())


def _core(parts: Sequence[str]) -> Sequence[str]:
    """Return the parts without letters at both ends, as in v3.11.7, 12.5kg and 2:35pm. None, if there are letters elsewhere."""
    first, last = _LETTERS_BEFORE.sub("", parts[0]), _LETTERS_AFTER.sub("", parts[-1])
    core = [first, *parts[1:-1], last]
    return core if all(part.isdecimal() for part in core) else ()


def _without_spaces(number: str) -> tuple[str, ...]:
    """Return a number without its separators, and its beginnings, as far as they are long enough: another number can follow it."""
    digits, terms = "", []
    for group in _DIGITS.findall(number):
        digits += group
        if _FEWEST_DIGITS <= len(digits) <= _MOST_DIGITS:
            terms.append(digits)
    return tuple(terms)
