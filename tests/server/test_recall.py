"""Passages: how a text is cut, how they are found, and what an answer is grounded on."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.sync.client import connect

from everlong_models import load_model
from everlong_models.tokenizer import Tokenizer
from everlong_server.engine.grounding import TEMPLATE, Recall, asks, choose, lacks, words_of
from everlong_server.engine.turn import Place, Turns
from everlong_server.errors import NotFound
from everlong_server.store.blobs import Blobs
from everlong_server.store.passages import Passage, Passages, opened, split
from everlong_server.store.records import Document, Session, new_id
from tests.process import Server, wait_for
from tests.tinymodel import NOVEL, STORY, make_model

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
ALICE = STORY.read_text()


# How a text is cut


def check(text: str) -> list[Passage]:
    """The passages of `text`, which are the text, in order and without gaps."""
    raw = text.encode()
    found = list(split(io.BytesIO(raw)))
    at = at_byte = 0
    for passage in found:
        assert (passage.start, passage.start_byte) == (at, at_byte)
        assert text[passage.start : passage.end] == passage.text
        assert raw[passage.start_byte : passage.end_byte].decode() == passage.text
        assert 0 < passage.end_byte - passage.start_byte <= 460
        at, at_byte = passage.end, passage.end_byte
    assert (at, at_byte) == (len(text), len(raw))
    return found


def test_passages_of_a_novel_are_about_seventy_words_and_end_with_sentences() -> None:
    found = check(ALICE)[:-1]
    words = sorted(len(passage.text.split()) for passage in found)
    assert 52 <= words[len(words) // 10] <= words[len(words) * 9 // 10] <= 85
    ended = [passage for passage in found if passage.text.rstrip()[-1] in ".!?”’'\")_" or passage.text.endswith("\n\n")]
    assert len(ended) > 0.97 * len(found)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["a", " ", ".", "\n", "é", "字", "。", "😀", "word ", "End. "]), max_size=900))
def test_any_text_is_cut_without_gaps(parts: list[str]) -> None:
    check("".join(parts))


def test_a_line_without_spaces_is_cut_at_the_greatest_length_between_characters() -> None:
    found = check("字" * 100_000)
    assert {len(passage.text) for passage in found[:-1]} == {153}


# How passages are found


class Shelf:
    """Documents in a folder, or anywhere that fsspec knows."""

    def __init__(self, url: str) -> None:
        self.blobs = Blobs(url)
        self.documents: dict[str, Document] = {}
        self.passages = Passages(self.blobs, self)

    async def get(self, id: str) -> Document:
        if id not in self.documents:
            raise NotFound(id)
        return self.documents[id]

    def add(self, text: str) -> str:
        async def write() -> Document:
            document = Document(new_id("doc"), None, len(text.encode()), 0, 0.0)
            writer = await self.blobs.create(document.id)
            await writer.write(text.encode())
            await writer.commit()
            return document

        document = asyncio.run(write())
        self.documents[document.id] = document
        return document.id

    def ask(self, question: str, *documents: str, before: str | None = None, limit: int = 8) -> list[Passage]:
        """What a question is answered with, if tokens are no matter."""
        words = words_of(question, before)
        found = asyncio.run(self.passages.search(documents or tuple(self.documents), words, limit)) if words else []
        return choose(found, "", 10_000, len)[0]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    shelf = Shelf(f"file://{tmp_path_factory.mktemp('shelf')}")
    shelf.add(NOVEL.read_text())
    shelf.add(ALICE)
    return shelf


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("What does the Red Queen say about running to stay in the same place?", "all the running _you_ can do"),
        ("Why is the sea boiling hot?", "sea is boiling hot"),
        ("What did the Walrus and the Carpenter eat?", "oysters"),
        ("How old is Humpty Dumpty's un-birthday arithmetic: 365 minus one?", "three hundred and sixty-four"),
        ("Which invention does the White Knight carry mice in?", "mouse-trap"),
        ("What is the cipher message from Porlock about?", "slip of paper"),
        ("Which gang rules Vermissa Valley?", "Vermissa"),
    ],
)
def test_what_is_asked_for_is_found(shelf: Shelf, question: str, words: str) -> None:
    found = shelf.ask(question)
    assert any(words in " ".join(passage.text.split()) for passage in found), found


@pytest.mark.parametrize(
    "question",
    [
        "Hello!", "Thanks, that was very helpful.", "Hi, how are you today?", "Good morning.", "ok", "the of and", "?!…",
        "Sounds good", "See you later!", "Please continue", "Nice to meet you", "That makes sense.", "Can you repeat that?",
        "lol that's crazy", "Have a great weekend, it was fun talking to you", "I agree, he is amazing.", "Yeah, I love it!",
        "Happy New Year!", "Interesting, I never knew that", "You too, take care!", "I guess so...", "Best wishes",
        "Can you help me?", "Write a Python function that parses JSON.", "谢谢你", "   \n",
    ],
)  # fmt: skip
def test_small_talk_draws_no_passages(shelf: Shelf, question: str) -> None:
    assert shelf.ask(question) == []


@pytest.mark.parametrize("question", ["Red Queen", "I like the Red Queen!", "Tell me more of Tweedledum", "Oysters."])
def test_names_and_rare_words_are_searched_for(shelf: Shelf, question: str) -> None:
    assert shelf.ask(question)


def test_a_question_takes_the_one_before_along_only_where_it_points_there(shelf: Shelf) -> None:
    before = "Who is Humpty Dumpty?"
    assert any("Humpty" in passage.text for passage in shelf.ask("What did he sit on, a wall?", before=before))
    assert any("Humpty" in passage.text for passage in shelf.ask("Why?", before=before))
    assert shelf.ask("Thanks!", before=before) == []
    for remark in ("That makes sense.", "I like him!", "See you next time.", "Can you repeat that?"):
        assert shelf.ask(remark, before=before) == []
    for question in ("Was he happy?", "What happened next?", "Tell me about his best friends."):
        assert any("Humpty" in passage.text for passage in shelf.ask(question, before=before))
    assert "humpty" not in words_of("Which gang rules Vermissa Valley in America?", before)


def test_a_long_question_is_found_by_its_ends(shelf: Shelf) -> None:
    question = "Humpty Dumpty! " + "lorem ipsum dolor " * 6000 + "boiling sea?"
    words = words_of(question, None)
    assert {"humpty", "boiling", "sea"} <= words.keys()
    assert len(words) <= 16
    many = [" ".join(f"{letter}{n}" for n in range(100)) for letter in "ab"]
    for own, before in (
        (many[0], many[1]),
        ("it " + many[0][:30], many[1]),
        ("字" + "孔子住在哪里天地玄黄宇宙洪荒日月盈昃" * 100, None),
    ):
        assert 8 < len(words_of(own, before)) <= 16


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("นครวัดเป็นปราสาทหิน", "ปราสาทหิน?"), ("ວັດພູເປັນປາສາດ", "ປາສາດ?"), ("အင်းလေးကန်သည်ကန်", "အင်းလေး?"),
        ("អង្គរវត្តជាប្រាសាទ", "ប្រាសាទ?"), ("Her re\u0301sume\u0301 was long.", "Whose r\u00e9sum\u00e9?"),
        ("Her r\u00e9sum\u00e9 was long.", "Whose re\u0301sume\u0301?"),
    ],
)  # fmt: skip
def test_words_of_other_scripts_and_decomposed_letters(tmp_path: Path, text: str, question: str) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    shelf.add(ALICE[:20_000] + text + ALICE[20_000:40_000])
    assert text in shelf.ask(question)[0].text


def test_scripts_without_spaces_and_short_documents(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    chinese = "天地玄黄。" * 200 + "孔子住在鲁国的曲阜。" + "宇宙洪荒。" * 200
    shelf.add(chinese)
    short = shelf.add("The password is swordfish.")
    (found,) = shelf.ask("孔子住在哪里？")[:1]
    assert "孔子" in found.text
    assert chinese[found.start : found.end] == found.text
    assert [passage.document for passage in shelf.ask("What is the password?")] == [short]


def test_a_store_that_is_no_folder_and_a_deleted_document() -> None:
    shelf = Shelf(f"memory://{new_id('doc')}")
    document = shelf.add(ALICE[:20_000])
    shelf.add("Nothing to be found here.")
    assert shelf.ask("Who is Dinah?")[0].document == document
    assert len(shelf.blobs._fs.ls(shelf.blobs._root)) == 4
    asyncio.run(shelf.passages.delete(document))
    del shelf.documents[document]
    assert shelf.ask("Who is Dinah?", document) == []


def test_an_index_whose_document_is_deleted_meanwhile_is_gone(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.documents.pop(shelf.add(ALICE))
    asyncio.run(shelf.passages.ensure(document))
    assert [path.name for path in tmp_path.iterdir()] == [document.id]


def test_a_damaged_index_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document, other = shelf.add(ALICE), shelf.add(NOVEL.read_text())
    found = shelf.ask("Who is Dinah?")
    index = tmp_path / f"{document}.passages"
    whole, second = index.read_bytes(), (tmp_path / f"{other}.passages").read_bytes()
    middle = len(whole) // 2 // 4096 * 4096
    damaged = [b"", b"x" * 5000, whole[:4096], whole[:middle], whole[:4096] + bytes(len(whole) - 4096)]
    for n, content in enumerate(damaged):
        index.write_bytes(content)
        assert shelf.ask("Who is Dinah?") == found, n
        assert index.stat().st_size == len(whole)
    assert (tmp_path / f"{other}.passages").read_bytes() == second
    assert len(caplog.records) == len(damaged)


def test_an_index_is_made_once_for_all_who_find_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf, made = Shelf(f"file://{tmp_path}"), []
    document, build = shelf.add(ALICE), Passages._build

    def counted(self: Passages, *args: Any) -> None:
        made.append(args)
        build(self, *args)

    monkeypatch.setattr(Passages, "_build", counted)

    async def several() -> list[list[Passage]]:
        each = (Passages(shelf.blobs, shelf) for _ in range(4))  # as each request has its own
        return await asyncio.gather(*(passages.search([document], {"dinah": 1.0}, 3) for passages in each))

    found = asyncio.run(several())
    assert found[0]
    assert found == [found[0]] * 4
    assert len(made) == 1


def test_an_index_is_mapped_and_not_copied(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    document = shelf.add(ALICE)
    asyncio.run(shelf.passages.ensure(shelf.documents[document]))
    with opened(tmp_path / f"{document}.passages") as index:
        assert index.execute("PRAGMA mmap_size").fetchone()[0] > 0


def cpu_seconds(work: Callable[[], object], times: int = 5) -> float:
    """Of this process, at best."""
    seconds = []
    for _ in range(times):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def test_a_long_text_is_indexed_in_proportion_and_searched_in_less(tmp_path: Path) -> None:
    """Ten megabytes against one. With the square of its length an index would take a hundred times as long."""
    shelf, whole = Shelf(f"file://{tmp_path}"), ((NOVEL.read_text() + ALICE) * 30)[:10_000_000]
    usual = words_of("What did the Red Queen say to Alice about the white knight in the house at night?", None)
    endless = words_of("孔子住在哪里" * 3000 + "".join(map(chr, range(0x4E00, 0x9000))), NOVEL.read_text())
    indexed, searched = [], []
    for text in (whole[:1_000_000], whole):
        document = shelf.documents[shelf.add(text)]

        def index(document: Document = document) -> None:
            (tmp_path / f"{document.id}.passages").unlink(missing_ok=True)
            asyncio.run(shelf.passages.ensure(document))

        def search(words: dict[str, float], id: str = document.id) -> None:
            asyncio.run(shelf.passages.search([id], words, 3))

        indexed.append(cpu_seconds(index, 3))
        searched.append([cpu_seconds(partial(search, words)) for words in (usual, endless)])
    assert indexed[1] < 30 * indexed[0], indexed
    (few, _), (many, most) = searched
    assert many < 10 * few, searched
    assert most < 5 * many, searched  # a question's words are bounded


# What an answer is grounded on


def passages_of(text: str) -> list[Passage]:
    return [replace(p, document="doc", score=1.0, share=1.0) for p in split(io.BytesIO(text.encode()))]


def test_neighbours_are_merged_and_offsets_are_exact() -> None:
    text = "  " + " ".join(f"Ünïcödé 字 wörd {n}." for n in range(150))
    a, b, c, d = passages_of(text)[:4]
    evidence, before = choose([d, b, a], "", 100_000, len)
    assert [(e.start, e.end) for e in evidence] == [
        (2, b.end - 1),
        (d.start, d.end - len(d.text) + len(d.text.rstrip())),
    ]
    for e in evidence:
        assert text[e.start : e.end] == e.text
        assert text.encode()[e.start_byte : e.end_byte].decode() == e.text
        assert e.text in before
    assert c.text not in before


def test_the_best_passage_is_the_first_piece_of_evidence_and_stands_next_to_the_question() -> None:
    a, b, c = (replace(p, score=score) for p, score in zip(passages_of(ALICE)[:5:2], (2.0, 3.0, 1.5), strict=True))
    evidence, before = choose([b, a, c], "", 10_000, len)
    assert [e.start for e in evidence] == [b.start, a.start, c.start]
    assert before == TEMPLATE.before([c.text, a.text, b.text])


def test_the_budget_holds_and_what_is_seen_is_not_repeated() -> None:
    found = passages_of(ALICE)[:9:2]
    for budget in (5, 60, 200, 700, 1500, 5000):
        evidence, before = choose(found, "", budget, len)
        assert len(before) <= budget
        assert bool(evidence) == bool(before) == (budget >= 200)
        for e in evidence:
            assert ALICE[e.start : e.end] == e.text
    evidence, before = choose(found, ALICE, 5000, len)
    assert len(evidence) == 5, "it rests on them all the same"
    assert before == ""


def test_a_budget_that_holds_a_word_gives_it_and_a_smaller_one_nothing() -> None:
    (first, *_) = passages_of(ALICE)
    template = TEMPLATE.before([""])
    word = first.text.split()[0]
    evidence, before = choose([first], "", len(template) + len(word), len)
    assert [e.text for e in evidence] == [word]
    assert before == TEMPLATE.before([word])
    assert choose([first], "", len(template) + len(word) - 1, len) == ([], "")
    assert choose([], "", 10_000, len) == ([], "")


@pytest.mark.parametrize(
    ("message", "is_one"),
    [
        ("Who is the Red Queen?", True), ("Tell me about the Red Queen.", False), ("How are you today?", False),
        ("What is the plot of the story?", False), ("Does that make sense?", False), ("Why?", False), ("?", False), ("孔子住在哪里?", True),
    ],
)  # fmt: skip
def test_a_question_about_something_is_told_from_talk(message: str, is_one: bool) -> None:
    assert asks(message) is is_one


@pytest.mark.parametrize("tokens", [100, 128])
def test_evidence_stands_in_the_segment_that_the_answer_begins_in(model: Path, tokens: int) -> None:
    """A memory of its kind keeps no tokens: what the end of a segment takes along cannot be quoted any more."""
    served = load_model(str(model), models_dir=model.parent)
    S, tokenizer = served.memory.segment_length, served.tokenizer
    turns = Turns(SimpleNamespace(model=served), *[None] * 5, max_message_chars=100)  # type: ignore[arg-type]
    found = [replace(p, score=9.0 - n) for n, p in enumerate(passages_of(ALICE)[4:16])]
    state, filling, with_some = served.memory.initial_state(1), tokenizer.encode(NOVEL.read_text()[:2000]), 0
    for messages in (0, 2):
        for open in range(S):
            fields = Session.fields("", "", "", ["doc"]) | {"messages": messages, "position": open + S}
            session = Session.of({name.encode(): str(value).encode() for name, value in fields.items()})
            session = replace(session, open=tuple(filling[:open]))
            place = Place(session, state, (), None, AsyncMock())
            prompt, evidence, *_ = turns._prompt(place, QUESTION, found, Recall(16, tokens), lacking=False)
            said = [*session.open, *prompt]
            last = tokenizer.decode(said[(len(said) - 1) // S * S :], skip_special=False)
            for e in evidence:
                assert e.text in last, open
                assert ALICE[e.start : e.end] == e.text
                assert ALICE.encode()[e.start_byte : e.end_byte].decode() == e.text
            with_some += bool(evidence)
    assert with_some > 0.9 * 2 * S


def test_that_a_text_lacks_an_answer_is_said_of_what_was_searched_for_well() -> None:
    foreign, near = "Which submarine torpedoed Zanzibar?", [replace(passages_of(ALICE)[0], share=0.1)]
    for talked in (False, True):
        assert lacks(foreign, [], talked=talked)
        assert lacks(foreign, near, talked=talked)
        assert not lacks(foreign, [replace(near[0], share=0.9)], talked=talked)
        for other in ("孔子住在哪里?", "Где живёт Алиса?", "Sounds good?", "Tell me about submarines."):
            assert not lacks(other, [], talked=talked)
    own = "Which submarine did I ask you about?"
    assert lacks(own, [], talked=False)
    assert not lacks(own, [], talked=True)


# Over HTTP


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), segment_length=128)


@pytest.fixture(scope="module")
def grounded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(model, tmp_path_factory.mktemp("data"), recall_tokens=100) as server:
        yield server.start()


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return load_model(str(model), models_dir=model.parent).tokenizer


def check_tokens(tokenizer: Tokenizer, text: str, evidence: list[dict[str, Any]]) -> None:
    """Each piece's tokens are those of the whole text that any of its characters are in."""
    spans = tokenizer.spans(text)
    assert evidence
    for e in evidence:
        having = [n for n, (start, end) in enumerate(spans) if start < e["end"] and end > e["start"]]
        assert (e["start_token"], e["end_token"]) == (having[0], having[-1] + 1)


