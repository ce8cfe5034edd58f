"""Text that is written from right to left, text in scripts without italics, and text that is nested or wide beyond measure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, expect

from tests.page.conftest import Tab
from tests.page.steps import conversation
from tests.page.test_answers import show
from tests.process import Server

pytestmark = pytest.mark.long

ARABIC = """# العنوان

قال همبتي إنه يجلس على الجدار!

- الملكة.
- أليس!

> اقتباس `x = (1)` قصير.

| الاسم | المكان |
|--|--|
| همبتي | الجدار |

```python
print("(a)")  # تعليق
```

English, with brackets (here).
"""
ENDS_LEFT = """(element) => {
  const text = element.firstChild;
  const last = document.createRange(), first = document.createRange();
  first.setStart(text, 0), first.setEnd(text, 1);
  last.setStart(text, text.length - 1), last.setEnd(text, text.length);
  return last.getBoundingClientRect().x < first.getBoundingClientRect().x;
}"""
"""Whether the last character is to the left of the first one, as in a line from right to left."""
SIDEWAYS = "(element) => element.scrollWidth > element.clientWidth"


def direction(place: Locator) -> str:
    return str(place.evaluate("(element) => getComputedStyle(element).direction"))


def test_text_from_right_to_left_is_shown_so(tab: Tab, server: Server) -> None:
    document = server.read("قالت الملكة!", filename="ملكة!.txt")["id"]
    asked = [{"role": "user", "content": "من الملكة؟"}, {"role": "assistant", "content": ARABIC}]
    session = conversation(server, asked, document)
    page = tab.open(session)
    answer = page.locator(".answer .markdown")
    for block in ("h2", "p >> nth=0", "ul", "blockquote", "table"):
        assert direction(answer.locator(block)) == "rtl", block
    for block in (".code", "pre", "blockquote code", "> p >> nth=-1"):
        assert direction(answer.locator(block)) == "ltr", block
    marker = answer.locator("ul").evaluate("(list) => getComputedStyle(list).paddingRight")
    assert marker != "0px", "the points of the list are on the wrong side"
    assert page.locator(".question .words").evaluate(ENDS_LEFT)
    assert page.locator(".sidebar li .title").first.evaluate(ENDS_LEFT)
    box = page.locator("#question")
    box.fill("من الملكة؟")
    assert direction(box) == "rtl"
    box.fill("")
    page.get_by_role("link", name="Read ملكة!.txt").click()
    expect(page.locator(".reader .words")).to_have_text("قالت الملكة!")
    assert page.locator(".reader .words span").evaluate(ENDS_LEFT)
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document}")


def test_emphasis_is_shown_in_scripts_without_italics(tab: Tab, server: Server) -> None:
    """Fonts of Chinese or Arabic have none, and some are not bold either: the browser slants and thickens them."""
    session = conversation(
        server, [{"role": "user", "content": "谁?"}, {"role": "assistant", "content": "*红* **后**"}]
    )
    page = tab.open(session)
    for mark in ("em", "strong"):
        style = page.locator(f".answer {mark}").evaluate("(element) => getComputedStyle(element).fontSynthesis")
        assert {"weight", "style"} <= set(style.split()), mark
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")


NESTED = {
    "quotations": ">" * 1500 + " deep",
    "emphasis": "*a " * 600 + "deep" + "*" * 600,
}


@pytest.mark.parametrize("kind", NESTED)
def test_an_answer_that_is_nested_without_end_is_shown(tab: Tab, talk: str, kind: str) -> None:
    """A model that loops can write one. The conversation could not be opened again."""
    show(tab.page, f"Before.\n\n{NESTED[kind]}\n\nAfter.")
    page = tab.open(talk)
    expect(page.locator(".usage")).to_have_count(1)
    answer = page.locator(".answer .markdown")
    expect(answer).to_contain_text("deep")
    expect(answer.locator("> p").first).to_have_text("Before.")
    expect(answer.locator("> p").last).to_have_text("After.")


WIDE = "Since $a_1 + a_2 + a_3 + a_4 + a_5 + a_6 + a_7 + a_8 + a_9 + a_{10} + a_{11} = \\frac{n(n+1)}{2}$, done. It is $x$."


def test_a_wide_formula_does_not_move_the_conversation(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(viewport={"width": 360, "height": 640})
    show(tab.page, WIDE)
    page = tab.open(talk)
    wide, narrow = page.locator(".formula").nth(0), page.locator(".formula").nth(1)
    expect(narrow.locator("math")).to_be_visible()
    assert not page.locator(".messages").evaluate(SIDEWAYS)
    assert wide.evaluate(SIDEWAYS), "the formula itself can be scrolled"
    assert not narrow.evaluate(SIDEWAYS)
    # A short formula stays on the line of its text: the lines of "x" and of the words around it end at the same height.
    gap = narrow.evaluate(
        """(formula) => {
          const after = document.createRange();
          after.selectNodeContents(formula.nextSibling);
          return Math.abs(formula.querySelector("mi").getBoundingClientRect().bottom - after.getBoundingClientRect().bottom);
        }"""
    )
    assert gap < 8


def test_the_box_of_a_task_is_in_the_line_of_its_text(tab: Tab, talk: str) -> None:
    page = tab.page
    show(page, "- [ ] to do\n- [x] done\n\n  later\n- plain")
    tab.open(talk)
    items = page.locator(".answer .markdown li")
    expect(items.locator("> p")).to_have_text(["☐ to do", "☑ done", "later", "plain"])
    styles = [item.evaluate("(element) => getComputedStyle(element).listStyleType") for item in items.all()]
    assert styles == ["none", "none", "disc"]
