"""The page on narrow screens, at 200 percent, with the keyboard alone, and as axe sees it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.page.accessibility import complaints
from tests.page.conftest import QUESTION, TEXT, Tab
from tests.page.steps import places, settled
from tests.process import Server


@pytest.mark.parametrize("zoom", [False, True])
def test_it_fits_into_360_pixels_and_at_200_percent(
    new_tab: Callable[..., Tab], server: Server, talk: str, zoom: bool
) -> None:
    server.upload(TEXT, filename="A long name " * 20 + ".md")
    named = str(server.session(server.read(TEXT, filename="a" * 200 + ".txt")["id"])["id"])
    server.say(named, QUESTION, max_tokens=30, temperature=0, ignore_eos=True)
    # A window of 1280 by 800 pixels has half as many CSS pixels at 200 %.
    size = {"width": 640, "height": 400} if zoom else {"width": 360, "height": 640}
    tab = new_tab(viewport=size, device_scale_factor=2 if zoom else 1)
    for place in (*places(server, talk), named):
        page = tab.open(place)
        settled(page, place)
        wide = page.evaluate(
            """() => [...document.querySelectorAll("body, body *")]
              .filter((e) => getComputedStyle(e).overflowX !== "hidden" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
                && getComputedStyle(e).display !== "inline" && !e.closest("svg, .unseen"))
              .map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
        )
        assert wide == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], place
        assert complaints(page) == [], place


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_the_sidebar_of_a_small_screen_keeps_the_focus(new_tab: Callable[..., Tab], talk: str, motion: str) -> None:
    tab = new_tab(viewport={"width": 360, "height": 640}, reduced_motion=motion)
    page = tab.page
    late: list[Route] = []

    def hold(route: Route) -> None:
        late.append(route)

    page.route(re.compile(r"/v1/sessions\?"), hold)
    tab.open(talk)
    menu, first = page.get_by_role("button", name="Conversations"), page.get_by_role("link", name="New conversation")
    menu.click()
    expect(first).to_be_focused()
    for route in late:
        route.continue_()
    expect(page.locator(".usage")).to_be_attached()
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(first).to_be_hidden()
    expect(menu).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(new_tab: Callable[..., Tab], server: Server, talk: str, scheme: str) -> None:
    tab = new_tab(color_scheme=scheme)
    # Only the colours differ between the schemes.
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
    for place in places(server, talk):
        settled(tab.open(place), place)
        assert complaints(tab.page, **rules) == [], place
    tab.page.keyboard.press("?")
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    assert complaints(tab.page, **rules) == [], "help"


def test_with_the_keyboard_alone(tab: Tab, server: Server, talk: str, tmp_path: Path) -> None:
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
    expect(page.locator("h1")).to_have_text(QUESTION)
    expect(page.locator("#question")).to_be_focused()
    keys.press("Escape")
    keys.press("n")
    expect(page.locator("h1")).to_have_text("Ask a long text")
