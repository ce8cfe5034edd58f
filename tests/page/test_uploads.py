"""Files that are uploaded twice, and files that are added to a conversation."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from tests.page.conftest import Tab
from tests.page.steps import LARGE, conversation, drop, drop_large, hold, let_go, session_of, wait_until
from tests.process import Server

MESSAGES = re.compile(r"/sessions/ses_\w+/messages(\?|$)")


def leave_uploads(page: Page) -> None:
    """Cancel the uploads that are running: the browser would ask before it ends them."""
    for button in page.get_by_role("button", name=re.compile("^Cancel ")).all():
        button.click()
    page.goto("about:blank")


EMPTY = {"error": {"message": "the document is empty", "code": "empty_document", "type": "invalid_request_error"}}
COUNT_FEWEST_ANSWERS = """() => {
  globalThis.fewest = 2;
  const count = () => { fewest = Math.min(fewest, document.querySelectorAll(".answer").length); };
  new MutationObserver(count).observe(document.body, { childList: true, subtree: true });
}"""


@pytest.mark.long
def test_the_same_file_twice_is_one_document(tab: Tab, server: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    for file in (first, second):
        file.write_text("The same words in two files.")
    page = tab.open()
    tab.choose(first, second)
    expect(page.locator("h1")).to_have_text(re.compile("first.txt|second.txt"))
    document, *_ = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    name = server.document(document)["filename"]
    # As if the document were not among the first hundred, which the page loads.
    page.route(
        "**/v1/documents?limit=100", lambda route: route.fulfill(json={"object": "list", "data": [], "has_more": False})
    )
    page = tab.open()
    again = tmp_path / "again.txt"
    again.write_bytes(first.read_bytes())
    tab.choose(again)
    expect(page.locator("h1")).to_have_text(name)
    uploaded = page.get_by_role("region", name="Uploads").locator(".card")
    expect(uploaded).to_have_text(
        re.compile(f"again.txt.*You have uploaded the same file before. It is the document {name}", re.S)
    )
    page.get_by_role("button", name="Dismiss again.txt").click()
    page.unroute("**/v1/documents?limit=100")
    page = tab.open()
    tab.choose(second)
    expect(page.locator("h1")).to_have_text(re.compile("first.txt|second.txt"))
    assert document in server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    server.http.delete(f"/v1/documents/{document}")
    page = tab.open()
    tab.choose(second)  # the server has it no longer
    expect(page.locator("h1")).to_have_text("second.txt")
    (fresh,) = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    assert fresh != document
    page.goto("about:blank")  # ends its requests for the document
    server.http.delete(f"/v1/documents/{fresh}")
    tab.expected_errors.append("404")


@pytest.mark.long
def test_the_same_file_from_two_browsers_is_one_document(
    new_tab: Callable[..., Tab], server: Server, tmp_path: Path
) -> None:
    file = tmp_path / "both.txt"
    file.write_text("The same words in two browsers.")
    tabs = [new_tab(), new_tab()]
    for tab in tabs:
        tab.open()
    for tab in tabs:
        tab.choose(file)
    documents = set()
    for tab in tabs:
        expect(tab.page.locator("h1")).to_have_text("both.txt")
        (document,) = server.http.get(f"/v1/sessions/{session_of(tab.page)}").json()["documents"]
        documents.add(document)
        tab.page.goto("about:blank")
    (document,) = documents
    server.http.delete(f"/v1/documents/{document}")


def test_a_document_is_added_to_a_conversation(tab: Tab, server: Server, tmp_path: Path) -> None:
    document = server.read("One note.", filename="one.txt")["id"]
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    session = conversation(server, past, document)
    page = tab.open(session)
    other = tmp_path / "two.txt"
    other.write_text("Another note.")
    tab.choose(other, press=page.get_by_role("button", name="Add a document").click)
    expect(page.locator(".chips li")).to_have_text(["one.txt", "two.txt"])
    expect(page.locator(".branches")).to_contain_text("Branch 2 of 2")
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible()
    tab.ask("And now?")
    branch = server.http.get(f"/v1/sessions/{session_of(page)}").json()
    assert (branch["documents"][0], len(branch["documents"]), branch["messages"]) == (document, 2, 4)
    assert server.http.get(f"/v1/sessions/{session}").json()["messages"] == 2
    for id in branch["documents"]:
        server.http.delete(f"/v1/documents/{id}")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_document_added_before_the_messages_are_loaded_keeps_them(
    tab: Tab, server: Server, tmp_path: Path, dropped: bool
) -> None:
    document = server.read("One early note.", filename="one.txt")["id"]
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    session = conversation(server, past, document)
    held = hold(tab.page, MESSAGES)
    page = tab.open(session)
    if dropped:
        drop(page, ("two.txt", "Another early note, dropped."))
    else:
        (tmp_path / "two.txt").write_text("Another early note.")
        tab.choose(tmp_path / "two.txt", press=page.get_by_role("button", name="Add a document").click)
    wait_until(page, lambda: len(held) > 1)  # the view's and that of the branch, which waits for it
    let_go(page, MESSAGES, held)
    expect(page.locator(".chips li")).to_have_text(["one.txt", "two.txt"])
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    branch = server.http.get(f"/v1/sessions/{session_of(page)}").json()
    assert (branch["parent"], branch["messages"]) == (session, 2)
    page.goto("about:blank")
    for id in branch["documents"]:
        server.http.delete(f"/v1/documents/{id}")


def test_a_question_that_is_edited_keeps_an_answer_that_grew_elsewhere(tab: Tab, server: Server) -> None:
    document = server.read("A note on tea.", filename="tea.txt")["id"]
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    session = conversation(
        server, [*past, {"role": "user", "content": "When?"}, {"role": "assistant", "content": "Now."}], document
    )

    def grown(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"][1]["content"] = "I, said the cat."
        route.fulfill(json=answer)

    page = tab.open(session)
    expect(page.locator(".answer .markdown").last).to_have_text("Now.")
    page.route(MESSAGES, grown)  # as if another page had extended it since
    page.locator(".question").last.get_by_role("button", name="Edit the question").click()
    page.locator(".question textarea").fill("Where?")
    page.keyboard.press("Enter")
    expect(page.locator(".branches")).to_contain_text("Branch 2 of 2")
    page.unroute_all(behavior="wait")
    messages = server.http.get(f"/v1/sessions/{session_of(page)}/messages").json()["data"]
    assert [message["content"] for message in messages[:2]] == ["Who?", "I, said the cat."]
    page.goto("about:blank")
    server.http.delete(f"/v1/documents/{document}")


def test_an_older_list_of_messages_that_comes_late_is_dropped(tab: Tab, server: Server) -> None:
    document = server.read("A note on coffee.", filename="coffee.txt")["id"]
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]
    session = conversation(server, past, document)
    first: list[tuple[Route, APIResponse]] = []
    loaded: list[int] = []

    def delay_first(route: Route) -> None:
        answer = route.fetch()
        if not first:
            first.append((route, answer))
            return
        loaded.append(len(answer.json()["data"]))
        route.fulfill(response=answer)

    tab.page.route(MESSAGES, delay_first)
    page = tab.open(session)
    wait_until(page, lambda: bool(first))
    page.locator("#question").fill("And now?")
    page.keyboard.press("Enter")
    # The page loads them after the answer, and again since the session has more of them.
    wait_until(page, lambda: loaded.count(4) == 2)
    expect(page.get_by_role("button", name="Copy the answer")).to_have_count(2)
    page.evaluate(COUNT_FEWEST_ANSWERS)
    route, answer = first[0]
    with page.expect_response(MESSAGES) as late:
        route.fulfill(response=answer)
    late.value.finished()
    page.locator("#question").fill("Where?")  # another round: by its end, the late list has been handled
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Copy the answer")).to_have_count(3)
    assert page.evaluate("() => fewest") == 2
    page.unroute_all(behavior="wait")
    page.goto("about:blank")
    server.http.delete(f"/v1/documents/{document}")


def test_failed_uploads_are_shown_with_the_files_they_came_with(
    tab: Tab, server: Server, talk: str, tmp_path: Path
) -> None:
    good, empty = tmp_path / "good.txt", tmp_path / "empty.txt"
    good.write_text("A good note.")
    empty.touch()
    page = tab.open()
    tab.choose(empty, good)
    failed = page.get_by_label("Uploads").get_by_text("There is no text in this file. Choose another one.")
    expect(page.locator("h1")).to_have_text("good.txt")
    expect(failed).to_be_visible()
    session = session_of(page)
    for place, shown in ((talk, 0), ("", 0), (session, 1)):
        page.goto(f"{server.url}/#/{place}")
        expect(page.locator(".light.online")).to_be_attached()
        expect(page.locator("h1")).not_to_have_text("…")
        expect(failed).to_have_count(shown)
    tab.ask("Is it good?")
    expect(failed).to_have_count(0)
    (document,) = server.http.get(f"/v1/sessions/{session}").json()["documents"]
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document}")
    tab.expected_errors.append("400|422")


def test_uploads_are_paused_resumed_and_cancelled(tab: Tab, server: Server) -> None:
    """The first file is sent in two parts, and paused during the second."""
    page = tab.open()
    held: list[Route] = []
    passed: list[str] = []

    def hold_second(route: Route) -> None:
        if len(passed) == 1 and not held:
            held.append(route)
        else:
            passed.append(route.request.url)
            route.continue_()

    page.route("**/v1/uploads/*/parts", hold_second)
    page.route("**/v1/documents?filename=*", lambda route: None)  # the other file does not arrive
    drop_large(page, ("small.txt", "A note."))
    expect(page.get_by_role("progressbar", name="Uploading small.txt")).to_be_visible()
    wait_until(page, lambda: bool(held))
    card = page.get_by_role("region", name="Uploads").locator(".card").filter(has_text="large.txt")
    expect(card).to_contain_text("8 MB of 8.4 MB uploaded")
    page.get_by_role("button", name="Pause large.txt").click()
    expect(card).to_contain_text("paused")
    expect(page.locator(".light.online")).to_be_attached()
    page.get_by_role("button", name="Resume large.txt").click()
    wait_until(page, lambda: len(passed) == 2)
    expect(card).to_have_count(0)  # the document waits for the other file, which gets the same conversation
    page.get_by_role("button", name="Cancel small.txt").click()
    expect(page.locator("h1")).to_have_text("large.txt")
    assert len(set(passed)) == 1, "the upload started again"
    (document,) = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    assert server.http.get(f"/v1/documents/{document}").json()["bytes"] == LARGE
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/documents/{document}")
    tab.expected_errors.append("404")


@pytest.mark.long
def test_the_page_that_is_converted_is_shown(tab: Tab, server: Server) -> None:
    """The upload is held back until the card names the page."""
    page, asked = tab.open(), list[str | None]()
    held: list[Route] = []

    def progress(route: Route) -> None:
        asked.append(route.request.headers.get("idempotency-key"))
        route.fulfill(json={"object": "conversion", "page": 3, "pages": 12})

    page.route("**/v1/conversion", progress)
    page.route("**/v1/documents?filename=*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the function
    drop(page, ("scan.txt", "A note."))
    wait_until(page, lambda: bool(held))
    card = page.get_by_role("region", name="Uploads").locator(".card").filter(has_text="scan.txt")
    bar = card.get_by_role("progressbar", name="Converting scan.txt")
    expect(bar).to_have_attribute("max", "12")
    expect(bar).to_have_attribute("value", "2")
    held[0].continue_()
    expect(page.locator("h1")).to_have_text("scan.txt")
    expect(card).to_have_count(0)
    assert set(asked) == {held[0].request.headers["idempotency-key"]}
    (document,) = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    page.goto("about:blank")  # stops the page's requests
    server.http.delete(f"/v1/documents/{document}")
    tab.expected_errors.append("404")


@pytest.mark.long
def test_a_cancelled_conversion_opens_no_conversation_and_deletes_nothing(tab: Tab, server: Server) -> None:
    """The other file does not wait for it. Somebody else may have the document, too, if they uploaded the same file."""
    page, held, upload = tab.open(), list[Route](), "**/v1/documents?filename=wrong.txt*"
    page.route(upload, lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks the function
    page.route("**/v1/conversion", lambda route: route.fulfill(json={"object": "conversion", "page": 3, "pages": 12}))
    drop(page, ("wrong.txt", "A note that is cancelled."), ("right.txt", "A note that is kept."))
    wait_until(page, lambda: bool(held))
    card = page.get_by_role("region", name="Uploads").locator(".card").filter(has_text="wrong.txt")
    expect(card.get_by_role("progressbar", name="Converting wrong.txt")).to_be_visible()
    card.get_by_role("button", name="Cancel wrong.txt").click()
    expect(card).to_have_count(0)
    expect(page.locator("h1")).to_have_text("right.txt")
    session = session_of(page)
    with page.expect_response(upload) as answered:
        held[0].continue_()
    made = answered.value.json()["id"]
    expect(page.locator("h1")).to_have_text("right.txt")
    (document,) = server.http.get(f"/v1/sessions/{session}").json()["documents"]
    assert document != made
    page.goto("about:blank")  # ends its requests
    assert server.http.get(f"/v1/documents/{made}").status_code == 200
    server.http.delete(f"/v1/sessions/{session}")
    for id in (document, made):
        server.http.delete(f"/v1/documents/{id}")


def test_a_running_upload_is_in_view_above_those_that_failed(tab: Tab, server: Server) -> None:
    page = tab.open()
    page.route("**/v1/documents?filename=bad*", lambda route: route.fulfill(status=422, json=EMPTY))
    for n in range(6):
        drop(page, (f"bad{n}.txt", " "))
    cards = page.get_by_role("region", name="Uploads").locator(".card")
    expect(cards.locator(".bad")).to_have_count(6)
    expect(cards.first).to_contain_text("bad5.txt")
    hold(page, "**/v1/documents?filename=*")
    page.locator("main").evaluate("(main) => main.scrollTo(0, main.scrollHeight)")
    drop(page, ("running.txt", "A note that runs."))
    expect(cards.first).to_contain_text("running.txt")
    expect(cards.first).to_be_in_viewport()
    leave_uploads(page)
    tab.expected_errors.append("422")


def test_an_upload_to_a_long_conversation_is_in_view(tab: Tab, server: Server) -> None:
    past = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "A line.\n\n" * 200}]
    page = tab.open(conversation(server, past))
    expect(page.locator(".usage")).to_be_attached()
    page.locator(".messages").evaluate("(messages) => messages.scrollTo(0, messages.scrollHeight)")
    expect(page.locator(".usage")).to_be_in_viewport()
    hold(page, "**/v1/documents?filename=*")
    drop(page, ("added.txt", "A note to add."))
    expect(page.get_by_role("region", name="Uploads").locator(".card")).to_be_in_viewport()
    leave_uploads(page)


def test_a_conversion_without_a_share_claims_none(tab: Tab, server: Server) -> None:
    """A full bar would say that it is complete, and an empty one that nothing happens."""
    page = tab.open()
    page.route("**/v1/conversion", lambda route: route.fulfill(json={"object": "conversion", "page": 1, "pages": 1}))
    hold(page, "**/v1/documents?filename=*")
    drop(page, ("picture.txt", "A note."))
    card = page.get_by_role("region", name="Uploads").locator(".card")
    bar = card.get_by_role("progressbar", name="Converting picture.txt")
    assert bar.evaluate("(bar) => bar.position") == -1
    leave_uploads(page)


def test_the_browser_asks_before_it_ends_an_upload(tab: Tab, server: Server) -> None:
    page = tab.open()
    held = hold(page, "**/v1/documents?filename=*")
    page.locator("h1").click()  # browsers ask only on a page that the user has touched
    drop(page, ("going.txt", "A note on its way."))
    wait_until(page, lambda: bool(held))
    with page.expect_event("dialog") as asked:
        page.close(run_before_unload=True)
    assert asked.value.type == "beforeunload"
    asked.value.dismiss()
    let_go(page, "**/v1/documents?filename=*", held)
    expect(page.locator("h1")).to_have_text("going.txt")
    session = session_of(page)
    (document,) = server.http.get(f"/v1/sessions/{session}").json()["documents"]
    page.close(run_before_unload=True)  # nothing is left to lose
    wait_until(tab.page.context.pages[0], page.is_closed)
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{document}")
    tab.expected_errors.append("dialog: $")
