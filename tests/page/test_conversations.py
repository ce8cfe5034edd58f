"""The list of conversations: search, groups, several at once, export and import."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.conftest import QUESTION, HeldAnswer, Tab
from tests.page.steps import conversation, hold, lose_server, newest_only, serve_model, session_of
from tests.process import Server

pytestmark = pytest.mark.long

ASKED = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "**I** do."}]


def test_conversations_are_found_grouped_and_deleted(tab: Tab, server: Server) -> None:
    document = server.read("Note.", filename="ledger.txt")["id"]
    first, second = (conversation(server, ASKED, document, title=f"Grün {name}") for name in ("apple", "pear"))
    empty = server.session(document)["id"]
    page = tab.open()
    rows = page.locator(".sidebar li")
    search = page.get_by_role("searchbox", name="Search conversations")
    search.fill("grun PEAR")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("Grün pear")
    search.fill("ledger")
    expect(rows).to_have_count(2)  # those with questions
    assert empty not in page.locator(".sidebar").inner_html()
    expect(page.get_by_role("region", name="Today").locator("li")).to_have_count(2)
    more = page.get_by_role("button", name="Conversations: more")
    more.click()
    page.get_by_role("button", name="Group by document").click()
    expect(page.get_by_role("region", name="ledger.txt").locator("li")).to_have_count(2)
    search.fill("no such words")
    expect(page.locator(".sidebar .none")).to_have_text("No conversation has these words.")
    search.fill("ledger")
    more.click()
    page.keyboard.press("Escape")
    expect(more).to_be_focused()
    more.click()
    page.get_by_role("button", name="Select several").click()
    chosen = page.get_by_role("group", name="Selected conversations")
    rows.filter(has_text="Grün pear").get_by_text("ledger.txt").click()  # the whole row selects it
    expect(page.get_by_role("checkbox", name="Select Grün pear")).to_be_checked()
    assert "ses_" not in page.url
    chosen.get_by_role("button", name="All").click()
    expect(page.get_by_role("checkbox", name="Select Grün apple")).to_be_checked()
    chosen.get_by_role("button", name="Delete 2").click()
    page.get_by_role("dialog", name="Delete 2 conversations?").get_by_role("button", name="Delete").click()
    expect(rows).to_have_count(0)
    assert {server.http.get(f"/v1/sessions/{id}").status_code for id in (first, second)} == {404}
    server.http.delete(f"/v1/sessions/{empty}")
    server.http.delete(f"/v1/documents/{document}")


def test_a_search_finds_words_of_messages_that_are_not_loaded(tab: Tab, server: Server) -> None:
    said = [
        {"role": "user", "content": "Who keeps the lighthouse?"},
        {"role": "assistant", "content": "Émile, a Zebra."},
    ]
    old = conversation(server, said, title="An old conversation")
    new = conversation(server, ASKED, title="A new conversation")
    newest_only(tab.page)
    page = tab.open()
    rows = page.locator(".sidebar li")
    expect(rows).to_have_text(re.compile("A new conversation"))
    page.get_by_role("searchbox", name="Search conversations").fill("EMILE lighthouse")
    expect(rows).to_have_text(re.compile("An old conversation"))
    expect(page.locator(".sidebar .none")).to_have_text("1 conversation found")
    page.goto("about:blank")
    for id in (old, new):
        server.http.delete(f"/v1/sessions/{id}")


def test_branches_that_are_not_loaded_are_found(tab: Tab, server: Server) -> None:
    first = conversation(server, ASKED)
    second = conversation(server, ASKED, parent=first)
    third = conversation(server, ASKED, parent=second)
    new = conversation(server, ASKED)
    newest_only(tab.page)
    page = tab.open(first)
    expect(page.locator(".branches")).to_contain_text("Branch 1 of 3")
    page.get_by_role("link", name="Next branch").click()
    expect(page).to_have_url(re.compile(second))
    expect(page.locator(".branches")).to_contain_text("Branch 2 of 3")
    page.goto("about:blank")
    for id in (first, second, third, new):
        server.http.delete(f"/v1/sessions/{id}")


def test_branches_that_were_found_stay_when_the_server_comes_back(tab: Tab, server: Server) -> None:
    first = conversation(server, ASKED)
    other = conversation(server, ASKED)
    second = conversation(server, ASKED, parent=first)
    newest_only(tab.page, 2)
    page = tab.open(second)
    expect(page.locator(".branches")).to_contain_text("Branch 2 of 2")
    lose_server(page)
    late = conversation(server, ASKED, title="Begun meanwhile")
    page.unroute("**/readyz")
    expect(page.locator(".sidebar")).to_contain_text("Begun meanwhile")
    expect(page.locator(".branches")).to_contain_text("Branch 2 of 2")
    page.goto("about:blank")
    for id in (first, other, second, late):
        server.http.delete(f"/v1/sessions/{id}")
    tab.expected_errors.append("ERR_FAILED")


def test_older_conversations_are_in_order_after_a_search(tab: Tab, server: Server) -> None:
    made = [conversation(server, ASKED, title=f"The {age} tale") for age in ("oldest", "older", "new")]
    newest_only(tab.page)
    page = tab.open()
    search = page.get_by_role("searchbox", name="Search conversations")
    rows = page.locator(".sidebar li").filter(has_text="tale")
    search.fill("oldest tale")
    expect(rows).to_have_text([re.compile("The oldest tale")])
    search.fill("")
    expect(rows).to_have_text([re.compile("The new tale"), re.compile("The oldest tale")])
    page.get_by_role("button", name="Older conversations").click()
    expect(rows).to_have_text([re.compile(f"The {age} tale") for age in ("new", "older", "oldest")])
    page.goto("about:blank")
    for id in made:
        server.http.delete(f"/v1/sessions/{id}")


def test_an_older_server_is_not_asked_for_what_it_does_not_know(tab: Tab, server: Server) -> None:
    """Version 0.1.0, during an upgrade. It would ignore the words of a search, and find all conversations."""
    first = conversation(server, ASKED)
    second = conversation(server, ASKED, parent=first)
    page = tab.page
    serve_model(page, recall_passages=None)
    newest_only(page)
    searches = hold(page, re.compile(r"/v1/sessions\?.*(query|branches_of)="))
    tab.open(second)
    expect(page.locator(".answer .markdown")).to_have_text("I do.")
    page.get_by_role("searchbox", name="Search conversations").fill("no such words")
    expect(page.locator(".sidebar .none")).to_have_text("No conversation has these words.")
    assert searches == []
    page.goto("about:blank")
    for id in (first, second):
        server.http.delete(f"/v1/sessions/{id}")


def test_a_conversation_is_exported_and_imported(tab: Tab, server: Server, talk: str, tmp_path: Path) -> None:
    page = tab.open(talk)
    expect(page.locator(".usage").first).to_be_attached()
    (asked, answered) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    saved = {}
    for name, kind in (("Export as Markdown", "md"), ("Export as JSON", "json")):
        page.get_by_role("button", name="More", exact=True).click()
        with page.expect_download() as download:
            page.get_by_role("button", name=name).click()
        saved[kind] = tmp_path / download.value.suggested_filename
        download.value.save_as(saved[kind])
    assert saved["md"].name == "What does the Red Queen say to Alice .md"
    text = saved["md"].read_bytes().decode()  # an answer can have carriage returns
    assert f"## {asked['content']}\n\n{answered['content']}\n\n> [1] looking-glass.md: " in text
    exported = json.loads(saved["json"].read_text())["conversations"][0]
    assert exported["messages"][1]["content"] == answered["content"]

    page.get_by_role("link", name="New conversation").click()

    def choose() -> None:
        page.get_by_role("button", name="Conversations: more").click()
        page.get_by_role("button", name="Import").click()

    with page.expect_request(lambda request: request.method == "POST" and request.url.endswith("/v1/sessions")) as made:
        tab.choose(saved["json"], press=choose)
    assert made.value.post_data_json["model"] == exported["model"]
    expect(page.locator(".answer .evidence").first).to_be_visible()
    session = session_of(page)
    assert session != talk
    imported = server.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    assert [message["content"] for message in imported] == [asked["content"], answered["content"]]
    assert imported[1]["evidence"] == answered["evidence"]
    other = tmp_path / "other.json"
    other.write_text('{"kind": "recipe"}')
    tab.choose(other, press=choose)
    expect(page.get_by_role("alert")).to_contain_text("other.json is not a file of exported conversations")
    server.http.delete(f"/v1/sessions/{session}")


def test_conversations_of_other_programs_are_apart(tab: Tab, server: Server) -> None:
    ids = []
    for client, title in (("page", "Asked here"), ("everlong-cli", "Asked elsewhere")):
        body = {"messages": ASKED, "title": f"{title} alone"}
        made = server.http.post("/v1/sessions", json=body, headers={"X-Everlong-Client": client})
        ids.append(made.json()["id"])
    page = tab.open()
    others = page.get_by_role("region", name="From other programs")
    expect(page.get_by_role("region", name="Today").get_by_text("Asked here")).to_be_visible()
    expect(others.get_by_text("Asked elsewhere")).not_to_be_visible()
    others.get_by_text("From other programs").click()
    others.get_by_text("Asked elsewhere").click()
    expect(page.locator("h1")).to_have_text("Asked elsewhere alone")
    assert page.locator(".conversations section").last.get_attribute("aria-label") == "From other programs"
    page.get_by_role("button", name="More", exact=True).click()
    page.get_by_role("button", name="Continue in a copy").click()
    expect(page).not_to_have_url(ids[1])
    expect(page.get_by_role("region", name="Today").get_by_text("Asked elsewhere")).to_be_visible()
    copy = session_of(page)
    page.goto("about:blank")
    for id in (*ids, copy):
        server.http.delete(f"/v1/sessions/{id}")


def test_a_file_of_a_conversation_begins_like_its_title(tab: Tab, server: Server) -> None:
    title = f"女王 {'日本語' * 60}"
    session = conversation(server, [{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}])
    server.http.patch(f"/v1/sessions/{session}", json={"title": title})
    page = tab.open(session)
    expect(page.locator(".usage")).to_be_attached()
    page.get_by_role("button", name="More", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export as Markdown").click()
    assert download.value.suggested_filename == f"{title[:80]}.md"
    server.http.delete(f"/v1/sessions/{session}")


def test_the_list_says_that_a_first_question_is_being_answered(tab: Tab, server: Server) -> None:
    session = conversation(server, [])
    held = HeldAnswer(tab.page)
    page = tab.open(session)
    entry = page.locator(".sidebar a[aria-current]").filter(has_not_text="New conversation")
    expect(entry).to_contain_text("no questions yet")
    page.locator("#question").fill(QUESTION)
    page.keyboard.press("Enter")
    held.text()
    expect(entry).to_contain_text("being answered")
    held.pass_all()
    expect(page.locator(".usage")).to_be_attached()
    expect(entry).to_contain_text(QUESTION)
    expect(entry).not_to_contain_text("being answered")
    server.http.delete(f"/v1/sessions/{session}")
