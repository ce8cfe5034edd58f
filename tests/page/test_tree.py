"""What a screen reader gets: the names, roles and states of the page, in their order."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.files import pdf
from tests.page.conftest import QUESTION, Tab
from tests.process import Server
from tests.server.engine.documents.formats.test_pages import upload

pytestmark = pytest.mark.long

START = """
- navigation "Conversations":
  - link "New conversation"
  - search:
    - searchbox "Search conversations"
    - button /Conversations. more/
  - region "Today":
    - heading "Today" [level=2]
    - list
  - button "Settings"
  - button "Keys"
- main:
  - heading "Ask about a long text" [level=1]
  - button "Choose files"
  - button "Paste a text"
  - group: /Text, PDF, Word/
  - region "Documents":
    - heading "Documents" [level=2]
    - list:
      - listitem:
        - checkbox "looking-glass.md"
        - button "Ask about looking-glass.md"
        - link "Read looking-glass.md"
        - button "Delete looking-glass.md"
"""

TALK = f"""
- main:
  - heading "{QUESTION}" [level=1]:
    - button "{QUESTION}"
  - link "Memory"
  - button "More"
  - region "Messages":
    - region "Documents":
      - list:
        - listitem:
          - link "Read looking-glass.md"
      - button "+ Add a document"
    - article "Question":
      - paragraph: {QUESTION}
      - button "Edit the question"
    - article "Answer":
      - button "Copy the answer"
      - button "Regenerate"
      - region "Evidence":
        - list:
          - listitem:
            - link /Evidence 1, looking-glass.md/
      - group: /Rests on \\d+ passage/
  - text: Question
  - textbox "Question"
  - button "Ask" [disabled]
"""


def test_the_tree_of_a_screen_reader(tab: Tab, talk: str) -> None:
    page = tab.open()
    expect(page.locator(".card").first).to_be_visible()
    expect(page.locator("body")).to_match_aria_snapshot(START)
    page = tab.open(talk)
    expect(page.locator(".usage").first).to_be_attached()
    expect(page.locator("body")).to_match_aria_snapshot(TALK)


def test_the_picture_opens_at_the_page_of_the_cited_sentence(tab: Tab, server: Server) -> None:
    """The passage begins on page 1, its cited sentence is on page 2."""
    words = "The Red Queen runs to stay in the same place."
    made = upload(server, pdf(["Nothing here.", words]), filename="queen.pdf").json()
    session = server.session(server.wait_read(made["id"])["id"])["id"]
    asked = {"json_schema": {"const": words}, "max_tokens": 60}
    answer = server.say(session, "Where does the Red Queen run to stay?", **asked)
    (citation,) = answer["citations"]
    assert (answer["evidence"][0]["page"], citation["page"]) == (1, 2)
    page = tab.open(session)
    page.locator(".citation a").first.click()
    expect(page.locator(".reader mark")).to_have_text(words)
    with page.expect_response(re.compile(r"/pages/2\.png.*start_byte=")) as drawn:
        page.get_by_role("button", name="Page 2").click()
    expect(page.get_by_role("img", name="Page 2 of queen.pdf, with the passage marked")).to_be_visible()
    plain, marked = (
        server.http.get(url).content for url in (drawn.value.url.partition("&start_byte")[0], drawn.value.url)
    )
    assert plain != marked
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{made['id']}")


def test_the_page_of_a_pdf_is_shown_with_the_passage_marked(tab: Tab, server: Server) -> None:
    words = "The Red Queen runs to stay in the same place."
    made = upload(server, pdf(["Nothing here.", words]), filename="queen.pdf").json()
    session = server.session(server.wait_read(made["id"])["id"])["id"]
    page = tab.open(session)
    tab.ask("Where does the Red Queen run to stay?")
    evidence = page.locator(".evidence a").filter(has_text="Red Queen").first
    expect(evidence).to_contain_text("page 1")  # the passage begins there
    evidence.click()
    expect(page.locator(".reader mark")).to_be_in_viewport()
    page.get_by_role("button", name="Page 1").click()
    expect(page.get_by_role("img", name=re.compile("Page 1 of queen.pdf"))).to_be_visible()
    page.get_by_role("button", name="Page after").click()
    picture = page.get_by_role("img", name=re.compile("Page 2 of queen.pdf"))
    expect(picture).to_be_in_viewport()
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1000
    expect(page.locator(".reader mark")).not_to_be_visible()
    after = page.get_by_role("button", name="Page after")
    after.click()  # there is no third page
    expect(page.locator(".pages")).to_contain_text("Page 2, the last")
    expect(after).to_be_disabled()
    expect(picture).to_be_visible()
    page.get_by_role("button", name="Enlarge").click()
    assert picture.evaluate("image => image.clientWidth") > 900
    page.get_by_role("button", name="Text", exact=True).click()
    expect(page.locator(".reader mark")).to_be_visible()
    tab.expected_errors.append("404")
    page.goto(f"{server.url}/#/{made['id']}")  # without a passage, its pages are shown from the first one
    page.get_by_role("button", name="Page 1").click()
    expect(page.get_by_role("img", name="Page 1 of queen.pdf", exact=True)).to_be_visible()
    page.goto("about:blank")
    server.http.delete(f"/v1/sessions/{session}")
    server.http.delete(f"/v1/documents/{made['id']}")
