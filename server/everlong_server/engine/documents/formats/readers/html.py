"""Reads HTML: the text as a browser renders it, with the values of forms and the descriptions of pictures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from lxml import etree, html

from everlong_server.engine.documents.formats.blocks import Block, Notes
from everlong_server.engine.documents.formats.charset import decode
from everlong_server.engine.documents.formats.readers.pages.drawings import set_texts_apart
from everlong_server.engine.documents.formats.readers.pages.links import set_links_apart
from everlong_server.engine.documents.formats.readers.pages.numbers import ListForms
from everlong_server.engine.documents.formats.readers.pages.raised import mark_superscripts
from everlong_server.engine.documents.formats.readers.pages.struck import mark_strikes, write_out_strikes
from everlong_server.engine.documents.formats.readers.pages.tables import INLINE, TAB, write_out_tables
from everlong_server.engine.documents.formats.readers.shared.equations import linear_mathml
from everlong_server.engine.documents.formats.readers.shared.scripts import written_superscript
from everlong_server.engine.documents.formats.readers.shared.trees import remove

_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_SUBSET = re.compile(
    r"((?:\s|\ufeff|<\?[^>]*\?>|<!--(?:(?!-->).){0,4096}-->)*<!DOCTYPE\s[^>\[]{0,1000})\[([^\]]{0,100000})\]\s*>",
    re.I | re.S,
)
"""The beginning of a page whose doctype has declarations."""
_PREFIX = re.compile(r"""<(\w+):html\s[^>]*xmlns:\1\s*=\s*["']http://www\.w3\.org/1999/xhtml""")
"""The first element of an XHTML page whose elements all have a prefix, which HTML parsers take for a part of their names."""
_INNER_PREFIX = re.compile(r"""xmlns:([\w-]{1,40})\s*=\s*["']http://www\.w3\.org/(?:1998/Math/MathML|2000/svg)["']""")
"""A prefix of the elements of equations or drawings."""
_MAX_PREFIXES = 20
_TITLE = re.compile(r"(<title\b[^<>]*>[^<]*)", re.IGNORECASE)
_ENTITY = re.compile(r"""<!ENTITY\s+([\w.:-]+)\s+(["'])(.*?)\2\s*>""", re.DOTALL)
_REFERENCE = re.compile(r"&([\w.:-]+);")
_MAX_EXPANDED = 64 << 20
"""Characters that a page may have with all entities replaced."""
_NUMBER = re.compile(r"\w{1,3}|[*†‡]")
_DISPLAY_NONE = re.compile(r"(^|;)\s*display\s*:\s*none", re.IGNORECASE)
_TAGS = re.compile(
    r"</?(?!(?:html|head|body|title|script|style|br|!)\b)([a-z][a-z0-9]*)(?:\s[^<>]*)?/?>", re.IGNORECASE
)
_JOINED_LINKS = re.compile(r"</a\s*>(?=<a\s[^<>]*\bhref)", re.IGNORECASE)
_NO_TEXT = "//script | //style | //template[not(@shadowrootmode)] | //rp"
_NOTE = re.compile(r"\b(?:foot|end|rear)notes?\b")
"""Kinds of elements of books, by `epub:type` or `role`."""
_MEDIA = "//video | //audio | //iframe | //object | //embed | //canvas"
_NOTE_MARKS = (
    "//a[@role='doc-noteref'] | //a[@*[name()='epub:type' and contains(., 'noteref')]] | "
    "//sup[a[contains(@href, '#')]] | //a[contains(@href, '#')][sup]"
)
"""The marks of footnotes, if they are as short as a number."""
_DRAWN_EQUATIONS = "//*[@aria-hidden='true'][preceding-sibling::*[1]/descendant-or-self::math or following-sibling::*[1]/descendant-or-self::math]"
"""Equations as scripts draw them, letter by letter, beside the same equations for screen readers."""
_BLOCKS = (
    "section", "details", "summary", "fieldset", "form", "legend", "dl", "dt", "dd", "center", "caption", "hr", "option", "text", "search",
    "dialog", "menu", "dir", "marquee",
)  # fmt: skip
"""Elements that begin a line, in addition to those that inscriptis knows; `text` is one of SVG."""
_FRACTION_BARS = ("/", "\u2044")
_BUTTONS = ("submit", "button", "reset", "image")


