"""deploy/ray_serve.py on a real Ray cluster of two nodes, on this machine."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect as open_socket

from everlong_lab.harness.ports import free_port
from everlong_server.store.redis.embedded import EmbeddedRedis
from tests.deploy.files import ROOT
from tests.process import wait_for
from tests.tinymodel import make_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_NEEDS = "needs Ray: pip install 'everlong[ray]' -c constraints.txt"


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Two nodes, a replica on each; the address of the proxy."""
    ray = pytest.importorskip("ray", reason=_NEEDS)
    serve = pytest.importorskip("ray.serve", reason=_NEEDS)
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory(prefix="evl") as short, pytest.MonkeyPatch.context() as patch:
        folder = Path(short)
        model = make_model(folder / "model")
        redis = EmbeddedRedis(folder / "r")
        redis.start()
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "deploy"), *map(os.path.abspath, sys.path)]))
        patch.syspath_prepend(str(ROOT / "deploy"))
        for name, value in {
            "MODEL": model, "REDIS_URL": redis.url, "BLOB_URL": f"file://{folder}/documents", "DATA_DIR": folder / "data",
            "AUTH": "off", "THREADS": 1, "LEASE_SECONDS": 60,
        }.items():  # fmt: skip
            patch.setenv(f"EVERLONG_{name}", str(value))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        for name, value in {  # however busy this machine is
            "agent_register_timeout_ms": 300_000, "SERVE_PROXY_READY_CHECK_TIMEOUT_S": 120,
            "SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": 120,
        }.items():  # fmt: skip
            patch.setenv(f"RAY_{name}", str(value))
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        nodes.add_node(num_cpus=2)
        port = free_port()
        try:
            ray.init(address=nodes.address, log_to_driver=True)
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            from ray_serve import Scale, app

            serve.run(app(Scale(replicas=2, most_on_a_node=1)))
            address = f"http://127.0.0.1:{port}"

            def ready() -> bool:
                try:
                    return all(httpx.get(f"{address}/readyz", timeout=30).status_code == 200 for _ in range(8))
                except httpx.TransportError:
                    return False

            wait_for(ready, 600, "for both replicas")
            yield address
            serve.shutdown()
        finally:
            ray.shutdown()
            nodes.shutdown()
            redis.stop()


@pytest.fixture(scope="module")
def http(cluster: str) -> Iterator[httpx.Client]:
    # A connection for each request: the proxy sends each of them to any of the replicas.
    with httpx.Client(base_url=cluster, timeout=120, headers={"connection": "close"}) as client:
        yield client


@pytest.fixture(scope="module")
def session(http: httpx.Client) -> str:
    """About a document that was uploaded in pieces, and read."""
    words = [b"The Red Queen runs to stay in the same place. " * 20] * 20
    document = http.post("/v1/documents", content=iter(words), headers={"content-type": "text/plain"}).json()["id"]
    wait_for(lambda: http.get(f"/v1/documents/{document}").json()["status"] == "ready", 300)
    return http.post("/v1/sessions", json={"documents": [document]}).json()["id"]


SAID: dict[str, Any] = {"content": "Who runs?", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def test_there_is_a_replica_on_each_node(http: httpx.Client) -> None:
    import ray

    actors = ray.util.list_named_actors(all_namespaces=True)
    assert sum("Everlong" in actor["name"] for actor in actors) == 2
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2


def test_any_replica_continues_a_session(http: httpx.Client, session: str) -> None:
    path = f"/v1/sessions/{session}/messages"
    for n in range(6):
        answer = http.post(path, json=SAID)
        assert answer.status_code == 200, answer.text
        assert answer.json()["usage"]["completion_tokens"] == 12
        assert len(http.get(path).json()["data"]) == 2 * (n + 1)


def test_answers_stream_through_the_proxy(http: httpx.Client, session: str) -> None:
    body, events = SAID | {"stream": True, "max_tokens": 40}, []
    with http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                events.append(json.loads(line[6:])["type"])
    assert events[0] == "response.created"
    assert events[-1] == "response.completed"
    assert events.count("response.output_text.delta") > 5


def test_sockets_go_through_the_proxy(cluster: str, session: str) -> None:
    address = cluster.replace("http", "ws") + f"/v1/sessions/{session}/stream"
    with open_socket(address, open_timeout=60) as socket:
        for _ in range(2):
            socket.send(json.dumps({"type": "message.create", **SAID}))
            kinds = []
            while not kinds or kinds[-1] not in ("response.completed", "error"):
                kinds.append(json.loads(socket.recv(timeout=120))["type"])
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            assert "response.output_text.delta" in kinds


def test_errors_are_the_servers_own(http: httpx.Client) -> None:
    answer = http.get(f"/v1/sessions/ses_{uuid.uuid4().hex}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "session_not_found")
