"""Files that look like files of another kind, files inside others, and parts that other readers drop."""

from __future__ import annotations

import gzip
import io
import tarfile

from tests import files
from tests.files import epub, pdf_lines, pdf_of, word_of, zipped
from tests.server.engine.documents.formats.reports import Report
from tests.server.engine.documents.formats.test_sheets import excel

TWO = {"one.pdf": files.pdf(["First file"]), "two.pdf": files.pdf(["Second file"])}
PAGE = '<html xmlns="http://www.w3.org/1999/xhtml"><body>%s</body></html>'


def tar(entries, link=False):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo("link")
            info.type, info.linkname = tarfile.SYMTYPE, "one.pdf"
            made.addfile(info)
    return out.getvalue()


def web(body):
    return f"<!doctype html><html><body>{body}</body></html>".encode()


def mail(head, body):
    return f"From: a@b\r\nSubject: s\r\nMIME-Version: 1.0\r\n{head}\r\n\r\n".encode() + body


def book(pages, items, spine, container=None):
    package = (
        f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>'
    )
    roots = container or '<rootfile full-path="a.opf"/>'
    return zipped(
        {
            "mimetype": "application/epub+zip",
            "META-INF/container.xml": f"<container>{roots}</container>",
            "a.opf": package,
        }
        | pages
    )


def item(name, kind="application/xhtml+xml"):
    return f'<item id="{name}" href="{name}" media-type="{kind}"/>'


FIGURE = [
    "<< /Type /StructTreeRoot /K [7 0 R] /ParentTree << /Nums [0 [8 0 R]] >> >>",
    "<< /Type /StructElem /S /Document /P 6 0 R /K [8 0 R] >>",
    "<< /Type /StructElem /S /Figure /P 7 0 R /Pg 4 0 R /K 0 /Alt (Rain in 1843) >>",
]
BODY = pdf_lines((72, 700, "Body words."))
LIST = (
    "<< /Type /Annot /Subtype /Widget /FT /Ch /Ff 2097152 /T (c) /Opt [[(r) (Red)] [(g) (Green)] [(b) (Blue)]] "
    "/V [(r) (b)] /Rect [10 10 100 30] >>"
)

