"""`is_faithful`: whether a rewritten question keeps what the message asked for word for word."""

from __future__ import annotations

import re

from everlong_server.engine.answering.search.number_words import DIGITS, in_digits
from everlong_server.store.search.terms import words

_NUMBER = re.compile(DIGITS)
_ORDINAL = re.compile(r"(?<![^\W_])\d+(?:st|nd|rd|th)(?![^\W_])")
_QUOTED = re.compile(
    r'"([^"]+)"|[“„]([^“”„]+)[“”]|[«»]([^«»]+)[«»]|‘([^‘]+?)’(?!\w)|(?<!\w)\'(.+?)\'(?!\w)|[「『]([^「」『』]+)[」』]'
)
_CLAUSE_ENDS = re.compile(r"[,;:.?!]\s+")
_NEGATION = re.compile(r"\b(?:not|never|no|nobody|nothing|none|neither|nor|without|cannot)\b|n['’]t\b")


def is_faithful(rewritten: str, message: str) -> bool:
    """Return whether `rewritten` has all numbers and quoted phrases of `message`, and a negation if its question has one.

    A number can be in digits or in English words. An ordinal in words counts as a reference: "And the second?" can become "What did Anna buy?".
    """
    before, after = message.casefold(), rewritten.casefold()
    if not _numbers(before, ordinals=False) <= _numbers(after, ordinals=True):
        return False
    text = _words(after)
    if any(_words(phrase) not in text for found in _QUOTED.findall(before) for phrase in found if phrase):
        return False
    # Only the last clause: "That did not help, so what did he do then?" asks for something that was done.
    asked = _CLAUSE_ENDS.split(before.strip())[-1]
    return not _NEGATION.search(asked) or _NEGATION.search(after) is not None


def _numbers(text: str, *, ordinals: bool) -> set[str]:
    """Return the numbers of a text in lower case, without leading zeros and separators of thousands. `ordinals`: also those in words."""
    in_words = in_digits(text)
    spelled = in_words if ordinals else _ORDINAL.sub(" ", in_words)
    return {number.replace(",", "").lstrip("0") or "0" for each in (text, spelled) for number in _NUMBER.findall(each)}


def _words(text: str) -> str:
    """Return the words of a text, with a space before and after each."""
    return f" {' '.join(words(text))} "
