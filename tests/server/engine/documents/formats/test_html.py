"""A page's text is what a browser shows: forms and pictures included, scripts and hidden parts left out, in its encoding."""

from __future__ import annotations

import pytest

from everlong_server.engine.documents.formats.readers.pages.links import set_links_apart
from tests import files
from tests.server.engine.documents.formats.reading import notes_of, read, text_of

SHOWN = {
    "input": ("<label>Name</label><input value='Ida Roth'>", "Name Ida Roth"),
    "inputs": ("<input value=Ida><input value=Roth>", "Ida Roth"),
    "textarea": ("Note<textarea>long\nnote</textarea>", "Note long note"),
    "select": ("Size<select><option>A<option selected>B</select>now", "Size B now"),
    "select first": ("<select><option>A<option>B</select>", "A"),
    "select many": ("<select multiple><option selected>A<option>B<option selected>C</select>", "A, C"),
    "checkbox": ("<input type=checkbox checked>Paid <input type=checkbox>Due", "[x] Paid [ ] Due"),
    "radio": ("<input type=radio>Yes <input type=radio checked>No", "[ ] Yes [x] No"),
    "button": ("Ready?<button>Go</button>now", "Ready? Go now"),
    "submit": ("<input type=submit value=Send>", "[Send]"),
    "hidden": ("<input type=hidden value=secret>Shown", "Shown"),
    "password": ("<input type=password value=secret>Shown", "Shown"),
    "alt": ('See <img alt="A map of  Turku" src=x>.', "See [A map of Turku] ."),
    "no alt": ("See <img alt='' src=x>it", "See it"),
    "title": ("<img title=Map src=x>", "[Map]"),
    "image button": ("<input type=image alt=Search>", "[Search]"),
    "details": ("<details><summary>More</summary>detail</details>", "More detail"),
    "sections": ("<section>One</section><section>Two</section>", "One Two"),
    "definitions": ("<dl><dt>Cat</dt><dd>An animal</dd></dl>", "Cat An animal"),
    "letters by a style": ("<ol style='list-style-type: lower-alpha'><li>Rent<li>Term</ol>", "a. Rent b. Term"),
    "letters by a style of an entry": ("<ol><li style='list-style: upper-roman inside'>Rent</ol>", "I. Rent"),
    "letters by a class": (
        "<style>ol.x, .y { list-style-type: upper-alpha }</style><ol class=x><li>Rent<li>Term</ol>",
        "A. Rent B. Term",
    ),
    "numbers that a style removes": ("<ol style='list-style: none'><li>Rent</ol>", "Rent"),
    "numbers that a rule may draw elsewhere": (
        "<style>.x {list-style-type: none}</style><ol class=x><li>Rent</ol>",
        "1. Rent",
    ),
    "exponent of several terms": ("x<sup>n+1</sup>, e<sup><i>n</i>−<b>k</b></sup>.", "x^(n+1), e^(n−k)."),
    "hidden attribute": ("Shown<p hidden>gone</p>", "Shown"),
    "display none": ("Shown<p style='color:red; DISPLAY : none'>gone</p>", "Shown"),
    "until found": ("<div hidden><p hidden>gone</p></div>Shown", "Shown"),
    "cdata": ("<p><![CDATA[5 < 6 & the code is <K-77>]]></p>", "5 < 6 & the code is <K-77>"),
    "ruby": ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp></ruby>字", "漢(かん)字"),
    "footnote": (
        "<p>crowns<sup><a href='#n1'>1</a></sup> a month<a href='#n2'><sup>b</sup></a>, 3 m<sup>2</sup></p>",
        "crowns[1] a month[b], 3 m^2",
    ),
    "footnote of a book": ("<p>crowns<a epub:type='noteref' href='n.xhtml'>1</a> a month</p>", "crowns[1] a month"),
    "footnote of a book in a raised link": (
        "<p>crowns<sup><a epub:type='noteref' href='n.xhtml#n1'>1</a></sup> a month</p>",
        "crowns[1] a month",
    ),
    "mathml": (
        "It is <math><mfrac><mi>a</mi><mi>b</mi></mfrac><mo>+</mo><msup><mi>x</mi><mn>2</mn></msup></math>",
        "It is a/b+x^2",
    ),
    "mathml with a prefix": (
        "It is <m:math xmlns:m='http://www.w3.org/1998/Math/MathML'><m:mfrac><m:mn>1</m:mn><m:mn>2</m:mn></m:mfrac></m:math>",
        "It is 1/2",
    ),
    "brackets of mathml": (
        "<math><mi>a</mi><mfenced><mrow><mi>b</mi><mo>+</mo><mi>c</mi></mrow></mfenced><mfenced open='[' close=')' separators=';'>"
        "<mn>0</mn><mn>1</mn></mfenced></math>",
        "a(b+c)[0;1)",
    ),
    "scripts of mathml": (
        "<math><mmultiscripts><mi>C</mi><mn>6</mn><none/><mprescripts/><none/><mn>14</mn></mmultiscripts></math>",
        "^14C_6",
    ),
    "numbers side by side in mathml": (
        "<math><mn>2</mn><mrow><mfrac><mn>1</mn><mn>2</mn></mfrac></mrow><mo>=</mo><msup><mn>5</mn><mn>2</mn></msup><mfrac><mn>1</mn><mi>x</mi></mfrac></math>",
        "2 1/2=5^2 1/x",
    ),
    "numbers beside a root, or in one, in mathml": (
        "<math><mn>2</mn><mroot><mi>x</mi><mn>3</mn></mroot><mo>+</mo><msqrt><mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac></msqrt></math>",
        "2 3√(x)+√(2 1/2)",
    ),
    "numbers with an invisible operator in mathml": (
        "<math><mn>2</mn><mo>&#x2064;</mo><mfrac><mn>1</mn><mn>2</mn></mfrac><mo>&#x2062;</mo><mi>x</mi></math>",
        "2 1/2 x",
    ),
    "brackets without separators in mathml": (
        "<math><mfenced separators=''><mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac></mfenced></math>",
        "(2 1/2)",
    ),
    "a binomial of mathml": (
        "<math><mo>(</mo><mfrac linethickness='0'><mi>n</mi><mi>k</mi></mfrac><mo>)</mo></math>",
        "(n¦k)",
    ),
    "a numbered list in a cell": ("<table><tr><td>Do<td><ol><li>this<li>that</ol>", "Do 1. this 2. that"),
    "noscript": ("<script>write('x')</script><noscript>Call <b>555-0199</b>.</noscript>Shown", "Call 555-0199. Shown"),
    "picture that a script shows": (
        "<img data-src=x alt=Map><noscript><img src=x alt=Map><img src=count></noscript>Shown",
        "[Map] Shown",
    ),
    "script": ("<script>alert(1)</script><style>p{}</style><template>t</template>Shown", "Shown"),
    "entities": ("caf&eacute;&nbsp;bar &#8212; &hellip;", "café bar — …"),
}