REPORTS = [
    Report("zip-that-begins-with-a-pdf", "a.zip", zipped(TWO), ["First file", "Second file"], [], []),
    Report("tar-that-begins-with-a-pdf", "a.tar", tar(TWO, link=True), ["First file", "Second file"], [], ["links and devices"]),
    Report("pdf-after-a-printer-s-job", None, b"\x1b%-12345X@PJL JOB\r\n@PJL ENTER LANGUAGE=PDF\r\n" + TWO["one.pdf"], ["First file"], ["PJL"], []),
    Report("gz-cut-off", "a.txt.gz", gzip.compress(b"Words that can be read. " * 900)[:-12], ["can be read. Words"], [], ["the end of the file"]),
    Report("iso-2022-jp", "a.txt", "日本語のテキスト".encode("iso2022_jp"), ["日本語のテキスト"], [], ["iso2022_jp"]),
    Report("page-in-iso-2022-jp", "a.html", web("日本語").decode().encode("iso2022_jp"), ["日本語"], [], []),
    Report("cells-of-several-lines", "a.html",
        web("<table><tr><td><p>The left cell.</p><p>Its second line.</p></td><td>The right<br>cell.</td></tr></table>"),
        ["The left cell. Its second line. The right cell."], [], []),
    Report("code-of-several-lines", "a.html", web("<pre><code>def <b>f</b>():\n    return 1</code></pre><p>x</p>"), ["def f(): return 1"], [], []),
    Report("cells-without-a-row", "a.html", web("<table><td>c1<td>c2</table>"), ["c1 c2"], ["c1c2"], []),
    Report("words-between-cells", "a.html", web("<table>stray<tr><td>a</td>gap<td>b</td></tr></table>"), ["stray a gap b"], [], []),
    Report("tables-in-tables", "a.html",
        web("<table><tr><td>Menu<table><tr><td>in<td>side</table><td>The page</table>"), ["Menu in side The page"], ["Menuin"], []),
    Report("headings-in-a-table", "a.html", web("<table><tr><td><h1>Title</h1>One.</td><td><h2>More</h2>Two.</td></tr></table>"),
        ["Title One. More Two."], [], []),
    Report("a-wide-cell", "a.html", web(f"<table><tr><td>{'w' * 3000}<td>x</tr>{'<tr><td>a<td>b</tr>' * 50}</table>"), ["a b a b"], [" " * 100], []),
    Report("shadow-tree", "a.html", web("<x-y><template shadowrootmode=open><p>Shown words</p></template></x-y>"), ["Shown words"], [], []),
    Report("media-between-words", "a.html", web("<p>one<video></video>two</p>"), ["one two"], [], ["video"]),
    Report("entities-of-the-page", "a.xhtml",
        b'<?xml version="1.0"?><!DOCTYPE html [<!ENTITY who "Ann Lee"><!ENTITY a "&who;&who;">]>' + (PAGE % "<p>&who; left. &a;</p>").encode(),
        ["Ann Lee left."], ["]>", "ENTITY"], []),
    Report("page-that-is-svg", "a.epub",
        book({"a.svg": '<svg xmlns="http://www.w3.org/2000/svg"><text>Drawn words</text></svg>', "b.xhtml": PAGE % "<p>Words</p>"},
            item("a.svg", "image/svg+xml") + item("b.xhtml"), '<itemref idref="a.svg"/><itemref idref="b.xhtml"/>'),
        ["Drawn words", "Words"], [], []),
    Report("two-versions-of-a-book", "a.epub",
        book({"a.xhtml": PAGE % "<p>One</p>", "b.opf": "<package/>"}, item("a.xhtml"), '<itemref idref="a.xhtml"/>',
            '<rootfile full-path="a.opf"/><rootfile full-path="b.opf"/>'),
        ["One"], [], ["another version of the book"]),
    Report("book-in-a-zip", "a.zip", zipped({"a.epub": epub(["<p>Chapter words</p>"]), "b.zip": zipped({"c.txt": "Deep words"})}),
        ["Chapter words", "Deep words"], [], []),
    Report("formula-of-another-cell", "a.xlsx",
        excel('<sheetData><row r="1"><c r="A1"><f t="shared" ref="A1:A2" si="0">B1*2</f></c></row><row r="2"><c r="A2">'
            '<f t="shared" si="0"/></c></row></sheetData>'),
        ["=B1*2"], [], ["formulas without a saved value (1)"]),
    Report("list-of-sheets-damaged", "a.xlsx",
        excel("", parts={"xl/_rels/workbook.xml.rels": "<", "xl/worksheets/sheet1.xml":
            '<worksheet><sheetData><row><c t="inlineStr"><is><t>Cell words</t></is></c></row></sheetData></worksheet>'}),
        ["Cell words"], [], ["the file does not refer to it"]),
    Report("title-of-a-drawing", "a.docx",
        word_of('<w:p><w:r><w:drawing><wp:inline xmlns:wp="http://schemas.openxmlformats.org/drawingml/2006/wordprocessingDrawing">'
            '<wp:docPr id="1" name="P" title="A red boat"/></wp:inline></w:drawing></w:r></w:p>'),
        ["[A red boat]"], [], []),
    Report("character-of-a-field", "a.rtf",
        rb'{\rtf1 A{\field{\*\fldinst SYMBOL 97 \\f "Symbol" \\s 12}{\fldrslt }}B {\field{\*\fldinst { PAGE }}{\fldrslt 7}} '
        rb"{\field{\*\fldinst SYMBOL 0x2022 \\u}{\fldrslt }}}",
        ["A\u03b1B 7 \u2022"], ["PAGE", "SYMBOL"], []),
    Report("choices-in-a-form", "a.pdf",
        pdf_of(BODY, page="/Annots [6 0 R]", catalog="/AcroForm << /Fields [6 0 R] >>", objects=[LIST]), ["Red, Blue"], ["Green"], []),
    Report("description-of-a-figure", "a.pdf",
        pdf_of(f"{BODY} /Figure << /MCID 0 >> BDC 10 10 50 50 re f EMC", page="/StructParents 0",
            catalog="/MarkInfo << /Marked true >> /StructTreeRoot 6 0 R", objects=FIGURE),
        ["Body words. [Rain in 1843]"], [], []),
    Report("mail-in-utf-7", "a.eml", mail("Content-Type: text/plain; charset=utf-7", b"caf+AOk-"), ["caf\u00e9"], [], []),
    Report("mail-with-a-file-elsewhere", "a.eml",
        mail("Content-Type: multipart/mixed; boundary=B",
            b"--B\r\nContent-Type: text/plain\r\n\r\nWords\r\n--B\r\nContent-Type: message/external-body; access-type=URL\r\n\r\n"
            b"Content-Type: text/plain\r\n\r\n--B--\r\n"),
        ["Words"], [], ["refers to a file elsewhere"]),
    Report("saved-page-with-frames", "a.mht",
        b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=B\r\n\r\n--B\r\nContent-Type: text/html\r\n\r\n"
        b"<html><p>Outer</p><iframe src='cid:f'></iframe></html>\r\n--B\r\nContent-Type: text/html\r\nContent-ID: <f>\r\n\r\n"
        b"<html><p>In a frame</p></html>\r\n--B--\r\n",
        ["Outer", "In a frame"], [], []),
]  # fmt: skip