def read(file: Path, notes: Notes) -> Iterator[Block]:
    """Yield a page, a block for each section."""
    yield from render(decode(file.read_bytes(), notes), notes, titled=True)


def render(page: str, notes: Notes, *, titled: bool = False) -> Iterator[Block]:
    """Yield a page, a block for each section. `titled`: after its title, if the page does not repeat it."""
    from inscriptis.css_profiles import STRICT_CSS_PROFILE  # noqa: PLC0415
    from inscriptis.html_engine import Inscriptis  # noqa: PLC0415
    from inscriptis.html_properties import Display  # noqa: PLC0415
    from inscriptis.model.config import ParserConfig  # noqa: PLC0415
    from inscriptis.model.html_element import HtmlElement  # noqa: PLC0415

    tree = _parse(page)
    if tree is None:
        return
    title = _words(found[0]) if titled and (found := tree.xpath("/html/head/title")) else ""
    _open_frames(tree)
    _open_noframes(tree)
    _open_shadows(tree)
    _open_alternatives(tree)
    mark_superscripts(tree)
    mark_strikes(tree)
    lists = ListForms(tree)
    _drop_hidden(tree, notes)
    lists.write_out(tree)
    _write_out_controls(tree, notes)
    _write_out_pictures(tree, notes)
    for drawn in tree.xpath(_DRAWN_EQUATIONS):
        _replace(drawn, "", space="")
    for equation in tree.xpath("//math"):
        _replace(equation, linear_mathml(equation), space=" " if equation.get("display") == "block" else "")
    for mark in tree.xpath(_NOTE_MARKS):
        if _NUMBER.fullmatch(words := _words(mark)):
            _replace(mark, f"[{words}]", space="")
    _mark_exponents(tree)
    for reading in tree.xpath("//ruby/rt"):  # pronunciation, after the word
        _replace(reading, f"({reading.text_content()})", space="")
    write_out_strikes(tree)
    set_links_apart(tree)
    _write_out_lines(tree)
    write_out_tables(tree)
    rules = {f"h{level}": ["heading"] for level in range(1, 7)}
    css = STRICT_CSS_PROFILE | {name: HtmlElement(display=Display.block) for name in _BLOCKS}
    rendered = Inscriptis(tree, ParserConfig(css=css, annotation_rules=rules))
    text = rendered.get_text()
    if title and title not in " ".join(text.replace(TAB, " ").split()):
        yield Block(title)
    starts = [(mark.start, text[mark.start : mark.end]) for mark in rendered.get_annotations()]
    cuts = [start for start, _ in starts] + [len(text)]
    yield Block(_stripped(text[: cuts[0]]))
    for (start, heading), end in zip(starts, cuts[1:], strict=True):
        yield Block(_stripped(text[start:end]), section=" ".join(heading.replace(TAB, " ").split()))


def _stripped(text: str) -> str:
    """Return the text without white space around it and around its cells. Tabs for empty cells stay, unless there is nothing else."""
    if not text.replace(TAB, "").strip():
        return ""
    return "\t".join(cell.strip(" ") for cell in text.strip().split(TAB))


