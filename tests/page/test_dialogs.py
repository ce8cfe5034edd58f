"""All dialogs at 200 percent, with the keyboard alone, and as axe sees them in light and dark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests import files
from tests.page.accessibility import complaints_in_both_schemes
from tests.page.conftest import Tab
from tests.page.steps import answers
from tests.process import Server

ZOOMED = {"viewport": {"width": 640, "height": 400}, "device_scale_factor": 2}
"""A window of 1280 by 800 pixels has half as many CSS pixels at 200 %."""
WATCH_FOCUS = """(dialog) => {
  const controls = [...dialog.querySelectorAll("button:enabled, input:enabled, select:enabled, textarea:enabled, a[href], summary")];
  window.unreached = new Set(controls.filter((each) => each.checkVisibility()));
  window.strayed = [];
  window.watching?.abort();
  window.watching = new AbortController();
  addEventListener("keyup", () => {
    const focused = document.activeElement;
    if (focused === document.body) return;
    const {top, bottom} = focused.getBoundingClientRect();
    if (!dialog.contains(focused) || top >= innerHeight || bottom <= 0) strayed.push(focused.outerHTML);
    unreached.delete(focused);
  }, watching);
  return unreached.size;
}"""
"""Notes the controls of the dialog that keys have not focused, and what they have focused that is not in the dialog or not in view.
Between the last and the first control, the browser focuses its own, and the page's body for a moment."""


def press(page: Page, opener: Locator) -> None:
    """Press a button by the keyboard."""
    opener.focus()
    page.keyboard.press("Enter")


def check(page: Page, name: str) -> Locator:
    """Check a dialog that is open: what axe finds, its size, and where the focus goes."""
    dialog = page.get_by_role("dialog", name=name)
    expect(dialog).to_be_visible()
    assert complaints_in_both_schemes(page) == [], name
    assert dialog.evaluate("(dialog) => dialog.scrollWidth <= dialog.clientWidth"), f"{name} is too wide"
    controls = dialog.evaluate(WATCH_FOCUS)
    assert controls, name
    for _ in range(controls + 2):
        page.keyboard.press("Tab")
    assert page.evaluate("[...unreached].map(({outerHTML}) => outerHTML)") == [], f"no key reaches this in {name}"
    assert page.evaluate("strayed") == [], f"the focus leaves {name}"
    return dialog


def close(page: Page, dialog: Locator, opener: Locator | None) -> None:
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    if opener is not None:
        expect(opener).to_be_focused()


@pytest.mark.long
def test_dialogs_of_the_start_view(new_tab: Callable[..., Tab], server: Server, talk: str, tmp_path: Path) -> None:
    tab = new_tab(**ZOOMED)
    page = tab.open()
    page.keyboard.press("?")
    close(page, check(page, "Keys"), None)
    paste = page.get_by_role("button", name="Paste a text")
    press(page, paste)
    close(page, check(page, "Paste a text"), paste)
    delete = page.get_by_role("button", name="Delete looking-glass.md")
    press(page, delete)
    close(page, check(page, "Delete looking-glass.md?"), delete)
    archive = tmp_path / "notes.zip"
    archive.write_bytes(files.zipped({"one.txt": "One.", "two.txt": "Two."}))
    tab.choose(archive, press=lambda: page.keyboard.press("u"))
    close(page, check(page, "Upload notes.zip"), delete)
    menu = page.get_by_role("button", name="Conversations", exact=True)
    press(page, menu)
    expect(page.get_by_role("link", name="New conversation")).to_be_focused()
    settings = page.get_by_role("button", name="Settings")
    press(page, settings)
    close(page, check(page, "Settings"), settings)


@pytest.mark.long
def test_dialogs_of_a_conversation(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    page = new_tab(**ZOOMED).open(talk)
    expect(page.locator(".usage").first).to_be_attached()
    title = page.locator("h1 button")
    press(page, title)
    close(page, check(page, "Rename the conversation"), title)
    more = page.get_by_role("button", name="More", exact=True)
    press(page, more)
    press(page, page.get_by_role("button", name="Delete", exact=True))
    close(page, check(page, "Delete this conversation?"), more)
    press(page, page.get_by_role("button", name="Conversations", exact=True))
    press(page, page.get_by_role("button", name="Conversations: more"))
    press(page, page.get_by_role("button", name="Select several"))
    press(page, page.get_by_role("group", name="Selected conversations").get_by_role("button", name="All"))
    delete = page.get_by_role("group", name="Selected conversations").get_by_role("button", name="Delete")
    press(page, delete)
    dialog = page.get_by_role("dialog")
    check(page, dialog.get_by_role("heading").inner_text())
    close(page, dialog, delete)
    assert len(answers(server, talk)) == 1


@pytest.mark.long
def test_the_dialog_for_the_key_stays_until_there_is_one(new_tab: Callable[..., Tab], server: Server, key: str) -> None:
    tab = new_tab(storage_state=None, **ZOOMED)
    page = tab.page
    page.goto(server.url)
    dialog = check(page, "API key")
    page.keyboard.press("Escape")
    expect(dialog).to_be_visible()
    dialog.get_by_role("textbox").or_(dialog.locator("input")).first.focus()
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    tab.expected_errors.append("401")