TEXT = "\ufeff" + "Naïve Ünïcödé 😀. " * 500 + ALICE[:30_000]
QUESTION = "What would Dinah do with the black kitten's face?"


@pytest.fixture(scope="module")
def document(grounded: Server) -> str:
    return grounded.read(TEXT)["id"]


def test_an_answer_carries_its_evidence(grounded: Server, document: str, tokenizer: Tokenizer) -> None:
    session = grounded.session(document)["id"]
    plain = grounded.say(grounded.session(document)["id"], QUESTION, **GREEDY, recall=False)
    assert plain["evidence"] == []
    body = {"content": QUESTION, "stream": True, **GREEDY, "recall": {"passages": 2, "tokens": 128}}
    with grounded.http.stream("POST", f"/v1/sessions/{session}/messages", json=body) as response:
        events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
    assert [event["type"] for event in events[:2]] == ["response.created", "response.evidence"]
    message = events[-1]["message"]
    evidence = message["evidence"]
    assert evidence
    assert events[1]["evidence"] == evidence
    for e in evidence:
        assert e["document"] == document
        assert TEXT[1:][e["start"] : e["end"]] == e["text"]
        assert TEXT[1:].encode()[e["start_byte"] : e["end_byte"]].decode() == e["text"]
    check_tokens(tokenizer, TEXT[1:], evidence)
    assert evidence[0]["start_token"] > 2000, "far behind what has tokens of parts of characters"
    assert 0 < message["usage"]["prompt_tokens"] - plain["usage"]["prompt_tokens"] <= 128
    stored = grounded.http.get(f"/v1/sessions/{session}/messages").json()["data"]
    assert stored[1]["evidence"] == evidence
    assert "evidence" not in stored[0]
    assert stored[0]["content"] == QUESTION, "the dialogue holds what was said, not the passages"


