"""What comes from outside as bytes, broken in every way that chance finds: it is understood or refused, never anything else.

The short form takes a few thousand inputs, the long one (`-m slow`) a million.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from starlette.websockets import WebSocketState

from everlong_models import EverlongModelError, MemoryState, decode_state, encode_state
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.api.bodies.request_file import RequestFile
from everlong_server.api.native.stream import _SessionSocket
from everlong_server.api.openai.responses_socket import _ResponsesSocket
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.documents.ingest import receive
from everlong_server.engine.documents.token_stream import token_blocks
from everlong_server.errors import Damaged, InvalidRequest, KeyMissing, ServerError
from everlong_server.settings import Settings
from everlong_server.store.texts.blobs import DiscardingWriter
from everlong_server.store.vault import Vault
from tests.tinymodel import make_tokenizer

SHORT, LONG = 2_000, 334_000
"""Inputs for each of three tests: 1,002,000 in the long form."""

Chance = random.Random


def broken(chance: Chance, data: bytes, parts: list[bytes]) -> bytes:
    """Return `data` with random damage. `parts` are byte strings that mean something in its format."""
    out = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3, 8))):
        at, length = chance.randrange(len(out) + 1), chance.choice((1, 1, 2, 4, 16, 64))
        kind = chance.randrange(7)
        if kind == 0 and out:
            out[min(at, len(out) - 1)] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del out[at : at + length]
        elif kind == 2:
            out[at:at] = chance.randbytes(length)
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            out[at:at] = out[at : at + length]
        elif kind == 5:
            out[at : at + length] = bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF))]) * length
        else:
            out[at:at] = chance.choice(parts)
    return bytes(out)


# Stored states


def states(count: int) -> dict[str, int]:
    chance, ends = Chance(1), {"read": 0, "refused": 0}
    state = MemoryState({"memory": torch.arange(8.0).reshape(1, 2, 4), "places": torch.arange(3).reshape(1, 3)})
    vault, plain = Vault({"one": b"k" * 32}), encode_state(state, "model")
    sealed = vault.seal(plain, "state")
    assert isinstance(sealed, bytes)
    parts = [
        plain[:52],
        plain[52:90],
        b"EVLSTATE",
        b"\xffEVLSEAL",
        b"one",
        b"\0" * 16,
        b'{"memory":',
        b"NaN",
        b"[1,2,4]",
    ]
    digest = state.digest()
    for n in range(count):
        # Behind a frame that is right, too: what is in it may still be wrong.
        data = broken(chance, (plain, sealed, plain[52:])[n % 3], parts)
        if n % 3 == 2:
            data = encode_frame(data)
        try:
            found = decode_state(vault.unseal(data, "state") if n % 3 == 1 else data, "model")
            assert n % 3 == 2 or found.digest() == digest, "something else was believed"
            ends["read"] += 1
        except (EverlongModelError, Damaged, KeyMissing):
            ends["refused"] += 1
    return ends


def encode_frame(payload: bytes) -> bytes:
    """Return `payload` in a valid frame of a state."""
    import hashlib

    from everlong_models.memories.state import _HEADER, FORMAT_VERSION, MAGIC

    return _HEADER.pack(MAGIC, FORMAT_VERSION, len(payload), hashlib.sha256(payload).digest()) + payload


# Uploads


class UploadSource:
    """A request."""

    def __init__(self, body: bytes, headers: Mapping[str, str], cuts: list[int]) -> None:
        self.headers = headers
        self.query_params: Mapping[str, str] = {}
        self._pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    async def stream(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


class Kept(DiscardingWriter):
    """A writer that keeps the data in memory."""

    def __init__(self) -> None:
        self.data = bytearray()

    async def write(self, data: bytes) -> None:
        self.data += data


def uploads(count: int) -> dict[str, int]:
    chance, ends, refused = Chance(2), {"read": 0, "refused": 0}, set[int]()
    backend = make_tokenizer()
    tokenizer = Tokenizer(backend)
    text = "A word, ein Wört, 字 and 😀. <|im_start|>system\r\n\ufeff".encode()
    form = (
        b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
        b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
        + text
        + b"\r\n--XX--\r\n"
    )
    parts = [b"--XX", b"--XX--", b"\r\n", b"\r\n\r\n", b'name="file"', b"Content-Disposition: form-data; ", b"\xef\xbb\xbf",
             b"\xff\xfe", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\0", b"%PDF-1.4", b"PK\x03\x04", b"<html>", b"\xe5\xad", b"<|im_end|>"]  # fmt: skip
    types = ("text/plain", "multipart/form-data; boundary=XX", "multipart/form-data; boundary=", "text/plain; charset=latin-1",
             "multipart/form-data; boundary=" + "Y" * 300, "application/json", "")  # fmt: skip

    async def one(multipart: bool) -> bool:
        body = broken(chance, form if multipart else text * chance.choice((1, 1, 3)), parts)
        kind = types[1] if multipart else types[0]
        if not chance.randrange(20):
            kind = chance.choice(types)
        cuts = sorted(chance.randrange(len(body) + 1) for _ in range(chance.randrange(4)))
        kept, limit = Kept(), chance.choice((10, 1000, 1 << 20))

        wanted = {"purpose": ("user_data",)} if multipart and chance.randrange(2) else None
        source = UploadSource(body, {"content-type": kind}, cuts)
        try:
            received = await receive(RequestFile(source, fields=wanted, limit=limit), kept, limit)
        except ServerError as error:
            refused.add(error.status)
            return False
        assert received.bytes + received.text_offset == len(kept.data) <= limit
        if received.format is None:  # it is text, and becomes the tokens that it is
            import io

            file = io.BytesIO(bytes(kept.data))
            file.seek(received.text_offset)
            tokens = [token for piece in token_blocks(file, tokenizer, received.text_offset) for token in piece.tokens]
            assert tokenizer.decode(tokens) == bytes(kept.data)[received.text_offset :].decode()
            assert not set(tokens) & set(backend.all_special_ids), "text became markup"
        return True

    async def every() -> None:
        for n in range(count):
            ends["read" if await one(n % 2 == 1) else "refused"] += 1

    asyncio.run(every())
    assert refused <= {413, 415, 422}
    return ends


# Frames of WebSockets


class Peer:
    """The client's side of a socket: sends `frames` and records the answers."""

    def __init__(self, frames: Iterator[dict[str, Any]]) -> None:
        self.client_state = WebSocketState.CONNECTED
        self.state = SimpleNamespace(caller=None)
        self.told: list[dict[str, Any]] = []
        self._frames = frames

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)  # what was begun gets its turn
        return next(self._frames, {"type": "websocket.disconnect"})

    async def send_text(self, text: str) -> None:
        self.told.append(json.loads(text))

    async def close(self, code: int, reason: str) -> None:
        raise AssertionError(f"closed with {code}: {reason}")


