"""The check of uploaded text does not depend on how the bytes are split."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlong_server.engine.documents.formats.catalogue import HEAD
from everlong_server.engine.documents.text_checker import Declared, TextChecker
from everlong_server.errors import InvalidRequest, ServerError, UnsupportedMedia


def verdict(data: bytes, cuts: list[int]) -> tuple[str, str] | int:
    text, at = TextChecker(limit=1 << 20), 0
    try:
        for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
            text.feed(data[at:cut])
            at = cut
        return text.finish()
    except ServerError as error:
        return error.code, error.message


def foreign(*chunks: bytes) -> str | None:
    text = TextChecker(limit=1 << 20)
    for chunk in chunks:
        text.feed(chunk)
    text.finish()
    return text.foreign


@given(
    st.one_of(st.binary(max_size=60), st.text(max_size=40).map(str.encode)), st.lists(st.integers(0, 1000), max_size=6)
)
@example("a€b".encode()[:-2], [1, 2])
@example(b"\xef\xbb\xbf", [1, 2])
def test_cuts_do_not_matter(data: bytes, cuts: list[int]) -> None:
    whole, pieces = verdict(data, []), verdict(data, cuts)
    if isinstance(whole, tuple) and isinstance(pieces, tuple) and "unsupported" in pieces[0] + whole[0]:
        return  # which of two faults is seen first depends on what has arrived
    assert whole == pieces


@given(
    st.text(min_size=1, max_size=50).filter(
        lambda text: (
            "\0" not in text and any(c.isalnum() for c in text) and not text.startswith(("%PDF-", "{\\rtf", "PK"))
        )
    )
)
def test_text_is_text(text: str) -> None:
    data = text.encode()
    if data == b"\xef\xbb\xbf":
        return
    assert verdict(data, [1, 3, 5]) == (3 if data.startswith(b"\xef\xbb\xbf") else 0)


@pytest.mark.parametrize(
    "data",
    [
        "Größe\n".encode("cp1252"), "Привет\n".encode("koi8-r"), "日本語\n".encode("cp932"), "Größe\n".encode("utf-16"),
        "Größe\n".encode("utf-16-le"), "日本語\n".encode("utf-16-be"), "日本語\n".encode("utf-32"), b"ends inside \xe2\x82",
    ],
)  # fmt: skip
def test_text_in_another_encoding_is_to_be_converted(data: bytes) -> None:
    assert foreign(data) == "text"


@pytest.mark.parametrize("before", [10, HEAD - 1, HEAD, 3 * HEAD])
def test_a_byte_that_is_not_utf8_makes_the_file_one_to_convert_wherever_it_is(before: int) -> None:
    assert foreign(b"x" * before, b"\xfc", b" and more") == "text"
    assert foreign(b"x" * before, "ü".encode(), b" and more") is None


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"\x7fELF\x02\x01\x01\0", "a program"), (b"GIF89a\x01\0", "a GIF image"), (b"\xff\xfb\x90\x64\0\0", "an audio file"),
        (b"\0\0\0\x20ftypisom\0\0", "a video or audio file"), (bytes(range(256)), "a binary file of an unknown kind with a NUL byte at byte 0"),
        (b"\xff\x01\x02\x03", "a binary file of an unknown kind"),
    ],
)  # fmt: skip
def test_a_binary_file_is_refused_by_its_name(data: bytes, name: str) -> None:
    text = TextChecker(limit=1 << 20)
    text.feed(data)
    with pytest.raises(UnsupportedMedia, match=f"the document is {name}: "):
        text.finish()


@pytest.mark.parametrize("text", ["BM is short for", "MZ\n", "ID3 tags", "GIF89a", "Rar! he said"])
def test_a_text_that_begins_like_a_binary_file_is_text(text: str) -> None:
    assert verdict(text.encode(), [1]) == 0
    assert foreign(f"{text} Größe".encode("cp1252")) == "text"


@pytest.mark.parametrize("data", ["{bad", "text", '{"a": 1} {"b": 2}'])
def test_a_body_that_is_declared_as_json_is_json_unless_it_has_a_name(data: str) -> None:
    def check(data: str, *declared: str | None) -> int:
        text = TextChecker(1 << 22, Declared(*declared))
        for letter in data.encode():
            text.feed(bytes([letter]))
        return text.finish()

    kind = "application/json"
    with pytest.raises(
        InvalidRequest, match="the content type is application/json, but the body is not JSON"
    ) as raised:
        check(data, None, kind)
    assert raised.value.code == "invalid_json"
    assert [check(data, name, kind) for name in ("a.jsonl", "a.txt")] == [0, 0]
    assert check(data, None, "text/plain") == 0
    assert check("\ufeff" + json.dumps([data]), None, kind) == 3
    assert [check(valid, None, kind) for valid in ("7" * 5000, "[" * 50_000)] == [0, 0]
    assert check(json.dumps("x" * (1 << 20)) + data, None, kind) == 0


@pytest.mark.parametrize("before", [10, 1023, 1024, HEAD, 3 * HEAD])
def test_a_nul_byte_is_refused_wherever_it_is(before: int) -> None:
    text = TextChecker(limit=1 << 20)
    with pytest.raises(UnsupportedMedia, match=f"NUL byte at byte {before}"):
        for byte in (b"x" * before, b"\0 and more"):
            text.feed(byte)
        text.finish()


@pytest.mark.parametrize("blank", [" \n\t ", "\ufeff\n", "\u200b\u00a0\u2028", "\r\n" * HEAD])
def test_a_text_without_a_visible_character_is_refused(blank: str) -> None:
    assert verdict(blank.encode(), [3]) == (
        "empty_document",
        "the document has only white space and invisible characters",
    )
    assert isinstance(verdict((blank + "x").encode(), [3]), int)
