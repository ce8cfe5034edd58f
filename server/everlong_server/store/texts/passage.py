"""`Passage`: a piece of a document's text, and what a search says about it."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a document. `start`, `end`: offsets in characters of the text; `start_byte`, `end_byte`: in bytes of its UTF-8.

    `start_token`, `end_token`: offsets in the model's tokens of the text, covering every token that has a character of the passage; None until
    `TokenOffsets` sets them. `score`: 1 ÷ its rank in a search. `share`: the share of the query's words that it has, weighted by their rarity,
    0 to 1. `similarity`: cosine with the query; None if it has no vector or was not compared. `figures`: how rare the
    figures of the query are that it has, 0 to 1. `page`, `section`: where it begins, if the document has these.
    """

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    text: str
    score: float = 0.0
    share: float = 0.0
    similarity: float | None = None
    figures: float = 0.0
    page: int | None = None
    section: str | None = None
    start_token: int | None = None
    end_token: int | None = None

    def part(self, start: int, end: int | None = None) -> Passage:
        """Return the part from one character of its text up to another one, by default up to its end. Without offsets in tokens."""
        before, text = self.text[:start], self.text[start:end]
        first, first_byte = self.start + len(before), self.start_byte + len(before.encode())
        return replace(
            self, text=text, start=first, end=first + len(text), start_byte=first_byte,
            end_byte=first_byte + len(text.encode()), start_token=None, end_token=None,
        )  # fmt: skip
