"""The settings of the page: what they say, and what they change in requests."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.conftest import QUESTION, Tab
from tests.page.steps import open_fork, serve_model
from tests.process import Server

pytestmark = pytest.mark.long


def test_the_amount_of_text_and_the_language_are_sent_with_a_question(tab: Tab, server: Server, talk: str) -> None:
    (model,) = server.http.get("/v1/models").json()["data"]
    page = tab.page
    sent: list[dict] = []
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
    open_fork(tab, talk)
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    expect(dialog.get_by_label("Text to read").locator("option")).to_have_text(
        [f"default: up to {round(model['recall_tokens'] * 0.75)} words", "none", "up to 75 words"]
    )
    assert model["max_recall_tokens"] == 128
    expect(dialog.get_by_label("Model")).to_have_count(0)  # there is one
    dialog.get_by_label("Text to read").select_option(label="up to 75 words")
    dialog.get_by_label("Answers in").fill("German")
    dialog.get_by_label("Longest answer").fill("30")
    dialog.get_by_role("button", name="Close").click()
    tab.ask(QUESTION)
    page.reload()  # the browser stores them
    expect(page.locator(".usage")).to_have_count(2)
    page.get_by_role("button", name="Settings").click()
    expect(dialog.get_by_label("Answers in")).to_have_value("German")
    expect(dialog.get_by_label("Longest answer")).to_have_value("30")
    assert page.evaluate("JSON.parse(localStorage['everlong.answers']).maxTokens") == 40
    dialog.get_by_label("Longest answer").fill("")
    dialog.get_by_label("Text to read").select_option(label="none")
    dialog.get_by_label("Answers in").fill("")
    dialog.get_by_role("button", name="Close").click()
    tab.ask(QUESTION)
    first, second = (frame for frame in sent if frame["type"] == "message.create")
    assert first["recall"] == {"passages": 96, "tokens": 100}
    assert first["instructions"] == "Answer in German."
    assert second["recall"] is False
    assert "instructions" not in second


def test_an_older_server_gets_no_more_passages_than_it_takes(tab: Tab, server: Server, talk: str) -> None:
    """Version 0.1.0, during an upgrade, does not say how many passages it takes. It refuses more than 32."""
    sent: list[dict] = []
    page = tab.page
    page.on("websocket", lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))))
    page.add_init_script("""localStorage["everlong.answers"] = '{"words": 75}'""")
    serve_model(page, recall_passages=None)
    open_fork(tab, talk)
    tab.ask(QUESTION)
    (question,) = (frame for frame in sent if frame["type"] == "message.create")
    assert question["recall"] == {"passages": 32, "tokens": 100}


def serve_models(page: Page, *names: str) -> None:
    """Make the page see several models, as behind a gateway."""

    def change(route: Route) -> None:
        answer = route.fetch().json()
        route.fulfill(json=answer | {"data": [answer["data"][0] | {"id": name} for name in names]})

    page.route("**/v1/models", change)


def test_a_new_conversation_has_the_chosen_model(tab: Tab, server: Server) -> None:
    document = server.read("A note.", filename="choice.txt")["id"]
    page = tab.page
    (model,) = server.http.get("/v1/models").json()["data"]
    serve_models(page, "another", model["id"])
    tab.open()
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("Model")).to_have_value("another")
    page.get_by_label("Model").select_option(model["id"])
    page.get_by_role("button", name="Close").click()
    page.get_by_role("checkbox", name="choice.txt").check()
    with page.expect_request(lambda request: request.method == "POST" and request.url.endswith("/v1/sessions")) as made:
        page.get_by_role("button", name="Talk about it").click()
    assert made.value.post_data_json["model"] == model["id"]
    expect(page.locator("h1")).to_have_text("choice.txt")
    page.goto("about:blank")
    server.http.delete(f"/v1/documents/{document}")


def test_a_conversation_keeps_its_model_when_a_question_is_asked_again(tab: Tab, server: Server, talk: str) -> None:
    page = tab.page
    (model,) = server.http.get("/v1/models").json()["data"]
    serve_models(page, "another", model["id"])
    tab.open(talk)
    with page.expect_request(lambda request: request.method == "POST" and request.url.endswith("/v1/sessions")) as made:
        page.get_by_role("button", name="Regenerate").click()
    assert made.value.post_data_json["model"] == model["id"], "not the first model"
    expect(page).not_to_have_url(re.compile(talk))
    expect(page.locator(".usage")).to_have_count(1)


def test_a_number_out_of_range_is_refused_in_words(tab: Tab, server: Server, talk: str) -> None:
    page = tab.open(talk)
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog", name="Settings")
    field = dialog.get_by_label("Temperature")
    stored = "JSON.parse(localStorage['everlong.answers']).temperature"
    field.fill("0.25")  # between the steps of the field
    assert page.evaluate(stored) == 0.25
    expect(dialog.get_by_role("alert")).to_have_count(0)
    field.fill("3")
    expect(dialog.get_by_role("alert")).to_have_text(
        "Enter a number between 0 and 2. Until then, the earlier value applies."
    )
    expect(field).to_have_attribute("aria-invalid", "true")
    assert page.evaluate(stored) == 0.25
    field.fill("2")
    expect(dialog.get_by_role("alert")).to_have_count(0)
    assert page.evaluate(stored) == 2
    page.set_viewport_size({"width": 360, "height": 640})
    widths = [each.evaluate("(element) => element.clientWidth") for each in dialog.locator("input, select").all()]
    assert min(widths) > 200
