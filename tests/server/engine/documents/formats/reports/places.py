"""Parts in places where few readers look for them, and what programs leave open."""

from __future__ import annotations

import io
import zipfile

from tests.files import pdf_lines, pdf_of, word, word_of
from tests.server.engine.documents.formats.reports import Report
from tests.server.engine.documents.formats.reports.mixed import web
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.word_parts import p


def in_a_folder(data: bytes) -> bytes:
    """Return a ZIP file whose entries are in a folder, as Finder packs the folder of an unpacked file."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as plain, zipfile.ZipFile(out, "w") as made:
        made.writestr("My file/", "")
        made.writestr("__MACOSX/._x", b"\0")
        for name in plain.namelist():
            made.writestr(f"My file/{name}", plain.read(name))
    return out.getvalue()


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def field(instruction: str, result: str | None = None) -> str:
    """Return a field whose instruction may have fields."""
    ends = [f'<w:r><w:fldChar w:fldCharType="{kind}"/></w:r>' for kind in ("begin", "separate", "end")]
    shown = "" if result is None else ends[1] + run(result)
    return ends[0] + instruction + shown + ends[2]


def code(text: str) -> str:
    return f'<w:r><w:instrText xml:space="preserve">{text}</w:instrText></w:r>'


BOOK = """<?xml version="1.0" encoding="windows-1251"?>
<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0" xmlns:l="http://www.w3.org/1999/xlink"><description><title-info>
<author><first-name>Анна</first-name><last-name>Ли</last-name></author><book-title>The Rent</book-title></title-info></description><body>
<section><title><p>Глава 1</p></title><p>First <emphasis>words</emphasis><a l:href="#n1" type="note">[1]</a>.</p><poem><stanza><v>One</v><v>Two</v>
</stanza></poem><table><tr><td>a</td><td>b</td></tr></table><image l:href="#x"/></section></body><body name="notes"><section id="n1"><title><p>1</p>
</title><p>A note.</p></section></body><binary id="x" content-type="image/png">iVBORw0KGgo=</binary></FictionBook>""".encode(
    "cp1251"
)
CONDITION = field(code(" IF ") + field(code(" MERGEFIELD x "), "Ann") + code(' = "Ann" "yes" "no" '), "Dear Ann")
GAP = (
    b"Subject: S\r\nFrom: a@b.c\r\n\r\n\r\nContent-type: multipart/related; Boundary=A\r\n\r\n--A\r\nContent-transfer-encoding: quoted-printable\r\n"
    b"Content-type: text/plain; charset=ISO-8859-1\r\n\r\ncaf=E9\r\n--A--\r\n"
)

REPORTS = [
    Report("field-in-a-field", "a.docx", word_of(f"<w:p>{CONDITION}{run(' writes')}</w:p>"), ["Dear Ann writes"], ["AnnDear"], []),
    Report("field-that-never-ends", "a.docx", word_of(f"<w:p>{field(code(' DATE ')).rpartition('<w:r>')[0]}{run('Words')}</w:p>{p('After')}"), ["Words After"], [], []),
    Report("runs-outside-of-paragraphs", "a.docx", word_of(f"{run('Loo')}{run('se words')}{p('Others')}"), ["Loose words Others"], [], []),
    Report("runs-outside-of-paragraphs-in-a-cell", "a.docx", word_of(f"<w:tbl><w:tr><w:tc>{run('Loose words')}</w:tc></w:tr></w:tbl>"), ["Loose words"], [], []),
    Report("word-file-in-a-folder", "a.docx", in_a_folder(word(("Normal", "The words"))), ["The words"], ["[File]"], []),
    Report("odt-in-a-folder", "a.odt", in_a_folder(odf("<text:p>The words</text:p>")), ["The words"], ["[File]", "<"], []),
    Report("note-of-two-paragraphs", "a.odt", odf(
        '<text:p>Rent<text:note text:note-class="footnote"><text:note-citation>1</text:note-citation><text:note-body><text:p>First<text:s/>words.</text:p>'
        "<text:p>Second words.</text:p></text:note-body></text:note> is due.</text:p>"
    ), ["Rent[1] is due. [Footnote 1] First words. Second words."], [], []),
    Report("fictionbook", "a.fb2", BOOK,
        ["The Rent Анна Ли Глава 1 First words[1]. One Two a b [Footnote 1] A note."], ["<"], ["left out: pictures (1)", "footnotes follow"]),
    Report("page-for-browsers-without-frames", "a.html", b"<html><frameset><frame src=a><noframes><body><p>Frame words</p></body></noframes></frameset></html>",
        ["Frame words"], ["<"], []),
    Report("title-that-never-ends", "a.html", b"<html><head><title>Lease</head><body><p>Words</p></body></html>", ["Lease Words"], ["<"], []),
    Report("links-of-a-menu", "a.html", web("<nav><a href=a>Home</a><a href=b>Rents</a></nav>"), ["Home Rents"], [], []),
    Report("labels-of-a-drawing", "a.html", web("<svg><text>0</text><text>10</text><text><tspan x=1 y=2>Rent</tspan><tspan x=1 y=3>paid</tspan></text></svg>"),
        ["0 10 Rent paid"], [], []),
    Report("field-after-the-fields-of-a-message", "a.eml", GAP, ["café"], ["--A"], []),
    Report("lines-from-the-bottom-to-the-top", "a.pdf", pdf_of(pdf_lines((72, 600, "Third"), (72, 650, "Second"), (72, 700, "First"))), ["First Second Third"], [], []),
    Report("turned-lines", "a.pdf",
        pdf_of("".join(f"BT /F1 12 Tf -1 0 0 -1 500 {y} Tm ({words}) Tj ET " for y, words in ((100, "First"), (120, "Second"), (140, "Third"))), page="/Rotate 180"),
        ["First Second Third"], [], []),
]  # fmt: skip
