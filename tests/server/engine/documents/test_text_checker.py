"""The check of uploaded text does not depend on how the bytes are split."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from everlong_server.engine.documents.formats.catalogue import HEAD
from everlong_server.engine.documents.text_checker import TextChecker
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


def test_the_offset_of_an_invalid_byte_is_exact() -> None:
    text = TextChecker(limit=1 << 20)
    text.feed(b"a" * HEAD + "é".encode()[:1])
    with pytest.raises(InvalidRequest, match=f"at byte {HEAD}"):
        text.feed(b"x")


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
