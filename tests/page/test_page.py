"""The web page in a real Chromium, with a real server."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files as package_files
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests import files
from tests.page.conftest import QUESTION, TEXT, HeldAnswer, Tab
from tests.process import Server

AXE = package_files("axe_playwright_python") / "axe.min.js"

HOSTILE = "<img src=x onerror=alert(1)>"
LAYERS = ["", "{talk}", "{talk}/memory", "{talk}/{passage}", "{document}"]
"""The addresses of all views of the page."""


def places(server: Server, talk: str) -> list[str]:
    (evidence, *_) = answers(server, talk)[0]["evidence"]
    passage = f"{evidence['document']}/{evidence['start_byte']}-{evidence['end_byte']}"
    return [p.format(talk=talk, passage=passage, document=evidence["document"]) for p in LAYERS]


def answers(server: Server, session: str) -> list[dict]:
    messages = server.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    return [message for message in messages if message["role"] == "assistant"]


def session_of(page: Page) -> str:
    return re.findall(r"#/(ses_\w+)", page.url)[0]


def settled(page: Page, place: str) -> None:
    """Wait until the view at the address `place` is complete."""
    if place.endswith("/memory"):
        expect(page.locator(".context")).to_be_visible()
    elif "doc_" in place:
        expect(page.locator(".reader .words")).to_be_visible()
        if "-" in place:
            expect(page.locator("mark")).to_be_in_viewport()
    if place.startswith("ses_"):
        expect(page.locator(".usage").first).to_be_attached()
    else:
        expect(page.locator(".card").first).to_be_attached()


def test_a_file_is_uploaded_and_an_answer_with_evidence_survives_a_reload(
    tab: Tab, server: Server, tmp_path: Path
) -> None:
    book = tmp_path / "looking glass – ä.md"
    book.write_text(TEXT)
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
    expect(page.locator("mark")).to_be_in_viewport()
    assert page.locator("mark").text_content() == first["text"]
    page.reload()
    expect(page.locator("mark")).to_be_in_viewport()
    expect(page.locator(".usage")).to_have_count(1)
    assert page.locator(".answer > .words").text_content() == message["content"].strip()
    page.get_by_role("button", name="Close the text").click()
    expect(page.locator("mark")).to_have_count(0)
    page.go_back()
    expect(page.locator("mark")).to_be_in_viewport()


def serve_model(page: Page, **fields: object) -> None:
    """Change fields of the model that the page gets."""

    def change(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"][0] |= fields
        route.fulfill(json=answer)

    page.route("**/v1/models", change)


def test_an_answer_says_what_it_rests_on(tab: Tab, server: Server, talk: str) -> None:
    page = tab.open(talk)
    expect(page.locator(".caution")).to_have_text("Its memory is not trained, so its answers are nonsense.")
    serve_model(page, memory_trained=None, parameters=494_032_768, remembered_tokens=1056)
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
    expect(page.locator(".drop")).to_contain_text("the model sees only about 3 pages of the text")


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
    expect(panel).to_contain_text("It takes 3.8 MB in all layers. Half of a token has faded after 5 to 10 tokens")


def test_several_dropped_documents_get_one_conversation(tab: Tab, server: Server) -> None:
    page = tab.open()
    page.evaluate(
        """(texts) => {
          const transfer = new DataTransfer();
          for (const [name, text, type] of texts) transfer.items.add(new File([text], name, {type}));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }""",
        [["one.txt", TEXT[:900], "text/plain"], ["two.json", TEXT[900:2000], "application/json"], ["three.txt", "Oh, a \0 byte.", "text/plain"]],
    )  # fmt: skip
    expect(page.locator("h1")).to_contain_text(" and ")
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible()
    names = {page.locator(".chips li").nth(n).text_content() for n in (0, 1)}
    assert names == {"one.txt", "two.json"}
    expect(page.locator(".bad")).to_contain_text("The server cannot read this kind of file. It reads text, PDF, Word,")
    page.get_by_text("What the server says").click()
    expect(page.locator(".card details p")).to_contain_text("NUL")
    page.get_by_role("button", name="Dismiss three.txt").click()
    expect(page.locator(".bad")).to_have_count(0)
    page.get_by_role("link", name="New conversation").click()
    for name in ("one.txt", "two.json"):
        page.get_by_role("checkbox", name=name).check()
    page.get_by_role("button", name="Talk about 2 documents").click()
    expect(page.locator("h1")).to_have_text("one.txt and two.json")
    tab.errors = [error for error in tab.errors if "415" not in error]


def drop(page: Page, *named: tuple[str, str]) -> None:
    """Drop text files on the page, given as (name, text)."""
    page.evaluate(
        """(texts) => {
          const transfer = new DataTransfer();
          for (const [name, text] of texts) transfer.items.add(new File([text], name, {type: "text/plain"}));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }""",
        named,
    )


def hold(page: Page, url: str) -> list[Route]:
    """Hold back the page's requests to `url` until `let_go`, and return their list."""
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)

    page.route(url, keep)
    return held