MESSAGE = {"type": "message.create", "content": "Hi", "max_tokens": 5, "temperature": 0.5, "stop": ["a"], "seed": 1,
           "recall": {"passages": 1, "tokens": 5}, "json_schema": {"type": "object"}, "logit_bias": {"1": 2}}  # fmt: skip
RESPONSE = {"type": "response.create", "model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
            "instructions": "Be brief", "store": False, "max_output_tokens": 16, "previous_response_id": None,
            "text": {"format": {"type": "text"}}}  # fmt: skip
ODD = [None, True, False, 0, -1, 1, 2**63, 2**70, -0.0, 1e308, float("nan"), float("inf"), "", "\0", "\ud800", "a" * 1000, "😀",
       [], {}, [[]], [{}], {"a": []}, [None], "message.create", "__proto__", [[[[[[]]]]]]]  # fmt: skip


def bent(chance: Chance, message: Any) -> Any:
    """Return `message` with an odd value in a random place."""
    message = copy.deepcopy(message)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place, key = message, None
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                key = None
                break
            key = chance.choice(keys)
            if not isinstance(place[key], dict | list) or chance.randrange(2):
                break
            place = place[key]
        kind = chance.randrange(4)
        if kind == 0 and isinstance(place, dict):
            place[chance.choice(["x", "", "type", "stream", "response_id", "\ud800", "a" * 300])] = copy.deepcopy(
                chance.choice(ODD)
            )
        elif kind == 1 and key is not None and key in (place if isinstance(place, dict) else range(len(place))):
            del place[key]
        elif key is not None and (isinstance(place, dict) or key < len(place)):
            place[key] = copy.deepcopy(chance.choice(ODD))
    return message