@pytest.mark.parametrize(("body", "text"), SHOWN.values(), ids=SHOWN)
@pytest.mark.parametrize(
    "made", [lambda body: f"<html><body>{body}".encode(), lambda body: files.epub([body])], ids=["html", "epub"]
)
def test_what_a_browser_shows(made: object, body: str, text: str) -> None:
    assert callable(made)
    assert text_of(made(body)).split() == text.split()


RAISED = {
    "powers": ("10<sup>6</sup> x<sup>n</sup> (a+b)<sup>-2</sup>", "10^6 x^n (a+b)^-2"),
    "fractions": ("5<sup>1</sup>/<sub>2</sub> or 1<sup>1</sup>&frasl;<sub>4</sub> cups, x<sup>2</sup>/2", "5 1/2 or 1 1\u20444 cups, x^2/2"),
    "exponents above an index": ("x<sup>n+1</sup>/<sub>2</sub>, 2<sup>n</sup>/<sub>m</sub>", "x^(n+1)/2, 2^n/m"),
    "ordinals and signs": ("1<sup>st</sup> Word<sup>TM</sup> CO<sub>2</sub>", "1st WordTM CO2"),
    "elements between and inside": ("<b>10</b><!-- c --><sup> <i>7</i></sup>", "10^7"),
    "nothing": ("x<sup></sup> y<sup>&nbsp;</sup> z<sup><!-- c --></sup>", "x y z"),
    "sums and ranges": ("x<sup> n+1 </sup>, x<sup>(n-1)</sup>, Smith<sup>a-c</sup>", "x^(n+1), x^(n-1), Smitha-c"),
    "footnotes": ("10<sup><a href='#n'>1</a></sup> so<sup>[2]</sup>", "10[1] so[2]"),
    "at the beginning of a line": ("<p>10</p><p><sup>6</sup> Note</p>5<br><sup>7</sup> Note", "10\n\n6 Note\n\n5\n7 Note"),
    "styles": (
        "<style>.c1,p.c2{color:red} @media all{.c3 , .c4{font-size:6pt;vertical-align:super}} .c5{vertical-align:sub}</style>"
        "10<span class='c9 c3'>6</span> m<span style='vertical-align: super'>2</span> a<span class=c5>1</span> b<span class=c1>1</span>"
        " c<span class=c3 style='vertical-align:baseline'>1</span>",
        "10^6 m^2 a1 b1 c1",
    ),
    "in a cell": ("<table><tr><td>10<td><sup>2</sup>H<tr><td>m<sup>2</sup><td>b</table>", "10\t2H\nm^2\tb"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), RAISED.values(), ids=RAISED)
