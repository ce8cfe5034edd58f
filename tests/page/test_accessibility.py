"""The page on phones, at 200 percent, with the keyboard alone, and as axe sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.page.accessibility import complaints, complaints_in_both_schemes
from tests.page.conftest import QUESTION, TEXT, HeldAnswer, Tab
from tests.page.steps import conversation, go, hold, let_go, open_fork, places, session_of
from tests.process import Server

pytestmark = pytest.mark.long

WIDE = """() => [...document.querySelectorAll("body, body *")]
  .filter((e) => getComputedStyle(e).overflowX !== "hidden" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
    && getComputedStyle(e).display !== "inline" && !e.closest("svg, .unseen"))
  .map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
"""The elements that are wider than their place."""
LISTS = re.compile(r"/v1/sessions\?")
SMALL: list[ViewportSize] = [{"width": 360, "height": 640}, {"width": 640, "height": 400}]
"""A phone, and a window of 1280 by 800 pixels, which has half as many CSS pixels at 200 %."""


def test_it_fits_into_360_pixels_and_at_200_percent(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    server.upload(TEXT, filename="A long name " * 20 + ".md")
    named = str(server.session(server.read(TEXT, filename="a" * 200 + ".txt")["id"])["id"])
    server.say(named, QUESTION, max_tokens=30, temperature=0, ignore_eos=True)
    page = new_tab(viewport=SMALL[0], device_scale_factor=2).open()
    for place in (*places(server, talk), named):
        go(page, place)
        for size in SMALL:
            page.set_viewport_size(size)
            assert page.evaluate(WIDE) == [], (place, size)
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], (place, size)
            assert complaints(page) == [], (place, size)


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_the_sidebar_of_a_small_screen_keeps_the_focus(
    new_tab: Callable[..., Tab], server: Server, talk: str, motion: Literal["reduce", "no-preference"]
) -> None:
    page = new_tab(viewport=SMALL[0]).page
    page.emulate_media(reduced_motion=motion)
    late = hold(page, LISTS)
    page.goto(f"{server.url}/#/{talk}")
    menu, first = page.get_by_role("button", name="Conversations"), page.get_by_role("link", name="New conversation")
    menu.click()
    expect(first).to_be_focused()
    let_go(page, LISTS, late)
    expect(page.locator(".usage")).to_be_attached()
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(first).to_be_hidden()
    expect(menu).to_be_focused()


def test_axe_finds_nothing(tab: Tab, server: Server, talk: str) -> None:
    page = tab.open()
    for place in places(server, talk):
        go(page, place)
        assert complaints_in_both_schemes(page) == [], place


def test_with_the_keyboard_alone(tab: Tab, server: Server, tmp_path: Path) -> None:
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    before = conversation(server, past, title="The conversation before")
    page, keys = tab.open(), tab.page.keyboard
    keys.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    book = tmp_path / "keys.txt"
    book.write_text(TEXT)
    tab.choose(book, press=lambda: keys.press("u"))
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_focused()
    keys.type(f"{QUESTION} m n ?")  # typed as text, not used as shortcuts
    keys.press("Enter")
    expect(page.locator(".usage")).to_have_count(1)
    asked = session_of(page)
    expect(page.locator("#question")).to_be_focused()
    for _ in range(12):
        keys.press("Shift+Tab")
        if page.evaluate("document.activeElement.matches('.evidence a')"):
            break
    expect(page.locator(".evidence a:focus")).to_have_count(1)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    link = page.evaluate("document.activeElement.href")
    keys.press("Enter")
    expect(page.locator("#panel-title")).to_be_focused()
    keys.press("Escape")
    expect(page.locator(".reader")).to_have_count(0)
    page.wait_for_function("(href) => document.activeElement.href === href", arg=link)
    keys.press("m")
    expect(page.locator(".context")).to_be_visible()
    keys.press("m")
    expect(page.locator(".context")).to_have_count(0)
    keys.press("j")
    expect(page.locator("h1")).to_have_text("The conversation before")
    expect(page.locator("#question")).to_be_focused()
    keys.press("Escape")
    keys.press("n")
    expect(page.locator("h1")).to_have_text("Ask about a long text")
    page.goto("about:blank")
    for made in (before, asked):  # not the document, which other tests have, too: it has the same text
        assert server.http.delete(f"/v1/sessions/{made}").is_success


