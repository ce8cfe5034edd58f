"""Finds the words that belong to a box in a form: the nearest ones on its line, before or after it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

_REACH = 2.0
"""Points that a letter may reach into a box."""


class Box(NamedTuple):
    """A rectangle on a page, in points from the bottom left."""

    left: float
    bottom: float
    right: float
    top: float

    def is_beside(self, other: Box) -> bool:
        """Whether the vertical middle of one box lies within the height of the other."""
        return (
            self.bottom <= (other.bottom + other.top) / 2 <= self.top
            or other.bottom <= (self.bottom + self.top) / 2 <= other.top
        )


def button_label(button: Box, fields: Sequence[Box], textpage: Any) -> str:
    """Return the words before or after a check box or a radio button, whichever are nearer; "" if there are none.

    `fields`: all on the page. Words beyond another field belong to that one.
    """
    line = [field for field in fields if field.is_beside(button)]
    first = max((field.right for field in line if field.right <= button.left + _REACH), default=-math.inf)
    last = min((field.left for field in line if field.left >= button.right - _REACH), default=math.inf)
    boxes = (Box(*textpage.get_charbox(index)) for index in range(textpage.count_chars()))
    letters = [box for box in boxes if box.right > box.left and box.is_beside(button)]
    before = [box for box in letters if first <= box.left and box.right <= button.left + _REACH]
    after = [box for box in letters if button.right - _REACH <= box.left and box.right <= last]
    gap_before = min((button.left - box.right for box in before), default=math.inf)
    gap_after = min((box.left - button.right for box in after), default=math.inf)
    found = before if gap_before < gap_after else after
    if not found:
        return ""
    bounds = min(box.left for box in found), button.bottom, max(box.right for box in found), button.top
    words = textpage.get_text_bounded(*bounds)
    return " ".join(words.replace("\ufffe", "").split()).rstrip(": ")