def let_go(page: Page, url: str, held: list[Route]) -> None:
    for route in held:
        route.continue_()
    page.unroute(url)


def test_many_documents_that_are_being_read_leave_the_page_its_connections(tab: Tab, server: Server) -> None:
    """A browser opens at most six connections to one server."""
    documents = [server.upload(TEXT * 200, filename=f"volume {n}.txt")["id"] for n in range(8)]
    page = tab.open()
    expect(page.locator(".cards progress")).to_have_count(8)
    page.get_by_role("link", name="Read volume 7.txt").click()
    expect(page.locator(".reader .words")).to_contain_text(TEXT[:100])
    assert {server.document(document)["status"] for document in documents} <= {"queued", "reading"}
    with page.expect_response("**/readyz"):
        pass
    expect(page.locator(".light.online")).to_be_attached()
    for document in documents[1:]:
        server.http.delete(f"/v1/documents/{document}")
    expect(page.locator(".cards progress")).to_have_count(
        1
    )  # the page also notices documents that are deleted elsewhere
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/documents/{documents[0]}")
    tab.errors = [error for error in tab.errors if "404" not in error]


def test_at_most_three_files_are_uploaded_at_a_time(tab: Tab, server: Server) -> None:
    page = tab.open()
    held = hold(page, "**/v1/documents?filename=*")
    drop(page, *((f"note {n}.txt", f"Note {n}.") for n in range(5)))
    expect(page.locator(".card progress")).to_have_count(5)
    page.evaluate("fetch('/livez')")  # queued after all requests so far
    assert len(held) == 3
    let_go(page, "**/v1/documents?filename=*", held)
    expect(page.locator("h1")).to_contain_text("and 4 more")
    assert len(server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]) == 5


def test_an_answer_survives_a_killed_server(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(tokens=100_000)  # more than the server generates before it is killed
    session = server.http.post(f"/v1/sessions/{talk}/fork").json()["id"]
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
    tab.errors = [error for error in tab.errors if not re.search("ERR_|WebSocket|503", error)]


def test_the_upload_of_a_large_file_resumes_after_a_killed_server(tab: Tab, server: Server) -> None:
    """The file is sent in parts of 8 MiB; the server is killed during the second one."""
    page, sent = tab.open(), []

    def pass_on(route: Route) -> None:
        sent.append(route.request.url)
        if len(sent) == 2:
            server.kill9()
        route.continue_()

    page.route("**/v1/uploads/*/parts", pass_on)
    page.evaluate(
        """() => {
          const transfer = new DataTransfer();
          transfer.items.add(new File(["Alice was. ".repeat(1_600_000)], "large.txt", {type: "text/plain"}));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }"""
    )
    expect(page.locator(".banner")).to_contain_text("tries again")
    expect(page.get_by_role("progressbar", name="Uploading large.txt")).to_be_visible()
    server.start()
    expect(page.locator("h1")).to_have_text("large.txt")
    assert len(set(sent)) == 1, "the upload started again"
    assert len(sent) >= 4, "three parts, and one of them a second time"
    document, *_ = server.http.get("/v1/documents").json()["data"]
    assert (document["filename"], document["bytes"]) == ("large.txt", 17_600_000)
    session = session_of(page)
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document['id']}")
    tab.errors = [error for error in tab.errors if not re.search("ERR_|503", error)]


