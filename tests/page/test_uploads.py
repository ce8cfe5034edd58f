"""Files that are uploaded twice, and files that are added to a conversation."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect

from tests.page.conftest import Tab
from tests.page.test_page import conversation, session_of
from tests.process import Server


def test_the_same_file_twice_is_one_document(tab: Tab, server: Server, tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    for file in (first, second):
        file.write_text("The same words in two files.")
    page = tab.open()
    tab.choose(first, second)
    expect(page.locator("h1")).to_have_text(re.compile("first.txt|second.txt"))
    document, *_ = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    page = tab.open()
    tab.choose(second)
    expect(page.locator("h1")).to_have_text(re.compile("first.txt|second.txt"))
    assert document in server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    server.http.delete(f"/v1/documents/{document}")
    page = tab.open()
    tab.choose(second)  # the server has it no longer
    expect(page.locator("h1")).to_have_text("second.txt")
    (again,) = server.http.get(f"/v1/sessions/{session_of(page)}").json()["documents"]
    assert again != document
    page.goto("about:blank")  # ends its requests for the document
    server.http.delete(f"/v1/documents/{again}")
    tab.errors = [error for error in tab.errors if "404" not in error]


def test_a_document_is_added_to_a_conversation(tab: Tab, server: Server, tmp_path: Path) -> None:
    document = server.wait_read(server.upload("One note.", filename="one.txt")["id"])["id"]
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
