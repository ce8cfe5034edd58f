"""Parts of Word files: paragraphs, numbers, objects, and nesting of any depth."""

from __future__ import annotations

from tests.files import compound, ole_package, rezipped, word_of

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def p(t, pr=""):
    return f'<w:p>{f"<w:pPr>{pr}</w:pPr>" if pr else ""}<w:r><w:t xml:space="preserve">{t}</w:t></w:r></w:p>'


def num(n, level=0):
    return f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{n}"/></w:numPr>'


NUM = f"""<w:numbering {W}><w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl><w:lvl w:ilvl="1"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1.%2"/></w:lvl><w:lvl w:ilvl="2"><w:start w:val="1"/><w:numFmt w:val="lowerLetter"/><w:lvlText w:val="(%3)"/></w:lvl></w:abstractNum><w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:start w:val="4"/><w:numFmt w:val="upperRoman"/><w:lvlText w:val="%1)"/></w:lvl></w:abstractNum><w:abstractNum w:abstractNumId="2"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val="&#xF0B7;"/></w:lvl></w:abstractNum><w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num><w:num w:numId="2"><w:abstractNumId w:val="1"/></w:num><w:num w:numId="3"><w:abstractNumId w:val="2"/></w:num><w:num w:numId="4"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="0"><w:startOverride w:val="1"/></w:lvlOverride></w:num></w:numbering>"""


def native(name, data):
    return compound({"\x01Ole10Native": ole_package(name, data)})


OBJ = '<w:p><w:r><w:t>Before </w:t></w:r><w:r><w:object><o:OLEObject xmlns:o="urn:schemas-microsoft-com:office:office" xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" Type="Embed" ProgID="Package" r:id="%s"/></w:object></w:r><w:r><w:t>after</w:t></w:r></w:p>'


def deep(n):
    return "<w:sdt><w:sdtContent>" * n + p("Deep words") + "</w:sdtContent></w:sdt>" * n


def deeptable(n):
    return "<w:tbl><w:tr><w:tc>" * n + p("Deep words") + "</w:tc></w:tr></w:tbl>" * n


def changed(f):
    return rezipped(word_of(p("Body words")), {"word/document.xml": lambda n, c: (n, f(c))})