def conversation(server: Server, messages: list[dict], *documents: str, **fields: str) -> str:
    """Create a session with these messages, and return its id."""
    made = server.http.post("/v1/sessions", json={"messages": messages, "documents": documents, **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


RENDERED = """async (words) => {
  const now = Date.now;
  let calls = 0;
  Date.now = () => (calls++, now());
  const box = document.querySelector("input[type=search]");
  box.value = words;
  box.dispatchEvent(new Event("input", {bubbles: true}));
  for (let frame = 0; frame < 3; frame++) await new Promise(requestAnimationFrame);
  Date.now = now;
  return calls;
}"""
"""Searches, and returns how often conversations were rendered: each computes its age then."""


@pytest.mark.long
def test_older_documents_and_conversations_can_be_loaded(tab: Tab, server: Server, talk: str) -> None:
    """More than the first hundred of each: by the keyboard, and by address."""
    documents = [server.upload(f"Note {n}.", filename=f"note {n}.txt")["id"] for n in range(101)]
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    oldest, *sessions = [conversation(server, past) for _ in range(102)]
    page = tab.open()
    for words, rows in (("Older conversations", ".sidebar li a"), ("Older documents", ".cards input")):
        button, row = page.get_by_role("button", name=words), page.locator(rows)
        expect(row).to_have_count(100)
        assert complaints(page) == []
        button.focus()
        page.keyboard.press("Enter")
        expect(row.nth(100)).to_be_focused()
        expect(button).to_have_count(0)
    # A search renders no conversation again that stays in the list. The smaller of two: all are rendered once a minute.
    assert min(page.evaluate(RENDERED, words) for words in ("w", "wh")) < 10
    page = tab.open(oldest)
    expect(page.locator("h1")).to_have_text("Who?")
    about = server.session(documents[0])["id"]
    late = hold(page, f"**/v1/documents/{documents[0]}")
    page = tab.open(about)
    expect(page.locator(".chips")).to_have_text("a document")  # its name is not loaded yet
    let_go(page, f"**/v1/documents/{documents[0]}", late)
    expect(page.locator(".chips")).to_have_text("note 0.txt")
    page.route("**/readyz", lambda route: route.abort())
    expect(page.locator(".light.offline")).to_be_attached()
    with page.expect_response("**/v1/documents?limit=100"):
        page.unroute("**/readyz")
    expect(page.locator(".light.online")).to_be_attached()
    expect(page.locator(".chips")).to_have_text("note 0.txt")
    server.http.delete(f"/v1/documents/{documents[0]}")
    page = tab.open(about)
    expect(page.locator(".chips")).to_have_text("a deleted document")
    sessions.append(about)
    tab.errors = [error for error in tab.errors if not re.search("404|ERR_FAILED", error)]
    page.goto("about:blank")  # stops the page's requests
    for document in documents:
        server.http.delete(f"/v1/documents/{document}")
    for session in (oldest, *sessions):
        server.http.delete(f"/v1/sessions/{session}")


def test_a_document_shows_what_is_not_in_its_text(tab: Tab, server: Server) -> None:
    answer = server.http.post(
        "/v1/documents", params={"filename": "scan.pdf"}, content=files.pdf(["Typed.", files.PICTURE])
    )
    page = tab.open()
    card = page.locator(".card", has_text="scan.pdf")
    card.get_by_text("1 note on its text").click()
    expect(card.get_by_role("listitem")).to_have_text("Page 2: it is a picture in which no text was recognised")
    server.http.delete(f"/v1/documents/{answer.json()['id']}")


def test_the_file_dialog_offers_the_formats_that_the_server_accepts(tab: Tab, server: Server) -> None:
    page = tab.open()
    expect(page.locator(".drop")).to_contain_text(
        "Text, PDF, Word, PowerPoint, Excel, EPUB, HTML or 14 other formats of up to"
    )  # the formats are loaded
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose files").click()
    accepted = (chooser.value.element.get_attribute("accept") or "").split(",")
    answer = server.http.get("/v1/formats").json()
    assert accepted == [kind for each in answer["data"] for kind in (*each["extensions"], *each["media_types"])]
    # The input is attached to the page while the dialog is open, so that it is not garbage-collected, and removed afterwards.
    inputs = page.locator("input[type=file]")
    expect(inputs).to_have_count(1)
    inputs.dispatch_event("cancel")
    expect(inputs).to_have_count(0)


def test_an_answer_is_stopped_a_session_is_forked_and_deleted(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=100_000)
    page = tab.open(talk)
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Fork").click()
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
    expect(page.locator("h1")).to_have_text("Ask a long text")
    assert server.http.get(f"/v1/sessions/{fork}").status_code == 404
    assert server.http.get(f"/v1/sessions/{talk}").status_code == 200
    tab.open(fork)
    expect(page.locator("h1")).to_have_text("There is no such conversation")
    tab.errors = [error for error in tab.errors if "404" not in error]


@pytest.mark.parametrize("zoom", [False, True])
def test_it_fits_into_360_pixels_and_at_200_percent(
    new_tab: Callable[..., Tab], server: Server, talk: str, zoom: bool
) -> None:
    server.upload(TEXT, filename="A long name " * 20 + ".md")
    named = str(server.session(server.read(TEXT, filename="a" * 200 + ".txt")["id"])["id"])
    server.say(named, QUESTION, max_tokens=30, temperature=0, ignore_eos=True)
    # A window of 1280 by 800 pixels has half as many CSS pixels at 200 %.
    size = {"width": 640, "height": 400} if zoom else {"width": 360, "height": 640}
    tab = new_tab(viewport=size, device_scale_factor=2 if zoom else 1)
    for place in (*places(server, talk), named):
        page = tab.open(place)
        settled(page, place)
        wide = page.evaluate(
            """() => [...document.querySelectorAll("body, body *")]
              .filter((e) => getComputedStyle(e).overflowX !== "hidden" && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0
                && getComputedStyle(e).display !== "inline" && !e.closest("svg, .unseen"))
              .map((e) => `${e.tagName}.${e.className} ${e.scrollWidth} > ${e.clientWidth}`)"""
        )
        assert wide == [], place
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], place
        assert complaints(page) == [], place


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_the_sidebar_of_a_small_screen_keeps_the_focus(new_tab: Callable[..., Tab], talk: str, motion: str) -> None:
    tab = new_tab(viewport={"width": 360, "height": 640}, reduced_motion=motion)
    page = tab.page
    late: list[Route] = []

    def hold(route: Route) -> None:
        late.append(route)

    page.route(re.compile(r"/v1/sessions\?"), hold)
    tab.open(talk)
    menu, first = page.get_by_role("button", name="Conversations"), page.get_by_role("link", name="New conversation")
    menu.click()
    expect(first).to_be_focused()
    for route in late:
        route.continue_()
    expect(page.locator(".usage")).to_be_attached()
    expect(first).to_be_focused()
    page.keyboard.press("Escape")
    expect(first).to_be_hidden()
    expect(menu).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(new_tab: Callable[..., Tab], server: Server, talk: str, scheme: str) -> None:
    tab = new_tab(color_scheme=scheme)
    # Only the colours differ between the schemes.
    rules = {} if scheme == "light" else {"runOnly": ["color-contrast"]}
    for place in places(server, talk):
        settled(tab.open(place), place)
        assert complaints(tab.page, **rules) == [], place
    tab.page.keyboard.press("?")
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    assert complaints(tab.page, **rules) == [], "help"


def complaints(page: Page, **options: object) -> list[tuple[str, list[str]]]:
    """Run axe and return the violated rules, each with up to three elements."""
    page.evaluate(AXE.read_text())
    found = page.evaluate("(options) => axe.run(document, options)", options)
    return [(v["id"], [n["html"] for n in v["nodes"]][:3]) for v in found["violations"]]


def test_with_the_keyboard_alone(tab: Tab, server: Server, talk: str, tmp_path: Path) -> None:
    page, keys = tab.open(), tab.page.keyboard
    keys.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    book = tmp_path / "keys.txt"
    book.write_text(TEXT)
    tab.choose(book, press=lambda: keys.press("u"))
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_focused()
    keys.type(f"{QUESTION} m n ?")  # typed as text, not used as shortcuts
    keys.press("Enter")
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.locator("#question")).to_be_focused()
    for _ in range(12):
        keys.press("Shift+Tab")
        if page.evaluate("document.activeElement.matches('.evidence a')"):
            break
    expect(page.locator(".evidence a:focus")).to_have_count(1)
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    link = page.evaluate("document.activeElement.href")
    keys.press("Enter")
    expect(page.locator("#panel-title")).to_be_focused()
    keys.press("Escape")
    expect(page.locator(".reader")).to_have_count(0)
    page.wait_for_function("(href) => document.activeElement.href === href", arg=link)
    keys.press("m")
    expect(page.locator(".context")).to_be_visible()
    keys.press("m")
    expect(page.locator(".context")).to_have_count(0)
    keys.press("j")
    expect(page.locator("h1")).to_have_text(QUESTION)
    expect(page.locator("#question")).to_be_focused()
    keys.press("Escape")
    keys.press("n")
    expect(page.locator("h1")).to_have_text("Ask a long text")


