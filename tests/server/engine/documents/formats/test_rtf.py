"""RTF: characters in every encoding, notes, tables and text boxes are read; pictures, objects and deleted text are noted."""

from __future__ import annotations

import pytest

from tests.server.engine.documents.formats.reading import notes_of, text_of

FONTS = (
    r"{\fonttbl{\f0\fswiss Arial;}{\f1\fswiss\fcharset204 Arial Cyr;}{\f2\fnil\fcharset128 MS Mincho;}"
    r"{\f3\fnil\fcharset2 Symbol;}}"
)


def rtf(body: str, head: str = r"{\rtf1\ansi\ansicpg1252\deff0" + FONTS) -> bytes:
    return (head + body + "}").encode("latin-1")


TEXTS = {
    "code page": (r"caf\'e9 \'93quoted\'94 \'96 dash\par", "café “quoted” – dash"),
    "unicode": (r"\uc1 \u8364? 100 \u-10179?\u-8704?\par", "€ 100 😀"),
    "unicode without a substitute": (r"{\uc0 \u1055 \u1088 ivet}\par", "Прivet"),
    "unicode with two bytes for others": (r"\uc2 \u12354\'82\'a0 end\par", "あ end"),
    "font in Cyrillic": (r"\f1 \'cf\'f0\'e8\'e2\'e5\'f2\f0  world\par", "Привет world"),
    "font in Japanese": (r"\f2 \'93\'fa\'96\'7b\f0  end\par", "日本 end"),
    "symbols": (r"{\f3 \'61\'62} alpha\par", "αβ alpha"),
    "signs": (r"b\line c\emdash d\bullet i\~j k\_l so\-ft\par", "b\nc—d•i\xa0j k\u2011l soft"),
    "escapes": (r"\{a\} \\b\par", "{a} \\b"),
    "subscripts": (r"H{\sub 2}O and x{\super 2}\par", "H2O and x^2"),
    "struck text": (
        r"Was {\strike 199 }{\striked1 EUR} 149 {\strike old\strike0  new}{\strike a\plain b}\par",
        "Was ~~199 EUR~~ 149 ~~old~~ new~~a~~b",
    ),
    "line breaks of the source": ("one \r\ntwo\\\r\nthree\\par", "one two\n\nthree"),
    "footnote": (
        r"Rent{\super\chftn{\footnote\pard\plain {\super\chftn} Except in August.}} is due.\par",
        "Rent[1] is due.\n\n[Footnote 1] Except in August.",
    ),
    "comment": (
        r"The rent{\*\atnid AQ}{\*\atnauthor Ada}\chatn{\*\annotation\pard\plain late payer} rises.\par",
        "The rent rises.\n\n[Comment by Ada] late payer",
    ),
    "header": (
        r"{\header\pard Acme Ltd\par}{\footer\pard page 9\par}Body.\par",
        "[Header] Acme Ltd\n\nBody.\n\n[Footer] page 9",
    ),
    "table": (
        r"\trowd\cellx1000\cellx2000\intbl a\cell b\cell\row\trowd\intbl c\cell d\cell\row\pard After.\par",
        "a\tb\nc\td\n\nAfter.",
    ),
    "field": (
        r'See {\field{\*\fldinst{HYPERLINK "http://x.org/"}}{\fldrslt{the site}}} now.\par',
        "See the site (http://x.org/) now.",
    ),
    "text box": (
        r"Before{\shp{\*\shpinst{\sp{\sn shapeType}{\sv 202}}{\shptxt\pard Box words.\par}}{\shprslt Box words.}} after.\par",
        "Before\nBox words.\n after.",
    ),
    "description": (
        r"A {\pict{\*\picprop{\sp{\sn wzDescription}{\sv A blue cat}}}\pngblip 8950} B\par",
        "A [A blue cat] B",
    ),
    "bytes": ("One {\\pict\\wmetafile8\\bin5 }}}{{} two.\\par", "One  two."),
    "list": (r"{\listtext\pard\plain 1.\tab}First\par{\pntext\f0 b)\tab}Second\par", "1.\tFirst\n\nb)\tSecond"),
    "alternatives": (r"{\upr{Fallback}{\*\ud{Real \u8364?}}}\par", "Real €"),
    "equation": (r"So {\mmath{\*\moMath{\mr\mscr0\msty2 x=1}}} holds.\par", "So x=1 holds."),
    "fractions and powers": (
        r"So {\mmath{\*\moMath{\mf{\mfPr{\mctrlPr\f34}}{\mnum{\mr 1}}{\mden{\mr n+2}}}{\mr +}{\msSup{\msSupPr}{\me{\mr x}}{\msup{\mr 10}}}}}.\par",
        "So 1/(n+2)+x^10.",
    ),
    "roots and brackets": (
        r"{\mmath{\*\moMath{\mrad{\mradPr{\mdegHide on}}{\mdeg}{\me{\mr 2}}}{\md{\mdPr}{\me{\mr a+b}}}{\md{\mdPr{\mbegChr [}{\mendChr ]}}{\me{\mr c}}}}}\par",
        "√(2)(a+b)[c]",
    ),
    "sums": (
        r"{\mmath{\*\moMath{\mnary{\mnaryPr{\mchr \u8721?}{\mlimLoc undOvr}}{\msub{\mr i=1}}{\msup{\mr n}}{\me{\mr i}}}}}\par",
        "∑_(i=1)^n(i)",
    ),
    "sections": (r"First.\sect\sectd Second.\page Third.\par", "First.\n\nSecond.\n\nThird."),
    "properties": (r"{\info{\title T}}{\*\generator R;}{\stylesheet{\s0 Normal;}}{\*\xyzzy junk}Body.\par", "Body."),
    "a character style that is marked as optional": (r"{\f0\i0\*\cs7\cf0 The words.}\par", "The words."),
    "lists outside of their table": (
        r"{\list{\listlevel{\leveltext \'02\'00.}{\levelnumbers \'01}}{\listname A;}\listid1}Body.\par",
        "Body.",
    ),
    "5,000 groups": ("{" * 5000 + "Deep words" + "}" * 5000 + r"\par", "Deep words"),
    "too many ends": (r"First.}\par Second.\par", "First.\n\nSecond."),
}


