"""Sets links apart that follow each other without a blank, as those of menus: styles draw them as separate words."""

from __future__ import annotations

import re
from typing import Any

_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u31ff\u3400-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef\U00020000-\U0003ffff]"
)
"""Letters and punctuation of scripts without blanks between words, such as Chinese, Japanese and Thai."""
_CLOSING = frozenset(".,;:!?)]}%’”»…")


def set_links_apart(tree: Any) -> None:
    """Write a blank between two neighbouring links. Empty anchors, which only mark a place, may be between them."""
    before = None
    for link in tree.iter("a"):
        if link.get("href") is None:
            continue
        if before is not None and (last := _anchor_before(link)) is not None and _starts_after(link, before, last):
            last.tail = " "
        before = link


def _anchor_before(link: Any) -> Any:
    """Return the anchor that directly precedes a link; None if there is something else."""
    last = link.getprevious()
    return None if last is None or last.tag != "a" or last.tail else last


def _starts_after(link: Any, before: Any, last: Any) -> bool:
    """Whether only empty anchors are between `before` and `link`, the last of which is `last`, and readers see two words."""
    while last is not before:
        if last is None or last.tag != "a" or last.get("href") is not None or len(last) or last.text:
            return False
        last = last.getprevious()
        if last is not None and last.tail:
            return False
    left, right = before.text_content().rstrip()[-1:], link.text_content().lstrip()[:1]
    both_unspaced = _UNSPACED.match(left) and _UNSPACED.match(right)
    return bool(left and right) and not both_unspaced and right not in _CLOSING
