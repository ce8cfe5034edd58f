"""Documents in the page: many at once, long lists of them, what it says about one, and its text."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests import files
from tests.page.accessibility import complaints
from tests.page.conftest import TEXT, Tab
from tests.page.steps import conversation, drop, hold, let_go, lose_server, session_of
from tests.process import Server


@pytest.mark.long
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
    tab.expected_errors.append("415")


@pytest.mark.long
def test_many_documents_that_are_being_read_leave_the_page_its_connections(tab: Tab, server: Server) -> None:
    """A browser opens at most six connections to one server."""
    documents = [server.upload(TEXT * 200, filename=f"volume {n}.txt")["id"] for n in range(8)]
    page = tab.open()
    expect(page.locator(".cards progress")).to_have_count(8)
    page.get_by_role("link", name="Read volume 7.txt").click()
    expect(page.locator(".reader .words")).to_contain_text(TEXT[:100])
    assert {server.document(document)["status"] for document in documents} <= {"queued", "reading"}
    with page.expect_response("**/readyz"):
        page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator(".light.online")).to_be_attached()
    for document in documents[1:]:
        server.http.delete(f"/v1/documents/{document}")
    expect(page.locator(".cards progress")).to_have_count(
        1
    )  # the page also notices documents that are deleted elsewhere
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/documents/{documents[0]}")
    tab.expected_errors.append("404")


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
    lose_server(page)
    with page.expect_response("**/v1/documents?limit=100"):
        page.unroute("**/readyz")
    expect(page.locator(".light.online")).to_be_attached()
    expect(page.locator(".chips")).to_have_text("note 0.txt")
    server.http.delete(f"/v1/documents/{documents[0]}")
    page = tab.open(about)
    expect(page.locator(".chips")).to_have_text("a deleted document")
    sessions.append(about)
    tab.expected_errors.append("404|ERR_FAILED")
    page.goto("about:blank")  # stops the page's requests
    for document in documents:
        server.http.delete(f"/v1/documents/{document}")
    for session in (oldest, *sessions):
        server.http.delete(f"/v1/sessions/{session}")


@pytest.mark.long
def test_a_document_shows_what_is_not_in_its_text(tab: Tab, server: Server) -> None:
    drawn = server.http.post("/v1/documents", params={"filename": "drawn.pdf"}, content=files.pdf(["Typed.", ""]))
    page = tab.open()
    card = page.locator(".card", has_text="drawn.pdf")
    card.get_by_text("1 note on its text").click()
    expect(card.get_by_role("listitem")).to_have_text("Page 2: the page has drawings and no text")
    page.goto("about:blank")  # it may still ask how far the document is read, and would log that it is gone
    server.http.delete(f"/v1/documents/{drawn.json()['id']}")


def test_the_file_dialog_offers_the_formats_that_the_server_accepts(tab: Tab, server: Server) -> None:
    page = tab.open()
    expect(page.locator(".drop")).to_contain_text(
        "Text, PDF, Word, PowerPoint, Excel, EPUB, HTML or 19 other formats of up to"
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
    tab.expected_errors.append("500")
