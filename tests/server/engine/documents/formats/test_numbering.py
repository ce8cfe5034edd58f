"""Numbers of lists in Word files: lists that begin again."""

from __future__ import annotations

from lxml import etree

from everlong_server.engine.documents.formats.readers.openxml.numbering import Numbering
from everlong_server.engine.documents.formats.readers.openxml.package import W

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
