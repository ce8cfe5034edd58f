"""Prompts: which tokens an answer attends to, and the text before the question."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
import torch

from everlong_models import AnswerProbe, SamplingParams, load_model
from everlong_server.engine.answering.evidence.grounding import Recall
from everlong_server.engine.answering.evidence.templates import (
    INSTRUCT,
    TEMPLATE,
    template_of,
)
from everlong_server.engine.answering.prompt import Prompt, PromptBuilder
from everlong_server.engine.answering.retrieval import Retrieved, Retriever, SharedRetrieval
from everlong_server.engine.answering.search.question import search_query
from everlong_server.engine.answering.turn_context import Exchange, TurnContext
from everlong_server.engine.device.requests import AnswerRequest
from everlong_server.store.messages import AnswerMessage, Usage
from everlong_server.store.records import Message, Session
from everlong_server.store.search.overview import Overview
from everlong_server.store.search.passages import Found
from everlong_server.store.search.splitting import split
from everlong_server.store.snapshot import Snapshot
from everlong_server.store.texts.passage import Passage
from tests.tinymodel import NOVEL, STORY, make_model

ALICE = STORY.read_text()

QUESTION = "What would Dinah do with the black kitten's face?"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), segment_length=128)


def passages_of(text: str) -> list[Passage]:
    pieces = split(io.BytesIO(text.encode()))
    return [Passage("doc", p.start, p.end, p.start_byte, p.end_byte, p.text, score=1.0, share=1.0) for p in pieces]


def test_the_model_determines_the_template(model: Path) -> None:
    served = load_model(str(model), models_dir=model.parent)
    assert template_of(served) is TEMPLATE
    assert template_of(replace(served, template="instruct")) is INSTRUCT


@pytest.mark.long
@pytest.mark.parametrize("tokens", [100, 128])
def test_evidence_is_in_the_segment_that_the_answer_begins_in(model: Path, tokens: int) -> None:
    """This memory keeps no tokens, so tokens of earlier segments cannot be quoted."""
    served = load_model(str(model), models_dir=model.parent)
    S, tokenizer = served.memory.segment_length, served.tokenizer
    prompts = PromptBuilder(SimpleNamespace(model=served), None, TEMPLATE)  # type: ignore[arg-type]
    found = [replace(p, score=9.0 - n) for n, p in enumerate(passages_of(ALICE)[4:16])]
    state, filling, with_some = served.memory.initial_state(1), tokenizer.encode(NOVEL.read_text()[:2000]), 0
    for messages in (0, 2):
        for open in range(S):
            snapshot = Snapshot(open=tuple(filling[:open]), position=open + S)
            session = Session("", "", "", ("doc",), snapshot, messages)
            context = TurnContext(session, state, (), (), AsyncMock())
            prompt = prompts.build(context, QUESTION, found, Recall(16, tokens), lacks_answer=False)
            evidence, said = prompt.evidence, [*snapshot.open, *prompt.tokens]
            last = tokenizer.decode(said[(len(said) - 1) // S * S :], skip_special=False)
            for e in evidence:
                assert e.text in last, open
                assert ALICE[e.start : e.end] == e.text
                assert ALICE.encode()[e.start_byte : e.end_byte].decode() == e.text
            with_some += bool(evidence)
    assert with_some > 0.9 * 2 * S


def test_a_long_question_leaves_less_of_the_window_for_passages(tiny_model: Path, tmp_path: Path) -> None:
    options = {"segment_length": 64, "sinks": 4, "window": 128}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory, tokenizer = served.memory, served.tokenizer
    prompts = PromptBuilder(SimpleNamespace(model=served), None, TEMPLATE)  # type: ignore[arg-type]
    found, read = passages_of(ALICE)[4:9:2], tokenizer.encode(ALICE)[: 6 * 64]
    state = memory.read(torch.tensor([read]), memory.initial_state(1))
    for messages in (0, 2):
        for asked, some in ((QUESTION, True), (QUESTION + " Indeed?" * 8, True), (QUESTION + " Indeed?" * 60, False)):
            session = Session("", "", "", ("doc",), Snapshot(position=len(read)), messages)
            context = TurnContext(session, state, (), (), AsyncMock())
            for tokens in (96, 192):
                built = prompts.build(context, asked, found, Recall(4, tokens), lacks_answer=False)
                prompt, evidence = built.tokens, built.evidence
                visible = tokenizer.decode(prompt[-128 - len(prompt) % 64 :], skip_special=False)
                assert bool(evidence) is some, (messages, asked, tokens)
                assert all(e.text in visible for e in evidence)
    assert prompts.build(context, asked, [], Recall(4, 192), lacks_answer=True).tokens == prompt, (
        "no room to say that it is not there"
    )


def test_a_judged_answer_attends_to_the_beginning_of_its_prompt(tiny_model: Path, tmp_path: Path) -> None:
    """If nothing was read before it, the first tokens that the memory keeps are those of the prompt."""
    options = {"segment_length": 16, "sinks": 4, "window": 128}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    prompts = PromptBuilder(SimpleNamespace(model=served), None, INSTRUCT)  # type: ignore[arg-type]
    short, probe = served.tokenizer.encode("A boat."), AnswerProbe(0, torch.zeros(2, 16), 0.0)
    for read, own in ((short, 0), ([], None)):
        session = Session("", "", "", ("doc",), Snapshot(open=tuple(read), position=len(read)))
        context = TurnContext(session, served.memory.initial_state(1), (), (), AsyncMock())
        built = prompts.build(context, QUESTION, passages_of(ALICE)[:1], Recall(4, 96), lacks_answer=False, probe=probe)
        assert built.probe is probe
        assert len(built.tokens) > 16
        assert built.attended_before == own


@pytest.mark.parametrize("read", [0, 2, 30, 300])
def test_later_answers_attend_to_the_conversation_from_its_beginning_while_that_fits(
    read: int, tiny_model: Path, tmp_path: Path
) -> None:
    """`read`: tokens of the document: none, fewer than the window's first tokens, less than a segment, more than the window."""
    options = {"segment_length": 16, "sinks": 4, "window": 208}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory, tokenizer = served.memory, served.tokenizer
    prompts = PromptBuilder(SimpleNamespace(model=served), None, TEMPLATE)  # type: ignore[arg-type]
    found, document = [passages_of(ALICE)[6].part(0, 100)], tokenizer.encode(NOVEL.read_text()[:4000])[:read]
    everything, before, answered, whole = list(document), list[int](), list[int](), list[bool]()
    snapshot, state = Snapshot(open=tuple(document[read // 16 * 16 :]), position=read), memory.initial_state(1)
    state = memory.read(torch.tensor([document[: read // 16 * 16]]), state) if read >= 16 else state
    for messages in range(0, 16, 2):
        answer = AnswerMessage("m", "s", served.name, 0.0, 0, found, usage=Usage(len(everything), 5, 0))
        for continued in (answer, None) if messages else (None,):
            context = TurnContext(
                Session("", "", "", ("doc",), snapshot, messages), state, (), (), AsyncMock(), continued=continued
            )
            if continued is None:
                prompt = prompts.build(context, "Who waited?", found, Recall(4, 96), lacks_answer=False)
            else:
                prompt = prompts.continuation(context, Recall(4, 96))
            request = AnswerRequest(
                state, list(snapshot.open), prompt.tokens, SamplingParams(), 0, lambda _: None, prompt.visible_kept,
                prompt.attended_before,
            )  # fmt: skip
            if request.attended_before is not None:
                request.hide_earlier_tokens(request.attended_before)
            request.collect_context(memory.kept_tokens(state))
            first = state["sinks"][0, : min(4, int(state["seen"]))].tolist() if prompt.attended_before is None else []
            attended = [*first, *request.context]
            if continued is not None:
                assert attended == [*before, *answered, *prompt.tokens], "what the first part attended to"
        whole.append(not messages or prompt.attended_before != 0)
        assert not whole[-1] or attended[: len(before)] == before
        assert not whole[-1] or tokenizer.decode(attended).count(found[0].text) == 1, "the passage is not repeated"
        before, answered = attended, tokenizer.encode(f" I wait {messages}.")
        everything += [*prompt.tokens, *answered]
        end = len(everything) // 16 * 16
        new = everything[snapshot.position - len(snapshot.open) : end]
        state = memory.read(torch.tensor([new]), state) if new else state
        snapshot = Snapshot(open=tuple(everything[end:]), position=len(everything), context_start=prompt.context_start)
    anew = whole.index(False)  # the window cannot hold all
    assert anew > 2
    assert whole[anew + 1 : anew + 3] == [True] * 2, "a conversation that begins anew goes on from there"


@pytest.mark.parametrize("read", [2, 10, 20])
def test_an_answer_that_hid_a_short_text_is_continued_without_it(read: int, tiny_model: Path, tmp_path: Path) -> None:
    """`read`: tokens of the text: fewer than the window's first tokens, less than a segment, more than a segment."""
    options = {"segment_length": 16, "sinks": 4, "window": 128}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory = served.memory
    prompts = PromptBuilder(SimpleNamespace(model=served), None, INSTRUCT)  # type: ignore[arg-type]
    text = served.tokenizer.encode(ALICE)[:read]
    open = text[read // 16 * 16 :]
    state = memory.read(torch.tensor([text[:16]]), memory.initial_state(1)) if read >= 16 else memory.initial_state(1)
    context = TurnContext(
        Session("", "", "", ("doc",), Snapshot(open=tuple(open), position=read)), state, (), (), AsyncMock()
    )
    hides = {"lacks_answer": False, "probe": AnswerProbe(0, torch.zeros(2, 16), 0.0)}
    first = prompts.build(context, "Who?", [passages_of(ALICE)[6].part(0, 20)], Recall(4, 96), **hides)
    assert (first.attended_before, first.context_start) == (0, read)
    said = [*open, *first.tokens[: 16 - len(open) - 1]]  # still in the open segment
    answer = AnswerMessage("m", "s", served.name, 0.0, 0, first.evidence, usage=Usage(len(said), 1, 0))
    after = Session(
        "", "", "", ("doc",), Snapshot(open=tuple(said), position=read + len(said) - len(open), context_start=read), 2
    )
    context = TurnContext(after, state, (), (), AsyncMock(), continued=answer)
    continued = prompts.continuation(context, Recall(4, 96))
    assert continued.attended_before == len(said) - len(open)
    assert continued.context_start == read


def test_an_answer_to_a_rewritten_question_is_continued_as_one_to_that_question(model: Path) -> None:
    """Its citations are for this question, and the stream of the continuation names it from its first event on."""
    engine = SimpleNamespace(model=load_model(str(model), models_dir=model.parent))
    standalone = "Why did the queen leave?"
    cut = AnswerMessage("m", "s", "model", 0.0, 0, (), content="Because", standalone_question=standalone)
    context = TurnContext(
        Session("", "", "", ("doc",), Snapshot(position=40), 2), engine.model.memory.initial_state(1), (),
        [Exchange("Why?", "Because")], AsyncMock(), continued=cut,
    )  # fmt: skip
    prompt = PromptBuilder(engine, None, INSTRUCT).continuation(context, Recall(4, 96))  # type: ignore[arg-type]
    assert (prompt.question, prompt.standalone) == (standalone, standalone)


def test_a_conversation_begins_anew_with_its_system_message_if_there_is_evidence(
    tiny_model: Path, tmp_path: Path
) -> None:
    options = {"segment_length": 16, "sinks": 4, "window": 208}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    memory, tokenizer = served.memory, served.tokenizer
    prompts = PromptBuilder(SimpleNamespace(model=served), None, TEMPLATE)  # type: ignore[arg-type]
    found, read = [passages_of(ALICE)[6].part(0, 100)], tokenizer.encode(NOVEL.read_text()[:4000])[: 16 * 40]
    state = memory.read(torch.tensor([read]), memory.initial_state(1))
    session = Session("", "", "", ("doc",), Snapshot(position=len(read), context_start=10), 3)

    def built(
        passages: list[Passage],
        asked: str = "Who?",
        *,
        unread: Sequence[Message] = (),
        system: str | None = "Be brief.",
        **more: Any,
    ) -> tuple[Prompt, str]:
        context = TurnContext(session, state, unread, (), AsyncMock(), system=system)
        prompt = prompts.build(context, asked, passages, Recall(4, 96), lacks_answer=False, **more)
        return prompt, tokenizer.decode(prompt.tokens, skip_special=False)

    anew, text = built(found)
    assert (anew.attended_before, anew.context_start) == (0, len(read))
    assert text.count("Be brief.") == 1
    assert served.chat.system is not None
    assert anew.tokens[: len(served.chat.system[0])] == list(served.chat.system[0])
    assert built(found, unread=[Message("system", "Be brief.")])[1].count("Be brief.") == 1
    assert built(found, system=None)[0].tokens[: len(served.chat.head)] == list(served.chat.head)
    said = built(found, previous=Exchange("Who waited?", "Kitty."))[1]
    assert said.index("Be brief.") < said.index("Who waited?") < said.index("Kitty.") < said.index(found[0].text)
    earlier = [Message("user", "Who slept?"), Message("assistant", "Dinah.")]
    said = built(found, previous=Exchange("Who waited?", "Kitty."), unread=earlier)[1]
    assert ("Who slept?" in said, "Who waited?" in said) == (True, False)
    assert "Be brief." not in built(found, system="Be brief. " * 50)[1], "it would take more than half of the room"
    for others in (built([]), built(found, question="Who asked?"), built(found, "Why? " * 300)):
        assert (others[0].attended_before, others[0].visible_kept, others[0].context_start) == (None, 256, None)
        assert "Be brief." not in others[1]


@pytest.mark.parametrize(
    ("message", "whole", "shows"),
    [
        ("Please translate your last answer into French for me", False, True),
        ("Und was kostet ein Boot im Winter?", False, True),
        ("Which ships sank in the storm of May?", False, False),
        ("Please list all the characters of the story", True, False),
    ],
)
def test_a_prompt_that_begins_anew_has_the_last_question_and_answer_if_the_message_may_refer_to_them(
    message: str, whole: bool, shows: bool, tiny_model: Path, tmp_path: Path
) -> None:
    options = {"segment_length": 16, "sinks": 4, "window": 208}
    served = load_model(str(tiny_model / "backbone"), models_dir=tmp_path, memory="window", options=options)
    found = Found([passages_of(ALICE)[6].part(0, 60)], Overview(("Alice",), ()) if whole else None)
    passages = SimpleNamespace(find=AsyncMock(return_value=found), complete=AsyncMock(return_value=True))
    prompts = PromptBuilder(SimpleNamespace(model=served), passages, TEMPLATE)  # type: ignore[arg-type]
    read = served.tokenizer.encode(NOVEL.read_text()[:4000])[: 16 * 40]
    state = served.memory.read(torch.tensor([read]), served.memory.initial_state(1))
    session = Session("", "", "", ("doc",), Snapshot(position=len(read), context_start=10), 2)
    context = TurnContext(session, state, (), [Exchange("Who waited?", "Kitty.")], AsyncMock())
    prompt = asyncio.run(prompts.prompt(context, message, Recall(16, 64)))
    assert prompt.attended_before == 0
    assert ("Who waited?" in served.tokenizer.decode(prompt.tokens)) is shows


@pytest.mark.parametrize(
    ("message", "answer", "tokens", "repeats"),
    [
        ("Why?", "She slept.", 800, True),
        ("Why?", "She slept.", 40, False),
        ("Why?", "", 800, False),
        ("Which ships sank in the storm of May?", "She slept.", 800, False),
    ],
)
def test_a_question_is_repeated_if_the_message_refers_to_it_and_there_is_room(
    model: Path, message: str, answer: str, tokens: int, repeats: bool
) -> None:
    engine = SimpleNamespace(model=load_model(str(model), models_dir=model.parent))
    found = Found(passages_of(ALICE)[4:6])
    passages = SimpleNamespace(find=AsyncMock(return_value=found))
    prompts = PromptBuilder(engine, passages, INSTRUCT)  # type: ignore[arg-type]
    session = Session("", "", "", ("doc",), Snapshot(position=40), 2)
    state = engine.model.memory.initial_state(1)
    context = TurnContext(session, state, (), [Exchange("Who did not see the queen?", answer)], AsyncMock())
    prompt = asyncio.run(prompts.prompt(context, message, Recall(16, tokens)))
    said = engine.model.tokenizer.decode(prompt.tokens, skip_special=False)
    assert ("Who did not see the queen?\nAnswer: She slept.\nQuestion: Why?" in said) is repeats
    assert said.count("Who did not see the queen?") == repeats


@pytest.mark.parametrize(
    ("message", "standalone", "short", "asked"),
    [
        ("Why did she do that?", "Why did the queen leave?", False, "Why did the queen leave?"),
        ("Where, then?", "Where did the queen go?", False, "Where did the queen go?"),
        ("Why did she do that?", None, False, None),
        ("Why did she do that?", "Why did the queen leave?", True, None),
        ("Where did Dinah sleep?", "Where?", False, None),
        ("Why did you say that?", "Why?", False, None),
        ("Thanks to the queen", "Why?", False, None),
    ],
)
def test_a_question_that_refers_to_the_conversation_is_rewritten(
    model: Path, message: str, standalone: str | None, short: bool, asked: str | None
) -> None:
    """`short`: an answer gets all of the text. `asked`: what the prompt asks instead of the message, and what is searched for."""
    engine = SimpleNamespace(model=load_model(str(model), models_dir=model.parent))
    find = AsyncMock(return_value=Found(passages_of(ALICE)[4:6]))
    passages = SimpleNamespace(
        find=find, shown_whole=AsyncMock(return_value=short), all_indexed=AsyncMock(return_value=True)
    )
    written = None if standalone is None else (standalone, search_query(standalone, None))
    rewriter: Any = SimpleNamespace(standalone=AsyncMock(return_value=written))
    prompts = PromptBuilder(engine, passages, INSTRUCT)  # type: ignore[arg-type]
    session = Session("", "", "", ("doc",), Snapshot(position=40), 2)
    state = engine.model.memory.initial_state(1)
    context = TurnContext(session, state, (), [Exchange("Who left?", "The queen.")], AsyncMock())
    prompt = asyncio.run(prompts.prompt(context, message, Recall(16, 800), rewriter=rewriter))
    said = engine.model.tokenizer.decode(prompt.tokens, skip_special=False)
    assert prompt.question == (asked or message)
    assert (asked or message) in said
    assert (message in said) is (asked is None)
    assert ("Who left?" in said) is (asked is None and message.startswith("Why"))
    query = find.await_args.args[1]
    assert (query.text == asked) is (asked is not None)


def test_a_message_with_tools_is_not_rewritten(model: Path) -> None:
    engine = SimpleNamespace(model=load_model(str(model), models_dir=model.parent))
    passages = SimpleNamespace(find=AsyncMock(return_value=Found([])), all_indexed=AsyncMock(return_value=True))
    retriever = Retriever(engine, passages, INSTRUCT)  # type: ignore[arg-type]
    earlier = Exchange("Who left?", "The queen.")
    session = Session("", "", "", ("doc",), Snapshot(position=40), 2)
    context = TurnContext(session, engine.model.memory.initial_state(1), (), [earlier], AsyncMock())
    rewriter: Any = SimpleNamespace()
    found = retriever.retrieve(
        context, ("doc",), "Why?", earlier, Recall(16, 800), question_only=False, may_decline=True, rewriter=rewriter
    )
    assert asyncio.run(found).question == "Why?"


async def test_what_was_retrieved_is_shared_by_the_answers_to_a_message() -> None:
    shared, retrieved = SharedRetrieval(), Retrieved("Why did the queen leave?")
    began, end = asyncio.Event(), asyncio.Event()

    async def fails() -> Retrieved:
        began.set()
        await end.wait()
        raise ConnectionError

    search = AsyncMock(return_value=retrieved)
    first = asyncio.create_task(shared.get(fails))
    await began.wait()
    others = [asyncio.create_task(shared.get(search)) for _ in range(3)]
    end.set()
    with pytest.raises(ConnectionError):
        await first
    assert await asyncio.gather(*others) == [retrieved] * 3
    assert search.await_count == 1
