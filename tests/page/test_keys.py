"""The page asks for the API key, and keeps it where the browser allows that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.conftest import QUESTION, Tab, key_of
from tests.page.steps import forked
from tests.process import Server

pytestmark = pytest.mark.long


def test_a_key_is_asked_for_once(new_tab: Callable[..., Tab], server: Server, talk: str, key: str) -> None:
    tab = new_tab(storage_state=None)
    page = tab.page
    page.goto(f"{server.url}/#/{talk}")
    field = page.get_by_role("dialog", name="API key").get_by_label("Key")
    expect(field).to_be_focused()
    field.fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("does not accept")
    field.fill(key)
    page.keyboard.press("Enter")
    expect(page.locator(".usage").first).to_be_visible()
    page.reload()
    expect(page.locator(".usage").first).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Keys", exact=True).click()
    page.get_by_role("button", name="Forget the API key").click()
    expect(field).to_be_visible()
    tab.expected_errors.append("401")


KEPT = "Object.keys(localStorage).filter((name) => /everlong.(draft|asked)/.test(name)).sort()"
"""The names of the questions that the browser has stored."""


def open_with_questions(tab: Tab, talk: str, key: str) -> str:
    """Open a copy of the session of all tests in a browser that has stored this key, and a draft and a lost question of the session."""
    fork = forked(tab.server, talk)
    lost = '{"question": "Who is Dinah?", "after": 2}'
    tab.open().evaluate(
        "(values) => Object.assign(localStorage, values)",
        {"everlong.key": key, f"everlong.draft.{fork}": "Who is", f"everlong.asked.{fork}": lost},
    )
    tab.page.goto(f"{tab.server.url}/#/{fork}")
    tab.page.reload()
    return fork


def test_another_key_sees_nothing_of_the_first(tab: Tab, server: Server, talk: str, key: str) -> None:
    open_with_questions(tab, talk, key)
    page = tab.page
    expect(page.locator("#question")).to_have_value("Who is")
    expect(page.get_by_role("button", name="Ask again")).to_be_visible()
    page.get_by_role("button", name="Keys", exact=True).click()
    page.get_by_role("button", name="Forget the API key").click()
    field = page.get_by_role("dialog", name="API key").get_by_label("Key")
    expect(field).to_be_visible()
    assert page.evaluate(KEPT) == []
    expect(page.get_by_text("Who is")).to_have_count(0)
    field.fill(key_of(server, "another"))
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("There is no such conversation")
    expect(page.locator(".sidebar .none")).to_have_text("No conversations yet.")
    tab.expected_errors.append("40[14]")


def test_a_key_in_place_of_a_refused_one_removes_its_questions(tab: Tab, server: Server, talk: str, key: str) -> None:
    open_with_questions(tab, talk, "revoked")
    page = tab.page
    page.get_by_role("dialog", name="API key").get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator(".usage")).to_have_count(1)
    assert page.evaluate(KEPT) == []
    expect(page.locator("#question")).to_have_value("")
    expect(page.locator(".sidebar li").filter(has_text="a question without an answer")).to_have_count(0)
    tab.expected_errors.append("401")


def test_an_unknown_conversation_keeps_its_questions(tab: Tab, server: Server, talk: str) -> None:
    """Another server at the same address may know it, or the same one with another key."""
    fork = open_with_questions(tab, talk, key_of(server, "another"))
    expect(tab.page.locator("h1")).to_have_text("There is no such conversation")
    assert tab.page.evaluate(KEPT) == [f"everlong.asked.{fork}", f"everlong.draft.{fork}"]
    tab.expected_errors.append("404")


@pytest.mark.parametrize("kept", [True, False])
def test_a_key_that_cannot_be_sent_in_a_header_is_refused(
    new_tab: Callable[..., Tab], server: Server, key: str, kept: bool
) -> None:
    known = {"origin": server.url, "localStorage": [{"name": "everlong.key", "value": "Schlüssel 🔑"}]}
    tab = new_tab(storage_state={"origins": [known]} if kept else None)
    page = tab.page
    page.goto(server.url)
    dialog = page.get_by_role("dialog", name="API key")
    if not kept:
        dialog.get_by_label("Key").fill("Schlüssel 🔑")
        page.keyboard.press("Enter")
    expect(dialog).to_contain_text("does not accept")
    dialog.get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    expect(page.locator(".light.online")).to_be_attached()
    tab.expected_errors.append("401")


def test_a_browser_with_blocked_storage(new_tab: Callable[..., Tab], server: Server, talk: str, key: str) -> None:
    tab = new_tab(storage_state=None)
    page = tab.page
    page.add_init_script(
        """for (const name of ["localStorage", "sessionStorage"])
          Object.defineProperty(window, name, {get() { throw new DOMException("blocked", "SecurityError"); }});"""
    )
    fork = forked(server, talk)
    page.goto(f"{server.url}/#/{fork}")
    page.get_by_role("dialog", name="API key").get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator(".usage").first).to_be_visible()
    tab.ask(QUESTION)
    tab.expected_errors.append("401")
