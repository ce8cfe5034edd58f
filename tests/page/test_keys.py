"""The page asks for the API key, and keeps it where the browser allows that."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.conftest import QUESTION, Tab
from tests.process import Server


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
    tab.errors = [error for error in tab.errors if "401" not in error]


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
    tab.errors = [error for error in tab.errors if "401" not in error]


def test_a_browser_with_blocked_storage(new_tab: Callable[..., Tab], server: Server, talk: str, key: str) -> None:
    tab = new_tab(storage_state=None)
    page = tab.page
    page.add_init_script(
        """for (const name of ["localStorage", "sessionStorage"])
          Object.defineProperty(window, name, {get() { throw new DOMException("blocked", "SecurityError"); }});"""
    )
    fork = server.http.post(f"/v1/sessions/{talk}/fork").json()["id"]
    page.goto(f"{server.url}/#/{fork}")
    page.get_by_role("dialog", name="API key").get_by_label("Key").fill(key)
    page.keyboard.press("Enter")
    expect(page.locator(".usage").first).to_be_visible()
    tab.ask(QUESTION)
    tab.errors = [error for error in tab.errors if "401" not in error]
