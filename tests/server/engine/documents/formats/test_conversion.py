"""PDF, Word, EPUB and HTML become text with pages and sections; what cannot be read is refused with the reason."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PIL import Image, ImageDraw, ImageFont

from everlong_server.engine.documents.formats import catalogue, conversion, worker
from everlong_server.engine.documents.formats.blocks import MAX_NOTES, Block, Notes
from everlong_server.errors import InvalidRequest, TooLarge, UnsupportedMedia
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.outline import OutlineEntry, at
from tests import files
from tests.process import Server
from tests.server.engine.documents.formats.reports.opendocument import odf

MADE = Path(__file__).parents[4] / "data" / "formats"
HTML = """<!DOCTYPE html><html><head><title>t</title><style>p { color: red }</style></head><body>
<p>Before — it began.</p><h1>The <em>Müller</em></h1><p>He had a blue cat.</p><script>alert("no")</script>
<ul><li>one<li>two</ul><h2>日本</h2><p>The cat left&hellip;</p></body></html>"""


@pytest.fixture
def converted(tmp_path: Path) -> Callable[..., tuple[str, str, list[OutlineEntry]]]:
    """Convert bytes and return their format, text and outline."""

    def convert(data: bytes, limit: int = 1 << 20) -> tuple[str, str, list[OutlineEntry]]:
        (tmp_path / "in").write_bytes(data)
        kind = catalogue.detect(data[: catalogue.HEAD])
        assert kind is not None
        made = conversion.convert(tmp_path / "in", kind, tmp_path / "out", limit)
        return made.format, (tmp_path / "out").read_text("utf-8"), made.outline

    return convert


def scanned(words: str) -> bytes:
    """Return a picture of words, as PNG."""
    page, out = Image.new("L", (400, 120), 255), io.BytesIO()
    ImageDraw.Draw(page).text((40, 40), words, font=ImageFont.load_default(28), fill=0)
    page.save(out, "PNG")
    return out.getvalue()


def under(text: str, marks: list[OutlineEntry]) -> Iterator[tuple[int | str | None, str]]:
    """Return the page or section of each outline entry, and its text."""
    for mark, after in zip(marks, [*marks[1:], OutlineEntry(len(text))], strict=True):
        yield mark.page or mark.section, text[mark.start : after.start].strip()


def test_a_pdfs_pages(converted: Callable) -> None:
    made_of, text, marks = converted(files.pdf(["The first page.", "", "The third page \\(last\\)."]))
    assert made_of == "pdf"
    assert text == "The first page.\n\nThe third page (last)."
    assert list(under(text, marks)) == [(1, "The first page."), (3, "The third page (last).")]


def test_the_printed_numbers_of_pages(converted: Callable) -> None:
    labels = "/PageLabels << /Nums [0 << /S /r >> 2 << /S /D >>] >>"
    data = files.pdf(["Preface.", "More.", "Chapter."]).replace(b"/Type /Catalog", f"/Type /Catalog {labels}".encode())
    _, _, marks = converted(data)
    assert [(mark.page, mark.section) for mark in marks] == [(1, "page i"), (2, "page ii"), (3, "page 1")]


def test_a_word_files_headings_and_tables(converted: Callable) -> None:
    data = files.word(
        ("Title", "Größe"), ("Normal", "By nobody."), ("Heading 1", "One"), ("table", "a|b"), ("Normal", ""), ("Normal", "日本 end.")
    )  # fmt: skip
    made_of, text, marks = converted(data)
    assert made_of == "docx"
    assert text == "Größe\n\nBy nobody.\n\nOne\n\na\tb\n\n日本 end."
    assert list(under(text, marks)) == [("Größe", "Größe\n\nBy nobody."), ("One", "One\n\na\tb\n\n日本 end.")]


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def cell(*blocks: str, columns: int = 1) -> str:
    return f'<w:tc><w:tcPr><w:gridSpan w:val="{columns}"/></w:tcPr>{"".join(blocks)}</w:tc>'


def paragraph(*parts: str) -> str:
    return f"<w:p>{''.join(parts)}</w:p>"


def table(*rows: str) -> str:
    return "<w:tbl><w:tblPr/><w:tblGrid/>" + "".join(f"<w:tr>{row}</w:tr>" for row in rows) + "</w:tbl>"


HELD = {
    "inserted": (paragraph(run("Paid "), f"<w:ins>{run('not ')}</w:ins>", run("yet.")), "Paid not yet."),
    "moved": (paragraph(f"<w:moveTo>{run('here')}</w:moveTo><w:moveFrom>{run('there')}</w:moveFrom>"), "here"),
    "deleted": (paragraph(run("Here."), "<w:del><w:r><w:delText>Gone.</w:delText></w:r></w:del>"), "Here."),
    "control": (f"<w:sdt><w:sdtContent>{paragraph(run('In a box.'))}</w:sdtContent></w:sdt>", "In a box."),
    "inline control": (paragraph(run("By "), f"<w:sdt><w:sdtContent>{run('Ada')}</w:sdtContent></w:sdt>"), "By Ada"),
    "tag": (paragraph(f'<w:smartTag w:element="city">{run("Ulm")}</w:smartTag>', run(" burns.")), "Ulm burns."),
    "field": (paragraph(run("Page "), f'<w:fldSimple w:instr="PAGE">{run("3")}</w:fldSimple>'), "Page 3"),
    "signs": (
        "<w:p><w:pPr><w:tabs><w:tab/></w:tabs></w:pPr><w:r><w:t>a</w:t><w:tab/><w:t>b</w:t><w:br/><w:t>c</w:t></w:r></w:p>",
        "a\tb\nc",
    ),
    "merged": (table(cell(paragraph(run("wide")), columns=3), cell(*[paragraph(run(c)) for c in "ab"])), "wide\na\nb"),
    "nested": (table(cell(paragraph(run("a")), table(cell(paragraph(run("b"))) * 2), paragraph()) * 2), "a b b\ta b b"),
    "inserted row": (table(f"<w:ins>{cell(paragraph(run('a')))}</w:ins>"), "a"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), HELD.values(), ids=HELD)
def test_the_text_of_a_word_file_in_any_element(converted: Callable, body: str, text: str) -> None:
    assert (
        converted(files.word_of(paragraph(run("One.")) + body + paragraph(run("Two."))))[1] == f"One.\n\n{text}\n\nTwo."
    )


def test_a_books_chapters_in_the_order_of_reading(converted: Callable) -> None:
    made_of, text, marks = converted(
        files.epub(["<h1>Zwölf</h1><p>Once upon a time.</p>", "<p>No heading — here.</p>"])
    )
    assert made_of == "epub"
    assert text == "Zwölf\n\nOnce upon a time.\n\nNo heading — here."
    assert list(under(text, marks)) == [("Zwölf", text)]


def test_a_book_with_hidden_fonts_is_read(converted: Callable) -> None:
    assert converted(files.epub(["<p>Here.</p>"], encrypted=["OEBPS/fonts/Minion.otf"]))[1] == "Here."


def test_a_page_is_laid_out_and_its_scripts_and_styles_are_no_text(converted: Callable) -> None:
    made_of, text, marks = converted(HTML.encode())
    assert made_of == "html"
    assert text.startswith("Before — it began.")
    assert "alert" not in text
    assert "color" not in text
    assert "* one\n  * two" in text
    (miller, under_him), (japan, last) = under(text, marks)
    assert (miller, japan) == ("The Müller", "日本")
    assert under_him.startswith("The Müller")
    assert "blue cat" in under_him
    assert last.endswith("The cat left…")


PAGES = [
    ("".join(f"<p><font color=red>Paragraph {i}.\n" for i in range(400)) + "<p>The end.", "Paragraph 399.", 1 << 20),
    ("<div>" * 300 + "Inner words." + "</div>" * 300 + "<p>The end.</p>", "Inner words.", 1 << 20),
    ("<h1>Log</h1><pre>" + "a line of a log\n" * 700_000 + "</pre><p>The end.</p>", "a line of a log", 1 << 25),
]


@pytest.mark.parametrize(("body", "words", "limit"), PAGES, ids=["unclosed", "deep", "long"])
@pytest.mark.parametrize("made", [lambda body: f"<html><body>{body}".encode(), lambda body: files.epub([body])])
def test_nothing_of_a_page_is_left_out(
    converted: Callable, made: Callable[[str], bytes], body: str, words: str, limit: int
) -> None:
    _, text, _ = converted(made(body), limit)
    assert words in text
    assert text.endswith("The end.")


def encoded(said: str, encoding: str) -> bytes:
    return f"<html><head>{said}</head><body><p>Café “наш”</p></body></html>".encode(encoding, "xmlcharrefreplace")


@pytest.mark.parametrize(
    "data",
    [
        encoded("", "utf-8"),
        encoded('<script charset="utf-8" src="a.js"></script>', "utf-8"),
        encoded("<meta name=description content='What a charset is'>", "utf-8"),
        encoded("<meta charset=iso-8859-1>", "utf-8"),
        encoded("<meta charset=iso-8859-1>", "windows-1252"),
        encoded('<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">', "windows-1251"),
        encoded("<meta charset=iso-2022-jp>", "iso-2022-jp"),
        b'<?xml version="1.0" encoding="windows-1251"?>' + encoded("", "windows-1251"),
    ],
)
def test_a_page_is_read_in_its_encoding(converted: Callable, data: bytes) -> None:
    assert converted(data)[1] == "Café “наш”"
    assert converted(files.epub([data]))[1] == "Café “наш”"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_chapter_is_read_in_its_encoding(converted: Callable, encoding: str) -> None:
    assert converted(files.epub([encoded("", encoding)]))[1] == "Café “наш”"


def test_a_page_without_an_encoding_is_read_as_far_as_possible(converted: Callable) -> None:
    assert converted("<html><meta charset=none><p>日本 ".encode() + b"\xff!")[1] == "日本 �!"


@pytest.mark.parametrize("tag", [b"div", b"b", b"ul", b"table"])
def test_a_page_that_is_nested_too_deep_keeps_its_words(converted: Callable, tag: bytes) -> None:
    """Deeper than lxml's parser and inscriptis go, in the process with its usual stack."""
    for depth in (1500, 20_000):
        assert converted(b"<html>" + b"<%b>" % tag * depth + b"words")[1] == "words"


