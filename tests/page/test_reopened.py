"""The page is closed or loaded again while a question is being answered."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.page.conftest import TEXT, Tab
from tests.page.steps import LONG, answers, ask_for_long, forked, open_fork
from tests.process import Server, wait_for

LOSE = "([id, question]) => localStorage.setItem(`everlong.asked.${id}`, JSON.stringify({question, after: 2}))"
"""Leaves a question without an answer in the browser, as if the server had been killed. The session has two messages."""


@pytest.mark.long
def test_an_answer_is_completed_while_the_page_is_closed(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=600)
    fork = open_fork(tab, talk)
    ask_for_long(tab.page)
    tab.page.close()
    wait_for(lambda: not server.get_session(fork)["answering"], 120, "for the end of the answer")
    _, answer = answers(server, fork)
    assert (answer["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 600)
    page = new_tab().open(fork)
    expect(page.locator(".question").last).to_contain_text(LONG)
    expect(page.locator(".usage")).to_have_count(2)


@pytest.mark.long
def test_a_page_that_is_loaded_again_shows_the_growing_answer_and_stops_it(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=1_000_000)
    fork = open_fork(tab, talk)
    page = tab.page
    ask_for_long(page)
    page.reload()
    growing = page.locator(".answer[aria-busy=true] .markdown")
    expect(page.locator(".question").last).to_have_text(LONG)
    expect(growing).not_to_be_empty()
    before = growing.inner_text()
    expect(growing).not_to_have_text(before)
    expect(page.locator("#question")).to_have_value("")
    expect(page.locator(".sidebar li").filter(has=page.locator(f'a[href*="{fork}"]'))).to_contain_text(" · ")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".usage")).to_have_count(2)
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_visible()
    _, answer = answers(server, fork)
    assert answer["finish_reason"] == "cancelled"
    assert len(answer["content"]) >= len(before)


@pytest.mark.long
def test_a_question_whose_answer_was_lost_can_be_asked_again(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=1_000_000)
    fork = open_fork(tab, talk)
    page = tab.page
    ask_for_long(page)
    page.reload()
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    server.kill9()
    server.start()
    page.evaluate("window.tokens = 30")
    expect(page.get_by_role("alert").get_by_text(re.compile("before the answer was complete"))).to_be_visible()
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".usage")).to_have_count(2)
    assert len(answers(server, fork)) == 2
    tab.expected_errors.append("ERR_|WebSocket|503")


@pytest.mark.long
def test_a_question_is_offered_again_if_the_server_was_killed_while_the_browser_was_closed(
    new_tab: Callable[..., Tab], server: Server
) -> None:
    """The question is the first of its conversation, which the list would not show otherwise."""
    session = str(server.session(server.read(TEXT, filename="killed.md")["id"])["id"])
    tab = new_tab(tokens=1_000_000)
    page = tab.open(session)
    ask_for_long(page)
    page.locator("#question").fill("And what else?")
    kept = page.context.storage_state()
    page.close()
    server.kill9()
    server.start()
    assert answers(server, session) == []
    page = new_tab(tokens=30, storage_state=kept).open()
    entry = page.locator(".sidebar li").filter(has=page.locator(f'a[href*="{session}"]'))
    expect(entry).to_contain_text("a question without an answer")
    entry.get_by_role("link").click()
    expect(page.get_by_role("alert").get_by_text("This question has no answer")).to_be_visible()
    expect(page.locator(".question").last).to_contain_text(LONG)
    expect(page.locator("#question")).to_have_value("And what else?")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".usage")).to_have_count(1)
    assert len(answers(server, session)) == 1
    page.reload()
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.get_by_role("alert").get_by_text("This question has no answer")).to_have_count(0)
    expect(page.locator("#question")).to_have_value("And what else?")


@pytest.mark.long
def test_a_lost_question_can_be_changed_or_discarded(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    fork = forked(server, talk)
    tab = new_tab(tokens=30)
    page = tab.open()
    page.evaluate(LOSE, [fork, "Who is Dinah?"])
    tab.open(fork)
    page.get_by_role("button", name="Discard").click()
    expect(page.locator(".question")).to_have_count(1)
    page.evaluate(LOSE, [fork, "Who is Dinah?"])
    tab.open(fork)
    expect(page.locator(".question")).to_have_count(2)
    page.locator(".question").last.get_by_role("button", name="Edit").click()
    page.get_by_role("form", name="Edit the question").locator("textarea").fill("Who is Kitty?")
    page.keyboard.press("Enter")
    expect(page.locator(".usage")).to_have_count(2)
    expect(page.locator(".question").last).to_contain_text("Who is Kitty?")
    assert page.evaluate("Object.keys(localStorage).filter((name) => name.startsWith('everlong.asked'))") == []


@pytest.mark.long
def test_a_lost_question_is_offered_after_the_answer_to_another_one(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    """Another browser has asked the other one in the same conversation."""
    tab = new_tab(tokens=30)
    page = tab.open()
    other = new_tab(tokens=1_000_000)
    fork = open_fork(other, talk)
    page.evaluate(LOSE, [fork, "Who is Dinah?"])
    ask_for_long(other.page)
    tab.open(fork)
    expect(page.locator(".question").last).to_have_text(LONG)
    other.page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("alert").get_by_text("This question has no answer yet.")).to_be_visible()
    expect(page.locator(".question").last).to_contain_text("Who is Dinah?")
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".usage")).to_have_count(3)
    assert len(answers(server, fork)) == 3


@pytest.mark.long
def test_another_tab_does_not_offer_a_question_that_waits_for_its_answer(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=30)
    fork = open_fork(tab, talk)
    page = tab.page
    # The server never gets the question.
    page.route_web_socket(re.compile(r"/v1/sessions/\w+/stream"), lambda socket: None)
    page.locator("#question").fill("Who is Dinah?")
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true]")).to_be_visible()
    other = page.context.new_page()
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    other.goto(f"{server.url}/#/{fork}")
    expect(other.locator(".usage")).to_have_count(1)
    expect(other.locator(".sidebar li").filter(has_text="a question without an answer")).to_have_count(1)
    # The page has asked the browser for its locks before this, and would have looked for the answer next.
    other.evaluate("navigator.locks.query()")
    other.evaluate("fetch('/livez')")
    assert f"{server.url}/v1/sessions/{fork}" not in asked
    expect(other.get_by_role("button", name="Ask again")).to_have_count(0)
    page.close()
    other.reload()
    expect(other.get_by_role("button", name="Ask again")).to_be_visible()
    assert f"{server.url}/v1/sessions/{fork}" in asked


@pytest.mark.long
def test_a_browser_that_refuses_locks_offers_a_lost_question(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    """As some do where storage is blocked."""
    fork = forked(server, talk)
    tab = new_tab(tokens=30)
    tab.page.add_init_script(
        """const refuse = async () => { throw new DOMException("blocked", "SecurityError"); };
        Object.defineProperty(navigator, "locks", {value: {request: refuse, query: refuse}});"""
    )
    page = tab.open()
    page.evaluate(LOSE, [fork, "Who is Dinah?"])
    tab.open(fork)
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".usage")).to_have_count(2)


@pytest.mark.long
def test_a_question_that_is_typed_in_another_tab_stays(tab: Tab, server: Server, talk: str) -> None:
    fork = open_fork(tab, talk)
    other = tab.page.context.new_page()
    other.goto(f"{server.url}/#/{fork}")
    expect(other.locator(".usage")).to_have_count(1)
    tab.page.locator("#question").fill("Who is Dinah?")
    other.locator("#question").fill("Who is Kitty, and")
    tab.page.locator("#question").press("Enter")
    expect(tab.page.locator(".usage")).to_have_count(2)
    other.reload()
    expect(other.locator("#question")).to_have_value("Who is Kitty, and")
