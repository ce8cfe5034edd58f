"""What programs write by mistake, or seldom: references that XML does not know, parts that nothing names, fields without a result."""

from __future__ import annotations

import io
import tarfile

from tests import files
from tests.files import rezipped, word_of, zipped
from tests.server.engine.documents.formats.reports import Report
from tests.server.engine.documents.formats.reports.mixed import PAGE, book, item, web
from tests.server.engine.documents.formats.reports.opendocument import odf
from tests.server.engine.documents.formats.reports.word_parts import p
from tests.server.engine.documents.formats.test_sheets import MAIN, excel, words


def replaced(data: bytes, part: str, new: bytes) -> bytes:
    """Return a ZIP file with other bytes in place of "XX" in one part."""
    return rezipped(data, {part: lambda name, content: (name, content.replace(b"XX", new))})


def field(instruction: str) -> bytes:
    runs = "".join(
        f"<w:r>{run}</w:r>"
        for run in (
            '<w:t xml:space="preserve">A </w:t>', '<w:fldChar w:fldCharType="begin"/>',
            f'<w:instrText xml:space="preserve">{instruction}</w:instrText>', '<w:fldChar w:fldCharType="end"/>', "<w:t>Z</w:t>",
        )
    )  # fmt: skip
    return word_of(f"<w:p>{runs}</w:p>")


def cell(code: str, value: str) -> bytes:
    styles = (
        f'<styleSheet {MAIN}><numFmts><numFmt numFmtId="170" formatCode="{code}"/></numFmts>'
        '<cellXfs><xf numFmtId="170"/></cellXfs></styleSheet>'
    )
    return excel(f'<c r="A1" s="0"><v>{value}</v></c>', parts={"xl/styles.xml": styles})


def old_tar() -> bytes:
    """Return a tar archive without the mark of POSIX."""
    info, out = tarfile.TarInfo("a.txt"), io.BytesIO()
    info.size = 5
    header = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    header[257:265] = bytes(8)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    out.write(bytes(header) + b"Words".ljust(512, b"\0") + bytes(1024))
    return out.getvalue()


def mail(plain: str, page: str) -> bytes:
    parts = "".join(
        f"--B\r\nContent-Type: text/{kind}\r\n\r\n{text}\r\n" for kind, text in (("plain", plain), ("html", page))
    )
    return f"From: a@b.c\r\nMIME-Version: 1.0\r\nContent-Type: multipart/alternative; boundary=B\r\n\r\n{parts}--B--\r\n".encode()


FIRST, SECOND = PAGE % "<p>First words</p>", PAGE % "<p>Second words</p>"
TWO = {"a.xhtml": FIRST, "b.xhtml": SECOND}
LEASE = '<aside epub:type="footnote" id="n" hidden="hidden"><p>Except in August</p></aside>'
CHOICE = (
    '<w:p><w:r><mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006">%s'
    "<mc:Fallback><w:t>Words for others</w:t></mc:Fallback></mc:AlternateContent></w:r></w:p>"
)
INITIAL = '<w:p><w:pPr><w:framePr w:dropCap="drop" w:lines="3"/></w:pPr><w:r><w:t>O</w:t></w:r></w:p>'
DOCUMENT, SHEET = "word/document.xml", "xl/worksheets/worksheet.xml"
PREFIXED = (
    b'<?xml version="1.0"?><h:html xmlns:h="http://www.w3.org/1999/xhtml"><h:head><h:style>p{}</h:style></h:head>'
    b"<h:body><h:p>One</h:p><h:p>Two</h:p></h:body></h:html>"
)
FORM = rb"{\*\formfield{\fftype%s\ffres25\ffdefres1%s}}"

