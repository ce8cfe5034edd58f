"""Answers in the page: Markdown, copying, branches, and reading while they are generated."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, WebSocketRoute, expect

from tests.page.conftest import QUESTION, TEXT, HeldAnswer, Tab
from tests.page.steps import answers, open_fork, serve_model, session_of, wait_until
from tests.process import Server

ANSWER = r"""Humpty sits on a **high wall**. It costs $5 and $6.

| who | where |
|:--|--:|
| Humpty | wall |

1. one
2. `two`

```python
print("<b>")
```

The fall is $h = \frac{1}{2} g t^2$, or \(h_0\), and:

\[ \sum_{i=1}^n x_i \]

[good](https://example.org) [bad](javascript:alert(1)) <img src=x onerror=alert(1)> ![picture](https://example.org/x.png)
&amp; &lt;script&gt;
"""


def show(page: Page, text: str, **fields: object) -> None:
    """Give the page this text as every answer."""

    def change(route: Route) -> None:
        messages = route.fetch().json()
        for message in messages["data"]:
            if message["role"] == "assistant":
                message |= {"content": text, **fields}
        route.fulfill(json=messages)

    page.route("**/messages", change)


def test_markdown_is_shown_and_nothing_in_it_is_markup(tab: Tab, server: Server, talk: str) -> None:
    page = tab.page
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    passage = stored["evidence"][0]
    end = ANSWER.index(".") + 1
    citation = {"start": 0, "end": end, "evidence": 0, "document": passage["document"], "filename": "a"}
    span = {"document_start": passage["start"], "document_end": passage["end"]}
    show(page, ANSWER, citations=[citation | span])
    tab.open(talk)
    answer = page.locator(".answer .markdown")
    expect(answer.locator("math")).to_have_count(3)
    expect(answer.locator("strong")).to_have_text("high wall")
    expect(answer.locator("p").first).to_have_text("Humpty sits on a high wall.1 It costs $5 and $6.")
    expect(answer.locator("sup a")).to_have_attribute(
        "href", re.compile(f"/{passage['start_byte']}-{passage['end_byte']}$")
    )
    expect(answer.locator("td.right")).to_have_text("wall")
    expect(answer.locator("ol > li")).to_have_count(2)
    expect(answer.locator("pre")).to_have_text('print("<b>")')
    links = answer.locator("p a[href]:not(sup a)")
    expect(links).to_have_text(["good"])
    expect(links).to_have_attribute("rel", re.compile("noopener"))
    expect(answer.locator("p").last).to_contain_text("bad <img src=x onerror=alert(1)> picture")
    expect(answer.locator("p").last).to_contain_text("& <script>")
    assert answer.locator("img, script, b").count() == 0


@pytest.mark.long
def test_copy(new_tab: Callable[..., Tab], talk: str) -> None:
    tab = new_tab(permissions=["clipboard-read", "clipboard-write"])
    show(tab.page, ANSWER, evidence=[])
    page = tab.open(talk)
    for button, text in (("Copy the answer", ANSWER), ("Copy the code", 'print("<b>")')):
        page.get_by_role("button", name=button).click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == text
        expect(page.get_by_role("button", name="Copied")).to_have_count(0)


@pytest.mark.long
def test_a_question_is_edited_and_asked_again_in_branches(tab: Tab, server: Server, talk: str) -> None:
    fork = open_fork(tab, talk)
    page = tab.page
    expect(page.locator(".branches")).to_contain_text("of")
    before = int(re.findall(r"\d+$", page.locator(".branches").inner_text().split("›")[0].strip())[0])
    page.get_by_role("button", name="Edit the question").click()
    box = page.get_by_role("form", name="Edit the question").get_by_role("textbox")
    expect(box).to_be_focused()
    expect(box).to_have_value(QUESTION)
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit the question")).to_be_focused()
    page.keyboard.press("Enter")
    box.fill("Who is the Red King?")
    page.keyboard.press("Enter")
    expect(page).not_to_have_url(re.compile(fork))
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.locator(".question")).to_have_text(re.compile("^Who is the Red King"))
    expect(page.locator(".branches")).to_contain_text(f"Branch {before + 1} of {before + 1}")
    page.get_by_role("button", name="Continue").click()  # the answer reached its number of tokens
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.locator(".usage")).to_have_count(1)
    (joined,) = answers(server, session_of(page))
    assert joined["usage"]["completion_tokens"] == 80, "twice 40: one answer"
    expect(page.locator(".answer > .words")).to_have_text(" ".join(joined["content"].split()))
    branch = page.url
    page.get_by_role("button", name="Regenerate").click()
    expect(page).not_to_have_url(branch)
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.locator(".question").first).to_contain_text("Who is the Red King")
    page.get_by_role("link", name="Previous branch").click()
    expect(page).to_have_url(branch)
    assert len(server.http.get(f"/v1/sessions/{fork}/messages").json()["data"]) == 2, "the first one changed"


@pytest.mark.long
def test_an_answer_is_extended_only_once_if_its_end_is_lost(tab: Tab, server: Server, talk: str) -> None:
    """The server has stored the longer answer when the connection ends, and the page does not know."""
    fork = open_fork(tab, talk)
    page = tab.page
    sent: list[str] = []
    lost: list[str] = []

    def connect(socket: WebSocketRoute) -> None:
        upstream = socket.connect_to_server()

        def pass_on(frame: str | bytes) -> None:
            if not lost and json.loads(frame)["type"] == "response.completed":
                lost.append(str(frame))
                socket.close(code=1012)
            else:
                socket.send(frame)

        def send(frame: str | bytes) -> None:
            sent.append(json.loads(frame)["type"])
            upstream.send(frame)

        upstream.on_message(pass_on)
        socket.on_message(send)

    page.route_web_socket(re.compile(r"/v1/sessions/\w+/stream"), connect)
    page.get_by_role("button", name="Continue").click()
    wait_until(page, lambda: bool(lost))
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    assert sent == ["message.create"]
    (joined,) = answers(server, fork)
    assert joined["usage"]["completion_tokens"] == 70, "30 of all tests, and 40"
    expect(page.locator(".usage")).to_have_count(1)
    expect(page.locator(".bad")).to_have_count(0)


def test_an_answer_that_is_not_the_last_one_any_more_is_not_extended(tab: Tab, server: Server, talk: str) -> None:
    """Another client has extended it, which this page does not know."""
    fork = open_fork(tab, talk)
    page = tab.page
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    there = server.say(fork, "-", continue_answer=True, max_tokens=20)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("button", name="Stop")).to_have_count(0)
    expect(page.locator(".bad")).to_have_count(0)
    (last,) = answers(server, fork)
    assert last["id"] == there["id"]
    shown = page.locator(".answer > .words").inner_text()
    page.reload()
    expect(page.locator(".usage")).to_have_count(1)
    assert page.locator(".answer > .words").inner_text() == shown


LINES = """cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map(({ top }) => top)).size;
}"""


def test_the_form_of_an_edited_question_is_in_view(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    """Also if the question's end alone was, at the upper edge. A table on a narrow screen divides no word."""
    tab = new_tab(viewport={"width": 390, "height": 500})
    head = "| Name | Sits on | Says, in the middle of a rather long sentence that has to wrap somewhere |\n|--|--|--|\n"
    show(tab.page, f"{head}| Humpty Dumpty | a wall | glory |" + "\n\nmore" * 30)
    page = tab.open(talk)
    expect(page.locator(".answer .evidence")).to_be_attached()
    edit = page.get_by_role("button", name="Edit the question")
    for _ in range(2):  # browsers heed `autofocus` only once
        page.locator(".messages").evaluate(
            "(box, edit) => { box.scrollTop += edit.getBoundingClientRect().top - box.getBoundingClientRect().top; }",
            edit.element_handle(),
        )
        edit.click()
        box = page.get_by_role("textbox", name="Question", exact=True).first
        expect(box).to_be_focused()
        expect(box).to_be_in_viewport(ratio=1)
        page.keyboard.press("Escape")
    lines = page.locator("td").first.evaluate(LINES)
    assert lines <= 2


