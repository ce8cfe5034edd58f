"""A book with a fault in its package is read as far as possible; what is missing is noted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

BOOK = files.epub(["<p>One.</p>", "<p>Two.</p>"])
PACKAGE = "OEBPS/content.opf"


def changed(old: str, new: str) -> bytes:
    def change(name: str, content: bytes) -> tuple[str, bytes]:
        assert old.encode() in content
        return name, content.replace(old.encode(), new.encode())

    return files.rezipped(BOOK, {PACKAGE: change})


WHOLE = [
    ("chapter%201.xhtml", "chapter%201.xhtml#start"), ("chapter%201.xhtml", "Chapter%201.XHTML"), ("chapter%201.xhtml", "chapter 1.xhtml"),
    ("text/chapter%201", "./text/../text/chapter%201"), ("text/chapter%201", "/OEBPS/text/chapter%201"), ("<manifest>", "<manifest><item/>"),
    ("<manifest>", "<metadata><title>a&nbsp;b &eacute; &unknown; &amp;</title></metadata><manifest>"), ("<package ", "\n<package "),
    ("</spine></package>", "</spine>"), ("<spine>", "<spine><itemref/>"), ("<spine>", "<!-- & --><spine>"),
    ('<itemref idref="c1"/>', '<itemref idref="c1" linear="no"/>'), ("<spine>", "<metadata>a & b</metadata><spine>"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), WHOLE)
def test_a_fault_in_the_package_that_loses_nothing(old: str, new: str) -> None:
    data = changed(old, new)
    assert text_of(data) == "One.\n\nTwo."
    assert notes_of(data) == []


PARTLY = [
    ('<itemref idref="c1"/>', '<itemref idref="nosuch"/><itemref idref="c1"/>', "nosuch: the book's spine names it, but its manifest does not"),
    ("<manifest>", '<manifest><item id="x" href="gone.xhtml" media-type="application/xhtml+xml"/>', "gone.xhtml: the book's spine does not name it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "note"), PARTLY)
def test_what_is_missing_is_noted(old: str, new: str, note: str) -> None:
    data = changed(old, new)
    assert text_of(data) == "One.\n\nTwo."
    assert any(found.startswith(note) for found in notes_of(data))


def test_a_file_that_is_missing_is_noted() -> None:
    data = files.rezipped(BOOK, {"OEBPS/text/chapter 0.xhtml": None})
    assert text_of(data) == "Two."
    assert notes_of(data) == ["text/chapter%200.xhtml: the book refers to it, but it is not in the file"]


def test_a_page_outside_the_spine_is_added_at_the_end() -> None:
    data = changed('<itemref idref="c0"/>', "").replace(b"", b"")
    typed = files.rezipped(
        data,
        {
            PACKAGE: lambda name, content: (
                name,
                content.replace(b'media-type="x"', b'media-type="application/xhtml+xml"'),
            )
        },
    )
    assert text_of(typed) == "Two.\n\nOne."
    assert notes_of(typed) == ["text/chapter%200.xhtml: the book's spine does not name it; it was added at the end"]


def test_a_book_without_a_spine_is_read_in_the_order_of_its_manifest() -> None:
    data = changed('<spine><itemref idref="c0"/><itemref idref="c1"/></spine>', "")
    typed = files.rezipped(
        data,
        {
            PACKAGE: lambda name, content: (
                name,
                content.replace(b'media-type="x"', b'media-type="application/xhtml+xml"'),
            )
        },
    )
    assert text_of(typed) == "One.\n\nTwo."
    assert notes_of(typed) == []


def test_a_page_that_the_spine_repeats_counts_once() -> None:
    data = changed('<itemref idref="c0"/>', '<itemref idref="c0"/>' * 20_000)
    assert text_of(data) == "One.\n\nTwo."
    assert notes_of(data) == ["left out: repeated chapters (19999)"]


@pytest.mark.parametrize("missing", ["META-INF/container.xml", "mimetype"])
def test_the_package_is_found_without_its_container(missing: str) -> None:
    assert text_of(files.rezipped(BOOK, {missing: None})) == "One.\n\nTwo."


def test_a_picture_in_the_spine_is_noted() -> None:
    data = changed("text/chapter%200.xhtml", "cover.svg")
    added = files.rezipped(data, {}, {"OEBPS/cover.svg": b"<svg/>"})
    assert text_of(added) == "Two.\n\nOne."
    assert notes_of(added) == [
        "OEBPS/text/chapter 0.xhtml: the book does not name it; it was added at the end",
        "OEBPS/cover.svg: it is not a page of text; it was left out",
    ]


def renamed(change: Callable[[str], str], href: str) -> bytes:
    """Return a book whose chapter has another name in the ZIP file. `href`: its name in the package file."""
    packed = files.epub(["<p>Chapter words.</p>"])
    return files.rezipped(
        packed,
        {
            "OEBPS/text/chapter 0.xhtml": lambda name, content: (change(name), content),
            "OEBPS/content.opf": lambda name, content: (
                name,
                content.replace(b"text/chapter%200.xhtml", href.encode()),
            ),
        },
    )


NAMES = {
    "separators of Windows": (lambda name: name.replace("/", "\\"), "text/chapter%200.xhtml"),
    "separators of Windows in the package": (lambda name: name, "text\\chapter 0.xhtml"),
    "accents in two characters": (lambda name: "OEBPS/text/u\u0308.xhtml", "text/\u00fc.xhtml"),
    "another case": (str.upper, "text/chapter%200.xhtml"),
}


@pytest.mark.parametrize(("change", "href"), NAMES.values(), ids=NAMES)
def test_a_chapter_whose_name_is_written_differently(change: Callable[[str], str], href: str) -> None:
    assert text_of(renamed(change, href)) == "Chapter words."


def test_a_chapter_whose_name_is_utf_8_without_saying_so() -> None:
    packed = renamed(lambda name: "OEBPS/text/XXXX.xhtml", "text/%C3%BC%C3%BC.xhtml")
    assert text_of(packed.replace(b"XXXX", "üü".encode())) == "Chapter words."


def test_a_reference_that_is_no_address_is_left_out() -> None:
    data = changed("text/chapter%200.xhtml", "http://[x]/")
    assert text_of(data) == "Two.\n\nOne."
    assert "http://[x]/: the book refers to it, but it is not in the file" in notes_of(data)


def described(chapters: list[str], metadata: str) -> bytes:
    """Return a book with these elements of Dublin Core."""
    named = f'<metadata xmlns:dc="http://purl.org/dc/elements/1.1/">{metadata}</metadata><manifest>'.encode()
    return files.rezipped(
        files.epub(chapters), {PACKAGE: lambda name, content: (name, content.replace(b"<manifest>", named))}
    )


ABOUT = "<dc:title>The Rent\n Book</dc:title><dc:creator>Roth, Ida</dc:creator><dc:creator>Bo Lind</dc:creator>"
PAGES = {
    "no page": (["<p>One.</p>"], "The Rent Book\nRoth, Ida\nBo Lind\n\nOne."),
    "the first pages": (["<h1>THE RENT BOOK</h1>", "<p>by Ida Roth and Bo Lind</p>"], "THE RENT BOOK\n\nby Ida Roth and Bo Lind"),
    "a part": (["<h1>The Rent Book</h1>"], "Roth, Ida\nBo Lind\n\nThe Rent Book"),
    "a later page": (["<p>" + "One. " * 500 + "</p>", "<h1>The Rent Book</h1>"], "The Rent Book\nRoth, Ida\nBo Lind\n\nOne."),
    "only a picture": (["<img>"], ""),
}  # fmt: skip


@pytest.mark.parametrize(("chapters", "text"), PAGES.values(), ids=PAGES)
def test_the_title_and_the_authors_are_told_once(chapters: list[str], text: str) -> None:
    assert text_of(described(chapters, ABOUT))[: len(text) or None] == text
