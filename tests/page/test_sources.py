"""Where documents come from: archives, folders, pasted texts, files that are dropped on a conversation. And why a file is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from tests.files import zipped
from tests.page.conftest import Tab
from tests.page.steps import conversation, drop, session_of
from tests.process import Server

UPLOAD = "**/v1/documents?filename=*"
PAST = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "I."}]


def leave(page: Page, server: Server, *sessions: str) -> None:
    """Stop the page's requests, and delete these sessions and their documents."""
    page.goto("about:blank")
    for session in sessions:
        documents = server.http.get(f"/v1/sessions/{session}").json()["documents"]
        server.http.delete(f"/v1/sessions/{session}")
        for document in documents:
            server.http.delete(f"/v1/documents/{document}")


@pytest.mark.long
def test_each_file_of_an_archive_becomes_a_document(tab: Tab, server: Server, tmp_path: Path) -> None:
    archive = tmp_path / "notes.zip"
    archive.write_bytes(zipped({"a/one.txt": "One note.", "two.txt": "Two notes.", "film.mp4": "\0\0\0\x18ftypmp42"}))
    page = tab.open()
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url) if request.method == "POST" else None)
    dialog = page.get_by_role("dialog", name="Upload notes.zip")
    tab.choose(archive)
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("region", name="Uploads")).to_have_count(0)
    tab.choose(archive)
    expect(dialog.get_by_label("Each file of the archive as a document of its own")).to_be_checked()
    dialog.get_by_role("button", name="Upload").click()
    expect(page.locator(".chips li")).to_have_text(["one.txt", "two.txt"])
    card = page.get_by_role("region", name="Uploads").locator(".card")
    expect(card).to_contain_text("The other files are documents now. 1 note on what was left out")
    expect(card).to_contain_text("film.mp4: ")
    page.get_by_role("button", name="Dismiss notes.zip").click()
    expect(card).to_have_count(0)
    each = session_of(page)
    page = tab.open()
    tab.choose(archive)
    dialog.get_by_label("Each file of the archive as a document of its own").uncheck()
    dialog.get_by_role("button", name="Upload").click()
    expect(page.locator(".chips li")).to_have_text(["notes.zip"])
    whole = session_of(page)
    uploads = [url.removeprefix(f"{server.url}/v1/documents") for url in sent if "/v1/documents" in url]
    assert uploads == ["/archive?filename=notes.zip", "?filename=notes.zip&reuse=true"]
    leave(page, server, each, whole)


@pytest.mark.long
def test_an_archive_of_many_files_is_named_in_short_and_deleted_at_once(
    tab: Tab, server: Server, tmp_path: Path
) -> None:
    archive = tmp_path / "many.zip"
    archive.write_bytes(zipped({f"{n:02}.txt": f"Archived note {n}." for n in range(14)}))
    page = tab.open()
    tab.choose(archive)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".chips li")).to_have_count(12)
    page.get_by_role("button", name="2 more documents").click()
    expect(page.locator(".chips li")).to_have_count(14)
    session = session_of(page)
    page.get_by_role("link", name="New conversation").click()
    for name in ("03.txt", "07.txt"):
        page.get_by_role("checkbox", name=name).check()
    page.get_by_role("button", name="Delete 2").click()
    page.get_by_role("dialog", name="Delete 2 documents?").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("checkbox", name=re.compile(r"\d\d.txt"))).to_have_count(12)
    leave(page, server, session)


def test_a_text_is_pasted(tab: Tab, server: Server) -> None:
    page = tab.open()
    page.evaluate(
        """() => {
          const clipboardData = new DataTransfer();
          clipboardData.setData("text/plain", "A pasted note.");
          document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
        }"""
    )
    dialog = page.get_by_role("dialog", name="Paste a text")
    expect(dialog.get_by_label("Text")).to_have_value("A pasted note.")
    dialog.get_by_label("Name").fill("The note")
    dialog.get_by_role("button", name="Upload").click()
    expect(page.locator("h1")).to_have_text("The note.txt")
    leave(page, server, session_of(page))


def test_a_text_survives_escape(tab: Tab) -> None:
    page = tab.open()
    text = page.get_by_role("dialog", name="Paste a text").get_by_label("Text")
    opens = page.get_by_role("button", name="Paste a text")
    opens.click()
    text.fill("Written for an hour.")
    page.keyboard.press("Escape")
    opens.click()
    expect(text).to_have_value("Written for an hour.")
    page.get_by_role("button", name="Cancel").click()
    opens.click()
    expect(text).to_have_value("")