def test_the_same_question_has_the_same_answer_before_and_after_kill_9(grounded: Server, document: str) -> None:
    def ask() -> dict:
        message = grounded.say(grounded.session(document)["id"], QUESTION, temperature=1, seed=3, max_tokens=20)
        return {key: message[key] for key in ("content", "evidence", "usage")}

    before = ask()
    assert before["evidence"]
    grounded.kill9()
    grounded.start()
    assert ask() == before


WRONG = [
    ({"tokens": 129}, "recall.tokens"), ({"tokens": 0}, "recall.tokens"),
    ({"passages": 33}, "recall.passages"), ({"best": 1}, "recall.best"), (True, "recall"),
]  # fmt: skip


@pytest.mark.parametrize(("recall", "param"), WRONG)
def test_what_cannot_be_recalled_is_refused(grounded: Server, recall: object, param: str) -> None:
    session = grounded.session()["id"]
    answer = grounded.http.post(f"/v1/sessions/{session}/messages", json={"content": "?", "recall": recall})
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["param"] == param


def test_a_message_that_says_nothing_of_recall_uses_its_sessions_and_then_the_servers(
    grounded: Server, document: str
) -> None:
    path = "/v1/sessions"
    made = grounded.http.post(path, json={"documents": [document], "recall": {"tokens": 40}}).json()
    path = f"{path}/{made['id']}"

    def found(**more: object) -> int:
        """Characters of evidence."""
        fork = grounded.http.post(f"{path}/fork").json()["id"]
        return sum(len(e["text"]) for e in grounded.say(fork, QUESTION, **GREEDY, **more)["evidence"])

    def patched(**given: object) -> dict:
        answer = grounded.http.patch(path, json=given)
        assert answer.status_code == 200, answer.text
        return answer.json()

    several = {"tokens": 128, "passages": 4}
    assert made["recall"] == {"passages": None, "tokens": 40}
    few, more = found(), found(recall=several)
    assert 0 < few < more
    assert (found(recall={}), found(recall={"passages": 4}), found(recall=False)) == (few, few, 0)
    assert grounded.http.post(f"{path}/fork").json()["recall"] == made["recall"]
    assert patched(recall=several)["recall"] == several
    assert (found(), found(recall={"tokens": 40})) == (more, few)
    assert patched(title="Kittens")["recall"] == several, "what is not given stays"
    assert patched(recall=False) == grounded.get_session(made["id"]) | {"recall": False, "title": "Kittens"}
    assert (found(), found(recall={"tokens": 128}), found(recall=several)) == (0, 0, more)
    socket_path = f"ws://127.0.0.1:{grounded.port}{path}/stream"
    with connect(socket_path) as socket:
        for asked in (False, None):
            patched(recall=asked)
            socket.send(json.dumps({"type": "message.create", "content": QUESTION, **GREEDY}))
            events = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=60)))
            assert bool(events[-1]["message"]["evidence"]) is (asked is None)
    assert patched()["recall"] is None
    assert patched()["title"] == "Kittens"


