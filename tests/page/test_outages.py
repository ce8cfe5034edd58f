"""The server is killed or busy: what the page says meanwhile, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Route, expect

from tests.page.conftest import TEXT, Tab
from tests.page.steps import LARGE, answers, drop_large, forked, hold, lose_server, session_of
from tests.process import Server


@pytest.mark.long
def test_an_answer_survives_a_killed_server(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(tokens=100_000)  # more than the server generates before it is killed
    session = forked(server, talk)
    page = tab.open(session)
    before = len(answers(server, session))
    page.locator("#question").fill("Tell me all about it.")
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true] > .words")).to_be_visible()
    server.kill9()
    expect(page.locator(".banner")).to_contain_text("tries again")
    expect(page.locator(".light.offline")).to_be_visible()
    page.evaluate("window.tokens = 40")  # of the answer that the page requests again
    server.start()
    expect(page.locator(".light.online")).to_be_visible()
    expect(page.locator(".usage")).to_have_count(before + 1, timeout=120_000)
    assert len(answers(server, session)) == before + 1, "the question was asked twice"
    assert page.locator(".answer > .words").last.text_content() == answers(server, session)[-1]["content"].strip()
    tab.expected_errors.append("ERR_|WebSocket|503")


@pytest.mark.long
def test_the_upload_of_a_large_file_resumes_after_a_killed_server(tab: Tab, server: Server) -> None:
    """The file is sent in two parts; the server is killed during the second one."""
    page, sent = tab.open(), []

    def pass_on(route: Route) -> None:
        sent.append(route.request.url)
        if len(sent) == 2:
            server.kill9()
        route.continue_()

    page.route("**/v1/uploads/*/parts", pass_on)
    drop_large(page)
    expect(page.locator(".banner")).to_contain_text("tries again")
    expect(page.get_by_role("progressbar", name="Uploading large.txt")).to_be_visible()
    server.start()
    expect(page.locator("h1")).to_have_text("large.txt")
    assert len(set(sent)) == 1, "the upload started again"
    assert len(sent) >= 3, "two parts, and one of them a second time"
    document, *_ = server.http.get("/v1/documents").json()["data"]
    assert (document["filename"], document["bytes"]) == ("large.txt", LARGE)
    session = session_of(page)
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document['id']}")
    tab.expected_errors.append("ERR_|503")


@pytest.mark.long
def test_a_server_that_responds_429_counts_as_online(tab: Tab, server: Server) -> None:
    """The regular check does not count towards the tenant's rate limit. After an outage, a 429 counts as available."""
    page = tab.open()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with page.expect_response("**/readyz"):
        page.evaluate("dispatchEvent(new Event('online'))")
    page.evaluate("fetch('/livez')")
    assert not [url for url in asked if "/v1/" in url]
    refusal = {"error": {"message": "too many requests", "code": "rate_limited"}}
    page.route("**/v1/models", lambda route: route.fulfill(status=429, json=refusal, headers={"retry-after": "60"}))
    lose_server(page)
    expect(page.locator(".banner")).to_contain_text("The server does not respond.")
    page.unroute("**/readyz")
    expect(page.locator(".light.online")).to_be_attached()
    page.goto("about:blank")  # stops the page's requests
    tab.expected_errors.append("429|ERR_FAILED")


@pytest.mark.long
def test_a_health_check_without_a_free_connection_does_not_count_as_an_outage(tab: Tab, server: Server) -> None:
    document = server.upload(TEXT * 500, filename="long.txt")["id"]
    page = tab.open()
    hold(page, "**/readyz")
    with page.expect_request("**/readyz"):
        pass
    with page.expect_request("**/readyz"):  # the first one timed out
        pass
    expect(page.locator(".cards progress")).to_be_attached()
    assert page.locator(".light.online").count() == 1
    server.http.delete(f"/v1/documents/{document}")
    expect(page.locator(".light.offline")).to_be_attached()  # no other request gets a response any more
    tab.expected_errors.append("404")
