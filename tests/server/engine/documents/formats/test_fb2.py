"""A FictionBook is read whole: its authors, the marks of its footnotes, and notes on its pictures."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.catalogue import detect
from tests.server.engine.documents.formats.reading import notes_of, text_of

ROOT = '<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0" xmlns:l="http://www.w3.org/1999/xlink">'


def book(body: str, about: str = "", further: str = "") -> bytes:
    title = f"<description><title-info>{about}</title-info></description>"
    return f"{ROOT}{title}<body>{body}</body>{further}</FictionBook>".encode()


def test_authors_are_named_without_their_addresses_and_numbers() -> None:
    about = (
        "<author><first-name>Ida</first-name><middle-name>M.</middle-name><last-name>Roth</last-name>"
        "<home-page>http://ida.example</home-page><email>ida@x.example</email><id>77f-1</id></author>"
        "<author><nickname>Bo</nickname><id>5</id></author><author>Li</author><book-title>Rent</book-title>"
    )
    assert text_of(book("<p>Words.</p>", about)) == "Rent\nIda M. Roth\nBo\nLi\n\nWords."


def test_marks_of_footnotes_are_in_brackets_and_their_texts_at_the_end() -> None:
    body = (
        '<p>Rent<a l:href="#n1" type="note">1</a> is<a l:href="#n2">[b]</a> due<a l:href="#n3" type="note"><sup>*</sup></a>, '
        'see <a l:href="#later">7</a> and <a l:href="#n1" type="note">the long note</a>.</p>'
    )
    further = (
        '<body name="notes"><title><p>Notes</p></title><p>By the editor.</p><section><title><p>Chapter 1</p></title>'
        '<section id="n1"><title><p>1</p></title><p>In May.</p></section><section id="n2"><p>In June.</p></section></section>'
        '<section id="n3"><p>In July.</p></section></body>'
    )
    data = book(body, further=further)
    assert text_of(data).split("\n\n") == [
        "Rent[1] is[b] due[*], see 7 and the long note.", "Notes", "By the editor.", "Chapter 1", "[Footnote 1] In May.",
        "[Footnote b] In June.", "[Footnote *] In July.",
    ]  # fmt: skip
    assert notes_of(data) == ["footnotes follow the text"]


def test_pictures_are_described_or_noted_wherever_they_are() -> None:
    image = '<image l:href="#x"/>'
    body = (
        f"{image}<title><p>One{image}</p></title><table><tr><td>a{image}</td></tr></table>"
        f'<p>See <image l:href="#y" alt="A map"/>.</p>'
    )
    data = book(body, about=f"<coverpage>{image}</coverpage>")
    assert text_of(data) == "One\n\na\n\nSee [A map]."
    assert notes_of(data) == ["left out: pictures (4)"]


def test_text_outside_of_paragraphs_is_read() -> None:
    body = "<section>Loose<p>words</p>between<poem><v>verses</v></poem></section><title>Two</title>"
    assert text_of(book(body)).split("\n\n") == ["Loose", "words", "between", "verses", "Two"]


BEGINNINGS = [
    "", "\ufeff", '\ufeff<?xml version="1.0"?>\n', "<?xml version='1.0'?><?xml-stylesheet href='a'?><!-- FictionBook > -->\n\n",
    '<!DOCTYPE FictionBook [<!ENTITY a "b">]>',
]  # fmt: skip
OTHERS = [
    "<notes>On <FictionBook> as a root</notes>", "<!-- <FictionBook> --><notes>Words</notes>", "Write <FictionBook> first.",
    '<list><item name="a"><FictionBook xmlns="x"/></item></list>', "<FictionBooks/>",
]  # fmt: skip


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_book_is_told_by_its_root(beginning: str, encoding: str) -> None:
    data = (beginning.removeprefix("\ufeff" if encoding == "utf-16" else "") + book("<p>Words</p>").decode()).encode(
        encoding
    )
    assert detect(data) == "fb2"
    assert text_of(data) == "Words"


@pytest.mark.parametrize("text", OTHERS)
def test_a_text_that_mentions_the_root_is_no_book(text: str) -> None:
    assert detect(text.encode(), "a.xml") is None
    assert detect(text.encode()) is None
