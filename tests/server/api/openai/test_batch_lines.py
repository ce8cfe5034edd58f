"""Lines of the files of batches."""

from __future__ import annotations

import json

from openai import OpenAI

from tests.server.api.openai.test_batches import CHAT, body_of, line, over, results, send


def test_a_line_of_any_script_may_be_as_long_as_a_body(client: OpenAI) -> None:
    """Its characters do not become longer on the way: the request is refused for its temperature, not for its length."""
    long = body_of(client, CHAT, messages=[{"role": "user", "content": "мышь" * 50_000}], temperature=9)
    raw = json.dumps(line("long", CHAT, long), ensure_ascii=False, separators=(",", ":")).encode()
    assert len(raw) < 1 << 20 < len(json.dumps(long))
    (failed,) = results(client, over(client, send(client, CHAT, raw)).error_file_id)
    assert failed["response"]["status_code"] == 422
    assert failed["response"]["body"]["error"]["param"] == "temperature"


def test_a_result_is_one_line_for_python(client: OpenAI) -> None:
    """`str.splitlines` also splits at U+2028."""
    schema = {"type": "object", "properties": {"text": {"const": "a\u2028b"}}, "required": ["text"]}
    schema |= {"additionalProperties": False}
    body = body_of(client, "/v1/completions", json_schema=schema, max_tokens=60)
    done = over(client, send(client, "/v1/completions", line("a", "/v1/completions", body)))
    (answered,) = results(client, done.output_file_id)
    assert json.loads(answered["response"]["body"]["choices"][0]["text"]) == {"text": "a\u2028b"}