def test_a_growing_answer_does_not_move_away_from_its_reader(
    new_tab: Callable[..., Tab], server: Server, talk: str
) -> None:
    tab = new_tab(tokens=600, viewport={"width": 800, "height": 500})
    open_fork(tab, talk)
    page = tab.page
    tab.ask("Tell me everything.")
    expect(page.locator(".question").last).to_be_in_viewport(ratio=0.9)
    assert (
        page.evaluate(
            "(box => box.scrollHeight - box.clientHeight - box.scrollTop)(document.querySelector('.messages'))"
        )
        > 300
    )


def test_a_rewritten_question_is_shown(tab: Tab, talk: str) -> None:
    show(tab.page, ANSWER, standalone_question="How tall is the <b>tower</b>?")
    tab.open(talk)
    basis = tab.page.locator(".usage")
    basis.locator("summary").click()
    expect(basis).to_contain_text("The model understood the question as “How tall is the <b>tower</b>?”")


@pytest.mark.parametrize(("agreement", "doubted"), [(0.39, True), (0.4, False), (None, False)])
def test_an_answer_that_the_others_contradict_is_doubted(
    tab: Tab, talk: str, agreement: float | None, doubted: bool
) -> None:
    show(tab.page, ANSWER, agreement=agreement)
    tab.open(talk)
    expect(tab.page.locator(".usage")).to_be_visible()
    expect(tab.page.get_by_text("Probably wrong: the model answered this question several times")).to_have_count(
        int(doubted)
    )