TARGETS = """() => [...document.querySelectorAll("a[href], button, input, select, summary, textarea")]
  .filter((element) => element.checkVisibility({visibilityProperty: true}) && !element.closest(".skip"))
  .map((element) => {
    const {width, height} = (element.closest("label") ?? element).getBoundingClientRect();
    return [element.ariaLabel || element.textContent || element.id, Math.ceil(width), Math.ceil(height)];
  })"""
"""The name, width and height in pixels of all that can be hit. A label counts as a part of its field."""


def test_fingers_can_hit_everything(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = tab.open()
    for place in ("", talk, f"{talk}/memory"):
        go(page, place)
        targets = page.evaluate(TARGETS)
        # Of the memory, which covers the conversation: the button to close it, and what is folded up.
        assert len(targets) > (1 if place.endswith("/memory") else 4)
        assert [each for each in targets if min(each[1:]) < 24] == []
    go(page, talk)
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


def test_the_focus_is_never_under_the_sidebar_or_the_panel(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    """On a phone, both cover the conversation."""
    page = new_tab(viewport=SMALL[0]).open(talk)
    menu = page.get_by_role("button", name="Conversations", exact=True)
    menu.click()
    page.get_by_role("button", name="Keys").focus()
    page.keyboard.press("Tab")  # beyond the last one
    expect(page.get_by_role("link", name="New conversation")).to_be_hidden()
    expect(menu).to_be_focused()
    read = page.get_by_role("link", name="Read looking-glass.md")
    read.click()
    expect(page.locator("#panel-title")).to_be_focused()
    for _ in range(6):
        page.keyboard.press("Shift+Tab")
        assert page.evaluate("document.activeElement.closest('main') === null")
    page.get_by_role("button", name="Close the text").click()
    expect(read).to_be_focused()


def test_copying_keeps_the_focus_where_the_browser_has_no_clipboard(tab: Tab, talk: str) -> None:
    """As at an address without TLS, such as that of another machine in a network."""
    tab.page.add_init_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    page = tab.open(talk)
    button = page.get_by_role("button", name="Copy the answer")
    button.focus()
    page.keyboard.press("Enter")
    copied = page.get_by_role("button", name="Copied")
    expect(copied).to_be_focused()


def test_only_the_answer_of_the_open_conversation_is_read_aloud(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=30)
    fork = open_fork(tab, talk)
    page = tab.page
    spoken = page.locator(".unseen[role=status]")
    tab.ask("Who?")
    expect(spoken).to_contain_text("(end of the answer)")
    page.reload()
    expect(page.locator(".usage")).to_have_count(2)
    held = HeldAnswer(page)
    page.locator("#question").fill("And who else?")
    page.keyboard.press("Enter")
    held.text()
    go(page, talk)
    with page.expect_response(f"**/v1/sessions/{fork}/messages"):  # after the end of the answer, also to a busy browser
        held.pass_all()
    expect(page.locator(".sidebar li").filter(has_text="being answered")).to_have_count(0)
    page.go_back()
    expect(page.locator(".usage")).to_have_count(3)
    expect(spoken).to_have_text("")


def test_high_contrast_keeps_what_colours_and_backgrounds_say(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    page = new_tab(forced_colors="active").open(f"{talk}/memory")
    style = "(element, name) => getComputedStyle(element)[name]"
    swatches = page.locator(".legend i")
    expect(swatches.first).to_be_visible()
    colours = [swatch.evaluate(style, "backgroundColor") for swatch in swatches.all()]
    assert len(set(colours)) == len(colours) > 1
    shown = page.locator(".sidebar li a[aria-current]")
    assert shown.evaluate(style, "outlineStyle") == "solid"
