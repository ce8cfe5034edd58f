"""What people do with a conversation besides asking: print it, copy from it, find its branches, and go on after a button is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.page.conftest import HeldAnswer, Tab
from tests.page.steps import LONG, conversation, go, lose_server, open_fork
from tests.page.test_answers import show
from tests.process import Server

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
UNCUT = """() => ["body", "main", ".messages", ".evidence .snippet"].every((place) => {
  const element = document.querySelector(place);
  return getComputedStyle(element).overflowY === "visible" || element.scrollHeight <= element.clientHeight + 2;
})"""
"""Whether the paper has all of the conversation, and not what a window shows of it."""


def listed(server: Server) -> set[str]:
    return {session["id"] for session in server.http.get("/v1/sessions", params={"limit": 100}).json()["data"]}


@pytest.fixture(autouse=True)
def _leaves_no_conversation(server: Server, own_talk: str) -> Iterator[None]:
    """Other tests of the page go from one conversation to the next."""
    before = listed(server)
    yield
    for session in listed(server) - before:
        server.http.delete(f"/v1/sessions/{session}")


@pytest.mark.long
def test_the_whole_conversation_is_printed_dark_on_light(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(color_scheme="dark")
    tab.page.add_init_script("localStorage['everlong.theme'] = 'dark'")
    page = tab.open(talk)
    show(page, "A line of a long answer.\n\n" * 100)
    go(page, "")
    go(page, f"{talk}/memory")
    page.emulate_media(media="print")
    assert page.evaluate(UNCUT)
    expect(page.locator("h1")).to_be_visible()
    expect(page.locator(".evidence .snippet").first).to_be_visible()
    for place in (".sidebar", ".panel", ".composer", ".actions", ".bar .button"):
        for element in page.locator(place).all():
            expect(element).to_be_hidden()
    colours = page.evaluate(
        "(({color, backgroundColor}) => [color, backgroundColor])(getComputedStyle(document.documentElement))"
    )
    ink, paper = (int(colour.removeprefix("rgb(").split(",")[0]) for colour in colours)
    assert ink < 64 < 192 < paper


def test_the_number_of_a_source_is_not_copied_into_the_text(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    """In "built in 1911" with source 2, it would read as "19112"."""
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    passage = stored["evidence"][0]
    span = {"document_start": passage["start"], "document_end": passage["end"]}
    cited = {"start": 0, "end": 13, "evidence": 0, "document": passage["document"], "filename": "a"} | span
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"])
    show(tab.page, "Built in 1911, and sold.", citations=[cited])
    page = tab.open(talk)
    expect(page.locator(".citation a")).to_have_text("1")
    page.locator(".answer > .words").evaluate("(words) => getSelection().selectAllChildren(words)")
    page.keyboard.press("ControlOrMeta+c")
    assert page.evaluate("navigator.clipboard.readText()") == "Built in 1911, and sold."


def test_a_copied_answer_has_its_sources(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    """As numbered notes below the text. The passages that the answer does not cite are left out."""
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    passage = stored["evidence"][0] | {"page": 7, "section": "Humpty Dumpty"}
    span = {"document_start": passage["start"], "document_end": passage["end"], "page": 7, "section": "Humpty Dumpty"}
    cited = {"start": 0, "end": 17, "evidence": 1, "document": passage["document"], "filename": "a"} | span
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"])
    text = "Built in **1911**, and sold.\n\n```\ncode\n```"
    show(tab.page, text, citations=[cited], evidence=[stored["evidence"][0], passage])
    page = tab.open(talk)
    page.get_by_role("button", name="Copy the answer").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    plain, html = page.evaluate(
        """async () => {
          const [item] = await navigator.clipboard.read();
          return Promise.all(["text/plain", "text/html"].map(async (type) => (await item.getType(type)).text()));
        }"""
    )
    notes = ("Sources:", "[2] looking-glass.md, Humpty Dumpty, page 7")
    assert plain == "\n".join(("Built in **1911** [2], and sold.", *text.splitlines()[1:], "", *notes))
    assert '<p dir="auto">Built in <strong>1911 [2]</strong>, and sold.</p>' in html
    assert "<br>".join(notes) in html
    assert "Copy" not in html


def test_the_branches_are_in_view_at_the_end_of_a_long_conversation(tab: Tab, server: Server) -> None:
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A line.\n\n" * 200}]
    first = conversation(server, past)
    second = conversation(server, past, parent=first)
    page = tab.open(second)
    page.locator(".messages").evaluate("(messages) => messages.scrollTo(0, messages.scrollHeight)")
    expect(page.locator(".branches")).to_be_in_viewport(ratio=1)
    page.get_by_role("link", name="Previous branch").click()
    expect(page.locator(".branches")).to_contain_text("Branch 1 of 2")


def test_the_answer_stays_where_it_is_when_it_is_complete(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab()
    open_fork(tab, talk)
    page = tab.page
    held = HeldAnswer(page)
    page.reload()
    expect(page.locator(".usage")).to_have_count(1)
    page.locator("#question").fill("Who?")
    page.keyboard.press("Enter")
    held.text()
    expect(page.get_by_role("button", name="Edit the question")).to_have_count(0)
    height = page.locator(".question").last.evaluate("(question) => question.offsetHeight")
    held.pass_all()
    expect(page.locator(".usage")).to_have_count(2)
    expect(page.get_by_role("button", name="Edit the question")).to_have_count(2)
    assert page.locator(".question").last.evaluate("(question) => question.offsetHeight") == height


def test_the_focus_moves_to_the_question_when_its_button_goes(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(tokens=100_000)
    open_fork(tab, talk)
    page, box = tab.page, tab.page.locator("#question")
    box.fill(LONG)
    page.get_by_role("button", name="Ask", exact=True).press("Enter")
    expect(box).to_be_focused()
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()
    page.get_by_role("button", name="Stop").press("Enter")
    expect(page.locator(".usage")).to_have_count(2)
    expect(box).to_be_focused()


def test_the_focus_moves_to_the_question_when_an_answer_is_continued(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(tokens=5)
    open_fork(tab, talk)
    tab.page.get_by_role("button", name="Continue").press("Enter")
    expect(tab.page.locator("#question")).to_be_focused()
    expect(tab.page.get_by_role("button", name="Continue")).to_be_visible()


def test_a_phone_opens_no_keyboard_over_a_conversation(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    page = new_tab(**PHONE).open(talk)
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.locator("#question")).not_to_be_focused()
    open_fresh(page, server)
    expect(page.locator("#question")).to_be_focused()  # there is nothing to read


def open_fresh(page: Page, server: Server) -> None:
    """Open a conversation without messages."""
    page.evaluate("(id) => { location.hash = `#/${id}`; }", conversation(server, []))


def test_a_question_without_a_server_says_what_it_waits_for(tab: Tab, server: Server, talk: str) -> None:
    open_fork(tab, talk)
    page = tab.page
    page.route_web_socket("**/stream", lambda socket: socket.close(code=1012))
    lose_server(page)
    page.locator("#question").fill("Who?")
    page.keyboard.press("Enter")
    expect(page.locator(".answer .thinking")).to_have_text(
        "Waiting for the server. The page sends this question again when the connection is back."
    )
    page.goto("about:blank")  # ends the attempts
    tab.expected_errors.append("ERR_FAILED|WebSocket")


def test_a_passage_of_a_deleted_document_can_still_be_read(tab: Tab, server: Server) -> None:
    """The list shows two lines of it only."""
    document = server.read("The tower has nine doors. " * 30, filename="tower.txt")["id"]
    session = str(server.session(document)["id"])
    (passage, *_) = server.say(session, "How many doors does the tower have?", max_tokens=5)["evidence"]
    server.http.delete(f"/v1/documents/{document}")
    page = tab.open(session)
    expect(page.locator(".about")).to_contain_text("A document was deleted, so the search finds nothing in it.")
    page.locator(".evidence a").first.click()
    reader = page.get_by_role("region", name="Text", exact=True)
    expect(reader).to_contain_text("This document was deleted.")
    expect(reader.locator(".words")).to_have_text(passage["text"].strip())
    expect(reader.get_by_role("button", name="Show earlier text")).to_have_count(0)
    tab.expected_errors.append("404")


def test_the_title_can_be_changed_in_the_menu(tab: Tab, server: Server) -> None:
    page = tab.open(conversation(server, []))
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Rename").click()
    page.get_by_role("textbox", name="Title").fill("A new title")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("A new title")


def test_a_very_long_title_leaves_room_for_the_conversation(new_tab: Callable[..., Tab], server: Server) -> None:
    page = new_tab(**PHONE).open(conversation(server, [], title="very long " * 20))
    expect(page.locator("h1")).to_contain_text("very long")
    assert page.locator("h1").evaluate("(title) => title.offsetHeight") < 100