def _parse(page: str) -> Any:
    """Return the tree of a page; None if it has no element."""
    # HTML parsers drop CDATA sections, which XHTML pages contain.
    source = _without_subset(_CDATA.sub(lambda section: escape(section[1]), page).replace("\0", "").replace(TAB, ""))
    if "</title" not in source.lower():  # the rest of the page would be the title
        source = _TITLE.sub(r"\1</title>", source, count=1)
    if prefix := _PREFIX.search(source[:4096]):
        source = re.sub(rf"<(/?){prefix[1]}:", r"<\1", source)
    if prefixes := list(dict.fromkeys(_INNER_PREFIX.findall(source)))[:_MAX_PREFIXES]:
        source = re.sub(rf"<(/?)(?:{'|'.join(prefixes)}):", r"<\1", source)
    # Without `huge_tree`, lxml silently drops text nested deeper than 256 elements or after 10 MB of one text node.
    parser = html.HTMLParser(encoding="utf-8", no_network=True, huge_tree=True)
    try:
        tree = html.document_fromstring(source.encode("utf-8", "replace"), parser)
        if any("depth" in error.message for error in parser.error_log):  # the parser stopped there
            apart = _JOINED_LINKS.sub(" ", source)
            flat = _TAGS.sub(lambda tag: "" if tag[1].lower() in INLINE else "<br>", apart)
            tree = html.document_fromstring(flat.encode("utf-8", "replace"), parser)
    except etree.ParserError:  # only white space or comments
        return None
    _append_the_rest(tree)
    return tree


def _append_the_rest(tree: Any) -> None:
    """Move what follows the end of the page, such as a second page, into the page, as browsers do."""
    for rest in list(tree.itersiblings("html")):
        for head in rest.xpath("./head"):
            remove(head)
        for element in (rest, *rest.xpath("./body")):
            element.tag = "div"
        (tree if tree.find("body") is None else tree.find("body")).append(rest)


def _without_subset(page: str) -> str:
    """Return an XHTML page without the declarations inside its doctype, and with the entities that they define replaced."""
    subset = _SUBSET.match(page)
    if subset is None:
        return page
    entities = {name: value for name, _, value in _ENTITY.findall(subset[2]) if "&" not in value and "<" not in value}
    rest = page[subset.end() :]
    if entities and len(rest) + rest.count("&") * max(map(len, entities.values())) < _MAX_EXPANDED:
        rest = _REFERENCE.sub(lambda entity: entities.get(entity[1], entity[0]), rest)
    return f"{subset[1]}>{rest}"


def _open_frames(tree: Any) -> None:
    """Replace frames by the pages that their attributes contain."""
    for frame in tree.xpath("//iframe[@srcdoc]"):
        page = _parse(frame.get("srcdoc"))
        if page is not None:
            page.tag = "div"
            frame.addprevious(page)
            frame.drop_tree()


def _open_noframes(tree: Any) -> None:
    """Show the page for browsers without frames, which the parser keeps as source."""
    for source in tree.xpath("//noframes[not(*)]"):
        page = _parse(source.text_content())
        if page is not None:
            page.tag = source.tag = "div"
            source.text = None
            source.append(page)


def _open_shadows(tree: Any) -> None:
    """Show the shadow trees that elements declare, in place of what the elements contain but their slots."""
    for shadow in tree.xpath("//template[@shadowrootmode]"):
        shadow.tag = "div"


def _open_alternatives(tree: Any) -> None:
    """Keep what browsers without scripts show, but not pictures that are shown anyway, nor those and frames that only count visits."""
    shown = set(tree.xpath("//img[not(ancestor::noscript)]/@alt"))
    for alternative in tree.xpath("//noscript"):
        for element in alternative.xpath(".//img | .//iframe"):
            if not element.get("alt") or element.get("alt") in shown:
                _replace(element, "", space="")
        alternative.tag = "div"


def _mark_exponents(tree: Any) -> None:
    """Write `^` before superscripts that look like exponents."""
    before = ""
    for event, element in etree.iterwalk(tree, events=("start", "end", "comment", "pi")):
        if event in ("start", "end") and element.tag not in INLINE:
            before = ""
        if event == "start":
            if element.tag == "sup" and (words := _words(element)):
                opening, _, closing = written_superscript(before, words).partition(words)
                if opening and before[-1:].isdecimal() and words.isdecimal() and _is_numerator(element):
                    opening = " "
                if opening:
                    element.text = f"{opening}{(element.text or '').lstrip()}"
                    last = element[-1] if len(element) else None
                    if last is None:
                        element.text = element.text.rstrip()
                    else:
                        last.tail = (last.tail or "").rstrip()
                element.tail = f"{closing}{element.tail or ''}"
            before = element.text or before
        else:
            before = element.tail or before