def test_exponents_are_marked(body: str, text: str) -> None:
    assert text_of(f"<html><body>{body}".encode()) == text


def test_preformatted_lines_stay_lines() -> None:
    page = b"<!doctype html><pre><code>def <b>f</b>():\n    return 1</code></pre><pre>a<br>b</pre>"
    assert text_of(page) == "def f():\n    return 1\na\nb"


def test_what_is_left_out_is_noted() -> None:
    page = (
        b"<html><img src=a><img src=b><video src=c></video><p hidden>gone</p><select><option>a<option>b</select>Shown"
    )
    assert notes_of(page) == [
        "left out: hidden elements (1)", "left out: options of lists that are not selected (1)",
        "left out: pictures without a description (2)", "left out: embedded media: video (1)",
    ]  # fmt: skip


BETWEEN = {
    "links": ("<a href=a>Home</a><a href=b>Rents</a>", "Home Rents"),
    "links with an anchor between them": ("<a href=a>Home</a><a id=x></a><a name=y></a><a href=b>Rents</a>", "Home Rents"),
    "Japanese links": ("<a href=a>ホーム</a><a href=b>会社</a>", "ホーム会社"),
    "Japanese and Latin links": ("<a href=a>ホーム</a><a href=b>Rents</a>", "ホーム Rents"),
    "punctuation in a link": ("<a href=a>Home</a><a href=b>, sweet</a>", "Home, sweet"),
    "anchor in a word": ("re<a id=x></a>nt", "rent"),
    "anchor after a link": ("<a href=a>Home</a><a id=x></a>s", "Homes"),
    "anchor with letters after a link": ("<a href=a>un</a><a name=y>do</a>", "undo"),
    "links with text between them": ("<a href=a>Home</a>-<a href=b>work</a>", "Home-work"),
    "elements in a word in a cell": (
        "<table><tr><td>un<mark>believ</mark>able</td><td>Ctrl-<kbd>C</kbd>s lo<wbr>ng</td></tr></table>",
        "unbelievable\tCtrl-Cs long",
    ),
    "equation that is also drawn": (
        "So <span><span><math><mi>a</mi></math></span><span aria-hidden=true>a</span></span> is <span><b aria-hidden=true>b</b><i><math><mi>b</mi></math></i></span>.",
        "So a is b.",
    ),
    "element that begins a line": ("a<search>b</search>c<dialog open>d</dialog>e", "a\nb\nc\nd\ne"),
    "deep": ("<i>" * 5000 + "un<b>do</b><a href=a>Home</a><a href=b>Rents</a>", "undoHome Rents"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "text"), BETWEEN.values(), ids=BETWEEN)
def test_what_is_between_words(body: str, text: str) -> None:
    assert text_of(f"<html><body>{body}".encode()) == text


DRAWN = {
    "new line by y": ("<tspan x=1 y=20>Rent</tspan><tspan x=1 y=40>paid</tspan>", "Rent\npaid"),
    "new line by dy": ("<tspan x=0>Rent</tspan><tspan x=0 dy=1.2em>paid</tspan>", "Rent\npaid"),
    "y like that of the text": ("Rent<tspan y=20> is</tspan> due", "Rent is due"),
    "same line": ("<tspan x=1 y=20>Rent</tspan><tspan x=90 y=20>500</tspan>", "Rent 500"),
    "kerning": ("Re<tspan dx=-0.5>n</tspan><tspan dx=.4>t</tspan>", "Rent"),
    "kerning in parts of the font": ("Re<tspan dx=0.05em>nt</tspan>", "Rent"),
    "blank by dx": ("Rent<tspan dx=8>due</tspan>", "Rent due"),
    "index": ("H<tspan dy=4 font-size=70%>2</tspan><tspan dy=-4>O</tspan>", "H2O"),
    "letters at places": ("<tspan x=0 y=20>R</tspan><tspan x=11 y=20>e</tspan><tspan x=20 y=20>nt</tspan>", "Rent"),
    "weight": ("Re<tspan font-weight=bold>nt</tspan>", "Rent"),
    "large font": ("<tspan style='font-size:40px'>Re<tspan dx=5>nt</tspan></tspan>", "Rent"),
}  # fmt: skip