def test_an_error_disappears_when_the_text_is_loaded(tab: Tab, server: Server) -> None:
    document = server.upload(TEXT * 3, filename="three times.txt")["id"]
    page = tab.open(document)
    page.route("**/text?*", lambda route: route.fulfill(status=500, json={"error": {"message": "no luck"}}))
    page.get_by_role("button", name="Show later text").click()
    expect(page.locator(".reader .bad")).to_have_text("No luck.")
    page.unroute("**/text?*")
    page.get_by_role("button", name="Show later text").click()
    expect(page.locator(".reader .bad")).to_have_count(0)
    page.route("**/text?*", lambda route: route.fulfill(status=500, json={"error": {"message": "no luck"}}))
    page.get_by_label("Position in the text").fill("9000")
    expect(page.locator(".reader .bad")).to_have_text("No luck.")
    page.unroute("**/text?*")
    page.get_by_label("Position in the text").fill("12000")
    expect(page.locator(".reader .bad")).to_have_count(0)
    tab.errors = [error for error in tab.errors if "500" not in error]


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
    page.route("**/readyz", lambda route: route.abort())
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator(".banner")).to_contain_text("The server does not respond.")
    page.unroute("**/readyz")
    expect(page.locator(".light.online")).to_be_attached()
    page.goto("about:blank")  # stops the page's requests
    tab.errors = [error for error in tab.errors if not re.search("429|ERR_FAILED", error)]


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
    tab.errors = [error for error in tab.errors if "404" not in error]


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
    tab.errors = [error for error in tab.errors if "404" not in error]
    with pytest.raises(Exception, match="TrustedHTML"):
        page.evaluate(f"document.body.innerHTML = '{HOSTILE}'")
    tab.errors = [error for error in tab.errors if "TrustedHTML" not in error]


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