@pytest.mark.parametrize(("body", "text"), TEXTS.values(), ids=TEXTS)
def test_the_text_of(body: str, text: str) -> None:
    assert text_of(rtf(body)) == text


HEADS = {
    "Cyrillic": (r"{\rtf1\ansi\ansicpg1251", r"\'cf\'f0\'e8", "При"),
    "DOS": (r"{\rtf1\pc{\fonttbl}", r"caf\'82", "café"),
    "Macintosh": (r"{\rtf1\mac{\fonttbl}", r"caf\'8e", "café"),
    "bytes of the code page": (r"{\rtf1\ansi\ansicpg1252", " caf\xe9", "café"),
    "UTF-8": (r"{\rtf1\ansi\ansicpg65001", "café — 日本".encode().decode("latin-1"), "café — 日本"),
    "unknown": (r"{\rtf1\ansi\ansicpg99999", r"caf\'e9", "café"),
}


@pytest.mark.parametrize(("head", "body", "text"), HEADS.values(), ids=HEADS)
def test_the_encoding_of_the_file(head: str, body: str, text: str) -> None:
    assert text_of(rtf(rf"{body}\par", head)) == text


NOTED = {
    "hidden": (r"Seen {\v secret}only.\par", "left out: passages that the file hides (1)"),
    "deleted": (r"Keep {\deleted gone }this.\par", "left out: deleted passages (tracked changes) (1)"),
    "picture": (r"One {\pict\pngblip 8950} two.\par", "left out: pictures (1)"),
}


@pytest.mark.parametrize(("body", "note"), NOTED.values(), ids=NOTED)
def test_what_is_not_in_the_text_is_noted(body: str, note: str) -> None:
    assert notes_of(rtf(body)) == [note]


def test_a_word_file_by_name_that_is_rtf() -> None:
    assert text_of(rtf(r"Body words.\par"), "a.doc") == "Body words."


def test_html_inside_rtf() -> None:
    body = rb"\htmlrtf \par \htmlrtf0 Hello {\*\htmltag84 <b>}bold{\*\htmltag92 </b>}{\*\htmltag84 &nbsp;}end.\htmlrtf\par\htmlrtf0}"
    assert text_of(rb"{\rtf1\ansi\fromhtml1 {\*\htmltag64 <p>}" + body) == "Hello bold end."
