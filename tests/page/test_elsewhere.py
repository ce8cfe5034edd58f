"""What another tab or program has deleted or added while the page is open."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.page.conftest import Tab
from tests.page.steps import conversation, drop, open_fork, session_of, wait_until
from tests.process import Server

pytestmark = pytest.mark.long

PAST = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]


def confirm(page: Page) -> None:
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()


def show_again(page: Page) -> None:
    """Let the page behave as if its tab had been in the background."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_what_was_deleted_elsewhere_can_be_deleted_here(tab: Tab, server: Server) -> None:
    documents = [server.read(f"Note {n}.", filename=f"twice {n}.txt")["id"] for n in range(2)]
    session = conversation(server, PAST, title="Deleted twice")
    page = tab.open(session)
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    server.http.delete(f"/v1/sessions/{session}")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page)
    expect(page.locator("h1")).to_have_text("Ask about a long text")
    expect(page.locator(".sidebar")).not_to_contain_text("Deleted twice")
    for n in range(2):
        page.get_by_role("checkbox", name=f"twice {n}.txt").check()
    server.http.delete(f"/v1/documents/{documents[0]}")
    page.get_by_role("button", name="Delete 2").click()
    confirm(page)
    expect(page.get_by_role("checkbox", name=re.compile("twice"))).to_have_count(0)
    assert server.http.get(f"/v1/documents/{documents[1]}").status_code == 404, "the first one stopped the rest"
    expect(page.get_by_role("alert").locator(".trouble")).to_have_count(0)
    tab.expected_errors.append("404")


def test_a_conversation_that_was_deleted_elsewhere_says_so(tab: Tab, server: Server) -> None:
    session = conversation(server, PAST, title="Gone meanwhile")
    page = tab.open()
    server.http.delete(f"/v1/sessions/{session}")
    page.get_by_role("link", name="Gone meanwhile").click()
    expect(page.locator("h1")).to_have_text("There is no such conversation")
    expect(page.locator("main")).not_to_contain_text("Loading")
    expect(page.locator(".sidebar")).not_to_contain_text("Gone meanwhile")
    tab.expected_errors.append("404")


def test_a_question_to_a_deleted_conversation_is_kept_and_says_why(tab: Tab, server: Server) -> None:
    session = conversation(server, PAST)
    page = tab.open(session)
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    server.http.delete(f"/v1/sessions/{session}")
    page.locator("#question").fill("And now?")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").get_by_text("This conversation was deleted.")).to_be_visible()
    expect(page.locator(".question").last).to_contain_text("And now?")
    tab.expected_errors.append("404")


def test_a_document_that_was_deleted_elsewhere_leaves_the_list(tab: Tab, server: Server) -> None:
    document = server.read("A note for a while.", filename="while.txt")["id"]
    page = tab.open()
    server.http.delete(f"/v1/documents/{document}")
    page.get_by_role("button", name="Ask about while.txt").click()
    expect(page.get_by_role("alert")).to_contain_text("This document was deleted.")
    expect(page.get_by_role("checkbox", name="while.txt")).to_have_count(0)
    tab.expected_errors.append("404")


def test_a_tab_that_is_shown_again_has_what_happened_elsewhere(tab: Tab, server: Server, talk: str) -> None:
    fork = open_fork(tab, talk)
    page = tab.page
    other = conversation(server, PAST, title="Begun in another tab")
    server.say(fork, "Asked in another tab?", max_tokens=5)
    show_again(page)
    expect(page.locator(".question").last).to_contain_text("Asked in another tab?")
    expect(page.locator(".usage")).to_have_count(2)
    expect(page.locator(".sidebar")).to_contain_text("Begun in another tab")
    server.http.delete(f"/v1/sessions/{other}")
    show_again(page)
    expect(page.locator(".sidebar")).not_to_contain_text("Begun in another tab")
    assert session_of(page) == fork


def test_a_page_that_may_not_load_its_lists_says_why(tab: Tab, server: Server) -> None:
    refusal = {"error": {"message": "too many requests", "code": "requests_limit", "type": "rate_limit_error"}}
    refuse = {"status": 429, "json": refusal, "headers": {"retry-after": "90"}}
    page = tab.page
    page.route("**/v1/documents?limit=100", lambda route: route.fulfill(**refuse))
    page.goto(server.url)
    expect(page.get_by_role("alert")).to_contain_text("You have sent too many requests in the last minute.")
    tab.expected_errors.append("429")


def test_what_was_added_or_deleted_while_the_lists_are_loaded_stays_so(tab: Tab, server: Server) -> None:
    old = conversation(server, PAST, title="To be deleted")
    page = tab.open(old)
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    late: list[tuple[Route, APIResponse]] = []

    def delay_first(route: Route) -> None:
        if len(late) < 2:
            late.append((route, route.fetch()))
        else:
            route.continue_()

    page.route(re.compile(r"/v1/(documents|sessions)\?limit=100$"), delay_first)
    show_again(page)
    wait_until(page, lambda: len(late) == 2)
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Delete", exact=True).click()
    confirm(page)
    expect(page.locator("h1")).to_have_text("Ask about a long text")
    drop(page, ("added.txt", "A note added meanwhile."))
    expect(page.locator("h1")).to_have_text("added.txt")
    session = session_of(page)
    for route, answer in late:
        with page.expect_response(route.request.url) as arrived:
            route.fulfill(response=answer)
        arrived.value.finished()
    page.evaluate("fetch('/livez')")  # the page has handled the lists by the time of this response
    page.get_by_role("link", name="New conversation").click()
    expect(page.get_by_role("checkbox", name="added.txt")).to_be_visible()
    expect(page.locator(".sidebar")).not_to_contain_text("To be deleted")
    (document,) = server.http.get(f"/v1/sessions/{session}").json()["documents"]
    page.unroute_all(behavior="wait")
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document}")
