"""The server's memory of chats is a cache."""

from __future__ import annotations

import pytest
from openai import OpenAI

from tests.process import Server
from tests.server.api.openai.talk import chat, user


def test_an_expired_chat_is_read_again(client: OpenAI, server: Server) -> None:
    said = [user("Tell me of it. " * 40)]
    said.append(chat(client, *said).choices[0].message)
    known = chat(client, *said, user("And?"))
    for key in server.redis.scan_iter("{everlong}:chat:*"):
        server.redis.delete(key)
    again = chat(client, *said, user("And?"))
    assert known.usage.prompt_tokens_details.cached_tokens > again.usage.prompt_tokens_details.cached_tokens == 0
    assert again.choices[0].message.content


@pytest.mark.parametrize("damage", [{"state": b"rubbish"}, {"state": None}, {"position": None}, {"documents": b"["}])
def test_a_damaged_checkpoint_is_dropped_and_the_chat_read_again(
    client: OpenAI, server: Server, damage: dict[str, bytes | None]
) -> None:
    said = [user(f"Tell me of {damage}. " * 20)]
    before = set(server.redis.scan_iter("{everlong}:chat:*"))
    said.append(chat(client, *said).choices[0].message)
    assert chat(client, *said, user("And?")).usage.prompt_tokens_details.cached_tokens > 0
    kept = [key for key in server.redis.scan_iter("{everlong}:chat:*") if key not in before]
    for key in kept:
        for field, value in damage.items():
            server.redis.hdel(key, field) if value is None else server.redis.hset(key, field, value)
    again = chat(client, *said, user("And?"))
    assert again.usage.prompt_tokens_details.cached_tokens == 0
    on = chat(client, *said, user("And?"), again.choices[0].message, user("More?"))
    assert on.usage.prompt_tokens_details.cached_tokens > 0, "what was read again is known again"


@pytest.mark.long
def test_chats_about_a_document_go_with_it(client: OpenAI, server: Server) -> None:
    def about(file: str) -> list[bytes]:
        every = server.redis.scan_iter("{everlong}:chat:*")
        return [key for key in every if file.encode() in (server.redis.hget(key, "documents") or b"")]

    gone, stays = (server.read("Once upon a time.")["id"] for _ in range(2))
    chat(client, user("When?", gone))
    chat(client, user("When?", stays))
    chat(client.with_options(max_retries=60), user("When?", stays, gone))  # 409 until the two are read in this order
    assert (len(about(gone)), len(about(stays))) == (2, 2)
    client.files.delete(gone)
    assert (len(about(gone)), len(about(stays))) == (0, 1)
    client.files.delete(stays)
    # An answer that was under way keeps nothing either.
    late = server.read("Once upon a time.")["id"]
    with chat(client, user("When?", late), max_tokens=300, stream=True) as chunks:
        next(chunk for chunk in chunks if chunk.choices[0].delta.content)
        client.files.delete(late)
        list(chunks)
    assert not about(late)
