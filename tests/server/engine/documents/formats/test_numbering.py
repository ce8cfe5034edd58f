"""Numbers of lists in Word files: lists that begin again or go on, legal numbers, lists of a style, numbers of rows."""

from __future__ import annotations

from lxml import etree

from everlong_server.engine.documents.formats.readers.openxml.numbering import Numbering
from everlong_server.engine.documents.formats.readers.openxml.package import W
from tests import files
from tests.server.engine.documents.formats.reading import text_of

XMLNS = f'xmlns:w="{W[1:-1]}"'
LEVELS = "".join(
    f'<w:lvl w:ilvl="{level}"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="{text}"/></w:lvl>'
    for level, text in enumerate(("%1.", "%1.%2"))
)
AGAIN = "".join(
    f'<w:lvlOverride w:ilvl="{level}"><w:startOverride w:val="{start}"/></w:lvlOverride>'
    for level, start in ((0, 5), (1, 3))
)
NUMBERING = f"""<w:numbering {XMLNS}><w:abstractNum w:abstractNumId="0">{LEVELS}</w:abstractNum>
<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>
<w:num w:numId="2"><w:abstractNumId w:val="0"/>{AGAIN}</w:num></w:numbering>"""


def test_each_level_of_a_list_that_begins_again_has_its_own_first_number() -> None:
    numbering = Numbering(etree.fromstring(NUMBERING), None)

    def number(list: int, level: int) -> str:
        place = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list}"/></w:numPr>'
        return numbering.of(etree.fromstring(f"<w:p {XMLNS}><w:pPr>{place}</w:pPr></w:p>"))

    assert [number(1, 0), number(1, 1), number(1, 0)] == ["1.", "1.1", "2."]
    assert [number(2, 0), number(2, 1), number(2, 1), number(2, 0), number(2, 1)] == ["5.", "5.3", "5.4", "6.", "6.3"]


def test_a_level_of_any_number_costs_no_time() -> None:
    level = '<w:lvl w:ilvl="99999999"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="a"/></w:lvl>'
    numbering = Numbering(etree.fromstring(NUMBERING.replace(LEVELS, level)), None)
    place = '<w:numPr><w:ilvl w:val="99999999"/><w:numId w:val="1"/></w:numPr>'
    assert numbering.of(etree.fromstring(f"<w:p {XMLNS}><w:pPr>{place}</w:pPr></w:p>")) == "a"


def paragraph(level: int, text: str = "", list: int = 1) -> str:
    place = f'<w:numPr><w:ilvl w:val="{level}"/><w:numId w:val="{list}"/></w:numPr>'
    return f"<w:p {XMLNS}><w:pPr>{place}</w:pPr><w:r><w:t>{text}</w:t></w:r></w:p>"


def level(number: int, form: str, text: str, more: str = "") -> str:
    return f'<w:lvl w:ilvl="{number}"><w:start w:val="1"/><w:numFmt w:val="{form}"/>{more}<w:lvlText w:val="{text}"/></w:lvl>'


def numbers(levels: str, *counted: int, more: str = "") -> list[str]:
    """Return the numbers of paragraphs at these levels of a list. `more`: other definitions."""
    definition = f'<w:abstractNum w:abstractNumId="0">{levels}</w:abstractNum>'
    tree = (
        f'<w:numbering {XMLNS}>{definition}{more}<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num></w:numbering>'
    )
    numbering = Numbering(etree.fromstring(tree), None)
    return [numbering.of(etree.fromstring(paragraph(each))) for each in counted]


def test_a_legal_number_has_digits_for_all_levels() -> None:
    levels = level(0, "upperRoman", "Article %1") + level(1, "decimal", "%1.%2", "<w:isLgl/>")
    assert numbers(levels, 0, 0, 1, 1) == ["Article I", "Article II", "2.1", "2.2"]


def test_a_level_that_goes_on_after_an_upper_one() -> None:
    levels = level(0, "decimal", "Part %1") + level(1, "decimal", "§ %2", '<w:lvlRestart w:val="0"/>')
    assert numbers(levels, 0, 1, 1, 0, 1) == ["Part 1", "§ 1", "§ 2", "Part 2", "§ 3"]


def test_a_level_that_begins_again_after_a_higher_one_only() -> None:
    third = level(2, "lowerLetter", "%3)", '<w:lvlRestart w:val="1"/>')
    levels = level(0, "decimal", "%1.") + level(1, "decimal", "%1.%2") + third
    assert numbers(levels, 0, 1, 2, 1, 2, 0, 1, 2) == ["1.", "1.1", "a)", "1.2", "b)", "2.", "2.1", "a)"]


def test_a_list_that_refers_to_the_list_of_a_style() -> None:
    of_style = f'<w:abstractNum w:abstractNumId="7"><w:styleLink w:val="Clauses"/>{level(0, "lowerLetter", "(%1)")}</w:abstractNum>'
    assert numbers('<w:numStyleLink w:val="Clauses"/>', 0, 0, more=of_style) == ["(a)", "(b)"]


def test_cells_with_nothing_but_their_number() -> None:
    rows = "".join(
        f"<w:tr><w:tc>{paragraph(0)}</w:tc><w:tc><w:p><w:r><w:t>{name}</w:t></w:r></w:p></w:tc></w:tr>"
        for name in ("Ada", "Ida")
    )
    data = files.word_of(f"<w:tbl>{rows}</w:tbl>{paragraph(0)}{paragraph(0, 'End')}")
    numbered = files.rezipped(data, {"word/numbering.xml": lambda name, content: (name, NUMBERING.encode())})
    assert text_of(numbered) == "1.\tAda\n2.\tIda\n\n4. End"
