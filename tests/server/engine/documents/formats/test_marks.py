"""Superscripts that are exponents, and addresses of links, are in the text of every office file."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from everlong_server.engine.documents.formats.readers.shared.addresses import external, field_address, labelled
from everlong_server.engine.documents.formats.readers.shared.marks import (
    LINK_END,
    link,
    link_begin,
    superscript,
    written_out,
)
from everlong_server.engine.documents.formats.readers.shared.scripts import written_superscript
from tests import files
from tests.server.engine.documents.formats.reading import text_of
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.presentations import presentation, slide

SUPERSCRIPTS = {
    ("10", "6"): "^6", ("10", "-6"): "^-6", ("10", "−6"): "^−6", ("mc", "2"): "^2", ("x", "n"): "^n", ("(a+b)", "2"): "^2",
    ("Ca", "2+"): "^2+", ("1", "st"): "st", ("Everlong", "TM"): "TM", ("word", "[1]"): "[1]", ("Na", "+"): "+", ("word. ", "1"): "1",
    ("", "14"): "14", ("XX", "e"): "e", ("n", "o"): "o", ("N", "O"): "O", ("note", "a"): "a", ("1", "º"): "º", ("A", "T"): "^T",
    ("x", "n+1"): "^(n+1)", ("e", "−2k"): "^−2k", ("2", "(n−1)"): "^(n−1)", ("crowns", "1-3"): "^1-3",
}  # fmt: skip


@pytest.mark.parametrize(("place", "text"), SUPERSCRIPTS.items())
def test_a_superscript(place: tuple[str, str], text: str) -> None:
    assert written_superscript(*place) == text


ADDRESSES = {
    "https://x.org/a": "https://x.org/a", "HTTP://x.org": "HTTP://x.org", "mailto:ada@x.org?subject=Hi": "ada@x.org",
    "#place": "", "file:///etc/passwd": "", "other.docx": "", "javascript:alert(1)": "", "https://": "", "https://x.org/" + "a" * 2000: "",
}  # fmt: skip


@pytest.mark.parametrize(("target", "address"), ADDRESSES.items())
def test_the_address_of(target: str, address: str) -> None:
    assert external(target) == address


FIELDS = {
    ' HYPERLINK "https://x.org/" ': "https://x.org/", "HYPERLINK https://x.org": "https://x.org", 'HYPERLINK \\l "place"': "",
    'HYPERLINK "https://x.org/a" \\o "a tip" \\l "part"': "https://x.org/a#part", 'PAGEREF "https://x.org/"': "",
}  # fmt: skip


@pytest.mark.parametrize(("instruction", "address"), FIELDS.items())
def test_the_address_of_a_field(instruction: str, address: str) -> None:
    assert field_address(instruction) == address


LABELS = {
    ("the site", "https://x.org/"): "the site (https://x.org/)", ("x.org/A", "https://x.org/a/"): "x.org/A",
    ("https://x.org", "http://x.org/"): "https://x.org", ("mail Ada@x.org", "ada@x.org"): "mail Ada@x.org",
    ("site ", "https://x.org"): "site (https://x.org) ", (" ", "https://x.org"): " ",
}  # fmt: skip


@pytest.mark.parametrize(("place", "text"), LABELS.items())
def test_a_label(place: tuple[str, str], text: str) -> None:
    assert labelled(*place) == text


A, B = "https://a.org", "https://b.org"
MARKED = {
    "a divided superscript": ("10" + superscript("-") + superscript("6"), "10^-6"),
    "a superscript in a link": (link("10" + superscript("6"), A), f"10^6 ({A})"),
    "a superscript after a link": (link("10", A) + superscript("6"), f"10 ({A})^6"),
    "a divided link": (link("the ", A) + link("site", A) + ".", f"the site ({A})."),
    "two links": (link("one", A) + " " + link("two", B), f"one ({A}) two ({B})"),
    "the same link twice": (link("one", A) + " and " + link("two", A), f"one ({A}) and two ({A})"),
    "a link without an end": (f"See {link_begin(A)}one", f"See one ({A})"),
    "a link in another": (f"{link_begin(A)}one {link_begin(B)}two{LINK_END}{LINK_END}.", f"one ({A}) two ({B})."),
    "a raised link after a full stop": ("A sentence." + link(superscript("1"), A), f"A sentence.1 ({A})"),
    "a raised link after a power": ("10" + link(superscript("1"), A), f"10^1 ({A})"),
    "a raised link at the beginning": (link(superscript("1"), A), f"1 ({A})"),
    "an end without a link": (f"one{LINK_END} two", "one two"),
}


@pytest.mark.parametrize(("marked", "text"), MARKED.values(), ids=MARKED)
def test_a_paragraph_with(marked: str, text: str) -> None:
    assert written_out(marked) == text


Run = tuple[str, str, str]
"""A text, "super" or "sub", and the address of a link."""


def as_docx(runs: Sequence[Run]) -> bytes:
    places = {"": "baseline", "super": "superscript", "sub": "subscript"}
    body, relations = "", ""
    for number, (text, place, address) in enumerate(runs):
        run = f'<w:r><w:rPr><w:vertAlign w:val="{places[place]}"/></w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'
        body += f'<w:hyperlink xmlns:r="{TYPES}" r:id="link{number}">{run}</w:hyperlink>' if address else run
        relations += external_link(f"link{number}", address)
    return files.rezipped(files.word_of(f"<w:p>{body}</w:p>"), {
        "word/_rels/document.xml.rels": lambda name, data: (name, data.replace(b"</Relationships>", f"{relations}</Relationships>".encode())),
    })  # fmt: skip


def as_pptx(runs: Sequence[Run]) -> bytes:
    baselines = {"": "0", "super": "30000", "sub": "-25000"}
    body, relations = "", ""
    for number, (text, place, address) in enumerate(runs):
        click = f'<a:hlinkClick r:id="link{number}"/>' if address else ""
        body += f'<a:r><a:rPr baseline="{baselines[place]}">{click}</a:rPr><a:t>{text}</a:t></a:r>'
        relations += external_link(f"link{number}", address)
    rels = f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{relations}</Relationships>'
    shape = f"<p:sp><p:txBody><a:p>{body}</a:p></p:txBody></p:sp>"
    return presentation(slide(shape), parts={"ppt/slides/_rels/slide1.xml.rels": rels})


def as_odt(runs: Sequence[Run]) -> bytes:
    styles = "".join(
        f'<style:style style:name="{name}" style:family="text"{more}/>'
        if position is None
        else f'<style:style style:name="{name}" style:family="text"{more}><style:text-properties style:text-position="{position}"/></style:style>'
        for name, position, more in (
            ("up", "super 58%", ""),
            ("super", None, ' style:parent-style-name="up"'),
            ("sub", "-8% 58%", ""),
            ("", "0% 100%", ""),
        )
    )
    body = ""
    for text, place, address in runs:
        span = f'<text:span text:style-name="{place}">{text}</text:span>'
        body += f'<text:a xlink:href="{address}">{span}</text:a>' if address else span
    return odf(f"<text:p>{body}</text:p>", auto=styles)


def as_rtf(runs: Sequence[Run]) -> bytes:
    body = ""
    for text, place, address in runs:
        run = rf"{{\plain\{place} {text}}}" if place else rf"{{{text}}}"
        body += rf'{{\field{{\*\fldinst{{HYPERLINK "{address}"}}}}{{\fldrslt{run}}}}}' if address else run
    return rf"{{\rtf1 \pard {body}\par}}".encode("cp1252")


TYPES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def external_link(id: str, address: str) -> str:
    return f'<Relationship Id="{id}" Type="{TYPES}/hyperlink" Target="{address}" TargetMode="External"/>'


MAKERS = [as_docx, as_pptx, as_odt, as_rtf]
RUNS: dict[str, tuple[list[Run], str]] = {
    "exponents": ([("10", "", ""), ("-", "super", ""), ("6", "super", ""), (" and CO", "", ""), ("2", "sub", "")], "10^-6 and CO2"),
    "an ordinal": ([("the 1", "", ""), ("st", "super", ""), (" day", "", "")], "the 1st day"),
    "links": ([("See ", "", ""), ("the ", "", A), ("site", "", A), (", or ", "", ""), ("a.org", "", A)], f"See the site ({A}), or a.org"),
    "a mail address": ([("Ask ", "", ""), ("Ada", "", "mailto:ada@x.org"), (".", "", "")], "Ask Ada (ada@x.org)."),
    "a place in the file": ([("Ask ", "", ""), ("Ada", "", "#ada"), (".", "", "")], "Ask Ada."),
}  # fmt: skip


@pytest.mark.parametrize("made", MAKERS)
@pytest.mark.parametrize(("runs", "text"), RUNS.values(), ids=RUNS)
def test_a_file_with(made: Callable[[Sequence[Run]], bytes], runs: list[Run], text: str) -> None:
    assert text_of(made(runs)) == text
