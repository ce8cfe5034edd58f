"""Requests that are sent again until the answer is final."""

from __future__ import annotations

import httpx

from everlong_lab.harness.retries import send_until_final


async def test_a_request_is_sent_again_until_its_answer_is_final() -> None:
    sent = []
    answers = iter(
        [
            httpx.ConnectError("refused"),
            httpx.Response(503),
            httpx.Response(409, json={"error": {"code": "session_busy"}}),
            httpx.Response(409, json={"error": {"code": "state_unusable"}}),
        ]
    )

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    retries: list[int] = []
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://here") as http:
        final, tries = await send_until_final(http, "POST", lambda: "/v1/sessions", lambda: retries.append(1), json={})
    assert (final.json()["error"]["code"], tries, len(retries)) == ("state_unusable", 4, 3)
    assert len({request.headers["Idempotency-Key"] for request in sent}) == 1
