"""Text that is written into a file comes out of it again, in several scripts."""

from __future__ import annotations

import ctypes
import io
from collections.abc import Callable, Sequence
from email.message import EmailMessage
from html import escape
from importlib.util import find_spec
from pathlib import Path

import docx
import pypdfium2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pypdfium2 import raw

from tests.files import epub, rezipped, zipped
from tests.server.engine.documents.formats.reading import read

SCRIPTS = {
    "Latin": "abcdefghijkmnopqrstuvwxyzABCDEÉéüßøčŁñ",
    "Cyrillic": "абвгдежзийклмнопрстуфхцчшщъыьэюяЁё",
    "Greek": "αβγδεζηθικλμνξοπρσςτυφχψωΆΩ",
    "CJK": "日本語漢字道可常名無天地始萬物之母한국어의はカ",
    "Arabic": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي",
}
FONT = Path(str(find_spec("matplotlib").submodule_search_locations[0]), "mpl-data/fonts/ttf/DejaVuSans.ttf")  # type: ignore[union-attr, index]
Paragraphs = Sequence[str]
_LINES = 40
"""Lines of a page in a PDF."""


def paragraphs(script: str, more: str = "0123456789.,;:!?()&<>\"'") -> st.SearchStrategy[list[str]]:
    """Paragraphs of words with one space between them. Each word has a letter, so that none looks like markup."""
    letters = st.sampled_from(SCRIPTS[script])
    word = st.tuples(letters, st.text(st.sampled_from(SCRIPTS[script] + more), max_size=7)).map("".join)
    return st.lists(st.lists(word, min_size=1, max_size=6).map(" ".join), min_size=1, max_size=4)


def as_docx(texts: Paragraphs) -> bytes:
    made, out = docx.Document(), io.BytesIO()
    for text in texts:
        made.add_paragraph(text)
    made.save(out)
    return out.getvalue()


def as_odt(texts: Paragraphs) -> bytes:
    office, text = (f"urn:oasis:names:tc:opendocument:xmlns:{name}:1.0" for name in ("office", "text"))
    body = "".join(f"<text:p>{escape(each)}</text:p>" for each in texts)
    content = (
        f'<office:document-content xmlns:office="{office}" xmlns:text="{text}"><office:body><office:text>{body}'
        "</office:text></office:body></office:document-content>"
    )
    kind, manifest = "application/vnd.oasis.opendocument.text", "urn:oasis:names:tc:opendocument:xmlns:manifest:1.0"
    return zipped(
        {
            "mimetype": kind,
            "META-INF/manifest.xml": f'<m:manifest xmlns:m="{manifest}"><m:file-entry m:full-path="/" m:media-type="{kind}"/>'
            "</m:manifest>",
            "content.xml": content,
        }
    )


def as_html(texts: Paragraphs) -> bytes:
    return f"<!doctype html><meta charset=utf-8>{''.join(f'<p>{escape(text)}' for text in texts)}".encode()


def as_epub(texts: Paragraphs) -> bytes:
    return epub([f"<p>{escape(text)}</p>" for text in texts])


def as_rtf(texts: Paragraphs) -> bytes:
    def escaped(character: str) -> str:
        if character in "\\{}":
            return "\\" + character
        return character if character < "\x7f" else f"\\u{(ord(character) + 0x8000) % 0x10000 - 0x8000}?"

    body = "\\par\n".join("".join(map(escaped, text)) for text in texts)
    return f"{{\\rtf1\\ansi\\deff0{{\\fonttbl{{\\f0 Times;}}}}\\uc1\n{body}\\par\n}}".encode("ascii")


def as_xlsx(texts: Paragraphs) -> bytes:
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    related = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    packed = "http://schemas.openxmlformats.org/package/2006"
    rows = "".join(
        f'<row r="{n}"><c r="A{n}" t="inlineStr"><is><t>{escape(text)}</t></is></c></row>'
        for n, text in enumerate(texts, 1)
    )
    office = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    return zipped(
        {
            "[Content_Types].xml": f'<Types xmlns="{packed}/content-types"><Default Extension="rels" '
            'ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
            f'<Override PartName="/xl/workbook.xml" ContentType="{office}.sheet.main+xml"/>'
            f'<Override PartName="/xl/worksheets/sheet1.xml" ContentType="{office}.worksheet+xml"/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{packed}/relationships"><Relationship Id="r1" Type="{related}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{related}"><sheets><sheet name="S" sheetId="1" r:id="r1"/>'
            "</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{packed}/relationships"><Relationship Id="r1" '
            f'Type="{related}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
            "xl/worksheets/sheet1.xml": f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>',
        }
    )


