"""What tests of the page do again and again: wait for a view, drop files, hold requests back, look up what the server has."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from playwright.sync_api import Page, Route, expect

from tests.page.conftest import Tab
from tests.process import Server

LAYERS = ["", "{talk}", "{talk}/memory", "{talk}/{passage}", "{document}"]
"""The addresses of all views of the page."""


def places(server: Server, talk: str) -> list[str]:
    (evidence, *_) = answers(server, talk)[0]["evidence"]
    passage = f"{evidence['document']}/{evidence['start_byte']}-{evidence['end_byte']}"
    return [p.format(talk=talk, passage=passage, document=evidence["document"]) for p in LAYERS]


def answers(server: Server, session: str) -> list[dict]:
    messages = server.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    return [message for message in messages if message["role"] == "assistant"]


def forked(server: Server, talk: str) -> str:
    """Copy the session of all tests, and return the id of the copy."""
    return str(server.http.post(f"/v1/sessions/{talk}/fork").json()["id"])


def open_fork(tab: Tab, talk: str) -> str:
    """Open a copy of the session of all tests, wait for its answer, and return its id."""
    fork = forked(tab.server, talk)
    expect(tab.open(fork).locator(".usage")).to_have_count(1)
    return fork


LONG = "Tell me everything."


def ask_for_long(page: Page) -> None:
    """Ask for an answer, and wait until it grows. The tab needs a high number of `tokens`."""
    page.locator("#question").fill(LONG)
    page.keyboard.press("Enter")
    expect(page.locator(".answer[aria-busy=true] .markdown")).not_to_be_empty()


def session_of(page: Page) -> str:
    return re.findall(r"#/(ses_\w+)", page.url)[0]


def settled(page: Page, place: str) -> None:
    """Wait until the view at the address `place` is complete."""
    if place.endswith("/memory"):
        expect(page.locator(".context")).to_be_visible()
    elif "doc_" in place:
        expect(page.locator(".reader .words")).to_be_visible()
        if "-" in place:
            expect(page.locator(".reader mark")).to_be_in_viewport()
    if place.startswith("ses_"):
        expect(page.locator(".usage").first).to_be_attached()
    else:
        expect(page.locator(".card").first).to_be_attached()


def go(page: Page, place: str) -> None:
    """Show the view at the address `place` without loading the page again, and wait until it is complete."""
    page.evaluate("(place) => { location.hash = `#/${place}`; }", place)
    settled(page, place)


def serve_model(page: Page, **fields: object) -> None:
    """Change fields of the model that the page gets."""

    def change(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"][0] |= fields
        route.fulfill(json=answer)

    page.route("**/v1/models", change)


def newest_only(page: Page, count: int = 1) -> None:
    """Let the page load no conversation but the newest `count`, as if there were more than a hundred."""

    def shorten(route: Route) -> None:
        answer = route.fetch().json()
        route.fulfill(json=answer | {"data": answer["data"][:count], "has_more": len(answer["data"]) > count})

    page.route(re.compile(r"/v1/sessions\?limit=100$"), shorten)


def lose_server(page: Page) -> None:
    """Let the page find the server unavailable, until its route for **/readyz is removed."""
    page.route("**/readyz", lambda route: route.abort())
    page.evaluate("dispatchEvent(new Event('online'))")
    expect(page.locator(".light.offline")).to_be_attached()


def wait_until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait for a condition on requests that Playwright routes. It routes them only while a call of its own runs."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


LARGE = 8_800_000
"""The bytes of the file of `drop_large`."""


def drop(page: Page, *named: tuple[str, str], repeated: int = 1) -> None:
    """Drop text files on the page, given as (name, text). The text of the first one is `repeated`."""
    page.evaluate(
        """([texts, repeated]) => {
          const transfer = new DataTransfer();
          for (const [n, [name, text]] of texts.entries())
            transfer.items.add(new File([text.repeat(n ? 1 : repeated)], name, {type: "text/plain"}));
          document.body.dispatchEvent(new DragEvent("drop", {dataTransfer: transfer, bubbles: true, cancelable: true}));
        }""",
        [named, repeated],
    )


def drop_large(page: Page, *named: tuple[str, str]) -> None:
    """Drop large.txt on the page, which it sends in two parts, as a part has at most 8 MiB; and other files, as `drop` does."""
    drop(page, ("large.txt", "Alice was. "), *named, repeated=LARGE // len("Alice was. "))


def hold(page: Page, url: str | re.Pattern[str]) -> list[Route]:
    """Hold back the page's requests to `url` until `let_go`, and return their list."""
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)

    page.route(url, keep)
    return held


def let_go(page: Page, url: str | re.Pattern[str], held: list[Route]) -> None:
    for route in held:
        route.continue_()
    page.unroute(url)


def conversation(server: Server, messages: list[dict], *documents: str, **fields: str) -> str:
    """Create a session with these messages, and return its id."""
    made = server.http.post("/v1/sessions", json={"messages": messages, "documents": documents, **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])
