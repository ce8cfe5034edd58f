"""`/v1/models` through Anthropic's SDK."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from everlong_server.api.anthropic.models import models
from everlong_server.errors import InvalidRequest
from tests.process import Server


def test_the_model_has_anthropics_form(client: Anthropic, server: Server) -> None:
    (model,) = client.models.list()
    assert (model.type, model.id, model.display_name, model.lifecycle) == ("model", "tiny-rmt", "tiny-rmt", "active")
    assert model.created_at.tzinfo == UTC
    assert model.created_at <= datetime.now(UTC)
    assert client.models.retrieve("tiny-rmt") == model
    assert client.models.retrieve("tiny-rmt")._request_id.startswith("req_")
    page = client.models.list(limit=1)
    assert (page.first_id, page.last_id, page.has_more) == ("tiny-rmt", "tiny-rmt", False)
    assert not client.models.list(after_id="tiny-rmt").data
    plain = server.http.get("/v1/models")
    assert "anthropic-version" in plain.headers["vary"]
    other = plain.json()
    assert other["data"][0]["object"] == "model", "without the header, the form is OpenAI's"


def test_an_unknown_model(client: Anthropic) -> None:
    for name in ("claude-opus-4-6", "org/model"):
        with pytest.raises(anthropic.NotFoundError, match=f"no model '{name}'") as refused:
            client.models.retrieve(name)
        assert refused.value.request_id.startswith("req_")
        assert refused.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="after_id: no model 'x'"):
        client.models.list(after_id="x")
    with pytest.raises(anthropic.BadRequestError, match="limit"):
        client.models.list(limit=0)


async def test_pages() -> None:
    names = ["a", "b", "c", "d", "e"]
    shared = SimpleNamespace(started_at=0, models=SimpleNamespace(all=[SimpleNamespace(name=name) for name in names]))
    services: Any = SimpleNamespace(shared=shared)

    async def page(**query: Any) -> tuple[str, bool]:
        given = {"limit": 2, "after_id": None, "before_id": None} | query
        found = await models(services, **given)
        assert [found.first_id, found.last_id] == [found.data[0].id, found.data[-1].id]
        return "".join(each.id for each in found.data), found.has_more

    assert await page() == ("ab", True)
    assert await page(after_id="b") == ("cd", True)
    assert await page(after_id="d") == ("e", False)
    assert await page(before_id="d") == ("bc", True)
    assert await page(before_id="c") == ("ab", False)
    with pytest.raises(InvalidRequest):
        await page(before_id="f")
