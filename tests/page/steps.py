"""What tests of the page do again and again: wait for a view, drop files, hold requests back, look up what the server has."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, expect

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


def serve_model(page: Page, **fields: object) -> None:
    """Change fields of the model that the page gets."""

    def change(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"][0] |= fields
        route.fulfill(json=answer)

    page.route("**/v1/models", change)


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


def conversation(server: Server, messages: list[dict], *documents: str, **fields: str) -> str:
    """Create a session with these messages, and return its id."""
    made = server.http.post("/v1/sessions", json={"messages": messages, "documents": documents, **fields})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])
