"""Writes the numbers of spreadsheet cells as people see them: dates, times, percentages, and numbers without rounding errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta
from enum import Enum
from typing import Any

_LITERAL = re.compile(r'"[^"]*"|\\.|_.|\*.|\[(?!h+\]|m+\]|s+\])[^\]]*\]', re.IGNORECASE)
"""Literal text in a number format, and its colours and languages."""
_NUMBERED = re.compile(r'(?:0|[-() /]|\\.|"[^"]*"|\[\$-[^\]]*\])+')
"""A number format of zeros and what stands between them, as of postcodes and telephone numbers."""
_CURRENCY = re.compile(r"\[\$([^\]\-]*)(?:-[^\]]*)?\]")
"""A currency in a number format, and its language."""
_SIGNS = ("(", ")", "+", "-")
"""What formats write around negative numbers."""
_CONDITION = re.compile(r"\[[<>=]")
_TOKEN = re.compile(
    r'(?P<value>General|[0#?][0#?,.]*(?<!,))|"(?P<words>[^"]*)"|\\(?P<sign>.)|(?P<gap>_.|\*.| )|\[[^\]]*\]'
    r"|(?P<plain>[$€£¥₹₽₩+\-()])|(?P<other>.)",
    re.IGNORECASE,
)
"""The parts of a number format: the number, and what is written around it. Others change the number, such as powers, or a comma at
the end of its digits, which divides it by 1,000."""
_PART = re.compile(r'0|\\.|"[^"]*"|\[[^\]]*\]|.')
"""What a number format consists of."""
_MAX_CODE = 255
"""Characters of a number format in Excel."""
_EPOCH, _EPOCH_1904 = date(1899, 12, 30), date(1904, 1, 1)
_EXCEL_ONLY_DAYS = {0: "1900-01-00", 60: "1900-02-29"}
"""Excel counts a 29 February 1900, which never existed. So its days 1 to 59 are one day later than the others."""
_MAX_DAYS = 2958466  # the last is 9999-12-31
_LONG = re.compile(r"-?\d{16,20}")
"""A whole number with more digits than spreadsheets calculate with, such as an id that a program wrote."""


class Kind(Enum):
    """How a number is shown."""

    NUMBER = "number"
    DATE = "date"
    DATE_TIME = "date and time"
    DATE_1904 = "date, counted from 1904"
    DATE_TIME_1904 = "date and time, counted from 1904"
    TIME = "time of day"
    DURATION = "hours and minutes"
    PERCENT = "percentage"


@dataclass(frozen=True, slots=True)
class Digits:
    """Shows a whole number with as many digits as the format has zeros, such as 01234. `code`: the format."""

    code: str

    def shown(self, number: float) -> str:
        """Return the number as text."""
        if number < 0 or not float(number).is_integer():
            return _plain(number)
        parts = [part for part in _PART.findall(self.code) if not part.startswith("[")]
        rest = str(int(number)).zfill(parts.count("0"))
        out = ""
        for place, part in reversed(list(enumerate(parts))):
            if part != "0":
                out = part.strip('"').removeprefix("\\") + out
            else:
                is_first = "0" not in parts[:place]
                out, rest = (rest if is_first else rest[-1:]) + out, rest[:-1]
        return out


@dataclass(frozen=True, slots=True)
class Unit:
    """Shows a number with what its format writes before and after it, such as a currency."""

    before: str
    after: str

    def shown(self, number: float) -> str:
        """Return the number as text."""
        sign = "-" if number < 0 else ""
        return f"{sign}{self.before}{_plain(abs(number))}{self.after}"


Format = Kind | Digits | Unit
"""How a cell is shown."""
_BUILT_IN = dict.fromkeys([*range(14, 18), *range(27, 32), 36, *range(50, 59)], Kind.DATE) | {
    **dict.fromkeys([18, 19, 20, 21, 32, 33, 34, 35, 45, 47], Kind.TIME), 22: Kind.DATE_TIME, 46: Kind.DURATION,
    9: Kind.PERCENT, 10: Kind.PERCENT,
}  # fmt: skip
_CURRENCIES = frozenset((5, 6, 7, 8, 42, 44))
"""Built-in formats with the currency of the country for which Excel is set up; by the standard, the dollar."""
FROM_1904: dict[Format, Format] = {Kind.DATE: Kind.DATE_1904, Kind.DATE_TIME: Kind.DATE_TIME_1904}
"""The kinds of dates in a file that counts days from 1904."""


class Styles:
    """The kind of each cell style of a file."""

    def __init__(self, tree: Any, *, is_1904: bool) -> None:
        """`tree`: of the part with the styles, or None. `is_1904`: whether days are counted from 1904."""
        codes = {} if tree is None else {f.get("numFmtId"): f.get("formatCode", "") for f in tree.iter("{*}numFmt")}
        cells = [] if tree is None else tree.findall("{*}cellXfs/{*}xf")
        formats = [cell.get("numFmtId", "0") for cell in cells]
        kinds = [kind_of(codes[id]) if id in codes else built_in(id) for id in formats]
        fonts = [] if tree is None else [is_struck(font) for font in tree.iterfind("{*}fonts/{*}font")]
        struck = {str(number) for number, is_one in enumerate(fonts) if is_one}
        self._struck = {str(number) for number, cell in enumerate(cells) if cell.get("fontId") in struck}
        self._kinds = [FROM_1904.get(kind, kind) for kind in kinds] if is_1904 else kinds

    def is_struck(self, style: str) -> bool:
        """Whether a style strikes the text of its cells through. `style`: its number in the file."""
        return style in self._struck

    def of(self, style: str) -> Format:
        """Return the kind of a style, by its number in the file."""
        return self._kinds[int(style)] if style.isdecimal() and int(style) < len(self._kinds) else Kind.NUMBER


def is_struck(font: Any) -> bool:
    """Whether a font is struck through."""
    line = font.find("{*}strike")
    return line is not None and line.get("val", "1") not in ("0", "false")


def built_in(id: str) -> Format:
    """Return the kind of a number format that files name without a code, such as 31, a date in Chinese Excel."""
    if id.isdecimal() and int(id) in _CURRENCIES:
        return Unit("$", "")
    return _BUILT_IN.get(int(id), Kind.NUMBER) if id.isdecimal() else Kind.NUMBER


def kind_of(code: str) -> Format:
    """Return how a number format such as "yyyy-mm-dd" shows numbers."""
    first = code.partition(";")[0]
    if first.count("0") > 1 and len(first) <= _MAX_CODE and _NUMBERED.fullmatch(first):
        return Digits(first)
    letters = _LITERAL.sub("", code.partition(";")[0]).lower()
    if "general" in letters:
        return _unit(code) or Kind.NUMBER
    if "[" in letters:
        return Kind.DURATION
    has_time = "h" in letters or "s" in letters
    if "y" in letters or "d" in letters or ("m" in letters and not has_time):
        return Kind.DATE_TIME if has_time else Kind.DATE
    if has_time:
        return Kind.TIME
    return Kind.PERCENT if "%" in letters else (_unit(code) or Kind.NUMBER)


def _unit(code: str) -> Unit | None:
    """Return the text that a format writes before and after a number.

    None if there is no such text, if it differs for negative numbers, or if the format changes the number.
    """
    units = {_unit_of_section(section) for section in code[:_MAX_CODE].split(";")[:2]}
    return None if len(units) > 1 or _CONDITION.search(code) else units.pop()


def _unit_of_section(code: str) -> Unit | None:
    before, after, found = "", "", False
    for token in _TOKEN.finditer(_CURRENCY.sub(lambda currency: f'"{currency[1]}"', code)):
        if token["other"] or (token["value"] and found):
            return None
        sign = token["sign"] or token["plain"] or ""
        words = " " if token["gap"] else token["words"] or ("" if sign in _SIGNS else sign)
        found = found or bool(token["value"])
        before, after = (before, after + words) if found else (before + words, after)
    before, after = before.lstrip(" "), after.rstrip(" ")
    return Unit(before, after) if found and (before.strip() or after.strip()) else None


def shown(value: str, kind: Format) -> str:
    """Return a stored number as text; the value itself if it is not a number."""
    try:
        number = int(value) if _LONG.fullmatch(value.strip()) else float(value)
    except ValueError:
        return value.strip()
    if isinstance(kind, Digits | Unit):
        return kind.shown(number)
    match kind:
        case Kind.PERCENT:
            return f"{_plain(number * 100)}%"
        case Kind.DURATION:
            seconds = round(number * 86400) if abs(number) < _MAX_DAYS else 0
            return f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"
        case Kind.NUMBER:
            return _plain(number)
    if not 0 <= number < _MAX_DAYS:
        return _plain(number)
    days, seconds = divmod(round(number * 86400), 86400)
    try:
        day = _day(days, is_1904=kind in FROM_1904.values())
    except OverflowError:
        return _plain(number)
    clock = f"{seconds // 3600:02}:{seconds % 3600 // 60:02}:{seconds % 60:02}".removesuffix(":00")
    if kind is Kind.TIME:
        return clock
    midnight = kind in (Kind.DATE, Kind.DATE_1904) or clock == "00:00"
    return day if midnight else f"{day} {clock}"


def _day(number: int, *, is_1904: bool) -> str:
    """Return the date of a day as Excel shows it."""
    if is_1904:
        return (_EPOCH_1904 + timedelta(number)).isoformat()
    return _EXCEL_ONLY_DAYS.get(number) or (_EPOCH + timedelta(number + (number < 60))).isoformat()


def _plain(number: float) -> str:
    """Return a number with the 15 digits that spreadsheets keep. Long ids, which are integers here, keep all digits."""
    return str(number) if isinstance(number, int) else f"{number:.15g}".replace("e+", "E+").replace("e-", "E-")


def column_letters(column: int) -> str:
    """Return the letters of a column, which is counted from 0."""
    text, column = "", column + 1
    while column > 0:
        column, digit = divmod(column - 1, 26)
        text = chr(65 + digit) + text
    return text
