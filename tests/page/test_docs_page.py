"""Swagger UI at /docs, in a real Chromium that reaches nothing but the server."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Tab
from tests.process import Server


@pytest.mark.long
def test_docs_work_without_a_network(tab: Tab, server: Server, key: str) -> None:
    asked: list[str] = []
    tab.page.on("request", lambda request: asked.append(request.url))
    tab.page.route(
        lambda url: not url.startswith((server.url, "data:")), lambda route: route.abort("internetdisconnected")
    )
    tab.page.goto(f"{server.url}/docs")
    expect(tab.page.locator(".opblock")).to_have_count(
        sum(len(methods) for methods in server.http.get("/openapi.json").json()["paths"].values())
    )
    tab.page.get_by_role("button", name="Authorize").click()
    tab.page.locator(".auth-container input").fill(key)
    tab.page.locator(".auth-container").get_by_role("button", name="Apply credentials").click()
    tab.page.get_by_role("button", name="Close").last.click()
    models = tab.page.locator("#operations-models-index_v1_models_get, [id*='v1_models_get']").first
    models.locator(".opblock-summary").click()
    models.get_by_role("button", name="Try it out").click()
    models.get_by_role("button", name="Execute").click()
    expect(models.locator(".live-responses-table .response-col_status").last).to_contain_text("200")
    assert {urlsplit(url).hostname for url in asked if not url.startswith("data:")} == {"127.0.0.1"}, asked


def test_docs_have_a_policy_and_nothing_from_elsewhere(server: Server) -> None:
    page = server.http.get("/docs", headers={"Authorization": ""})
    assert page.status_code == 200
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    for asset in ("swagger-ui-bundle.js", "swagger-ui.css", "docs.js"):
        found = server.http.get(f"/assets/{asset}", headers={"Authorization": ""})
        assert found.status_code == 200, asset
        assert found.headers["x-content-type-options"] == "nosniff"
    assert server.http.get("/redoc").status_code == 404
