"""With Sentinel failover and Redis Cluster, nothing acknowledged is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from everlong_server.store.redis import keys
from tests.lab.chaos.fleets import cluster, sentinels
from tests.process import wait_for
from tests.tinymodel import STORY

pytestmark = pytest.mark.chaos

GREEDY = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_replica_is_promoted_and_nothing_is_lost(new_server, tmp_path: Path, kind: str) -> None:
    several = sentinels(tmp_path / "redis") if kind == "sentinel" else cluster(tmp_path / "redis", replicas=2)
    with several as (url, nodes):
        server = new_server(redis_url=url).start()
        document = server.read(STORY.read_text()[:3000])
        session = server.session(document["id"])["id"]
        said = server.say(session, "Hello.", **GREEDY)
        before = server.get_session(session)
        late = server.upload(STORY.read_text()[3000:9000])["id"]
        *masters, first, second = nodes
        (owner,) = (node for node in masters if node.client.dbsize())
        owner.kill()  # with whatever it alone had
        server.error(server.http.get("/readyz"), 503, "store_unavailable")
        wait_for(lambda: server.http.get("/readyz").status_code == 200, 60, "for the failover")
        assert [node.client.info("replication")["role"] for node in (first, second)].count("master") == 1
        assert server.document(document["id"]) == document
        assert server.get_session(session) == before
        dialogue = server.http.get(f"/v1/sessions/{session}/messages").json()["data"]
        assert [message["content"] for message in dialogue] == ["Hello.", said["content"]]
        assert server.wait_read(late)["status"] == "ready"
        wait_for(
            lambda: server.http.post(f"/v1/sessions/{session}/messages", json={"content": "And?", **GREEDY}).is_success,
            60,
            "for the new master's own replica",
        )


def test_a_write_without_a_copy_is_not_acknowledged(new_server, tmp_path: Path) -> None:
    with sentinels(tmp_path / "redis") as (url, nodes):
        server = new_server(redis_url=url).start()
        for node in nodes[1:]:
            node.kill()
        server.error(server.http.post("/v1/documents", content=b"text"), 503, "store_unavailable")
        for node in nodes[1:]:
            node.start()
        wait_for(
            lambda: server.http.post("/v1/documents", content=b"text").status_code == 202, 60, "for a replica of Redis"
        )


def test_everything_works_on_a_cluster(new_server, tmp_path: Path) -> None:
    with cluster(tmp_path / "redis") as (url, nodes):
        server = new_server(redis_url=url, redis_copies=0, tenant_streams=8, tenant_tokens_per_day=10**9).start()
        first, second = (server.read(STORY.read_text()[:n])["id"] for n in (2000, 3000))
        both = server.http.post("/v1/sessions", json={"documents": [first, second]}).json()["id"]
        wait_for(lambda: server.get_session(both)["status"] == "ready")
        headers = {"Idempotency-Key": "once"}
        body = {"content": "Hello.", **GREEDY}
        said = [server.http.post(f"/v1/sessions/{both}/messages", json=body, headers=headers).json() for _ in range(2)]
        assert said[0]["content"] == said[1]["content"]
        assert server.get_session(both)["messages"] == 2
        fork = server.http.post(f"/v1/sessions/{both}/fork").json()["id"]
        chat = {"model": "tiny-rmt", "messages": [{"role": "user", "content": "Hello."}], "max_tokens": 5}
        assert server.http.post("/v1/chat/completions", json=chat).status_code == 200
        response = {"model": "tiny-rmt", "input": "Hello.", "max_output_tokens": 5, "background": True}
        later = server.http.post("/v1/responses", json=response).json()["id"]
        wait_for(lambda: server.http.get(f"/v1/responses/{later}").json()["status"] == "incomplete")  # five tokens
        upload = server.http.post(
            "/v1/uploads", json={"filename": "a.txt", "bytes": 4, "mime_type": "text/plain", "purpose": "user_data"}
        ).json()["id"]
        part = server.http.post(f"/v1/uploads/{upload}/parts", files={"data": b"text"}).json()["id"]
        done = server.http.post(f"/v1/uploads/{upload}/complete", json={"part_ids": [part]})
        assert done.status_code == 200, done.text
        server.kill9()
        server.start()
        assert server.say(fork, "And?", **GREEDY)["content"] == server.say(both, "And?", **GREEDY)["content"]
        for path in (f"sessions/{both}", f"sessions/{fork}", f"responses/{later}", f"documents/{first}"):
            assert server.http.delete(f"/v1/{path}").status_code == 200
        sizes = [node.client.dbsize() for node in nodes]
        assert sorted(sizes)[:2] == [0, 0], sizes  # all keys are in one slot
        (owner,) = (node for node in nodes if node.client.dbsize())
        found = {key.decode() for key in owner.client.scan_iter("*")}
        assert all(any(kind.matches(key) for kind in keys.KEYS) for key in found), found
