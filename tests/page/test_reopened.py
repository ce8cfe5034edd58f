"""The page is closed or loaded again while a question is being answered."""

from __future__ import annotations

import re
from collections.abc import Callable

from playwright.sync_api import expect

from tests.page.conftest import Tab
from tests.page.steps import answers
from tests.process import Server, wait_for


def test_an_answer_is_completed_while_the_page_is_closed(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    fork = server.http.post(f"/v1/sessions/{talk}/fork").json()["id"]
    tab = new_tab(tokens=600)
    page = tab.open(fork)
    expect(page.locator(".usage")).to_have_count(1)
    page.locator("#question").fill("Tell me everything.")
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    page.close()
    wait_for(lambda: not server.get_session(fork)["answering"], 120, "for the end of the answer")
    _, answer = answers(server, fork)
    assert (answer["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 600)
    page = new_tab().open(fork)
    expect(page.locator(".question").last).to_contain_text("Tell me everything.")
    expect(page.locator(".usage")).to_have_count(2)


def test_a_page_that_is_loaded_again_shows_the_growing_answer_and_stops_it(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    fork = server.http.post(f"/v1/sessions/{talk}/fork").json()["id"]
    tab = new_tab(tokens=1_000_000)
    page = tab.open(fork)
    expect(page.locator(".usage")).to_have_count(1)
    page.locator("#question").fill("Tell me everything.")
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    page.reload()
    growing = page.locator(".answer[aria-busy=true] .markdown")
    expect(page.locator(".question").last).to_have_text("Tell me everything.")
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


def test_a_question_whose_answer_was_lost_can_be_asked_again(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    fork = server.http.post(f"/v1/sessions/{talk}/fork").json()["id"]
    tab = new_tab(tokens=1_000_000)
    page = tab.open(fork)
    expect(page.locator(".usage")).to_have_count(1)
    page.locator("#question").fill("Tell me everything.")
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    page.reload()
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    server.kill9()
    server.start()
    page.evaluate("window.tokens = 30")
    expect(page.get_by_role("alert").get_by_text(re.compile("before the answer was complete"))).to_be_visible()
    page.get_by_role("button", name="Ask again").click()
    expect(page.locator(".usage")).to_have_count(2)
    assert len(answers(server, fork)) == 2
    tab.errors = [error for error in tab.errors if not re.search("ERR_|WebSocket|503", error)]