@pytest.mark.long
def test_a_question_is_asked_before_the_document_is_read(tab: Tab, server: Server) -> None:
    before = [server.upload(TEXT * 1000)["id"] for _ in range(2)]  # the server reads two at a time: the next one waits
    document = server.upload(TEXT)["id"]
    session = server.session(document)["id"]
    page = tab.page
    searching = page.get_by_placeholder("Ask about it. Until it is read, answers use the search only")
    waiting = page.get_by_placeholder("You can ask when the server has read the documents")
    serve_model(page, recall_passages=0)
    tab.open(session)
    expect(waiting).to_be_visible()
    page.unroute("**/v1/models")
    tab.open(session)
    expect(searching).to_be_visible()
    basis = tab.ask(QUESTION).locator(".usage")
    (stored,) = answers(server, session)
    expect(basis.locator("summary")).to_contain_text(f" alone: the memory had read {stored['memory_progress']:.0%} of")
    basis.locator("summary").click()
    expect(basis).to_contain_text("The memory was not used, because it had read only")
    page.get_by_role("button", name="Regenerate").click()
    expect(page).not_to_have_url(re.compile(session))
    expect(page.locator(".usage")).to_have_count(1)
    for words, placeholder in (("0", waiting), ("", searching)):
        page.get_by_role("button", name="Settings").click()
        page.get_by_label("Text to read").select_option(words)
        page.get_by_role("button", name="Close").click()
        expect(placeholder).to_be_visible()
        page.locator("#question").fill("Who?")
        expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled(enabled=words == "")
    branch = session_of(page)
    for id in before:
        server.http.delete(f"/v1/documents/{id}")
    expect(page.get_by_placeholder("Ask about it", exact=True)).to_be_visible(timeout=120_000)
    page.goto("about:blank")  # stops the page's requests
    for id in (session, branch):
        server.http.delete(f"/v1/sessions/{id}")
    server.http.delete(f"/v1/documents/{document}")
    tab.expected_errors.append("404")  # of deleted documents


def test_a_cited_passage_is_not_folded_up(tab: Tab, server: Server, talk: str) -> None:
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    passage = stored["evidence"][0]
    evidence = [passage | {"start": n, "text": f"Passage {n}."} for n in range(1, 7)]
    cited = {"start": 0, "end": 6, "evidence": 4, "document": passage["document"], "filename": "a"}
    show(tab.page, "Humpty.", evidence=evidence, citations=[cited | {"document_start": 5, "document_end": 10}])
    page = tab.open(talk)
    numbers = page.locator(".evidence .number")
    expect(numbers).to_have_text(["1", "2", "3", "5"])
    page.get_by_role("button", name="2 more passages").click()
    expect(numbers).to_have_text(["1", "2", "3", "4", "5", "6"])
    page.get_by_role("button", name="Fewer passages").click()
    expect(numbers).to_have_text(["1", "2", "3", "5"])


