"""Counts the paragraphs of lists, and writes their numbers: digits, letters and Roman numerals."""

from __future__ import annotations

_ROMAN = {
    1000: "m", 900: "cm", 500: "d", 400: "cd", 100: "c", 90: "xc", 50: "l", 40: "xl", 10: "x", 9: "ix", 5: "v", 4: "iv", 1: "i",
}  # fmt: skip
_MAX_ROMAN = 4999
_FORMS = {"a": "lowerLetter", "A": "upperLetter", "i": "lowerRoman", "I": "upperRoman", "1": "decimal"}
"""The names that OpenDocument and HTML have for the forms."""


def count(numbers: dict[int, int], level: int, start: int) -> None:
    """Count a paragraph of a list at a level, whose first one has the number `start`. Deeper levels then begin again.

    `numbers`: of the last paragraph at each level.
    """
    numbers[level] = numbers.get(level, start - 1) + 1
    for deeper in [each for each in numbers if each > level]:
        del numbers[deeper]


def numeral(number: int, form: str) -> str:
    """Return a number in a form as Word names it, such as "lowerRoman", or as OpenDocument and HTML do ("i"); else in digits."""
    form = _FORMS.get(form, form)
    match form:
        case "none":
            return ""
        case "decimalZero":
            return f"{number:02}"
        case "lowerLetter" | "upperLetter" if number > 0:
            text = chr(97 + (number - 1) % 26) * min(1 + (number - 1) // 26, 9)
        case "lowerRoman" | "upperRoman" if 0 < number <= _MAX_ROMAN:
            text = ""
            for value, letters in _ROMAN.items():
                text += letters * (number // value)
                number %= value
        case _:
            return str(number)
    return text.upper() if form.startswith("upper") else text