def as_pptx(texts: Paragraphs) -> bytes:
    p, a = (f"http://schemas.openxmlformats.org/{name}/2006/main" for name in ("presentationml", "drawingml"))
    related = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    packed = "http://schemas.openxmlformats.org/package/2006/relationships"
    body = "".join(f"<a:p><a:r><a:t>{escape(text)}</a:t></a:r></a:p>" for text in texts)
    return zipped(
        {
            "ppt/presentation.xml": f'<p:presentation xmlns:p="{p}" xmlns:r="{related}"><p:sldIdLst><p:sldId id="256" r:id="r1"/>'
            "</p:sldIdLst></p:presentation>",
            "ppt/_rels/presentation.xml.rels": f'<Relationships xmlns="{packed}"><Relationship Id="r1" Type="{related}/slide" '
            'Target="slides/slide1.xml"/></Relationships>',
            "ppt/slides/slide1.xml": f'<p:sld xmlns:p="{p}" xmlns:a="{a}"><p:cSld><p:spTree><p:sp><p:txBody>{body}</p:txBody>'
            "</p:sp></p:spTree></p:cSld></p:sld>",
        }
    )


def as_eml(texts: Paragraphs) -> bytes:
    message = EmailMessage()
    message["From"], message["Subject"], message["MIME-Version"] = "a@example.org", "s", "1.0"
    message.set_content("\n\n".join(texts))
    return message.as_bytes()


def as_pdf(texts: Paragraphs) -> bytes:
    """A line of text for each paragraph, in a font with Latin, Greek and Cyrillic letters."""
    document, out, data = pypdfium2.PdfDocument.new(), io.BytesIO(), FONT.read_bytes()
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    font = raw.FPDFText_LoadFont(document, buffer, len(data), raw.FPDF_FONT_TRUETYPE, 1)
    for first in range(0, len(texts), _LINES):
        page = document.new_page(600, 800)
        for number, text in enumerate(texts[first : first + _LINES]):
            line = raw.FPDFPageObj_CreateTextObj(document, font, 11.0)
            words = ctypes.create_string_buffer((text + "\0").encode("utf-16-le"))
            raw.FPDFText_SetText(line, ctypes.cast(words, ctypes.POINTER(raw.FPDF_WCHAR)))
            raw.FPDFPageObj_Transform(line, 1, 0, 0, 1, 30, 770 - 18 * number)
            raw.FPDFPage_InsertObject(page, line)
        raw.FPDFPage_GenerateContent(page)
    document.save(out)
    return out.getvalue()


MADE: dict[str, Callable[[Paragraphs], bytes]] = {
    "docx": as_docx, "odt": as_odt, "html": as_html, "epub": as_epub, "rtf": as_rtf, "xlsx": as_xlsx, "pptx": as_pptx, "eml": as_eml,
}  # fmt: skip
HEAD = {"eml": ["From: a@example.org", "Subject: s"], "xlsx": ["S"]}
"""Lines that come before the paragraphs."""


def test_an_odt_without_its_manifest_is_read() -> None:
    data = rezipped(as_odt(["One."]), {"META-INF/manifest.xml": None})
    text, (note,) = read(data)
    assert text == "One."
    assert note.part == "META-INF/manifest.xml"


def test_pronunciation_in_an_odt_follows_its_word() -> None:
    ruby = "<text:ruby><text:ruby-base>東</text:ruby-base><text:ruby-text>とう</text:ruby-text></text:ruby>京"
    made = rezipped(as_odt(["HERE"]), {"content.xml": lambda name, data: (name, data.replace(b"HERE", ruby.encode()))})
    assert read(made) == ("東(とう)京", [])


def lines(text: str) -> list[str]:
    return [line for line in map(str.strip, text.splitlines()) if line]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", MADE)
def test_what_is_written_is_read(kind: str, script: str) -> None:
    @settings(max_examples=15, deadline=None)
    @given(paragraphs(script))
    def round_trip(texts: list[str]) -> None:
        text, notes = read(MADE[kind](texts), f"a.{kind}")
        assert lines(text) == [*HEAD.get(kind, []), *texts]
        assert notes == []

    round_trip()


@pytest.mark.parametrize("script", ["Latin", "Cyrillic", "Greek"])
def test_what_is_drawn_is_read(script: str) -> None:
    @settings(max_examples=15, deadline=None)
    @given(paragraphs(script, more="0123456789.,;:!?()").filter(lambda texts: max(map(len, texts)) > 3))
    def round_trip(texts: list[str]) -> None:
        texts = [text for text in texts if len(text) > 3]  # PDFium takes letters below each other for vertical writing
        assert lines(read(as_pdf(texts), "a.pdf")[0]) == texts

    round_trip()
