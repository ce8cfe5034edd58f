"""A Word file's text is whole: notes, headers, equations, symbols and controls are where a reader looks for them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from everlong_server.engine.documents.formats.readers.openxml.package import Package
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, text_of

W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
M = 'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math"'
R = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"


def p(*runs: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/></w:pPr>' if style else ""
    return f"<w:p>{properties}{''.join(runs)}</w:p>"


def r(content: str) -> str:
    return f"<w:r>{content}</w:r>"


def t(text: str) -> str:
    return r(f'<w:t xml:space="preserve">{text}</w:t>')


def part(root: str, content: str) -> str:
    return f"<w:{root} {W}>{content}</w:{root}>"


def maths(content: str) -> str:
    return f"<m:oMath {M}>{content}</m:oMath>"


def letter(text: str) -> str:
    return f"<m:r><m:t>{text}</m:t></m:r>"


NOTES = {
    "footnotes": part("footnotes", f'<w:footnote w:id="-1" w:type="separator">{p()}</w:footnote><w:footnote w:id="2">{p(t("Not in May."))}</w:footnote>'),
    "endnotes": part("endnotes", f'<w:endnote w:id="2">{p(t("At the end."))}</w:endnote>'),
    "comments": part("comments", f'<w:comment w:id="0" w:author="Ada">{p(t("Why?"))}{p(t("Who?"))}</w:comment>'),
}  # fmt: skip


def test_notes_follow_the_paragraph_that_refers_to_them() -> None:
    body = p(
        t("Rent"), r('<w:commentReference w:id="0"/>'), r('<w:footnoteReference w:id="2"/>'), t(" is due"),
        r('<w:endnoteReference w:id="2"/>'), t("."),
    ) + p(t("Next."))  # fmt: skip
    data = files.word_of(body, parts=NOTES)
    assert text_of(data) == (
        "Rent[1] is due[1].\n\n[Comment by Ada] Why?\nWho?\n\n[Footnote 1] Not in May.\n\n[Endnote 1] At the end.\n\nNext."
    )
    assert notes_of(data) == [
        f"{kind}s follow the paragraphs that refer to them" for kind in ("comment", "footnote", "endnote")
    ]


def test_notes_that_nothing_refers_to_are_at_the_end() -> None:
    assert text_of(files.word_of(p(t("One.")), parts=NOTES)) == (
        "One.\n\n[Footnote 1] Not in May.\n\n[Endnote 1] At the end.\n\n[Comment by Ada] Why?\nWho?"
    )


def test_a_reference_to_a_note_that_is_missing_is_noted() -> None:
    data = files.word_of(p(t("One"), r('<w:footnoteReference w:id="9"/>'), t(".")), parts=NOTES)
    assert "the text refers to it, but the file does not contain it: footnote 9" in notes_of(data)
    assert text_of(data).startswith("One[1].")


SWITCHES = {
    "off": ("", "", "default"),
    "first pages": ("<w:titlePg/>", "", "default first"),
    "even pages": ("", "<w:evenAndOddHeaders/>", "default even"),
    "set to off": ('<w:titlePg w:val="0"/>', '<w:evenAndOddHeaders w:val="false"/>', "default"),
}  # fmt: skip


@pytest.mark.parametrize(("first", "even", "shown"), SWITCHES.values(), ids=SWITCHES)
def test_headers_that_are_switched_off_are_noted(first: str, even: str, shown: str) -> None:
    kinds = {"default": "header", "first": "header2", "even": "header22"}
    listed = "".join(f'<w:headerReference xmlns:r="{R}" r:id="{kinds[kind]}" w:type="{kind}"/>' for kind in kinds)
    made = files.word_of(
        p(t("One.")) + f"<w:sectPr>{listed}{first}</w:sectPr>",
        parts={name: part("hdr", p(t(kind))) for kind, name in kinds.items()},
    )
    data = files.rezipped(made, {"word/settings.xml": lambda name, _: (name, part("settings", even).encode())})
    headers = shown.split()
    assert text_of(data).split("\n\n") == [*(f"[Header] {kind}" for kind in headers), "One."]
    assert notes_of(data) == [f"left out: headers and footers that are switched off ({3 - len(headers)})"]


def test_a_header_of_many_sections_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, xml = Counter[str](), Package.xml

    def counted(package: Package, name: str) -> Any:
        parsed[name] += 1
        return xml(package, name)

    monkeypatch.setattr(Package, "xml", counted)
    section = f'<w:sectPr><w:headerReference xmlns:r="{R}" r:id="header" w:type="default"/></w:sectPr>'
    body = f"<w:p><w:pPr>{section}</w:pPr>{t('Words.')}</w:p>" * 5
    data = files.word_of(body + section, parts={"header": part("hdr", p(t("Case 4471-B")))})
    assert text_of(data) == "\n\n".join(["[Header] Case 4471-B", *["Words."] * 5])
    assert [count for name, count in parsed.items() if "header" in name] == [1]


def test_headers_and_footers_enclose_their_sections() -> None:
    def section(header: str) -> str:
        return f'<w:sectPr><w:headerReference xmlns:r="{R}" r:id="{header}" w:type="default"/></w:sectPr>'

    header = part("hdr", p(t("Case 4471-B")))
    parts = {"header": header, "header2": header.replace("4471", "5582"), "footer": part("ftr", p(t("By Ada")))}
    foot = f'<w:footerReference xmlns:r="{R}" r:id="footer" w:type="first"/><w:titlePg/></w:sectPr>'
    body = (
        f"<w:p><w:pPr>{section('header')}</w:pPr>{t('One.')}</w:p>"
        f"<w:p><w:pPr>{section('header2')}</w:pPr>{t('Two.')}</w:p>"
        + p(t("Three."))
        + section("header2").replace("</w:sectPr>", foot)
    )
    assert text_of(files.word_of(body, parts=parts)) == (
        "[Header] Case 4471-B\n\nOne.\n\n[Header] Case 5582-B\n\nTwo.\n\nThree.\n\n[Footer] By Ada"
    )


EQUATIONS = [
    (letter("3×300=900"), "3×300=900"),
    (f"<m:f><m:num>{letter('a+b')}</m:num><m:den>{letter('2')}</m:den></m:f>", "(a+b)/2"),
    (
        f'<m:f><m:fPr><m:type m:val="noBar"/></m:fPr><m:num>{letter("n")}</m:num><m:den>{letter("k")}</m:den></m:f>',
        "n¦k",
    ),
    (f"<m:eqArr><m:e>{letter('x&amp;=1')}</m:e><m:e>{letter('y&amp;=2')}</m:e></m:eqArr>", "x=1; y=2"),
    (f"<m:sSup><m:e>{letter('x')}</m:e><m:sup>{letter('n')}{letter('+1')}</m:sup></m:sSup>", "x^(n+1)"),
    (f"<m:sSubSup><m:e>{letter('x')}</m:e><m:sub>{letter('i')}</m:sub><m:sup>{letter('2')}</m:sup></m:sSubSup>", "x_i^2"),
    (f"<m:rad><m:deg/><m:e>{letter('2')}</m:e></m:rad>", "√(2)"),
    (
        f'<m:nary><m:naryPr><m:chr m:val="∑"/></m:naryPr><m:sub>{letter("i=1")}</m:sub><m:sup>{letter("n")}</m:sup><m:e>{letter("i")}</m:e></m:nary>',
        "∑_(i=1)^n(i)",
    ),
    (f'<m:d><m:dPr><m:begChr m:val="["/><m:endChr m:val="]"/></m:dPr><m:e>{letter("a")}</m:e><m:e>{letter("b")}</m:e></m:d>', "[a|b]"),
    (f"<m:m><m:mr><m:e>{letter('1')}</m:e><m:e>{letter('2')}</m:e></m:mr><m:mr><m:e>{letter('3')}</m:e></m:mr></m:m>", "[1, 2; 3]"),
    (f"<m:func><m:fName>{letter('sin')}</m:fName><m:e>{letter('x')}</m:e></m:func>", "sin x"),
    (f"<m:limLow><m:e>{letter('lim')}</m:e><m:lim>{letter('n→∞')}</m:lim></m:limLow>", "lim_(n→∞)"),
    (f"{letter('2')}<m:f><m:num>{letter('1')}</m:num><m:den>{letter('2')}</m:den></m:f>{letter('m')}", "2 1/2 m"),
    (f"<m:sSup><m:e>{letter('r')}</m:e><m:sup>{letter('2')}</m:sup></m:sSup>{letter('3')}", "r^2 3"),
    (f"{letter('2')}<m:rad><m:deg>{letter('3')}</m:deg><m:e>{letter('x')}</m:e></m:rad>", "2 3√(x)"),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "text"), EQUATIONS, ids=[text for _, text in EQUATIONS])
def test_equations_are_in_their_sentence(equation: str, text: str) -> None:
    assert text_of(files.word_of(p(t("It is "), maths(equation), t(" crowns.")))) == f"It is {text} crowns."
    assert text_of(files.word_of(p(f"<m:oMathPara {M}>{maths(equation)}</m:oMathPara>"))) == text


INLINE = {
    "symbol": (r('<w:sym w:font="Symbol" w:char="F061"/>') + t(" is ") + r('<w:sym w:font="Wingdings" w:char="F0FE"/>'), "α is ☑"),
    "letter of a symbol font": (r('<w:rPr><w:rFonts w:ascii="Symbol"/></w:rPr><w:t>\uf062</w:t>'), "β"),
    "soft hyphen": (t("green") + r("<w:softHyphen/>") + t("house"), "greenhouse"),
    "hyphen": (t("twenty") + r("<w:noBreakHyphen/>") + t("one"), "twenty-one"),
    "check box": (r('<w:fldChar><w:ffData><w:checkBox><w:default w:val="0"/><w:checked/></w:checkBox></w:ffData></w:fldChar>'), "[x]"),
    "empty check box": (r('<w:fldChar><w:ffData><w:checkBox><w:default w:val="0"/></w:checkBox></w:ffData></w:fldChar>'), "[ ]"),
    "list": (r('<w:fldChar><w:ffData><w:ddList><w:result w:val="1"/><w:listEntry w:val="no"/><w:listEntry w:val="yes"/></w:ddList></w:ffData></w:fldChar>'), "yes"),
    "field code": (r("<w:instrText>PAGE</w:instrText>") + t("3"), "3"),
    "pronunciation": (r(f"<w:ruby><w:rubyPr/><w:rt>{t('とう')}</w:rt><w:rubyBase>{t('東')}</w:rubyBase></w:ruby>") + t("京"), "東(とう)京"),
    "picture": (r('<w:drawing><wp:docPr xmlns:wp="urn:x" descr="A map of  Turku"/></w:drawing>'), "[A map of Turku]"),
}  # fmt: skip


@pytest.mark.parametrize(("run", "text"), INLINE.values(), ids=INLINE)
def test_what_is_inside_a_paragraph(run: str, text: str) -> None:
    assert text_of(files.word_of(p(t("So: "), run, t(".")))) == f"So: {text}."


BEGIN, SEPARATE, END = (r(f'<w:fldChar w:fldCharType="{kind}"/>') for kind in ("begin", "separate", "end"))


def field(instruction: str, result: str) -> str:
    return f"{BEGIN}{r(f'<w:instrText>{instruction}</w:instrText>')}{SEPARATE}{t(result)}{END}"


OPEN_FIELDS = {
    "no end": BEGIN + r("<w:instrText>DATE</w:instrText>"),
    "no end, but a result": BEGIN + r("<w:instrText>DATE</w:instrText>") + SEPARATE,
    "end in a deletion": f"{BEGIN}{r('<w:instrText>DATE</w:instrText>')}<w:del>{END}</w:del>",
    "end in hidden text": BEGIN + r('<w:rPr><w:vanish/></w:rPr><w:fldChar w:fldCharType="end"/>'),
    "no beginning": SEPARATE + END,
    "beginning in a deletion": f"<w:del>{BEGIN}</w:del>{SEPARATE}{END}",
}


@pytest.mark.parametrize("damaged", OPEN_FIELDS.values(), ids=OPEN_FIELDS)
def test_a_field_with_one_mark_hides_no_other_text(damaged: str) -> None:
    nested = f"{BEGIN}{r('<w:instrText>IF </w:instrText>')}{field('PAGE', 'gone')}{SEPARATE}{t('Dear Ann')}{END}"
    body = p(damaged, t("One "), field("PAGE", "2")) + p(field("PAGE", "3"), t(" and "), nested, t("."))
    assert text_of(files.word_of(body)) == "One 2\n\n3 and Dear Ann."


def test_a_field_that_does_not_end_in_a_note_hides_no_text_of_the_document() -> None:
    parts = {"footnotes": part("footnotes", f'<w:footnote w:id="2">{p(BEGIN, t("Open."))}</w:footnote>')}
    body = p(t("One"), r('<w:footnoteReference w:id="2"/>'), END) + p(t("On page "), field("PAGE", "3"))
    assert text_of(files.word_of(body, parts=parts)) == "One[1]\n\n[Footnote 1] Open.\n\nOn page 3"


LINKS = {
    "complex": (field('HYPERLINK "https://x.org/"', "the site") + t("."), "the site (https://x.org/)."),
    "simple": (f"<w:fldSimple w:instr='HYPERLINK \"https://x.org/\"'>{t('the site')}</w:fldSimple>", "the site (https://x.org/)"),
    "of Word 2003": (f'<w:hlink w:dest="https://x.org/">{t("the site")}</w:hlink>', "the site (https://x.org/)"),
    "inside the document": (field('HYPERLINK \\l "place"', "page 3"), "page 3"),
    "in the condition of another": (
        f"{BEGIN}{r('<w:instrText>IF </w:instrText>')}{field('HYPERLINK https://x.org', 'gone')}{SEPARATE}{t('Dear Ann')}{END}", "Dear Ann",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("run", "text"), LINKS.values(), ids=LINKS)
def test_a_field_that_is_a_link(run: str, text: str) -> None:
    assert text_of(files.word_of(p(run))) == text


def test_a_link_in_a_note_has_the_address_of_the_notes_part() -> None:
    link = f'<w:hyperlink xmlns:r="{R}" r:id="one" w:anchor="part">{t("the site")}</w:hyperlink>'
    made = files.word_of(
        p(t("Rent"), r('<w:footnoteReference w:id="2"/>')),
        parts={"footnotes": part("footnotes", f'<w:footnote w:id="2">{p(link)}</w:footnote>')},
    )
    relation = f'<Relationship Id="one" Type="{R}/hyperlink" Target="https://x.org/" TargetMode="External"/>'
    listed = f'<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships">{relation}</Relationships>'
    data = files.rezipped(made, {}, {"word/_rels/footnotes.xml.rels": listed.encode()})
    assert text_of(data) == "Rent[1]\n\n[Footnote 1] the site (https://x.org/#part)"


def test_superscripts_of_a_character_style_but_not_marks_of_notes() -> None:
    style = '<w:style w:type="character" w:styleId="Up"><w:name w:val="up"/><w:rPr><w:vertAlign w:val="superscript"/></w:rPr></w:style>'
    up, plain = (
        '<w:rPr><w:rStyle w:val="Up"/></w:rPr>',
        '<w:rPr><w:rStyle w:val="Up"/><w:vertAlign w:val="baseline"/></w:rPr>',
    )
    mark = r(f'{up}<w:footnoteReference w:id="2" w:customMarkFollows="1"/><w:t>1</w:t>')
    body = p(t("10"), r(f"{up}<w:t>6</w:t>"), r(f"{plain}<w:t>7</w:t>"), t(" words"), mark)
    data = files.rezipped(files.word_of(body, parts=NOTES), {
        "word/styles.xml": lambda name, data: (name, data.replace(b"</w:styles>", f"{style}</w:styles>".encode())),
    })  # fmt: skip
    assert text_of(data).startswith("10^67 words1\n\n[Footnote 1]")


def test_runs_outside_of_paragraphs_share_a_line() -> None:
    table = f"<w:tbl><w:tr><w:tc>{t('Loo')}{t('se')}{p(t('words'))}</w:tc><w:tc>{t('5')}{t('0')}</w:tc></w:tr></w:tbl>"
    parts = {"footnotes": part("footnotes", f'<w:footnote w:id="2">{t("No")}{t("te.")}</w:footnote>')}
    assert text_of(files.word_of(table, parts=parts)) == "Loose words\t50\n\n[Footnote 1] Note."


def test_rows_that_were_deleted_are_noted() -> None:
    gone, kept = (f"<w:tr>{mark}<w:tc>{p(t('words'))}</w:tc></w:tr>" for mark in ("<w:trPr><w:del/></w:trPr>", ""))
    data = files.word_of(f"<w:tbl>{gone}{kept}</w:tbl>")
    assert text_of(data) == "words"
    assert notes_of(data) == ["left out: deleted rows (tracked changes) (1)"]


def test_a_file_that_a_cell_includes_is_in_the_cell() -> None:
    chunk = f'<w:altChunk xmlns:r="{R}" r:id="afchunk.html"/>'
    body = f"<w:tbl><w:tr><w:tc>{p(t('One.'))}{chunk}</w:tc><w:tc>{p(t('Two.'))}</w:tc></w:tr></w:tbl>"
    assert text_of(files.word_of(body, parts={"afchunk.html": b"<html><p>Words.</p>"})) == "One. Words.\tTwo."


def test_comments_instructions_and_entities_of_xml_part_no_words() -> None:
    letters = r("<w:t>Re<?proof error?>nt <!-- of -->is &much;.</w:t>")
    body = p(letters)
    made = files.rezipped(files.word_of(body.replace("&much;", "500")), {
        "word/document.xml": lambda name, data: (
            name, b'<!DOCTYPE d [<!ENTITY much "500">]>' + data.partition(b"?>")[2].replace(b"500", b"&much;")
        ),
    })  # fmt: skip
    assert text_of(files.word_of(body.replace("&much;", "500"))) == text_of(made) == "Rent is 500."


def test_what_is_left_out_is_noted() -> None:
    body = p(
        t("x"), r('<w:sym w:font="Bookshelf 7" w:char="F041"/>'),
        r('<w:drawing><a:blip xmlns:a="urn:a"/></w:drawing>'), "<w:del><w:r><w:delText>gone</w:delText></w:r></w:del>",
        r("<w:object/>"),
    )  # fmt: skip
    assert notes_of(files.word_of(body)) == [
        "left out: symbols of the font Bookshelf 7 (1)", "left out: pictures without a description (1)",
        "left out: deleted passages (tracked changes) (1)", "left out: embedded objects that are not in the file (1)",
    ]  # fmt: skip


CHUNKS = {
    "afchunk.html": (b"<html><body><p>From a <b>page</b>.</p></body></html>", "From a page."),
    "afchunk.docx": (files.word(("Normal", "From a file.")), "From a file."),
    "afchunk.txt": ("From a café.".encode("cp1252"), "From a café."),
    "afchunk.mht": (
        b"MIME-Version: 1.0\r\nContent-Type: multipart/related; boundary=b\r\n\r\n--b\r\nContent-Type: text/html\r\n\r\n"
        b"<p>From a saved page.</p>\r\n--b--\r\n",
        "From a saved page.",
    ),
}


@pytest.mark.parametrize(("content", "text"), CHUNKS.values(), ids=CHUNKS)
def test_files_that_the_document_includes_are_at_their_place(
    content: bytes, text: str, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.id
    body = p(t("One.")) + f'<w:altChunk xmlns:r="{R}" r:id="{name}"/>' + p(t("Two."))
    assert text_of(files.word_of(body, parts={name: content})) == f"One.\n\n{text}\n\nTwo."


@pytest.mark.parametrize("main", ["document", "document2", "Document"])
@pytest.mark.parametrize(
    "content_type",
    [
        "vnd.openxmlformats-officedocument.wordprocessingml.template.main+xml",
        "vnd.ms-word.document.macroEnabled.main+xml",
    ],
)
def test_templates_macros_and_files_of_word_online_are_read(main: str, content_type: str) -> None:
    data = files.rezipped(files.word(("Title", "A"), ("Normal", "B.")), {
        "word/document.xml": lambda name, data: (f"word/{main}.xml", data),
        "word/_rels/document.xml.rels": lambda name, data: (f"word/_rels/{main}.xml.rels", data),
        "_rels/.rels": lambda name, data: (name, data.replace(b"word/document.xml", f"/word/{main}.xml".encode())),
        "[Content_Types].xml": lambda name, data: (name, data.replace(
            b"vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml", content_type.encode()
        ).replace(b"word/document.xml", f"word/{main}.xml".encode())),
    })  # fmt: skip
    assert text_of(data) == "A\n\nB."


@pytest.mark.parametrize(
    "missing",
    ["[Content_Types].xml", "_rels/.rels", "word/_rels/document.xml.rels", "word/styles.xml", "word/numbering.xml"],
)
def test_a_part_that_is_missing_is_no_reason_to_refuse_the_file(missing: str) -> None:
    assert text_of(files.rezipped(files.word(("Normal", "B.")), {missing: None})) == "B."


@pytest.mark.parametrize("target", ["../NULL", "NULL", "gone.xml", "", "http://"])
def test_a_relationship_to_nowhere_is_no_reason_to_refuse_the_file(target: str) -> None:
    relation = f'<Relationship Id="x" Type="{R}/header" Target="{target}"/></Relationships>'.encode()
    data = files.rezipped(files.word(("Normal", "B.")), {
        "word/_rels/document.xml.rels": lambda name, data: (name, data.replace(b"</Relationships>", relation)),
    })  # fmt: skip
    assert text_of(data) == "B."


def test_a_damaged_part_is_noted_and_the_rest_is_read() -> None:
    data = files.word_of(
        p(t("Rent"), r('<w:footnoteReference w:id="2"/>'), t(".")), parts=NOTES | {"footnotes": "<broken"}
    )
    assert text_of(data).startswith("Rent[1].")
    assert any(note.startswith("word/footnotes.xml: it is damaged") for note in notes_of(data))


def test_strict_files_are_read() -> None:
    strict = files.rezipped(files.word(("Heading 1", "A"), ("Normal", "B.")), {
        name: lambda name, data: (name, data.replace(
            b"http://schemas.openxmlformats.org/wordprocessingml/2006/main", b"http://purl.oclc.org/ooxml/wordprocessingml/main"
        ).replace(
            b"http://schemas.openxmlformats.org/officeDocument/2006/relationships", b"http://purl.oclc.org/ooxml/officeDocument/relationships"
        )) for name in ("word/document.xml", "word/styles.xml", "_rels/.rels", "word/_rels/document.xml.rels")
    })  # fmt: skip
    assert text_of(strict) == "A\n\nB."


BY = 'w:id="1" w:author="Ada" w:date="2024-01-01T00:00:00Z"'


def paragraph_whose_end_is_deleted(text: str) -> str:
    return f'<w:p><w:pPr><w:rPr><w:del {BY}/></w:rPr></w:pPr><w:r><w:t xml:space="preserve">{text}</w:t></w:r></w:p>'


def test_a_paragraph_whose_end_is_deleted_goes_on_in_the_next_one() -> None:
    halves = paragraph_whose_end_is_deleted("The rent is ") + "<w:p><w:r><w:t>300 crowns.</w:t></w:r></w:p>"
    table = f"<w:tbl><w:tr><w:tc>{halves}</w:tc></w:tr></w:tbl>"
    last = paragraph_whose_end_is_deleted("The end.")
    assert text_of(files.word_of(halves + table + last)) == "\n\n".join(["The rent is 300 crowns."] * 2 + ["The end."])


def test_deleted_cells_of_a_table_are_left_out_and_noted() -> None:
    cells = (
        f"<w:tc><w:tcPr><w:cellDel {BY}/></w:tcPr><w:p><w:r><w:t>old</w:t></w:r></w:p></w:tc>"
        f"<w:tc><w:tcPr><w:cellIns {BY}/></w:tcPr><w:p><w:r><w:t>new</w:t></w:r></w:p></w:tc>"
    )
    data = files.word_of(f"<w:tbl><w:tr>{cells}</w:tr></w:tbl>")
    assert text_of(data).split() == ["new"]
    assert notes_of(data) == ["left out: deleted cells (tracked changes) (1)"]