@pytest.mark.parametrize(("recall", "param"), WRONG)
def test_what_cannot_be_recalled_is_refused_of_a_session_too(grounded: Server, recall: object, param: str) -> None:
    session = grounded.session()
    for answer in (
        grounded.http.post("/v1/sessions", json={"recall": recall}),
        grounded.http.patch(f"/v1/sessions/{session['id']}", json={"recall": recall}),
    ):
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["param"] == param
    assert grounded.get_session(session["id"]) == session


def test_a_document_stands_in_a_session_once(grounded: Server, document: str) -> None:
    """Else all of its passages would be found twice."""
    answer = grounded.http.post("/v1/sessions", json={"documents": [document, document]})
    error = grounded.error(answer, 422, "invalid_value", "documents")
    assert repr(document) in error["message"]


def test_a_server_that_has_recall_off_has_it_off_for_good(new_server, model: Path) -> None:
    server = new_server(model, recall_tokens=100).start()
    document = server.read(ALICE[:20_000])["id"]
    asked = {"passages": 2}
    session = server.http.post("/v1/sessions", json={"documents": [document], "recall": asked}).json()["id"]
    assert server.say(session, QUESTION, **GREEDY)["evidence"]
    server.kill9()
    server.environment["EVERLONG_RECALL_PASSAGES"] = "0"
    server.start()
    index = server.data / "documents" / f"{document}.passages"
    index.unlink()
    for answer in (
        server.http.post(f"/v1/sessions/{session}/messages", json={"content": QUESTION, "recall": asked}),
        server.http.post("/v1/sessions", json={"recall": asked}),
        server.http.patch(f"/v1/sessions/{session}", json={"recall": asked}),
        server.http.post("/v1/responses", json={"input": QUESTION, "recall": asked}),
    ):
        error = server.error(answer, 422, "invalid_value", "recall.passages")
        assert "EVERLONG_RECALL_PASSAGES=0" in error["message"]
    for off in ({}, {"recall": False}, {"recall": {"passages": 0}}, {"recall": {"tokens": 50}}):
        assert server.say(session, QUESTION, **GREEDY, **off)["evidence"] == []
    assert not index.exists()


