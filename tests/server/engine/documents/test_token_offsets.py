"""Token offsets equal those of encoding the whole text, for any text of any length."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import re
import time
import uuid
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import everlong_models.text.tokenizer as module
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.documents.token_offsets import TokenOffsets
from everlong_server.engine.documents.token_stream import token_blocks
from everlong_server.errors import KeyMissing, NotFound
from everlong_server.store.records import Document, new_id
from everlong_server.store.search.splitting import split
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.passage import Passage
from everlong_server.store.vault import Vault
from tests.models.text.tiny_tokenizers import CAPITALS, PIECES, bpe, wordpiece
from tests.tinymodel import NOVEL, make_tokenizer

MARK = "\ufeff".encode()
MIXED = (NOVEL.read_text()[:30_000] + " größer 中文字 «Où?» 🐋👩‍👩‍👧 e\u0301 naïve\n") * 3


class Texts:
    """Documents, and the token offsets of one tokenizer in them."""

    def __init__(self, tokenizer: Tokenizer, url: str | None = None, vault: Vault | None = None) -> None:
        self.blobs = Blobs(url or f"memory://{uuid.uuid4().hex}", vault)
        self.documents: dict[str, Document] = {}
        self.tokenizer = tokenizer
        self.token_offsets = TokenOffsets(self.blobs, self, tokenizer)

    async def get(self, id: str) -> Document:
        if id not in self.documents:
            raise NotFound(id)
        return self.documents[id]

    def add(self, text: str) -> Document:
        document = Document(new_id("doc"), None, len(text.encode()), len(MARK), 0.0)
        with self.blobs.fill(document.id) as path:
            path.write_bytes(MARK + text.encode())
        self.documents[document.id] = document
        return document

    def placed(self, document: Document, text: str, *spans: tuple[int, int]) -> list[tuple[int | None, int | None]]:
        """Return the token ranges of spans of characters of the document, whose text is `text`."""
        passages = [passage_of(document, text, *span) for span in spans]
        placed = asyncio.run(self.token_offsets.with_tokens(passages))
        assert [(p.start, p.end, p.text) for p in placed] == [(p.start, p.end, p.text) for p in passages]
        return [(p.start_token, p.end_token) for p in placed]

    def tables(self) -> list[str]:
        return [name for name in self.blobs.names() if ".tokens." in name]


def passage_of(document: Document, text: str, start: int, end: int) -> Passage:
    before, own = len(text[:start].encode()), len(text[start:end].encode())
    return Passage(document.id, start, end, before, before + own, text[start:end])


@functools.lru_cache(maxsize=4)
def spans_of(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    return tokenizer.spans(text)


def naive(tokenizer: Tokenizer, text: str, start: int, end: int) -> tuple[int, int]:
    """Return the first token of the whole text that has any of the characters, and one past the last.

    If none has any, as with an accent that was normalised into its letter, return the next token twice.
    """
    spans = spans_of(tokenizer, text)
    having = [n for n, (a, b) in enumerate(spans) if a < end and b > start]
    before = sum(b <= start for _, b in spans)
    return (having[0], having[-1] + 1) if having else (before, before)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(make_tokenizer())


@pytest.fixture
def _close_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 16)
    monkeypatch.setattr(module, "_RESUME_TOKENS", 3)


KINDS: dict[str, Callable[[], Tokenizer]] = {
    **{name: functools.partial(bpe, name) for name in ("gpt2", "smollm", "llama3", "qwen", "o200k", "tekken")},
    "metaspace": lambda: bpe("metaspace"),  # encodes the whole text at once
    "normalised": lambda: bpe("gpt2", "NFC"),
}
_TEXTS: dict[str, Texts] = {}


@pytest.mark.usefixtures("_close_places")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(parts=st.lists(st.sampled_from(PIECES), min_size=1, max_size=60), places=st.lists(st.floats(0, 1), max_size=8))
@example(parts=["字" + CAPITALS, "d end. "] * 3, places=[0.01, 0.2, 0.25, 0.5])
@example(parts=["a", "\n" * 20, "x", " " * 20, "y."] * 4, places=[0, 0.3, 0.3, 0.31])
@example(parts=["👩‍👩‍👧🇩🇪", "e\u0301", "漢字"] * 9, places=[0, 0.1, 0.11, 0.15, 0.8])
@example(parts=["e\u0301"], places=[0.5])
def test_token_ranges_are_those_of_the_whole_text(kind: str, parts: list[str], places: list[float]) -> None:
    texts = _TEXTS.setdefault(kind, Texts(KINDS[kind]()))
    text = "".join(parts)
    document = texts.add(text)
    bounds = sorted({0, len(text), *(round(place * len(text)) for place in places)})
    # As all that is shown: without white space at its ends.
    spans = [
        (start + len(own) - len(own.lstrip()), start + len(own.rstrip()))
        for start, end in itertools.combinations(bounds, 2)
        if (own := text[start:end]).strip()
    ]
    assert texts.placed(document, text, *spans) == [naive(texts.tokenizer, text, *span) for span in spans]
    asyncio.run(texts.blobs.delete(document.id))
    asyncio.run(texts.token_offsets.delete(document.id))
    assert not texts.blobs.names()


@pytest.mark.parametrize("at_once", [1, 40])
def test_passages_of_a_long_text(tokenizer: Tokenizer, at_once: int) -> None:
    texts, draw = Texts(tokenizer), random.Random(3)
    document = texts.add(MIXED)
    starts = [draw.randrange(len(MIXED)) for _ in range(40 // at_once * at_once)]
    starts += [at for at in range(len(MIXED)) if MIXED[at] in "🐋字\u0301"]
    spans = [(start, min(len(MIXED), start + draw.choice((1, 2, 30, 400, 3000)))) for start in starts]
    spans = [(start, end) for start, end in spans if MIXED[start:end] == MIXED[start:end].strip()]
    whole = tokenizer.spans(MIXED)
    assert len(spans) > 20
    found = [
        place for n in range(0, len(spans), at_once) for place in texts.placed(document, MIXED, *spans[n : n + at_once])
    ]
    for (start, end), (first, last) in zip(spans, found, strict=True):
        assert first is not None
        assert last is not None
        assert whole[first][0] <= start < whole[first][1]
        assert whole[last - 1][0] < end <= whole[last - 1][1]
        assert first == 0 or whole[first - 1][1] <= start
        assert last == len(whole) or whole[last][0] >= end


def test_a_character_of_several_tokens_has_them_all(tokenizer: Tokenizer) -> None:
    texts, text = Texts(tokenizer), "a 🐋 b"
    first, last = texts.placed(texts.add(text), text, (2, 3))[0]
    assert first is not None
    assert last is not None
    assert last - first > 1
    assert tokenizer.decode(tokenizer.encode(text)[first:last]).strip() == "🐋"


def test_a_tokenizer_that_drops_characters() -> None:
    texts, text = Texts(wordpiece()), "  the  \x00  Hello "
    document = texts.add(text)
    assert texts.placed(document, text, (2, 5), (9, 14), (7, 8)) == [
        naive(texts.tokenizer, text, 2, 5), naive(texts.tokenizer, text, 9, 14), (1, 1),
    ]  # fmt: skip
    assert texts.tables() == [], "there is nothing to keep"


def test_resume_points_of_a_reading_equal_those_of_a_pass_over_the_text(tokenizer: Tokenizer) -> None:
    read, passed = Texts(tokenizer), Texts(tokenizer)
    there, later = read.add(MIXED), passed.add(MIXED)
    with read.blobs.open(there.id, len(MARK)) as file:
        places = [place for piece in token_blocks(file, tokenizer, len(MARK)) for place in piece.resume_points]
    tokens = [place.token for place in places]
    assert places[0] == (0, 0, 0)
    assert len(tokens) > len(tokenizer.encode(MIXED)) / 180
    assert {128 <= b - a < 150 for a, b in itertools.pairwise(tokens)} == {True}
    asyncio.run(read.token_offsets.ensure(there, array("q", itertools.chain.from_iterable(places))))
    asyncio.run(passed.token_offsets.ensure(later))
    tables = []
    for texts in (read, passed):
        (name,) = texts.tables()
        with texts.blobs.open(name) as file:
            tables.append(file.read())
    assert tables[0] == tables[1]
    asyncio.run(read.token_offsets.ensure(there, array("q", [0, 0, 0])))
    with read.blobs.open(read.tables()[0]) as file:
        assert file.read() == tables[0], "what is there stays"


def test_a_damaged_or_missing_table_is_created_again(
    tokenizer: Tokenizer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = Texts(tokenizer, f"file://{tmp_path}")
    document = texts.add(MIXED)
    span = (70_000, 70_005)
    expected = texts.placed(document, MIXED, span)
    assert expected == [naive(tokenizer, MIXED, *span)]
    (name,) = texts.tables()
    path = tmp_path / name
    whole = path.read_bytes()
    flipped = whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]
    for content in (b"", b"x" * 100, whole[:-24], whole[:32], flipped, None):
        path.unlink() if content is None else path.write_bytes(content)
        assert texts.placed(document, MIXED, span) == expected
        assert path.read_bytes() == whole
    assert len(caplog.records) == 5


def test_tables_of_all_tokenizers_are_deleted_with_their_document(tokenizer: Tokenizer, tmp_path: Path) -> None:
    texts, others = Texts(tokenizer, f"file://{tmp_path}"), Texts(bpe("llama3"), f"file://{tmp_path}")
    document, stays = texts.add(MIXED), texts.add(MIXED[:500])
    others.documents = texts.documents
    for each in (texts, others):
        assert each.placed(document, MIXED, (5000, 5100)) == [naive(each.tokenizer, MIXED, 5000, 5100)]
        each.placed(stays, MIXED[:500], (0, 10))
    assert len(texts.tables()) == 4
    asyncio.run(texts.token_offsets.delete(document.id))
    assert {name.split(".")[0] for name in texts.tables()} == {stays.id}
    del texts.documents[document.id]
    assert texts.placed(document, MIXED, (5000, 5100)) == [(None, None)]
    asyncio.run(texts.token_offsets.ensure(document))
    assert len(texts.tables()) == 2, "of one that was deleted meanwhile there is none"


def test_if_the_table_cannot_be_written_passages_have_no_tokens(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Blobs, name: str) -> Iterator[Path]:
        raise OSError(28, "No space left on device")

    texts = Texts(tokenizer, f"file://{tmp_path}")
    document = texts.add(MIXED)
    with monkeypatch.context() as patch:
        patch.setattr(Blobs, "fill", full)
        assert texts.placed(document, MIXED, (0, 10)) == [(None, None)]
    assert texts.placed(document, MIXED, (0, 10)) == [naive(tokenizer, MIXED, 0, 10)]


def test_a_table_is_encrypted(tokenizer: Tokenizer, tmp_path: Path) -> None:
    vault = Vault({"one": b"k" * 32})
    texts, url = Texts(tokenizer, f"file://{tmp_path}/blobs", vault), f"file://{tmp_path}/blobs"
    document = texts.add(MIXED)
    expected = texts.placed(document, MIXED, (70_000, 70_100))
    assert expected == [naive(tokenizer, MIXED, 70_000, 70_100)]
    (name,) = texts.tables()
    with pytest.raises(KeyMissing):
        Blobs(url).open(name)
    path = tmp_path / "blobs" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert texts.placed(document, MIXED, (70_000, 70_100)) == expected
    assert len(path.read_bytes()) == len(whole)


def test_a_passage_costs_the_same_in_a_long_text(tokenizer: Tokenizer) -> None:
    """Compares medians of 50 passages with a text of a tenth. Encoding all text before them would take ten times as long."""
    texts, medians = Texts(tokenizer), []
    for text in (NOVEL.read_text()[: len(NOVEL.read_text()) // 10], NOVEL.read_text()):
        document = texts.add(text)
        with texts.blobs.open(document.id, len(MARK)) as file:
            passages = [Passage(document.id, **asdict(piece)) for piece in split(file)]
        table = asyncio.run(texts.token_offsets._table(document))
        seconds = []
        for passage in random.Random(1).sample(passages, 50):
            start = time.process_time()
            texts.token_offsets._with_tokens(document, table, [passage])
            seconds.append(time.process_time() - start)
        medians.append(sorted(seconds)[25])
    assert medians[1] < 3 * medians[0], medians


def test_spans_of_tokens_become_passages_of_whole_words(tokenizer: Tokenizer) -> None:
    """In a text with characters of several bytes and several tokens."""
    texts, draw = Texts(tokenizer), random.Random(0)
    document, ids = texts.add(MIXED), tokenizer.encode(MIXED)
    starts = sorted(draw.randrange(len(ids) - 30) for _ in range(60))
    spans = [(start, start + draw.randrange(1, 30)) for start in starts] + [(0, 3), (len(ids) - 4, len(ids))]
    found = asyncio.run(texts.token_offsets.passages(document, spans))
    assert found.keys() == set(spans)
    for (start, end), passage in found.items():
        assert MIXED[passage.start : passage.end] == passage.text == passage.text.strip()
        assert MIXED.encode()[passage.start_byte : passage.end_byte].decode() == passage.text
        assert tokenizer.decode(ids[start:end]).strip().strip("\ufffd") in passage.text
        assert len(passage.text) <= len(tokenizer.decode(ids[start:end])) + 64
        assert abs(passage.start - len(tokenizer.decode(ids[:start]))) <= 33
        if passage.text:
            tokens = naive(tokenizer, MIXED, passage.start, passage.end)
            assert (passage.start_token, passage.end_token) == tokens
        for at in (passage.start, passage.end):  # no word is cut
            assert not re.fullmatch(r"\w\w", MIXED[at - 1 : at + 1]) or len(re.findall(r"\w+", passage.text)[0]) > 32
    short = texts.add("short")
    assert asyncio.run(texts.token_offsets.passages(short, [(0, 900)])) == {}
    asyncio.run(texts.blobs.delete(short.id))
    assert asyncio.run(texts.token_offsets.passages(short, [(0, 1)])) == {}
