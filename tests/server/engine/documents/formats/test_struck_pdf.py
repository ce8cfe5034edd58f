"""Struck text of a PDF is marked: the file only draws a line through it. Other lines are no marks."""

from __future__ import annotations

import pytest

from tests import files
from tests.server.engine.documents.formats.reading import text_of

WORDS = files.pdf_lines((60, 700, "The price is 199 149 crowns."), (60, 686, "The rent is due."))
# In Helvetica 11, "The price is " is 61.8 points wide, "199" 18.4.
LEFT, RIGHT, BASE = 121.8, 140.2, 700
LINES = {
    "a rectangle through a number": (f"{LEFT} {BASE + 3} {RIGHT - LEFT} 0.6 re f", "~~199~~ 149"),
    "a line through a number": (f"0.7 w {LEFT} {BASE + 3.3} m {RIGHT} {BASE + 3.3} l S", "~~199~~ 149"),
    "two lines": (f"{LEFT} {BASE + 2.4} 18.4 0.4 re f {LEFT} {BASE + 3.8} 18.4 0.4 re f", "~~199~~ 149"),
    "a line in pieces": (f"{LEFT} {BASE + 3} 9 0.6 re f {LEFT + 9} {BASE + 3} 9.4 0.6 re f", "~~199~~ 149"),
    "an underline and a strike": (f"{LEFT} {BASE - 1.5} 18.4 0.5 re f {LEFT} {BASE + 3} 18.4 0.6 re f", "~~199~~ 149"),
    "a whole line": (f"60 {BASE + 3} 144 0.6 re f", "~~The price is 199 149 crowns.~~\n"),
    "a piece of a drawing": (f"{LEFT + 7} {BASE + 3} 4 0.6 re f", "is 199 149"),
    "an underline": (f"{LEFT} {BASE - 1.5} {RIGHT - LEFT} 0.6 re f", "is 199 149"),
    "an overline": (f"{LEFT} {BASE + 9} {RIGHT - LEFT} 0.6 re f", "is 199 149"),
    "a grid behind the words": (f"20 {BASE + 3} 500 0.6 re f", "is 199 149"),
    "a frame around a number": (f"{LEFT} {BASE - 3} {RIGHT - LEFT} 12 re S", "is 199 149"),
    "a shade of thin lines": (" ".join(f"{LEFT} {BASE - 3 + n} 18.4 1 re f" for n in range(13)), "is 199 149"),
    "a rule between two lines": (f"60 {BASE - 4} 144 0.5 re f", "is 199 149"),
}  # fmt: skip


@pytest.mark.parametrize(("drawn", "text"), LINES.values(), ids=LINES)
def test_text_with_a_line_through_it_is_marked(drawn: str, text: str) -> None:
    found = text_of(files.pdf_of(f"{WORDS} {drawn}"))
    assert text in found
    assert ("~~" in text) == ("~~" in found)


def test_a_struck_number_with_a_superscript() -> None:
    words = "BT /F1 12 Tf 1 0 0 1 60 700 Tm (A lot of 10) Tj /F1 8 Tf 4 Ts (6) Tj /F1 12 Tf 0 Ts ( kg) Tj ET"
    assert text_of(files.pdf_of(f"{words} 100.7 703.5 17.7 0.6 re f")) == "A lot of ~~10~~⁶ kg"


def test_a_fraction_bar_strikes_nothing() -> None:
    words = files.pdf_lines((60, 707, "12"), (60, 692, "35"))
    assert "~~" not in text_of(files.pdf_of(f"{words} 60 703 12.2 0.5 re f"))


def test_text_that_a_reader_of_the_file_has_struck_is_marked() -> None:
    quads = f"{LEFT} 709 {RIGHT} 709 {LEFT} 697 {RIGHT} 697"
    mark = f"<< /Type /Annot /Subtype /StrikeOut /Rect [{LEFT} 697 {RIGHT} 709] /QuadPoints [{quads}] >>"
    data = files.pdf_of(WORDS, page="/Annots [6 0 R]", objects=[mark])
    assert "is ~~199~~ 149 crowns." in text_of(data)
