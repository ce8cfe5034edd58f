"""The page on a phone: what fingers can hit, and what a narrow screen must not cut off."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import expect

from tests.page.conftest import Tab
from tests.page.steps import conversation, settled
from tests.process import Server

TARGETS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, textarea")]
  .filter((element) => element.checkVisibility({visibilityProperty: true}) && !element.closest(".skip"))
  .map((element) => {
    const {width, height} = (element.closest("label") ?? element).getBoundingClientRect();
    return [element.ariaLabel || element.textContent || element.id, Math.ceil(width), Math.ceil(height)];
  })"""
"""The name, width and height in pixels of all that can be hit. A label counts as a part of its field."""


def test_fingers_can_hit_everything(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    for place in ("", talk, f"{talk}/memory"):
        page = tab.open(place)
        settled(page, place)
        targets = page.evaluate(TARGETS)
        assert len(targets) > 4
        assert [each for each in targets if min(each[1:]) < 24] == []
    page = tab.open(talk)
    settled(page, talk)
    for name in ("Memory", "More", "+ Add a document", "Copy the answer", "Regenerate", "Edit the question"):
        assert (
            page.locator("main").get_by_text(name).or_(page.get_by_label(name)).first.evaluate("e => e.clientHeight")
            >= 42
        )


def test_a_long_title_takes_two_lines(new_tab: Callable[..., Tab], server: Server) -> None:
    document = server.read("A note.", filename="title.txt")["id"]
    title = "How many impossible things did the White Queen believe?"
    asked = [{"role": "user", "content": title}, {"role": "assistant", "content": "Six."}]
    page = new_tab(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True).open(
        session := conversation(server, asked, document)
    )
    heading = page.locator("h1")
    expect(heading).to_have_text(title)
    cut = heading.evaluate(
        "e => [e, ...e.children].some((each) => each.scrollHeight > each.clientHeight + 2 || each.scrollWidth > each.clientWidth)"
    )
    assert not cut
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document}")