@pytest.mark.parametrize("depth", [1000, 20_000])
def test_a_word_file_that_is_nested_too_deep_keeps_what_it_can(converted: Callable, depth: int) -> None:
    nested = "<w:sdt><w:sdtContent>" * depth + paragraph(run("Deep.")) + "</w:sdtContent></w:sdt>" * depth
    text = converted(files.word_of(paragraph(run("Before.")) + nested))[1]
    assert text == ("Before.\n\nDeep." if depth == 1000 else "Before.")


def test_text_is_not_taken_for_a_page() -> None:
    assert catalogue.detect(b"<p>html, some would say</p>") is None
    assert catalogue.detect(b"How to write <html>") is None
    assert catalogue.detect(b'\xef\xbb\xbf\n<?xml version="1.0"?><html xmlns="x">') == "html"
    assert catalogue.detect(b'<?xml version="1.0"?><tei>') is None


def test_a_position_is_in_the_last_section_that_begins_before_it() -> None:
    marks = [OutlineEntry(3, page=1), OutlineEntry(10, page=2)]
    assert [mark and mark.page for mark in (at(marks, place) for place in (0, 3, 9, 10, 99))] == [None, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (files.pdf(["", ""]), InvalidRequest, "^the document: there is no text in it .the page has drawings"),
        (files.encrypted_pdf(), InvalidRequest, "^the PDF is encrypted: upload it without a password$"),
        (files.pdf(["x"])[:60], InvalidRequest, "^the PDF is damaged$"),
        (files.epub(["<p>x</p>"], encrypted=["OEBPS/text/chapter%200.xhtml"]), InvalidRequest, "encrypted"),
        (files.epub([]), InvalidRequest, "there is no text in it"),
        (b"PK\3\4" + bytes(40), InvalidRequest, "damaged ZIP file"),
        (
            files.word(("Normal", "x")).replace(b"PK\1\2\x14\3\x14", b"PK\1\2\x14\3\x64"),
            InvalidRequest,
            "damaged ZIP file",
        ),
        (files.zipped({"word/document.xml": "<broken"}), InvalidRequest, "there is no text in it"),
        (files.zipped({"a.bin": "\0"}), InvalidRequest, "there is no text in it"),
        (files.word(("Normal", "x" * 300)), TooLarge, "more than 200 bytes"),
        (files.bomb(4 << 20), TooLarge, "more than 200 bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_read_is_refused_with_the_reason(
    converted: Callable, data: bytes, error: type[Exception], words: str
) -> None:
    assert len(data) < 100_000
    with pytest.raises(error, match=words):
        converted(data, limit=200)


def test_nothing_that_a_file_refers_to_is_read(converted: Callable, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("password")
    entity = f'<!DOCTYPE r [<!ENTITY e SYSTEM "file://{tmp_path}/secret">]>'
    container = entity + '<container><rootfiles><rootfile full-path="&e;"/></rootfiles></container>'
    with pytest.raises(InvalidRequest, match="cannot be read"):
        converted(files.zipped({"META-INF/container.xml": container}))
    page = f'<html>{entity}<body>&e; here <img src="file://{tmp_path}/secret"></body></html>'
    assert "password" not in converted(b"<!doctype html>" + page.encode())[1]


def test_a_zip_files_entries_are_read_by_the_process_that_has_limits(converted: Callable) -> None:
    data = files.zipped({f"{n}": "" for n in range(20_000)})
    tracemalloc.start()
    try:
        with pytest.raises(InvalidRequest, match="there is no text in it"):
            converted(data)
        assert tracemalloc.get_traced_memory()[1] < len(data)
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_a_conversion_has_limits(converted: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequest, match=r"takes more than (2048 MiB of memory|15 seconds)"):
        converted(files.bomb(1 << 30), limit=1 << 40)
    monkeypatch.setattr(conversion, "SECONDS", 0)
    monkeypatch.setattr(conversion, "is_installed", lambda: False)  # recognising text would get more time
    with pytest.raises(InvalidRequest, match="takes too long"):
        converted(files.pdf(["x"]))


def test_an_outline_and_notes_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_MAX_OUTLINE", 3)
    notes, text = Notes(lambda *_: None), io.StringIO()
    outline = worker._write((Block(f"Words {n}", section=str(n)) for n in range(9)), notes, text, 1000)
    assert [entry.section for entry in outline] == ["0", "1", "2"]
    assert text.getvalue().endswith("Words 8")
    assert [note.text for note in notes.all()] == ["only the first 3 pages and sections can be named in evidence"]
    for n in range(1000):
        notes.left_out(f"things {n} {'x' * 1000}")
    assert len(notes.all()) <= 2 * MAX_NOTES + 2
    assert max(len(note.text) for note in notes.all()) < 300


@pytest.mark.long
def test_a_conversion_that_is_killed_leaves_no_files(
    converted: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(conversion, "SECONDS", 2)
    with pytest.raises(InvalidRequest, match="seconds"):
        converted(files.zipped({"a.html": "<html>" + "<p>words" * 4_000_000}))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_a_full_disk_is_no_fault_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(files.pdf(["A page."]))
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        conversion.convert(tmp_path / "in", "pdf", Path("/dev/full"), 1 << 20)


def test_without_the_libraries_the_error_says_how_to_install_them(
    converted: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedMedia, match=r"pip install 'everlong\[formats\]'"):
        converted(files.pdf(["x"]))


def test_evidence_names_the_page(new_server: Callable[..., Server]) -> None:
    server = new_server()
    server.start()
    # Each page is a sentence, and as long as a passage.
    pages = [
        f"The {colour} lighthouse keeper mended nets" + " and nets" * 40 + "." for colour in ("red", "green", "blue")
    ]
    answer = server.http.post("/v1/documents", files={"file": ("keeper.pdf", files.pdf(pages), "application/pdf")})
    document = server.wait_read(answer.json()["id"])
    assert (document["format"], document["filename"]) == ("pdf", "keeper.pdf")
    assert document["bytes"] == len("\n\n".join(pages))
    session = server.http.post("/v1/sessions", json={"documents": [document["id"]]}).json()
    question = {"content": "Who is the blue keeper?", "max_tokens": 1, "recall": {"passages": 1, "tokens": 60}}
    message = server.http.post(f"/v1/sessions/{session['id']}/messages", json=question).json()
    (passage,) = message["evidence"]
    assert "blue" in passage["text"]
    assert (passage["page"], passage.get("section")) == (3, None)
    server.http.delete(f"/v1/documents/{document['id']}")
    assert [path.name for path in (server.data / "documents").iterdir()] == [Blobs.STORE_ID_FILE]


@pytest.mark.long
def test_the_server_lists_its_formats(server: Server) -> None:
    """It reads every format that it lists."""
    answer = server.http.get("/v1/formats").json()
    samples = {
        "text": b"Plain.",
        "pdf": files.pdf(["A page."]),
        "docx": files.word(("Normal", "A line.")),
        "vsdx": files.visio("A line."),
        "iwork": files.zipped({"Index/Document.iwa": b"\0", "QuickLook/Preview.pdf": files.pdf(["A page."])}),
        "epub": files.epub(["<p>A chapter.</p>"]),
        "fb2": b"<FictionBook><body><section><p>A chapter.</p></section></body></FictionBook>",
        "html": HTML.encode(),
        "msg": files.outlook("A subject", "A line."),
        "tnef": files.tnef("A subject", {(0x1000, 0x1E): b"A line."}),
        "eml": b"Subject: a\r\n\r\nA line.",
        "mhtml": b"MIME-Version: 1.0\r\nContent-Type: text/html\r\n\r\n<p>A line.",
        "zip": files.zipped({"a.txt": "A line."}),
        "tar": gzip.compress(b"A line."),
        "image": scanned("A line."),
        "ipynb": b'{"cells": [{"cell_type": "markdown", "metadata": {}, "source": "A line."}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}',
        "odg": odf(
            "<draw:page><draw:rect><text:p>A line.</text:p></draw:rect></draw:page>",
            "drawing",
            mimetype="application/vnd.oasis.opendocument.graphics",
        ),
        "ppt": lzma.decompress((MADE / "libreoffice.ppt.xz").read_bytes()),
    } | {
        path.suffix[1:]: path.read_bytes()
        for path in MADE.glob("libreoffice.*")
        if path.suffix[1:] not in ("xz", "pdf", "docx", "epub", "xhtml")
    }
    samples |= {"pptx": (MADE / "python-pptx.pptx").read_bytes(), "xlsx": (MADE / "openpyxl.xlsx").read_bytes()}
    assert {each["id"] for each in answer["data"]} == set(samples)
    for each in answer["data"]:
        for name in each["extensions"]:
            got = server.http.post(
                "/v1/documents", content=samples[each["id"]], params={"filename": f"a{name}"},
                headers={"content-type": each["media_types"][0].replace("*", "plain")},
            )  # fmt: skip
            assert got.status_code == 202, got.text
            assert got.json()["format"] == (None if each["id"] == "text" else each["id"])
    assert answer["max_bytes"] == 4 << 30


def test_without_the_packages_only_text_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name != "pypdfium2" else object())
    assert [id for id, *_ in catalogue.accepted_formats()] == ["text", "pdf", "iwork"]