REPORTS = [
    Report("ampersand-in-a-word-file", "a.docx", replaced(word_of(p("XX costs") + p("After")), DOCUMENT, b"R&D"), ["R&D costs", "After"], [], ["repaired"]),
    Report("entity-in-a-word-file", "a.docx", replaced(word_of(p("beXXfore") + p("After")), DOCUMENT, b"&nbsp;"), ["be fore", "After"], [], ["repaired"]),
    Report("control-in-a-word-file", "a.docx", replaced(word_of(p("beXXfore")), DOCUMENT, b"\x0b&#x1F;"), ["before"], [], ["repaired"]),
    Report("ampersand-in-a-sheet", "a.xlsx", replaced(excel(words("A1", "XX costs") + words("B1", "after")), SHEET, b"R&D"), ["R&D costs after"], [], ["damaged"]),
    Report("ampersand-in-an-odt", "a.odt", odf("<text:p>R&D costs</text:p><text:p>After</text:p>"), ["R&D costs", "After"], [], ["repaired"]),
    Report("ampersand-in-the-package-of-a-book", "a.epub", book({"a&b.xhtml": FIRST}, item("a&b.xhtml"), '<itemref idref="a&b.xhtml"/>'), ["First words"], [], []),
    Report("remark-inside-a-word", "a.docx", word_of("<w:p><w:r><w:t>one<!-- c -->two</w:t></w:r></w:p>"), ["onetwo"], [], []),
    Report("large-first-letter", "a.docx", word_of(INITIAL + p("nce upon a time")), ["Once upon a time"], [], []),
    Report("large-first-letter-of-rtf", "a.rtf", rb"{\rtf1 {\pard\dropcapli3\dropcapt1 O\par}{\pard nce upon a time\par}}", ["Once upon a time"], [], []),
    Report("symbol-field", "a.docx", field(' SYMBOL 97 \\f "Symbol" '), ["A αZ"], [], []),
    Report("prompt-field", "a.docx", field(" MACROBUTTON NoMacro [Click here] "), ["A [Click here]Z"], ["MACRO"], []),
    Report("quote-field", "a.docx", field(' QUOTE "Quoted words" '), ["A Quoted wordsZ"], [], []),
    Report("equation-field", "a.docx", field(r" EQ \f(1,2) "), ["A Z"], [], ["equations in fields (1)"]),
    Report("words-for-old-programs-alone", "a.docx", word_of(CHOICE % '<mc:Choice Requires="zz"/>'), ["Words for others"], [], []),
    Report("words-for-new-and-old-programs", "a.docx",
        word_of(CHOICE % '<mc:Choice Requires="wps"><w:t>Words for new ones</w:t></mc:Choice>'), ["Words for new ones"], ["for others"], []),
    Report("list-in-a-form-of-rtf", "a.rtf", rb"{\rtf1 {\field{\*\fldinst FORMDROPDOWN " + FORM % (b"2", rb"{\*\ffl Red}{\*\ffl Blue}") + rb"}{\fldrslt }}x}", ["Bluex"], ["Red"], []),
    Report("box-in-a-form-of-rtf", "a.rtf", rb"{\rtf1 {\field{\*\fldinst FORMCHECKBOX " + FORM % (b"1", b"") + rb"}{\fldrslt }} Paid}", ["[x] Paid"], [], []),
    Report("equation-of-a-flat-odt", "a.odt",
        odf('<text:p>x <draw:frame><draw:object><math xmlns="http://www.w3.org/1998/Math/MathML"><mi>q</mi><mo>=</mo><mn>5</mn></math></draw:object></draw:frame></text:p>'),
        ["q=5"], [], []),
    Report("postcode", "a.xlsx", cell("00000", "1234"), ["01234"], [], []),
    Report("number-with-parts", "a.xlsx", cell("000\\-00\\-0000", "12345678"), ["012-34-5678"], [], []),
    Report("two-pages-in-a-file", "a.html", b"<html><body>One</body></html>\n<!doctype html><html><head><title>T</title></head><body>Two</body></html>", ["One", "Two"], [], []),
    Report("words-after-the-page", "a.html", b"<html><body>One</body></html><p>After</p>", ["One", "After"], [], []),
    Report("elements-with-a-prefix", "a.xhtml", PREFIXED, ["One Two"], ["p{}", "h:p"], []),
    Report("label-of-an-option", "a.html", web('<select><option label="Blue" value=b>b</select>'), ["Blue"], [], []),
    Report("title-that-the-page-does-not-repeat", "a.html", b"<html><head><title>Lease of 1843</title></head><body>Words</body></html>", ["Lease of 1843 Words"], [], []),
    Report("title-that-the-page-repeats", "a.html", b"<html><head><title>Lease</title></head><body><h1>Lease</h1>Words</body></html>", ["Lease Words"], ["Lease Lease"], []),
    Report("pages-with-the-same-id", "a.epub",
        book(TWO, item("a.xhtml") + item("b.xhtml").replace('id="b', 'id="a'), '<itemref idref="a.xhtml"/>'), ["First words Second words"], [], []),
    Report("pages-without-an-id", "a.epub", book(TWO, item("a.xhtml").replace("id=", "x=") + item("b.xhtml").replace("id=", "x="), ""), ["First words Second words"], [], []),
    Report("id-with-a-space", "a.epub", book(TWO, item("a.xhtml"), '<itemref idref=" a.xhtml "/>'), ["First words"], [], []),
    Report("book-of-2001", "a.epub", book({"a.html": FIRST}, item("a.html", "text/x-oeb1-document"), ""), ["First words"], [], []),
    Report("page-without-a-type", "a.epub", book({"a.html": FIRST}, item("a.html", ""), ""), ["First words"], [], []),
    Report("page-that-nothing-names", "a.epub", book(TWO, item("a.xhtml"), '<itemref idref="a.xhtml"/>'),
        ["First words Second words"], [], ["b.xhtml: the book does not name it"]),
    Report("book-that-names-nothing", "a.epub", book(TWO, "", ""), ["First words Second words"], [], []),
    Report("page-that-is-plain-text", "a.epub", book({"a.txt": "Plain words"}, item("a.txt", "text/plain"), '<itemref idref="a.txt"/>'), ["Plain words"], [], []),
    Report("page-with-another-extension", "a.epub", book({"a.php": FIRST}, item("a.php"), '<itemref idref="a.php"/>'), ["First words"], [], []),
    Report("footnote-that-opens-on-touch", "a.epub", book({"a.xhtml": PAGE % f"<p>Rent</p>{LEASE}"}, item("a.xhtml"), '<itemref idref="a.xhtml"/>'), ["Except in August"], [], []),
    Report("plain-text-that-says-see-the-other", "a.eml", mail("Please use a mail program that shows HTML.", f"<p>{'The rent is due. ' * 20}</p>"), ["rent is due"], ["Please"], []),
    Report("plain-text-next-to-much-style", "a.eml", mail("The rent is due.", f"<style>{'p { color: red } ' * 20}</style><p>The <b>rent</b> is due.</p>"), ["The rent is due."], [], []),
    Report("equation-between-paragraphs", "a.docx",
        word_of(p("x") + '<m:oMathPara xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"><m:oMath><m:r><m:t>E=mc</m:t></m:r></m:oMath></m:oMathPara>'),
        ["x E=mc"], [], []),
    Report("name-of-a-drawing", "a.html", web("<svg><title>Graph of rent</title><path d='M0 0'/></svg>"), ["[Graph of rent]"], [], []),
    Report("tar-before-posix", "a.tar", old_tar(), ["[File] a.txt Words"], [], []),
    Report("book-in-a-folder-of-a-zip", "a.epub",
        zipped({"Book/META-INF/container.xml": '<container><rootfile full-path="a.opf"/></container>',
            "Book/a.opf": f'<package><manifest>{item("a.xhtml")}</manifest><spine><itemref idref="a.xhtml"/></spine></package>', "Book/a.xhtml": FIRST}),
        ["First words"], ["container"], []),
    Report("pdf-after-the-head-of-a-form", "a.pdf", b"------X\r\nContent-Disposition: form-data; name=f\r\n\r\n" + files.pdf(["Sent words."]) + b"\r\n------X--\r\n", ["Sent words."], [], []),
]  # fmt: skip
