"""The web page in a real Chromium, with a real server: from an uploaded file to an answer with evidence, and its memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Route, expect

from tests.page.conftest import QUESTION, TEXT, HeldAnswer, Tab
from tests.page.steps import answers, serve_model, session_of
from tests.process import Server

HOSTILE = "<img src=x onerror=alert(1)>"


def test_a_file_is_uploaded_and_an_answer_with_evidence_survives_a_reload(
    tab: Tab, server: Server, tmp_path: Path
) -> None:
    book = tmp_path / "looking glass – ä.md"
    book.write_text(f"{TEXT}\nThe end.")
    page = tab.open()
    tab.choose(book)
    expect(page.locator("h1")).to_have_text(book.name)
    expect(page.locator("#question")).to_be_focused()
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible()  # the file is read
    held = HeldAnswer(page)
    page.locator("#question").fill(QUESTION)
    page.keyboard.press("Enter")
    for _ in range(3):  # the page shows each piece of the answer before it has the next
        text = held.text()
        page.wait_for_function(
            "(text) => document.querySelector('.answer[aria-busy=true] > .words')?.textContent === text",
            arg=text.strip(),
        )
        held.pass_delta()
    held.pass_all()
    expect(page.locator(".answer .usage")).to_have_count(1)
    answer = page.locator(".answer").last
    session = session_of(page)
    (message,) = answers(server, session)
    expect(page.locator("h1")).to_have_text(QUESTION)
    expect(page.locator(f".sidebar a[href*={session}]")).to_contain_text(book.name)
    assert answer.locator("> .words").text_content() == message["content"].strip()
    first = message["evidence"][0]

    answer.locator(".evidence a").first.click()
    expect(page.locator(".reader mark")).to_be_in_viewport()
    assert page.locator(".reader mark").text_content() == first["text"]
    page.reload()
    expect(page.locator(".reader mark")).to_be_in_viewport()
    expect(page.locator(".usage")).to_have_count(1)
    assert page.locator(".answer > .words").text_content() == message["content"].strip()
    page.get_by_role("button", name="Close the text").click()
    expect(page.locator(".reader mark")).to_have_count(0)
    page.go_back()
    expect(page.locator(".reader mark")).to_be_in_viewport()


def test_an_answer_says_what_it_rests_on(tab: Tab, server: Server, talk: str) -> None:
    page = tab.open(talk)
    expect(page.locator(".caution")).to_have_text("Its memory is not trained, so its answers are nonsense.")
    serve_model(page, memory_trained=None, parameters=494_032_768, remembered_tokens=1056, memory="window")
    page = tab.open(talk)
    (answer,) = answers(server, talk)
    tokens = answer["usage"]["reused_tokens"]
    assert tokens > 1056
    expect(page.locator(".caution")).to_have_text("Small models are often wrong: check the passages.")
    basis = page.locator(".usage").first
    basis.get_by_text(f"Rests on {len(answer['evidence'])} passage").click()
    expect(basis).to_contain_text(f"It holds about 3 pages of about {round(tokens / 400)} pages before the question")
    expect(basis).to_contain_text("tiny-rmt, 494 million parameters.")
    page.get_by_role("link", name="New conversation").click()
    expect(page.locator(".drop")).to_contain_text("The model sees no other part of the text.")


def test_the_memory_of_a_recurrent_model_is_described_in_plain_words(tab: Tab, server: Server, talk: str) -> None:
    def change(route: Route) -> None:
        memory = route.fetch().json()
        tokens = memory["tokens"]
        common = {"start": 0, "end": tokens, "age": 3, "change": 0.25, "bytes": 2_000_000}
        parts = [
            {"name": "recurrence", "layer": n, "slots": 100, "used": 100, "half_life": 5.0 * (n + 1)} for n in range(2)
        ]
        window = {"name": "window", "layer": 3, "slots": 8, "used": 8, "half_life": None, "start": tokens - 8}
        route.fulfill(json=memory | {"memory": "native", "parts": [common | part for part in (*parts, window)]})

    page = tab.open()
    page.route("**/memory", change)
    page = tab.open(f"{talk}/memory")
    panel = page.get_by_role("region", name="The memory", exact=True)
    expect(panel).to_contain_text("The model carries the whole text so far")
    expect(panel).to_contain_text("Its layers with attention see")
    expect(panel.locator(".legend")).to_contain_text("kept word for word")
    expect(panel.locator(".context .kept")).to_have_count(
        2
    )  # the window, and the last tokens, which the memory has not read
    assert "token" not in panel.inner_text()  # the numbers are folded up
    panel.get_by_text("The parts of the memory, in numbers").click()
    assert "token" in panel.inner_text()
    expect(panel).to_contain_text("All tokens so far, mixed into one state; older ones fade")
    expect(panel).to_contain_text("It takes 3.8 MB in all layers. The weight of a token halves after 5 to 10 tokens")


@pytest.mark.long
def test_an_answer_is_stopped_a_session_is_forked_and_deleted(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=100_000)
    page = tab.open(talk)
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Continue in a copy").click()
    expect(page).not_to_have_url(re.compile(talk))
    fork = session_of(page)
    expect(page.locator(".usage")).to_have_count(1)
    page.locator("#question").fill("Tell me more.")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator(".answer[aria-busy=true] > .words")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".usage")).to_have_count(2)
    assert answers(server, fork)[-1]["finish_reason"] == "cancelled"
    name = page.locator("h1").get_by_role("button")
    name.click()
    page.get_by_role("textbox", name="Title").fill("  What Alice saw ")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("What Alice saw")
    expect(page.locator("nav.sidebar")).to_contain_text("What Alice saw")
    assert server.http.get(f"/v1/sessions/{fork}").json()["title"] == "What Alice saw"
    name.click()
    expect(page.get_by_role("textbox", name="Title")).to_have_value("What Alice saw")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("What Alice saw")
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Ask about a long text")
    assert server.http.get(f"/v1/sessions/{fork}").status_code == 404
    assert server.http.get(f"/v1/sessions/{talk}").status_code == 200
    tab.open(fork)
    expect(page.locator("h1")).to_have_text("There is no such conversation")
    tab.expected_errors.append("404")


def test_texts_of_documents_and_models_are_not_interpreted_as_html(tab: Tab, server: Server) -> None:
    text = f"The Red Queen said {HOSTILE}<script>window.hacked=1</script>&amp; to Alice. " * 5
    document = server.read(text, filename=f"{HOSTILE}.txt")
    session = server.session(document["id"])["id"]
    page = tab.open(session)
    expect(page.locator("h1")).to_have_text(f"{HOSTILE}.txt")
    answer = tab.ask(f"What of {HOSTILE}, Red Queen?")
    answer.locator(".evidence a").first.click()
    expect(page.locator(".reader .words")).to_have_text(text.strip())
    expect(page.locator(".question p").last).to_have_text(f"What of {HOSTILE}, Red Queen?")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 1  # the page's logo
    tab.open(f"ses_{HOSTILE}/doc_{HOSTILE}/1-2")
    expect(page.locator("h1")).to_have_text("There is no such conversation")
    policy = server.http.get("/").headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    tab.expected_errors.append("404")
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate(f"document.body.innerHTML = '{HOSTILE}'")
    tab.expected_errors.append("TrustedHTML")