def test_the_files_of_a_dropped_folder_are_uploaded(tab: Tab, server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "papers"
    (folder / "old").mkdir(parents=True)
    for name in ("first.txt", "old/second.txt", "old/.hidden"):
        (folder / name).write_text(f"The text of {name}.")
    page = tab.open()
    drop_folder(page, folder)
    expect(page.locator(".chips li")).to_have_count(2)
    assert set(page.locator(".chips li").all_inner_texts()) == {"first.txt", "second.txt"}
    leave(page, server, session_of(page))


def test_files_that_are_dropped_on_a_conversation_are_added_to_it(tab: Tab, server: Server) -> None:
    document = server.read("One note.", filename="one.txt")["id"]
    session = conversation(server, PAST, document)
    page = tab.open(session)
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    drop(page, ("dropped.txt", "A dropped note."))
    expect(page.locator(".chips li")).to_have_text(["one.txt", "dropped.txt"])
    expect(page.locator(".answer .markdown")).to_have_text("I.")
    leave(page, server, session_of(page), session)


def refuse(page: Page, status: int, code: str, message: str) -> None:
    """Refuse uploads with this error, for which waiting does not help."""
    error = {"message": message, "code": code, "type": "invalid_request_error", "param": "file"}

    def answer(route: Route) -> None:
        route.fulfill(status=status, json={"error": error}, headers={"retry-after": "9000"})

    page.route(UPLOAD, answer)


REFUSALS = {
    (415, "unsupported_media_type", "the document is a program: upload text or a supported format (GET /v1/formats)"):
        "The server cannot read this kind of file. It reads text, PDF,",
    (415, "unsupported_media_type", "the document is a picture; to read this format, the server's operator must run pip install 'everlong[ocr]'"):
        "This server does not recognise text in pictures.",
    (415, "unsupported_media_type", "the file is text, not an archive: upload it to /v1/documents"):
        "This file is not an archive. Choose it again",
    (429, "queued_limit", "your tenant has reached its limit of 9 documents being read or waiting to be read; the archive has 20"):
        "This archive has more files than you may have waiting on this server.",
    (422, "unreadable_document", "the PDF is encrypted: upload it without a password"):
        "This file is protected by a password. Save a copy without the password",
    (422, "unreadable_document", "the file is damaged (OSError)"):
        "Open it in the program that made it, save it again",
    (413, "too_large", "the document is larger than the limit of 4294967296 bytes (EVERLONG_MAX_DOCUMENT_BYTES)"):
        "larger than this server accepts (4 GB). Split it",
}  # fmt: skip


def test_a_refused_file_says_what_to_do(tab: Tab, server: Server) -> None:
    """Without words for programmers, which are shown on demand, and without an offer that cannot help."""
    page = tab.open()
    for (status, code, message), words in REFUSALS.items():
        refuse(page, status, code, message)
        drop(page, ("x.bin", f"{message}"))
        expect(page.locator(".bad")).to_contain_text(words)
        shown = page.get_by_role("region", name="Uploads").inner_text()
        assert not re.search("EVERLONG_|/v1/|byte 0|Error|tenant", shown), shown
        expect(page.get_by_role("button", name="Try x.bin again")).to_have_count(0)
        page.get_by_text("What the server says").click()
        expect(page.locator(".card details p")).to_have_text(message)
        page.get_by_role("button", name="Dismiss x.bin").click()
        page.unroute(UPLOAD)
    tab.expected_errors.append("41[35]|42[29]")


@pytest.mark.parametrize("code", ["bytes_limit", "queued_limit", "tokens_limit", "missing_scope"])
def test_a_file_that_met_a_limit_can_be_sent_again(tab: Tab, server: Server, code: str) -> None:
    status = 403 if code == "missing_scope" else 429
    page = tab.open()
    refuse(page, status, code, "your tenant has reached its limit of 9 things (EVERLONG_TENANT_X)")
    drop(page, (f"{code}.txt", f"A note on {code}."))
    expect(page.locator(".bad")).to_be_visible()
    assert not re.search("EVERLONG_|tenant", page.get_by_role("region", name="Uploads").inner_text())
    page.unroute(UPLOAD)
    page.get_by_role("button", name=f"Try {code}.txt again").click()
    expect(page.locator("h1")).to_have_text(f"{code}.txt")
    expect(page.get_by_role("region", name="Uploads")).to_have_count(0)
    tab.expected_errors.append(str(status))
    leave(page, server, session_of(page))


PASTE_FILES = """(text) => {
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File(["A copied note."], "copied.txt", {type: "text/plain"}));
  clipboardData.setData("text/plain", text);
  document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true, cancelable: true}));
}"""


@pytest.mark.parametrize("text", ["copied.txt", "/home/alice/copied.txt\n"])
def test_a_file_that_a_file_manager_has_copied_is_pasted(tab: Tab, server: Server, text: str) -> None:
    """File managers copy the file together with its name or path as text."""
    page = tab.open()
    page.evaluate(PASTE_FILES, text)
    expect(page.locator("h1")).to_have_text("copied.txt")
    leave(page, server, session_of(page))


def test_a_pasted_text_that_has_a_picture_stays_a_text(tab: Tab) -> None:
    """Office programs copy a picture of the text, too."""
    page = tab.open()
    page.evaluate(PASTE_FILES, "Cells of a table")
    expect(page.get_by_role("dialog", name="Paste a text").get_by_label("Text")).to_have_value("Cells of a table")


def drop_folder(page: Page, folder: Path) -> None:
    pointer = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        pointer.send("Input.dispatchDragEvent", {"type": kind, "x": 600, "y": 200, "data": data})


def test_a_folder_without_files_is_refused_in_words(tab: Tab, tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (folder / ".hidden").touch()
    page = tab.open()
    drop_folder(page, folder)
    expect(page.get_by_role("alert")).to_contain_text("There is no file in what you dropped.")


LOCKED = """DataTransferItem.prototype.webkitGetAsEntry = () => {
  const refuse = (_, fail) => fail(new DOMException("denied", "NotReadableError"));
  const entries = [{name: "locked.txt", isFile: true, file: refuse}];
  return {name: "papers", isDirectory: true, createReader: () => ({readEntries: (done) => done(entries.splice(0))})};
}"""
"""Every dropped folder has a file that the user may not read."""


def test_a_folder_with_a_file_that_the_browser_cannot_read_is_refused_in_words(tab: Tab, tmp_path: Path) -> None:
    tab.page.add_init_script(LOCKED)
    page = tab.open()
    drop_folder(page, tmp_path)
    expect(page.get_by_role("alert")).to_contain_text("The browser cannot read locked.txt")