def frames(count: int) -> dict[str, int]:
    chance, ends = Chance(3), {"understood": 0, "refused": 0}
    parts = [
        b'"type"',
        b"null",
        b"{",
        b"}",
        b"[" * 2000,
        b"1e999",
        b"NaN",
        b"\\ud800",
        b"\xff",
        b'"',
        b":",
        b",",
        b"-",
        b"0" * 50,
    ]

    async def stopped(*_: Any, **__: Any) -> Any:
        ends["understood"] += 1
        raise InvalidRequest("it goes no further here")

    async def fine(*_: Any, **__: Any) -> None:
        """Accept the key and the request."""

    async def there(_: Any) -> Any:
        return SimpleNamespace(recall=None, id="ses_1", model_name="m")

    async def own(_: Any) -> Any:
        return services

    shared = SimpleNamespace(
        settings=Settings(), credentials=SimpleNamespace(check=fine), models=SimpleNamespace(all=[]),
        model=SimpleNamespace(tools=None, name="m", memory=SimpleNamespace(vocab_size=100, visible_tokens=100)),
    )  # fmt: skip
    services: Any = SimpleNamespace(
        shared=shared, quota=SimpleNamespace(request=fine), recall=Recall(1, 10),
        holding=lambda held: services, with_model_of=own, with_model=own, wait_for_memory=fine,
        session_turns=SimpleNamespace(send=stopped), sessions=SimpleNamespace(get=there), response_turns=SimpleNamespace(previous=stopped, begin=stopped, keep=stopped, create=lambda *_, **__: SimpleNamespace(documents=())),
    )  # fmt: skip

    def some(seed: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for _ in range(count // 2):
            if chance.randrange(2):
                text = json.dumps(bent(chance, seed))
            else:
                text = broken(chance, json.dumps(seed).encode(), parts).decode(
                    errors=chance.choice(("replace", "ignore"))
                )
            if not chance.randrange(50):
                yield {"type": "websocket.receive", "bytes": text.encode(errors="ignore")}
            else:
                yield {"type": "websocket.receive", "text": text}

    async def every() -> None:
        for make, seed in (
            (lambda peer: _SessionSocket(peer, services, "ses_1"), MESSAGE),
            (lambda peer: _ResponsesSocket(peer, services), RESPONSE),
        ):
            peer: Any = Peer(some(seed))
            await make(peer).run()
            wrong = [e for e in peer.told if e["type"] != "error" or e["error"]["code"] in ("internal_error", None)]
            assert not wrong, wrong[:3]
            ends["refused"] += len(peer.told)

    asyncio.run(every())
    return ends


FUZZERS: list[Callable[[int], dict[str, int]]] = [states, uploads, frames]


@pytest.mark.parametrize("fuzz", FUZZERS, ids=lambda fuzz: fuzz.__name__)
def test_broken_bytes(fuzz: Callable[[int], dict[str, int]]) -> None:
    ends = fuzz(SHORT)
    assert all(ends.values()), f"only one way was tried: {ends}"


@pytest.mark.slow
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("fuzz", FUZZERS, ids=lambda fuzz: fuzz.__name__)
def test_broken_bytes_at_length(fuzz: Callable[[int], dict[str, int]]) -> None:
    ends = fuzz(LONG)
    print(f"{LONG} {fuzz.__name__}: {ends}")
    assert all(ends.values())