def _is_numerator(element: Any) -> bool:
    """Whether a superscript is the numerator of a fraction whose denominator is a subscript, as in 5¹/₂."""
    after = element.getnext()
    return after is not None and after.tag == "sub" and (element.tail or "").strip() in _FRACTION_BARS


def _write_out_lines(tree: Any) -> None:
    """Drop the elements in preformatted text, such as `code`: inscriptis joins their lines."""
    for text in tree.xpath("//pre | //listing | //xmp"):
        for end in text.xpath(".//br"):
            end.tail = f"\n{end.tail or ''}"
        words = text.text_content()
        for child in list(text):
            text.remove(child)
        text.text, text.tag = words, "pre"


def _drop_hidden(tree: Any, notes: Notes) -> None:
    for element in tree.xpath(_NO_TEXT):
        _replace(element, "", space="")
    for element in tree.xpath("//*[@hidden or @style]"):
        if _NOTE.search(element.get("epub:type") or element.get("role") or ""):
            continue  # programs show it when its mark is touched
        if element.get("hidden") is not None or _DISPLAY_NONE.search(element.get("style", "")):
            if element.getparent() is not None and element.text_content().strip():
                notes.left_out("hidden elements")
            _replace(element, "", space="")


def _write_out_controls(tree: Any, notes: Notes) -> None:
    """Replace the controls of forms by their values, apart from the words around them."""
    for control in tree.xpath("//input"):
        kind = control.get("type", "text").lower()
        if kind in ("checkbox", "radio"):
            value = "[x]" if control.get("checked") is not None else "[ ]"
        elif kind in ("hidden", "password", "file"):
            value = ""
            notes.left_out("hidden values of forms", bool(control.get("value")))
        else:
            value = control.get("alt" if kind == "image" else "value", "")
        _replace(control, f"[{value}]" if value and kind in _BUTTONS else value)
    for select in tree.xpath("//select"):
        options = select.xpath(".//option")
        chosen = [option for option in options if option.get("selected") is not None]
        if not chosen and select.get("multiple") is None:
            chosen = options[:1]  # as browsers do
        notes.left_out("options of lists that are not selected", len(options) - len(chosen))
        _replace(select, ", ".join(option.get("label") or _words(option) for option in chosen))
    for field in tree.xpath("//textarea"):
        _replace(field, field.text_content().strip())
    for button in tree.xpath("//button | //label"):
        button.tail = f" {button.tail or ''}"
        if button.tag == "button" and button.getparent() is not None:
            button.text = f" {button.text or ''}"


def _write_out_pictures(tree: Any, notes: Notes) -> None:
    for picture in tree.xpath("//img | //area[@alt]"):
        alt = " ".join((picture.get("alt") or picture.get("title") or "").split())
        if picture.get("alt") is None and not alt:
            notes.left_out("pictures without a description")
        _replace(picture, f"[{alt}]" if alt else "")
    for title in tree.xpath("//svg//title"):
        _replace(title, f"[{_words(title)}]" if _words(title) else "")
    set_texts_apart(tree)
    for media in tree.xpath(_MEDIA):
        media.tail = f" {media.tail or ''}"
        notes.left_out(f"embedded media: {media.tag}")


def _words(element: Any) -> str:
    return " ".join(element.text_content().split())


def _replace(element: Any, text: str, space: str = " ") -> None:
    """Replace an element by text, with `space` around it.

    The element becomes a `span`: removing it would join the texts around it, which takes quadratic time for many elements.
    """
    if element.getparent() is not None:
        element.clear(keep_tail=True)
        element.tag = "span"
        element.text = f"{space}{text}{space}"
