"""What a newcomer meets: a phone, long names and lists, a slow server, and errors."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import QUESTION, Tab
from tests.page.steps import hold, let_go, lose_server, open_fork, session_of
from tests.process import Server

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
FAILED = {"message": "the text is damaged", "code": "reading_failed"}


def list_documents(page: Page, count: int = 1, **fields: object) -> None:
    """Let the page list `count` copies of the first document, with changed fields."""

    def change(route: Route) -> None:
        first = route.fetch().json()["data"][0]
        copies = [first | fields | ({"id": f"doc_{n:032x}"} if n else {}) for n in range(count)]
        route.fulfill(json={"object": "list", "data": copies, "has_more": False})

    page.route("**/v1/documents?limit=100", change)


def test_selected_documents_can_be_asked_about_from_the_end_of_a_long_list(
    new_tab: Callable[..., Tab], talk: str
) -> None:
    tab = new_tab(**PHONE)
    list_documents(tab.page, 30)
    page = tab.open()
    boxes = page.locator(".cards").get_by_role("checkbox")
    expect(boxes).to_have_count(30)
    boxes.nth(28).check()
    boxes.nth(29).check()
    expect(page.get_by_role("button", name="Talk about 2 documents")).to_be_in_viewport(ratio=1)
    expect(page.get_by_role("button", name="Delete 2")).to_be_in_viewport(ratio=1)


def test_a_long_name_does_not_widen_the_memory(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(**PHONE)
    (document,) = server.http.get(f"/v1/sessions/{talk}").json()["documents"]
    list_documents(tab.page, id=document, filename=f"{'a_name_without_spaces_' * 8}.pdf")
    page = tab.open(f"{talk}/memory")
    expect(page.locator(".legend")).to_contain_text("a_name_without_spaces_")
    box = page.get_by_role("region", name="The memory", exact=True)
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")


@pytest.mark.long
def test_the_page_says_that_it_waits_for_a_slow_server(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab()
    page = tab.open(talk)
    held = hold(page, "**/fork")
    waiting = page.get_by_text("Waiting for the server", exact=True)
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Continue in a copy").click()
    expect(waiting).to_be_visible()
    let_go(page, "**/fork", held)
    expect(page).not_to_have_url(re.compile(talk))
    expect(waiting).to_have_count(0)
    texts = hold(page, "**/text?*")
    page.locator(".evidence a").first.click()
    expect(page.locator(".reader")).to_contain_text("Loading the text")
    let_go(page, "**/text?*", texts)
    expect(page.locator(".reader mark")).to_be_visible()
    expect(page.locator(".reader")).not_to_contain_text("Loading the text")
    fork = session_of(page)
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{fork}")


def test_an_error_does_not_cover_the_question(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(**PHONE)
    error = {"error": {"message": "it failed", "code": "internal_error", "type": "server_error", "param": None}}
    tab.page.route("**/fork", lambda route: route.fulfill(status=500, json=error))
    page = tab.open(talk)
    page.get_by_role("button", name="More", exact=True).tap()
    page.get_by_role("button", name="Continue in a copy").tap()
    notice = page.get_by_role("alert").locator(".notice")
    expect(notice).to_contain_text("Try again")
    page.locator("#question").fill("A long question.\n" * 9)
    above, composer = notice.bounding_box(), page.locator(".composer").bounding_box()
    assert above is not None
    assert composer is not None
    assert above["y"] + above["height"] <= composer["y"]
    tab.expected_errors.append("500")


def test_a_document_that_cannot_be_read_says_what_to_do(tab: Tab, talk: str) -> None:
    list_documents(tab.page, status="failed", error=FAILED)
    page = tab.open()
    expect(page.locator(".card").first).to_contain_text(
        "The server could not read this document: the text is damaged. Delete it, and upload it again."
    )


def test_escape_keeps_a_question_that_is_being_edited(tab: Tab, talk: str) -> None:
    page = tab.open(talk)
    edit, box = page.get_by_role("button", name="Edit the question"), page.locator(".question textarea")
    edit.click()
    box.fill("A better question, which took a while to write?")
    page.keyboard.press("Escape")
    edit.click()
    expect(box).to_have_value("A better question, which took a while to write?")
    page.get_by_role("button", name="Cancel").click()
    edit.click()
    expect(box).to_have_value(QUESTION)


def test_a_question_that_waits_for_the_server_stays_in_view(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(viewport={"width": 1280, "height": 420})
    fork = open_fork(tab, talk)
    page = tab.page
    page.route_web_socket(re.compile("/stream"), lambda socket: None)
    page.locator("#question").fill("Who?")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Searching for passages")).to_be_in_viewport(ratio=1)
    lose_server(page)
    expect(page.get_by_text("Waiting for the server. The page sends")).to_be_in_viewport(ratio=1)
    page.unroute_all(behavior="wait")
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{fork}")
    tab.expected_errors.append("ERR_FAILED")
