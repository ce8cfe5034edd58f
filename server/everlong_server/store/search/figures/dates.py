"""`numeric_dates`, `named_dates`: the dates of a text in one form, whichever way they are written.

Known are 2026-03-05, 2026/3/5 and 2026.03.05; 05.03.2026, 5/3/2026 and 5-3-2026; "5 March 2026", "5th of March, 2026", "March 5, 2026",
"05-Mar-2026" and "2026 Mar 5"; and 2026年3月5日. Names of months are those of English, German, French, Spanish, Italian and Portuguese.

With full stops, the day comes before the month. With "/" or "-", 5/3/2026 is 5 March in most countries and 3 May in the United States:
such a date has both readings. A number above 12 is the day, so 13/3/2026 has one reading. Two digits are no year: 05.03.26 can be a version.
"""

from __future__ import annotations

import re
import unicodedata
from calendar import monthrange
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

_MONTHS = (
    "january jan januar janner janvier janv enero ene gennaio janeiro",
    "february feb februar fevrier fevr febrero febbraio fevereiro fev",
    "march mar marz maerz mrz mars marzo marco",
    "april apr avril avr abril abr aprile",
    "may mai mayo maggio maio",
    "june jun juni juin junio giugno giu junho",
    "july jul juli juillet juil julio luglio lug julho",
    "august aug aout agosto",
    "september sep sept septembre septiembre setiembre settembre setembro",
    "october oct oktober okt octobre octubre ottobre ott outubro",
    "november nov novembre noviembre novembro",
    "december dec dezember dez decembre diciembre dic dicembre dezembro",
)
"""Names of each month and their abbreviations, without accents."""
_NUMBER_OF = {name: number for number, names in enumerate(_MONTHS, 1) for name in names.split()}
_NUMBER_BEFORE_YEAR = _NUMBER_OF | {"gen": 1, "mag": 5, "ago": 8, "set": 9, "out": 10}
"""The same with abbreviations that are also other words, as in "12 out of 15". A year must follow them."""

# Each begins with a digit, which the regular expression engine looks for first. A digit before it would be a part of the number.
_YEAR_FIRST = re.compile(r"([0-9](?<![0-9][0-9])[0-9]{3})([-/._])([0-9]{1,2})\2([0-9]{1,2})(?![0-9])")
_YEAR_LAST = re.compile(r"([0-9](?<![0-9][0-9])[0-9]?)([-/_]|\. ?)([0-9]{1,2})\2([0-9]{4})(?![0-9])")
_EAST_ASIAN = re.compile(r"([0-9](?<![0-9][0-9])[0-9]{3})[年년] ?([0-9]{1,2})[月월] ?([0-9]{1,2})[日일]")
"""Chinese, Japanese and Korean."""
_SUFFIX = "(?:st|nd|rd|th|er|o)?"
_NAME = r"([^\W\d_]{3,10})"
_YEAR = r"(?:\.?,?[\s/-]{1,2}(?:(?:of|del?)\s)?([0-9]{4})(?![0-9]))?"
_DAY_FIRST = re.compile(
    rf"([0-9](?<![^\W_][0-9])[0-9]?){_SUFFIX}(?:\.?[\s/-]{{1,2}}|\.)(?:(?:of|de)\s)?{_NAME}(?![^\W_]){_YEAR}"
)
_DAY_LAST = re.compile(rf"([0-9](?<=\D[\s/-][0-9])[0-9]?){_SUFFIX}(?![^\W_]){_YEAR}")
_NAME_BEFORE = re.compile(rf"(?:(?<![0-9])([0-9]{{4}})[\s,/-]{{1,2}})?(?<![^\W_]){_NAME}\.?[\s/-]{{1,2}}(?:the\s)?\Z")
_LEAP_YEAR = 2000
_CACHED = 1 << 12
"""Dates that are remembered."""
_LONGEST_BEFORE = 24
"""Characters before a day in which its month and year are looked for."""


@dataclass(frozen=True, slots=True)
class Date:
    """A date in a text, from `start` to `end`. `readings`: what it can be, as 2026-03-05, or as -03-05 if it has no year."""

    start: int
    end: int
    readings: Sequence[str]


def numeric_dates(text: str) -> Iterator[Date]:
    """Yield the dates of figures alone. In the text, each dash is a hyphen."""
    for found in _YEAR_FIRST.finditer(text):
        yield from _date(*found.span(), found[1], (found[3], found[4]))
    for found in _YEAR_LAST.finditer(text):
        first, second, year = found[1], found[3], found[4]
        if found[2].startswith(".") and int(second) <= 12:
            yield from _date(*found.span(), year, (second, first))
        else:
            yield from _date(*found.span(), year, (second, first), (first, second))


def named_dates(text: str) -> Iterator[Date]:
    """Yield the dates with the name or the sign of a month. In the text, each dash is a hyphen."""
    for found in _DAY_FIRST.finditer(text):
        if month := _month(found[2], found[3]):
            yield from _date(*found.span(), found[3], (month, found[1]))
    for found in _DAY_LAST.finditer(text):
        offset = max(0, found.start() - _LONGEST_BEFORE)
        before = _NAME_BEFORE.search(text[offset : found.start()])
        year = found[2] or (before and before[1])
        if before is not None and (month := _month(before[2], year)):
            start = offset + (before.start(2) if found[2] else before.start())
            yield from _date(start, found.end(), year, (month, found[1]))
    for found in () if text.isascii() else _EAST_ASIAN.finditer(text):
        yield from _date(*found.span(), found[1], (found[2], found[3]))


def _month(name: str, year: str | None) -> str | None:
    """Return the number of a month by its name, if there is one of this name. `year`: of the date."""
    name = name.casefold()
    if not name.isascii():
        name = "".join(letter for letter in unicodedata.normalize("NFD", name) if not unicodedata.combining(letter))
    number = (_NUMBER_BEFORE_YEAR if year else _NUMBER_OF).get(name)
    return str(number) if number else None


def _date(start: int, end: int, year: str | None, *month_and_day: tuple[str, str]) -> Iterator[Date]:
    """Yield the date, if it is in the calendar. `year`: None if it has none. `month_and_day`: for each of its readings."""
    if readings := _readings(year, month_and_day):
        yield Date(start, end, readings)


@lru_cache(_CACHED)
def _readings(year: str | None, month_and_day: Sequence[tuple[str, str]]) -> Sequence[str]:
    """Return those readings of a date that are in the calendar."""
    numbers = dict.fromkeys((int(month), int(day)) for month, day in month_and_day)
    found = (of for of in numbers if _is_in_calendar(int(year or _LEAP_YEAR), *of))
    return tuple(f"{year or ''}-{month:02}-{day:02}" for month, day in found)


def _is_in_calendar(year: int, month: int, day: int) -> bool:
    return year > 0 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]
