"""The SSE decoder: the same events wherever the network cuts the bytes."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_client.transport.sse import ServerSentEvent, SSEDecoder

STREAM = (
    "\ufeffevent: one\ndata: größer 🐋\n\n"
    ": a comment\r\n\r\n"
    "id: 7\r\nevent: two\r\ndata: first\r\ndata:second\r\n\r\n"
    "data\rdata:  spaced\r\r"
    "event: no data, no event\n\n"
    "data: last\n\n"
).encode()
EVENTS = [
    ServerSentEvent("one", "größer 🐋"),
    ServerSentEvent("two", "first\nsecond"),
    ServerSentEvent("", "\n spaced"),
    ServerSentEvent("", "last"),
]


def decode(*chunks: bytes) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def test_whole():
    assert decode(STREAM) == EVENTS


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cuts(cuts: list[int]):
    borders = [0, *sorted(cuts), len(STREAM)]
    assert decode(*(STREAM[a:b] for a, b in pairwise(borders))) == EVENTS


def test_byte_by_byte():
    assert decode(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == EVENTS


def test_an_incomplete_event_is_not_returned():
    assert decode(b"data: whole\n\ndata: half\n") == [ServerSentEvent("", "whole")]


def test_an_event_is_returned_as_soon_as_its_line_ends():
    assert decode(b"data: now\r\r") == [ServerSentEvent("", "now")]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_ends(end: str):
    assert decode(f"event: e{end}data: d{end}{end}".encode()) == [ServerSentEvent("e", "d")]


def test_invalid_utf8_does_not_break_the_stream():
    assert decode(b"data: \xff\n\ndata: on\n\n") == [ServerSentEvent("", "�"), ServerSentEvent("", "on")]