@pytest.mark.parametrize(("parts", "text"), DRAWN.values(), ids=DRAWN)
def test_the_parts_of_a_drawn_text(parts: str, text: str) -> None:
    page = f"<html><body><svg><text x=0 y=20>{parts}</text><text>Next</text></svg>"
    assert text_of(page.encode()) == f"{text}\nNext"


def test_a_page_with_very_many_links_is_read_in_linear_time() -> None:
    nodes = 0

    class Node:
        """Counts how often the neighbours of a link are asked for."""

        tag, text, tail = "a", "x", None

        def __init__(self, before: Node | None) -> None:
            self.before = before

        def get(self, name: str) -> str | None:
            return "#" if name == "href" else None

        def getprevious(self) -> Node | None:
            nonlocal nodes
            nodes += 1
            return self.before

        def text_content(self) -> str:
            return "x"

    links: list[Node] = []
    for _ in range(1000):
        links.append(Node(links[-1] if links else None))
    tree = type("Tree", (), {"iter": lambda self, tag: iter(links)})()
    set_links_apart(tree)
    assert nodes <= 2 * len(links)
    assert [link.tail for link in links] == [" "] * 999 + [None]


BEGINNINGS = [
    "<!-- saved from url=(0014)about:internet -->\n<!doctype html><html><body>", "<!-- a --><!-- b --><html>", "<meta charset=utf-8>",
    "<div>", "<p>", "<title>t</title>", "<style>p {}</style>", "<HTML>", "\ufeff<html>", "\n\n<!DOCTYPE HTML PUBLIC '-//W3C//DTD HTML 4.01//EN'>",
    "<?xml version='1.0'?><!-- c --><html xmlns='http://www.w3.org/1999/xhtml'>", "<body>", "Words <b>first</b>", "<center><font size=2>",
    "<!DOCTYPE html SYSTEM 'about:legacy-compat'>", "<article>",
]  # fmt: skip


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize(
    ("filename", "media_type"), [("a.html", None), (None, "text/html"), ("A.HTM", "application/octet-stream")]
)
def test_a_page_that_is_declared_is_one_however_it_begins(
    beginning: str, filename: str | None, media_type: str | None
) -> None:
    text, _ = read(f"{beginning}<p>Saved page.</p>".encode(), filename, media_type)
    assert text.endswith("Saved page.")
    assert "<" not in text


WESTERN, RUSSIAN = "Le café était fermé – il a dit : “à demain”", "Кошка сидит на окне и смотрит на улицу"
CENTRAL, JAPANESE = (
    "Zażółć gęślą jaźń, wszystkie drzewa są wysokie",
    "猫は窓辺に座って外を見ています。今日は天気がいいです。",
)
ENCODED = [
    (WESTERN, "cp1252"), (RUSSIAN, "cp1251"), (CENTRAL, "cp1250"), (JAPANESE, "shift_jis"), (WESTERN, "utf-8"), (RUSSIAN, "utf-8"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "encoding"), ENCODED)
@pytest.mark.parametrize(
    "declared",
    [
        "",
        "<meta charset=utf-8>",
        "<meta http-equiv=Content-Type content='text/html; charset=UTF-8'>",
        "<meta charset=nonsense>",
    ],
)
def test_a_page_that_declares_a_wrong_encoding_or_none(words: str, encoding: str, declared: str) -> None:
    page = f"<html><head>{declared}</head><body><p>{words}</p></body></html>".encode(encoding)
    assert text_of(page) == words
    assert text_of(files.epub([page])) == words
    assert len(notes_of(page)) == (encoding != "utf-8")


def test_a_few_damaged_characters_do_not_change_the_encoding() -> None:
    page = "<html><p>日本語のテキスト ".encode() + b"\xff!"
    assert text_of(page) == "日本語のテキスト �!"
    assert notes_of(page) == ["1 damaged characters were replaced by U+FFFD"]


@pytest.mark.parametrize("page", ["<!-- nothing -->", "", "   ", "<?xml version='1.0'?>"])
def test_a_chapter_without_an_element_is_no_reason_to_refuse_the_book(page: str) -> None:
    assert text_of(files.epub([page.encode(), "<p>Here.</p>"])) == "Here."
