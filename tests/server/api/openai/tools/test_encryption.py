"""With encryption, nothing of a call is readable on disk, and the call is there after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from everlong_server.store.vault import new_key
from tests.process import Server
from tests.server.api.openai.talk import sdk
from tests.server.api.openai.tools.talk import respond
from tests.server.store.encrypted import dumped
from tests.tinymodel import make_tool_model

MARKER = "Quetzalcoatl"


@pytest.mark.long
def test_calls_are_encrypted(new_server: Callable[..., Server], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(new_key())
    keys.chmod(0o600)
    server = new_server(make_tool_model(tmp_path / "model"), encryption_key_file=keys).start()
    parameters = {"type": "object", "properties": {"god": {"enum": [MARKER]}}, "required": ["god"]}
    tools = [{"type": "function", "name": "tell", "parameters": parameters}]
    with sdk(server) as client:
        first = respond(client, "Who?", tools=tools, tool_choice="required", parallel_tool_calls=False)
        (call,) = first.output
        assert MARKER in call.arguments
        assert MARKER.encode() not in dumped(server)
        (key,) = server.redis.scan_iter("*response:resp_*")
        assert server.redis.hexists(key, "tool_calls")
        server.kill9()
        server.start()
        assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "a snake"}
        assert respond(client, [result], previous_response_id=first.id, tools=tools, max_output_tokens=16).output
