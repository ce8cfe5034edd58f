"""Overview: the titles and most frequent names of documents."""

from __future__ import annotations

import io

import pytest

from everlong_server.store.search.overview import Overview, overview, samples

TEXT = (
    "One day Mr. Sherlock Holmes met Dr. Watson in the street. Then Holmes spoke, and Watson heard Mr. Sherlock Holmes. "
    "The letter named Dr. Watson and Lestrade’s friend. After that Lestrade came, and so did Lestrade. Perhaps it rained. "
    "There stood Dr. Watson, and near Mr. Sherlock Holmes stood Gregson. Perhaps it snowed. Perhaps not. Perhaps.\n"
)


def test_names_that_are_mentioned_often_are_told_once_each_most_frequent_first() -> None:
    found = overview(["A. C. Doyle - A Study.md"], [TEXT, TEXT])
    assert found.titles == ("A. C. Doyle - A Study",)
    assert set(found.names) == {"Mr. Sherlock Holmes", "Dr. Watson", "Lestrade"}, "Gregson is mentioned twice only"
    assert "Perhaps" not in found.names, "it begins sentences"


@pytest.mark.parametrize(
    ("filenames", "titles"),
    [([], ()), ([None, "2024.txt"], ()), (["a.md", None, "b.pdf", "c", "d"], ("a", "b", "c"))],
)
def test_titles_are_at_most_three_file_names_with_letters(filenames: list[str | None], titles: tuple[str, ...]) -> None:
    assert overview(filenames, []) == Overview(titles, ())


def test_samples_are_a_whole_short_text_and_blocks_of_a_long_one_from_its_beginning_to_its_end() -> None:
    short = "\ufeffäöü".encode()
    assert list(samples(io.BytesIO(short), 3, len(short) - 3)) == ["äöü"]
    long = b"a" * 1_000_000 + b"b" * 2_000_000 + b"c" * 1_000_000
    blocks = list(samples(io.BytesIO(b"xyz" + long), 3, len(long)))
    assert [block[0] for block in blocks] == ["a"] * 4 + ["b"] * 8 + ["c"] * 4
    assert {len(block) for block in blocks} == {1 << 16}
    assert blocks[-1][-1] == "c"


def test_rows_of_dashes_and_quotation_marks_take_linear_time() -> None:
    """With quadratic time, this would take hours."""
    text = "so Bo" + "'-" * 500_000 + "b is. " + "a Ab" * 200_000 + " a " + "A. " * 200_000
    assert overview([], [text]).titles == ()