def test_a_passage_is_shown_from_its_cited_part_on(tab: Tab, server: Server, talk: str) -> None:
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    document = stored["evidence"][0]["document"]
    size = server.http.get(f"/v1/documents/{document}").json()["bytes"]
    passage = {"document": document, "start": 10, "end": 42, "start_byte": size // 2, "end_byte": size, "score": 1}
    passage |= {"text": "Cats é sleep. Banks lend. So on.", "section": "a-cats.txt"}
    cited = {"start": 0, "end": 5, "evidence": 0, "document": document, "filename": "a"}
    cited |= {"document_start": 24, "document_end": 35, "section": "c-bank.txt"}
    show(tab.page, "Lend.", evidence=[passage], citations=[cited])
    card = tab.open(talk).locator(".evidence a")
    expect(card.locator(".snippet")).to_have_text("c-bank.txt · … Banks lend. So on.")
    expect(card.locator("mark")).to_have_text("Banks lend.")
    expect(card.locator(".note")).to_have_text("at 50%")
    expect(tab.page.locator(".citation a")).to_have_attribute("title", "c-bank.txt: Banks lend.")


def test_all_cited_parts_of_a_passage_are_marked(tab: Tab, server: Server, talk: str) -> None:
    """The card begins with the first part in the text, also if a later part is cited first, and two parts overlap."""
    (_, stored) = server.http.get(f"/v1/sessions/{talk}/messages").json()["data"]
    document = stored["evidence"][0]["document"]
    passage = {"document": document, "start": 0, "end": 46, "start_byte": 0, "end_byte": 47, "score": 1}
    passage |= {"text": "Cats é sleep. Banks lend. Dogs bark. So it is."}
    cited = {"start": 0, "end": 5, "evidence": 0, "document": document, "filename": "a"}
    spans = [(26, 30), (14, 19), (28, 36)]
    citations = [cited | {"document_start": start, "document_end": end} for start, end in spans]
    show(tab.page, "Lend.", evidence=[passage], citations=citations)
    card = tab.open(talk).locator(".evidence a")
    expect(card.locator(".snippet")).to_have_text("… Banks lend. Dogs bark. So it is.")
    expect(card.locator("mark")).to_have_text(["Banks", "Dogs", " bark."])
    expect(card).to_have_attribute("href", re.compile("/15-20$"))


def test_a_second_click_does_not_ask_again(new_tab: Callable[..., Tab], server: Server, talk: str) -> None:
    tab = new_tab(tokens=30)
    fork = open_fork(tab, talk)
    page = tab.page
    page.get_by_role("button", name="Regenerate").dblclick()
    expect(page).not_to_have_url(re.compile(fork))
    expect(page.locator(".usage")).to_have_count(1)
    listed = server.http.get("/v1/sessions", params={"branches_of": fork}).json()["data"]
    assert len([each for each in listed if each["parent"] == fork]) == 1


def test_a_long_answer_leaves_the_page_time_for_clicks(tab: Tab, talk: str) -> None:
    """The longer it took to show the answer so far, the later the next part is shown.

    By the page's clock, which this test sets, the first part takes ten seconds, and the page would rest for days.
    """
    page = tab.page
    open_fork(tab, talk)
    page.evaluate("() => { const times = [0, 0, 10_000]; performance.now = () => times.shift() ?? -1e9; }")
    held = HeldAnswer(page)
    page.locator("#question").fill("Who?")
    page.keyboard.press("Enter")
    first = held.text()
    growing = page.locator(".answer[aria-busy=true] > .words")
    expect(growing).to_have_text(first.strip())
    held.pass_delta()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert growing.inner_text() == first.strip()
    held.pass_all()
    expect(page.locator(".usage")).to_have_count(2)