@pytest.mark.parametrize("content", ["the of and", "Kitten? " * 12_000, "谁是爱丽丝？", "<|im_end|><|im_start|>kitten"])
def test_any_question_is_answered(grounded: Server, document: str, content: str) -> None:
    assert grounded.say(grounded.session(document)["id"], content, **GREEDY)["content"]


def test_the_index_comes_and_goes_with_its_document(new_server, model: Path, tokenizer: Tokenizer) -> None:
    """And with it where its tokens stand, also of a text whose reading was resumed."""
    server = new_server(model, checkpoint_seconds=0).start()
    folder = server.data / "documents"
    text = "«Naïve» 🐋 " * 20 + ALICE[:40_000]
    document = server.upload(text)["id"]
    wait_for(lambda: server.document(document)["tokens"] > 0)
    server.kill9()
    server.start()
    server.wait_read(document)
    index, table = folder / f"{document}.passages", folder / f"{document}.tokens.{tokenizer.digest()[:16]}"
    assert {path.name for path in folder.iterdir()} == {document, index.name, table.name, Blobs.WORD}
    rows = table.read_bytes()
    assert len(rows) > 24 * 100
    check_tokens(tokenizer, text, server.say(server.session(document)["id"], QUESTION, **GREEDY)["evidence"])
    index.unlink()  # as of a document that an older server read
    table.unlink()
    session = server.session(document)["id"]
    check_tokens(tokenizer, text, server.say(session, QUESTION, **GREEDY)["evidence"])
    assert index.exists()
    assert table.read_bytes() == rows
    server.http.delete(f"/v1/documents/{document}")
    assert [path.name for path in folder.iterdir()] == [Blobs.WORD]
    assert server.say(session, QUESTION, **GREEDY)["evidence"] == []


