"""Probes, metrics, models."""

from __future__ import annotations

import http.client
import logging
import re
import time
from types import SimpleNamespace

import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from everlong_lab.harness.ports import free_port
from everlong_server.observability.logs import Reporter
from everlong_server.observability.metrics import Metrics
from everlong_server.process import listening
from everlong_server.settings import load_settings
from tests.process import Server, wait_for


def test_probes(server: Server) -> None:
    assert server.http.get("/livez").text == "ok"
    assert server.http.get("/readyz").status_code == 200


def test_a_server_that_is_loading_is_alive_and_not_ready(new_server) -> None:
    server = new_server()
    server.launch()

    def alive() -> bool:
        try:
            return server.http.get("/livez").status_code == 200
        except Exception:
            return False

    wait_for(alive)
    answer = server.http.get("/readyz")
    if answer.status_code != 200:  # it may be quick
        server.error(answer, 503, "loading")
    server.wait_ready()


async def test_a_server_whose_device_has_failed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server must exit, so that it is restarted and other replicas take over its documents."""
    models = SimpleNamespace(alive=True)
    app = FastAPI()
    app.state.shared = SimpleNamespace(models=models)
    server = listening._Server(app, load_settings(), None, Reporter(Console(), as_json=False))
    assert not await server.on_tick(1)
    models.alive = False
    assert await server.on_tick(2)
    assert server.failed


def test_a_port_for_metrics_keeps_the_format_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvicorn's own configuration would give its loggers handlers that write plain text into a log of JSON."""
    monkeypatch.setattr(logging.getLogger("uvicorn"), "handlers", [])
    settings = load_settings().model_copy(update={"port": 0, "metrics_port": free_port()})
    server = listening._Server(FastAPI(), settings, None, Reporter(Console(), as_json=True))
    for each in server.sockets() or ():
        each.close()
    assert not logging.getLogger("uvicorn").handlers


@pytest.mark.long
def test_an_idle_connection_outlives_the_clients_timeout(server: Server) -> None:
    """httpx closes an idle connection after 5 s. A server that did so too would break requests."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for pause in (0, 6.5):
        time.sleep(pause)
        connection.request("GET", "/livez")  # does not connect again
        assert connection.getresponse().read() == b"ok"
    connection.close()


def test_models_say_what_they_are(server: Server) -> None:
    models = server.http.get("/v1/models").json()
    assert models["object"] == "list"
    (model,) = models["data"]
    assert model["id"] == "tiny-rmt"
    assert model["memory"] == "rmt"
    assert model["memory_trained"] is False
    assert (model["remembered_tokens"], model["parameters"]) == (None, None)
    assert model["recall_passages"] == 0, "this server has recall off"
    assert model["segment_length"] == 64
    assert model["state_bytes"] == 4 * 64 * 4
    assert server.http.get("/v1/models/tiny-rmt").json() == model


def test_metrics_count_what_happens(new_server) -> None:
    """On a server of its own: others count what other tests do."""
    server = new_server(recall_passages=0).start()

    def value(name: str, **labels: str) -> float:
        families = text_string_to_metric_families(server.http.get("/metrics").text)
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    read, generated = value("everlong_tokens_read_total"), value("everlong_tokens_generated_total")
    refused = value("everlong_rejections_total", code="session_not_found")
    document = server.read("a few words for the metrics")
    server.say(server.session(document["id"])["id"], "?", temperature=0, max_tokens=7, ignore_eos=True)
    server.http.get("/v1/sessions/ses_unknown")
    assert value("everlong_tokens_read_total") == read + document["tokens"]
    assert value("everlong_tokens_generated_total") == generated + 7
    assert value("everlong_rejections_total", code="session_not_found") == refused + 1
    assert value("everlong_requests_total", route="/v1/sessions/{session_id}", status="404") >= 1
    assert value("everlong_first_token_seconds_count") >= 1
    assert value("everlong_answer_seconds_count") >= 1
    assert value("everlong_batch_fill_ratio_count") >= 6
    assert value("everlong_checkpoint_seconds_count") >= 1
    assert value("everlong_state_bytes") == server.http.get("/v1/models/tiny-rmt").json()["state_bytes"]
    wait_for(lambda: value("everlong_redis_seconds_count"))
    assert value("everlong_rows") == 0
    page = server.http.get("/metrics").text
    assert re.search(r'^everlong_queued\{queue="readings"\} \d', page, re.MULTILINE), page


def test_names_follow_prometheus() -> None:
    for family in text_string_to_metric_families(Metrics().render().decode()):
        assert family.name.startswith("everlong_")
        assert family.documentation
        if family.type == "histogram":
            assert family.name.endswith(("_seconds", "_ratio"))


def test_an_answer_counts_its_tokens_and_guesses() -> None:
    metrics = Metrics()
    metrics.record_answer("stop", prompt=9, generated=8, reused=7, drafted=6, accepted=5)
    for name, value in {"prompt": 9, "generated": 8, "reused": 7, "drafted": 6, "accepted": 5}.items():
        assert metrics.registry.get_sample_value(f"everlong_tokens_{name}_total") == value


def test_all_metrics_exist() -> None:
    names = {family.name for family in text_string_to_metric_families(Metrics().render().decode())}
    wanted = """
        requests answering rows queued tokens_read tokens_generated tokens_drafted tokens_accepted tokens_reused first_token_seconds token_seconds
        answer_seconds segment_seconds batch_fill_ratio state_bytes checkpoint_seconds lease_losses redeliveries rejections
        redis_seconds
    """
    assert {f"everlong_{name}" for name in wanted.split()} <= names
