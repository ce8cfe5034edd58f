"""`Query`: the text and the words that passages are searched for. `PassageFilter`: which passages are searched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everlong_server.store.search.figures.find import Figure
from everlong_server.store.texts.outline import OutlineEntry


@dataclass(frozen=True, slots=True)
class Query:
    """`text`: the question, whose meaning is compared. `words`: words to search for, each with a weight; empty: none.

    `asks`: it is a question. A remark is searched for more strictly, since it may be small talk. `everyday`: it
    has no other words, like "How are you?". `message_start`: where the message begins in `text`, after the previous question.
    `alone`: the message without the previous question. None if `text` has no such question, or the message has no words of its own to search for.
    `figures`: dates and other figures of several parts, each with a weight. Their parts are among the words.
    """

    text: str
    words: Mapping[str, float]
    asks: bool = True
    everyday: bool = False
    message_start: int = 0
    alone: str | None = None
    figures: Mapping[Figure, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassageFilter:
    """Accepts passages that begin on the pages from `first_page` to `last_page`, below a heading that contains `section`.

    None: every page, every section. `section` ignores case.
    """

    first_page: int | None = None
    last_page: int | None = None
    section: str | None = None

    def accepts(self, entry: OutlineEntry | None) -> bool:
        """Return whether it accepts a passage. `entry`: of the document's outline; None if that has none for the passage."""
        page, section = (None, None) if entry is None else (entry.page, entry.section)
        if self.first_page is not None and (page is None or page < self.first_page):
            return False
        if self.last_page is not None and (page is None or page > self.last_page):
            return False
        return self.section is None or (section is not None and self.section.casefold() in section.casefold())
