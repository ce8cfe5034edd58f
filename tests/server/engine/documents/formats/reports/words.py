"""Word files, also under names of other formats."""

from __future__ import annotations

from tests import files
from tests.files import compound, rezipped, word, word_of
from tests.server.engine.documents.formats.reports import Report
from tests.server.engine.documents.formats.reports.word_parts import (
    NUM,
    OBJ,
    W,
    changed,
    deep,
    deeptable,
    native,
    num,
    p,
)

REPORTS = [
    Report(
        "numbers",
        "a.docx",
        word_of(
            p("One", num(1))
            + p("Sub", num(1, 1))
            + p("Sub2", num(1, 1))
            + p("Leaf", num(1, 2))
            + p("Two", num(1))
            + p("Sub3", num(1, 1)),
            {"numbering": NUM},
        ),
        ["1. One", "1.1 Sub", "1.2 Sub2", "(a) Leaf", "2. Two", "2.1 Sub3"],
        [],
        [],
    ),
    Report(
        "numbers-roman",
        "a.docx",
        word_of(
            p("X", num(2)) + p("Y", num(2)) + p("B", num(3)) + p("Re", num(1)) + p("Rest", num(4)), {"numbering": NUM}
        ),
        ["IV) X", "V) Y", "• B", "1. Re", "1. Rest"],
        [],
        [],
    ),
    Report(
        "numbers-style",
        "a.docx",
        rezipped(
            word_of(p("Clause", '<w:pStyle w:val="Heading1"/>'), {"numbering": NUM}),
            {
                "word/styles.xml": lambda n, c: (
                    n,
                    c.replace(
                        b'<w:name w:val="heading 1"/>',
                        b'<w:name w:val="heading 1"/><w:pPr><w:numPr><w:numId w:val="1"/></w:numPr></w:pPr>',
                    ),
                )
            },
        ),
        ["1. Clause"],
        [],
        [],
    ),
    Report(
        "numbers-bad",
        "a.docx",
        word_of(
            p("X", '<w:numPr><w:ilvl w:val="x"/><w:numId w:val="zz"/></w:numPr>') + p("Y", num(77)), {"numbering": NUM}
        ),
        ["X", "Y"],
        [],
        [],
    ),
    Report(
        "embedded-package",
        "a.docx",
        word_of(OBJ % "package.docx", {"package.docx": word(("Normal", "Inner words"))}),
        ["Before", "after", "Inner words"],
        [],
        [],
    ),
    Report(
        "embedded-ole",
        "a.docx",
        word_of(OBJ % "oleObject.bin", {"oleObject.bin": native("note.txt", b"Packed words")}),
        ["Packed words", "note.txt"],
        [],
        [],
    ),
    Report(
        "embedded-ole-pdf",
        "a.docx",
        word_of(OBJ % "oleObject.bin", {"oleObject.bin": compound({"CONTENTS": files.pdf(["Acrobat words."])})}),
        ["Acrobat words."],
        [],
        [],
    ),
    Report(
        "embedded-ole-unknown",
        "a.docx",
        word_of(OBJ % "oleObject.bin", {"oleObject.bin": compound({"Equation Native": b"x"})}),
        ["Before after"],
        [],
        ["oleObject.bin"],
    ),
    Report("embedded-missing", "a.docx", word_of(OBJ % "nope"), ["Before after"], [], ["embedded"]),
    Report("deep-sdt", "a.docx", word_of(deep(300)), ["Deep words"], [], []),
    Report("deep-sdt-900", "a.docx", word_of(deep(900)), ["Deep words"], [], []),
    Report("deep-table", "a.docx", word_of(deeptable(300)), ["Deep words"], [], []),
    Report(
        "deep-run",
        "a.docx",
        word_of("<w:p>" + "<w:smartTag>" * 900 + "<w:r><w:t>Deep words</w:t></w:r>" + "</w:smartTag>" * 900 + "</w:p>"),
        ["Deep words"],
        [],
        [],
    ),
    Report("deep-5000", "a.docx", word_of(p("Before") + deep(5000) + p("After")), ["Before"], [], []),
    Report(
        "sym-bad",
        "a.docx",
        word_of('<w:p><w:r><w:t>ok</w:t><w:sym w:font="Symbol" w:char="zz"/></w:r></w:p>'),
        ["ok"],
        [],
        [],
    ),
    Report(
        "gridspan-bad",
        "a.docx",
        word_of(
            '<w:p><w:r><w:ffData><w:ddList><w:result w:val="x"/><w:listEntry w:val="A"/></w:ddList></w:ffData><w:t>ok</w:t></w:r></w:p>'
        ),
        ["ok"],
        [],
        [],
    ),
    Report(
        "vml-textbox",
        "a.docx",
        word_of(
            '<w:p><w:r><w:pict><v:shape xmlns:v="urn:schemas-microsoft-com:vml"><v:textbox><w:txbxContent>'
            + p("Box words")
            + "</w:txbxContent></v:textbox></v:shape></w:pict></w:r></w:p>"
        ),
        ["Box words"],
        [],
        [],
    ),
    Report(
        "wordart",
        "a.docx",
        word_of(
            '<w:p><w:r><w:pict><v:shape xmlns:v="urn:schemas-microsoft-com:vml"><v:textpath string="CONFIDENTIAL"/></v:shape></w:pict></w:r></w:p>'
            + p("x")
        ),
        ["CONFIDENTIAL"],
        [],
        [],
    ),
    Report(
        "alternate",
        "a.docx",
        word_of(
            '<w:p><w:r><mc:AlternateContent xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"><mc:Choice Requires="wps"><w:drawing><w:txbxContent>'
            + p("Box once")
            + "</w:txbxContent></w:drawing></mc:Choice><mc:Fallback><w:pict><w:txbxContent>"
            + p("Box once")
            + "</w:txbxContent></w:pict></mc:Fallback></mc:AlternateContent></w:r></w:p>"
        ),
        ["Box once"],
        ["Box once Box once"],
        [],
    ),
    Report(
        "utf16",
        "a.docx",
        changed(
            lambda c: (b'<?xml version="1.0" encoding="UTF-16"?>' + c[c.index(b"?>") + 2 :]).decode().encode("utf-16")
        ),
        ["Body words"],
        [],
        [],
    ),
    Report("bom", "a.docx", changed(lambda c: b"\xef\xbb\xbf" + c), ["Body words"], [], []),
    Report(
        "backslash",
        "a.docx",
        rezipped(word_of(p("Body words")), {"word/document.xml": lambda n, c: ("word\\document.xml", c)}),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "no-types", "a.docx", rezipped(word_of(p("Body words")), {"[Content_Types].xml": None}), ["Body words"], [], []
    ),
    Report("no-rels", "a.docx", rezipped(word_of(p("Body words")), {"_rels/.rels": None}), ["Body words"], [], []),
    Report(
        "no-doc-rels",
        "a.docx",
        rezipped(word_of(p("Body words")), {"word/_rels/document.xml.rels": None}),
        ["Body words"],
        [],
        [],
    ),
    Report(
        "hyperlink",
        "a.docx",
        word_of("<w:p><w:hyperlink><w:r><w:t>the site</w:t></w:r></w:hyperlink></w:p>"),
        ["the site"],
        [],
        [],
    ),
    Report(
        "field",
        "a.docx",
        word_of(
            '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>PAGEREF _Toc</w:instrText></w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>7</w:t></w:r><w:r><w:fldChar w:fldCharType="end"/></w:r></w:p>'
        ),
        ["7"],
        ["PAGEREF"],
        [],
    ),
    Report(
        "hidden-text",
        "a.docx",
        word_of("<w:p><w:r><w:t>Seen </w:t></w:r><w:r><w:rPr><w:vanish/></w:rPr><w:t>secret</w:t></w:r></w:p>"),
        ["Seen"],
        ["secret"],
        ["hides"],
    ),
    Report(
        "soft-hyphen",
        "a.docx",
        word_of("<w:p><w:r><w:t>hyphen</w:t><w:softHyphen/><w:t>ated and hy&#xAD;phen</w:t></w:r></w:p>"),
        ["hyphenated and hyphen"],
        ["\xad"],
        [],
    ),
    Report(
        "ins-del",
        "a.docx",
        word_of(
            "<w:p><w:ins><w:r><w:t>new</w:t></w:r></w:ins><w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:moveTo><w:r><w:t> moved</w:t></w:r></w:moveTo><w:moveFrom><w:r><w:t>gone</w:t></w:r></w:moveFrom></w:p>"
        ),
        ["new moved"],
        ["old", "gone"],
        ["tracked"],
    ),
    Report(
        "deleted-paras",
        "a.docx",
        word_of("<w:del><w:p><w:r><w:delText>old</w:delText></w:r></w:p></w:del>" + p("Body")),
        ["Body"],
        ["old"],
        [],
    ),
    Report(
        "chart",
        "a.docx",
        word_of(
            '<w:p><w:r><w:drawing><c:chart xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" r:id="chart"/></w:drawing></w:r></w:p>',
            {
                "chart": '<c:chartSpace xmlns:c="http://schemas.openxmlformats.org/drawingml/2006/chart" xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"><c:title><a:p><a:r><a:t>Rent by year</a:t></a:r></a:p></c:title><c:ser><c:cat><c:pt idx="0"><c:v>2023</c:v></c:pt></c:cat><c:val><c:pt idx="0"><c:v>300</c:v></c:pt></c:val></c:ser></c:chartSpace>'
            },
        ),
        ["Rent by year", "2023 300"],
        [],
        [],
    ),
    Report(
        "table-merged",
        "a.docx",
        word_of(
            '<w:tbl><w:tr><w:tc><w:tcPr><w:vMerge w:val="restart"/></w:tcPr>'
            + p("A")
            + "</w:tc><w:tc>"
            + p("b")
            + "</w:tc></w:tr><w:tr><w:tc><w:tcPr><w:vMerge/></w:tcPr><w:p/></w:tc><w:tc>"
            + p("c")
            + "</w:tc></w:tr></w:tbl>"
        ),
        ["A b", "c"],
        [],
        [],
    ),
    Report(
        "sdt-row",
        "a.docx",
        word_of(
            "<w:tbl><w:sdt><w:sdtContent><w:tr><w:sdt><w:sdtContent><w:tc>"
            + p("in sdt")
            + "</w:tc></w:sdtContent></w:sdt></w:tr></w:sdtContent></w:sdt></w:tbl>"
        ),
        ["in sdt"],
        [],
        [],
    ),
    Report(
        "comment-in-sdt",
        "a.docx",
        word_of(
            '<w:p><w:r><w:t>x</w:t><w:commentReference w:id="0"/></w:r></w:p>',
            {
                "comments": f'<w:comments {W}><w:comment w:id="0" w:author="Ada"><w:p><w:r><w:t>note it</w:t></w:r></w:p></w:comment></w:comments>'
            },
        ),
        ["[Comment by Ada] note it"],
        [],
        [],
    ),
    Report(
        "chunk-html",
        "a.docx",
        word_of(
            '<w:altChunk xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" r:id="aFChunk.html"/>',
            {"aFChunk.html": b"<html><body>Chunk words</body></html>"},
        ),
        ["Chunk words"],
        [],
        [],
    ),
    Report("truncated", "a.docx", changed(lambda c: c[: c.index(b"</w:t>")]), ["Body words"], [], []),
    Report(
        "flat-opc",
        "a.xml",
        b'<?xml version="1.0"?><?mso-application progid="Word.Document"?><pkg:package xmlns:pkg="http://schemas.microsoft.com/office/2006/xmlPackage"><pkg:part pkg:name="/_rels/.rels"><pkg:xmlData><Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" Target="word/document.xml"/></Relationships></pkg:xmlData></pkg:part><pkg:part pkg:name="/word/document.xml"><pkg:xmlData><w:document '
        + W.encode()
        + b"><w:body><w:p><w:r><w:t>Flat words</w:t></w:r></w:p></w:body></w:document></pkg:xmlData></pkg:part></pkg:package>",
        ["Flat words"],
        ["pkg:"],
        [],
    ),
    Report(
        "doc-html",
        "a.doc",
        b"<html xmlns:o='urn:schemas-microsoft-com:office:office'><head><style>p{}</style></head><body><p>Web words</p></body></html>",
        ["Web words"],
        ["<p>"],
        [],
    ),
    Report("doc-html-frag", "a.doc", b"<div><p>Web words</p></div>", ["Web words"], ["<p>"], []),
    Report(
        "doc-mht",
        "a.doc",
        b'MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary="B"\r\n\r\n--B\r\nContent-Type: text/html; charset=utf-8\r\n\r\n<html><p>Mht words</p></html>\r\n--B--\r\n',
        ["Mht words"],
        ["<p>"],
        [],
    ),
    Report("doc-docx", "a.doc", word_of(p("Body words")), ["Body words"], [], []),
    Report("xls-html", "a.xls", b"<table><tr><td>a</td><td>b</td></tr></table>", ["a b"], ["<td>"], []),
    Report(
        "xls-xml2003",
        "a.xls",
        b'<?xml version="1.0"?><?mso-application progid="Excel.Sheet"?><Workbook xmlns="urn:schemas-microsoft-com:office:spreadsheet" xmlns:ss="urn:schemas-microsoft-com:office:spreadsheet"><Worksheet ss:Name="Rents"><Table><Row><Cell><Data ss:Type="String">Ada</Data></Cell><Cell ss:Index="3"><Data ss:Type="Number">300</Data></Cell></Row></Table></Worksheet></Workbook>',
        ["Rents", "Ada", "300"],
        ["<Cell", "urn:"],
        [],
    ),
    Report(
        "doc-xml2003",
        "a.doc",
        b'<?xml version="1.0"?><?mso-application progid="Word.Document"?><w:wordDocument xmlns:w="http://schemas.microsoft.com/office/word/2003/wordml"><w:body><w:p><w:r><w:t>Old xml words</w:t></w:r></w:p></w:body></w:wordDocument>',
        ["Old xml words"],
        ["w:body"],
        [],
    ),
    Report("docx-dirs", "a.docx", rezipped(word_of(p("Body words")), {}, {"word/": b""}), ["Body words"], [], []),
    Report("docx-prefix-bytes", "a.docx", b"\r\n\r\n" + word_of(p("Body words")), ["Body words"], [], []),
    Report("docx-suffix-bytes", "a.docx", word_of(p("Body words")) + b"\0" * 500, ["Body words"], [], []),
    Report("docx-truncated-zip", "a.docx", word_of(p("Body words"))[:-60], ["Body words"], [], []),
    Report(
        "ruby",
        "a.docx",
        word_of(
            "<w:p><w:r><w:ruby><w:rt><w:r><w:t>とう</w:t></w:r></w:rt><w:rubyBase><w:r><w:t>東</w:t></w:r></w:rubyBase></w:ruby></w:r></w:p>"
        ),
        ["東(とう)"],
        [],
        [],
    ),
]
