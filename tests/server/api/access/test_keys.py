"""API keys: create, list and revoke. Stored data holds no usable key."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from everlong_server.errors import InvalidRequest, NotFound
from everlong_server.store.redis import keys
from tests.process import Server
from tests.server.tenants import client, credentials, new_key


def test_stored_data_holds_no_usable_key(locked: Server) -> None:
    secret = new_key(locked, "carol")
    stored = {key: locked.redis.dump(key) or b"" for key in locked.redis.scan_iter("*") if b"stream" not in key}
    assert not any(secret.split("_", 2)[2].encode() in value for value in stored.values())
    record = locked.redis.hgetall(keys.api_key(secret.split("_")[1]))
    assert len(record[b"digest"]) == 64
    for wrong in (record[b"digest"].decode(), f"evl_{record[b'id'].decode()}_{record[b'digest'].decode()[:43]}"):
        assert client(locked, wrong).get("/v1/sessions").status_code == 401


def test_a_revoked_key_ends_at_once(locked: Server) -> None:
    secret = new_key(locked, "carol")
    http = client(locked, secret)
    assert http.get("/v1/sessions").status_code == 200
    assert credentials(locked, lambda c: c.revoke(secret.split("_")[1])).state(time.time()) == "revoked"
    locked.error(http.get("/v1/sessions"), 401, "api_key_revoked")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"tenant": ""}, "the first a letter or a digit"),
        ({"tenant": "A"}, "a-z"),
        ({"tenant": "a:b"}, "a-z"),
        ({"tenant": "*"}, "a-z"),
        ({"tenant": "x" * 65}, "1 to 64 characters"),
        ({"tenant": "a", "scopes": ["read", "fly"]}, "fly"),
        ({"tenant": "a", "scopes": []}, "none"),
        ({"tenant": "a", "name": "x" * 101}, "100"),
        ({"tenant": "a", "name": "a\nb"}, "printable"),
        ({"tenant": "a", "seconds": 0}, "must be 1 to 10,000,000,000 seconds"),
    ],
)
def test_invalid_api_keys_are_not_created(locked: Server, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        credentials(locked, lambda c: c.create(**arguments))


def test_a_tenants_administrator_makes_and_ends_its_keys(locked: Server) -> None:
    admin = client(locked, new_key(locked, "dana", "admin"))
    made = admin.post("/v1/keys", json={"name": "laptop", "scopes": ["read"], "expires_in_seconds": 60})
    assert made.status_code == 201, made.text
    assert made.json()["scopes"] == ["read"]
    assert made.json()["expires_at"] == pytest.approx(made.json()["created_at"] + 60)
    other = client(locked, made.json()["key"])
    assert other.get("/v1/sessions").status_code == 200
    locked.error(other.post("/v1/sessions", json={}), 403, "missing_scope")
    listed = admin.get("/v1/keys")
    assert [key["name"] for key in listed.json()["data"]] == ["laptop", ""]
    assert made.json()["key"] not in listed.text
    assert admin.delete(f"/v1/keys/{made.json()['id']}").json()["revoked_at"] is not None
    locked.error(other.get("/v1/sessions"), 401, "api_key_revoked")
    assert admin.delete(f"/v1/keys/{made.json()['id']}").status_code == 200
    for bad in ({"scopes": []}, {"scopes": ["fly"]}, {"name": "x" * 101}, {"name": "a\nb"}, {"expires_in_seconds": 0}):
        assert admin.post("/v1/keys", json=bad).status_code == 422
    said = locked.log.read_text()
    (line,) = [line for line in said.splitlines() if "key.revoked" in line and made.json()["id"] in line]
    event = json.loads(line[line.index("{") :])
    assert (event["by"], event["tenant"]) == (f"key {admin.headers['authorization'].split('_')[1]}", "dana")


def test_a_server_without_keys_creates_none(server: Server) -> None:
    for method, path in (("POST", "/v1/keys"), ("GET", "/v1/keys"), ("DELETE", "/v1/keys/" + "0" * 16)):
        answer = server.http.request(method, path, json={} if method == "POST" else None)
        assert "everlong keys create" in server.error(answer, 403, "missing_scope")["message"]


def test_unknown_keys_cannot_be_revoked(locked: Server) -> None:
    for key_id in ("0" * 16, "x", "*", ""):
        with pytest.raises(NotFound):
            credentials(locked, lambda c, key_id=key_id: c.revoke(key_id))