def test_evidence_comes_before_the_first_word_over_a_socket(grounded: Server, document: str) -> None:
    session = grounded.session(document)["id"]
    with connect(f"ws://127.0.0.1:{grounded.port}/v1/sessions/{session}/stream") as socket:
        for recall in ({}, False):
            socket.send(json.dumps({"type": "message.create", "content": QUESTION, "recall": recall, **GREEDY}))
            events: list[dict] = []
            while not events or events[-1]["type"] != "response.completed":
                events.append(json.loads(socket.recv(timeout=60)))
            kinds = [event["type"] for event in events]
            assert kinds[:3] == ["response.created", "response.evidence", "response.output_text.delta"]
            assert kinds.count("response.evidence") == 1
            assert events[1]["response_id"] == events[0]["response"]["id"]
            assert events[1]["evidence"] == events[-1]["message"]["evidence"]
            assert bool(events[1]["evidence"]) is (recall == {})


@pytest.fixture(scope="module")
def windowed(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A memory that reads as fast as it can."""
    options = json.dumps({"segment_length": 64, "sinks": 4, "window": 128})
    settings = {"memory": "window", "memory_options": options, "recall_tokens": 96, "max_message_chars": 2000}
    with Server(tiny_model / "backbone", tmp_path_factory.mktemp("data"), **settings) as server:
        yield server.start()


LINE = "A yellow submarine torpedoed Zanzibar's aquarium. "


@pytest.mark.parametrize(
    ("text", "question", "held"),
    [
        ((" ".join(ALICE.split()) * 60)[:5_000_000] + LINE, "Which submarine torpedoed Zanzibar's aquarium?", "yellow"),
        ("abcdefghij" * 20_000, "Who is the abcdefghij?", ""),
        ("Its word: swordfish.", "What is said of a swordfish?", "swordfish"),
    ],
    ids=["a line of 5 MB", "no spaces", "ten tokens"],
)
def test_a_document_of_any_shape_is_searched(windowed: Server, text: str, question: str, held: str) -> None:
    document = windowed.read(text)["id"]
    message = windowed.say(windowed.session(document)["id"], question, **GREEDY, recall={"tokens": 192})
    assert message["content"]
    assert bool(message["evidence"]) is bool(held)
    assert held in " ".join(e["text"] for e in message["evidence"])
    for e in message["evidence"]:
        assert text[e["start"] : e["end"]] == e["text"]
        assert text.encode()[e["start_byte"] : e["end_byte"]].decode() == e["text"]


def test_a_question_may_be_as_long_as_a_message_and_no_longer(windowed: Server) -> None:
    session = windowed.session(windowed.read(ALICE[:20_000])["id"])["id"]
    longest = (QUESTION + " ").ljust(1995, "é") + " 🐈 ?!"
    longest = longest[:1999] + "?"
    assert len(longest) == 2000 < len(longest.encode())
    assert windowed.say(session, longest, **GREEDY)["evidence"]
    refused = windowed.http.post(f"/v1/sessions/{session}/messages", json={"content": longest + "?"})
    error = windowed.error(refused, 413, "too_large", "content")
    assert "2001 characters, the limit is 2000" in error["message"]
    assert windowed.get_session(session)["messages"] == 2


def test_a_question_that_the_text_has_nothing_about_is_answered_so(
    new_server, tiny_model: Path, tmp_path: Path
) -> None:
    """The prompt says it, where no trained memory could know better; here it is counted in tokens."""
    options = {"segment_length": 64, "sinks": 4, "window": 128}
    settings = {"memory_options": json.dumps(options), "recall_tokens": 96}
    server = new_server(tiny_model / "backbone", memory="window", **settings).start()
    document = server.read(ALICE[:20_000])["id"]

    session = server.session(document)["id"]

    def prompt(question: str, **more: object) -> int:
        message = server.say(server.session(document)["id"], question, **GREEDY, **more)
        assert message["evidence"] == []
        return message["usage"]["prompt_tokens"]

    foreign, talk = "Which submarine torpedoed Zanzibar's aquarium?", "Tell me about submarines."
    said = prompt(foreign) - prompt(foreign, recall=False)
    model = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    told = len(model.tokenizer.encode(TEMPLATE.nothing))
    # A first answer that does not rest on the text begins a chat, instead of going on behind the text.
    assert said == told + len(model.chat.head) - len(model.chat.separator)
    assert prompt(talk) == prompt(talk, recall=False)
    assert prompt(foreign, recall={"tokens": told - 1}) == prompt(foreign, recall=False), "the budget holds"
    assert server.http.delete(f"/v1/documents/{document}").is_success
    forks = (server.http.post(f"/v1/sessions/{session}/fork").json()["id"] for _ in range(2))
    gone = [
        server.say(fork, foreign, **GREEDY, recall=asked)["usage"]
        for fork, asked in zip(forks, ({}, False), strict=True)
    ]
    assert gone[0] == gone[1], "what was deleted was not searched"
