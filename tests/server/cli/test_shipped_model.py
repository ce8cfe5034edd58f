"""The shipped model for real: a newcomer's first question."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_models.backbone.loading import DEFAULT_BACKBONE, find_backbone
from everlong_models.catalogue.entry import entries
from everlong_models.catalogue.pull import locate
from everlong_server.settings import load_settings
from tests.process import Server
from tests.tinymodel import STORY

SHIPPED = "smollm2-135m-reader"


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_question_answered_by_the_last_part(tmp_path: Path) -> None:
    models_dir = load_settings([]).models_dir
    assert locate(entries()[DEFAULT_BACKBONE], models_dir), (
        "the shipped model's weights are missing: make test installs them"
    )
    # Once a machine, and longer than a server is waited for.
    find_backbone(DEFAULT_BACKBONE, models_dir=models_dir)
    text = STORY.read_text()[:11_000] + "\n\nThe White Queen told Alice the password. The password is “marmalade”.\n"
    with Server(SHIPPED, tmp_path / "data", threads=2) as server:
        server.http.timeout = 300
        server.start()
        log = server.log.read_text()
        assert "For a question it sees the passages that the search finds, and very short texts whole." in log
        assert 'With "recall": false, it sees the first 32 tokens, the last 1024 before\n' in log
        assert "POST 'http://" in log
        assert "ws://" in log
        document = server.read(text)
        assert 2500 <= document["tokens"] <= 3500
        session = server.session(document["id"])
        assert session["state_bytes"] <= 100_000
        message = server.say(session["id"], "What is the password?", temperature=0, max_tokens=30)
        assert "marmalade" in message["content"].lower(), message["content"]
        assert message["finish_reason"] == "stop"
        model = server.http.get("/v1/models").json()["data"][0]
        assert (model["id"], model["memory"], model["memory_trained"]) == (SHIPPED, "window", None)
        assert (model["remembered_tokens"], model["parameters"]) == (32 + 1024, 134_515_008)
