from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from everlong_lab.corpora import text
from everlong_lab.tasks import Setting
from everlong_lab.tasks.facts import OPPOSITE, PEOPLE, PLACES, Facts, FactsConfig
from everlong_models.errors import ConfigError, DataError, TokenError
from everlong_models.memories.state import MemoryState
from everlong_models.text.tokenizer import Tokenizer
from tests.tinymodel import NOVEL, STORY

S = 32


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "books-260").mkdir()
    for file in (NOVEL, STORY):
        sentences = file.read_text().split(". ")
        sentences[40::40] = ["They met in the garden"] * len(
            sentences[40::40]
        )  # one that resembles a fact, now and then
        (folder / "books-260" / file.name).write_text(". ".join(sentences))
    return folder


@pytest.fixture(scope="module")
def tokenizer(data):
    return Tokenizer(Facts.make_tokenizer(FactsConfig(kind="detect"), data))


@pytest.fixture
def make(data, tokenizer):
    def facts(kind="detect", seed=0, segment_length=S, **fields):
        config = FactsConfig(kind=kind, noise_characters=60_000, **fields)
        return Facts(config, Setting(tokenizer, segment_length, data, seed))

    return facts


def documents(task, rows=24, segments=3, step=0):
    batch = task.batch(step, rows, segments)
    return [task.tokenizer.decode(row.tolist()) for row in batch.tokens]


def neighbours(told):
    """Parse the sentences into who is in which direction of whom."""
    known = {}
    for a, direction, b in re.findall(r"The (\w+) is (\w+) of the (\w+)\.", told):
        if a in PLACES and b in PLACES:
            known[direction, b], known[OPPOSITE[direction], a] = a, b
    return known


@pytest.mark.parametrize("kind", ["memorize", "detect"])
def test_the_fact_answers_the_question(make, kind):
    for line in documents(make(kind)):
        told, question, answer = re.fullmatch(r"(.*) Where is (\w+)\? Answer: (\w+)", line, re.DOTALL).groups()
        fact = re.findall(rf" {question} [a-z ]+ to the (\w+)\.", told)
        assert answer in fact
        assert kind == "detect" or re.match(rf" {question} [a-z ]+ to the {answer}\.", told)


def test_two_facts_answer_the_question(make):
    asked, places = set(), set()
    for line in documents(make("reasoning"), rows=64):
        told, question, answer = re.fullmatch(r"(.*) What is (.*)\? Answer: (\w+)", line, re.DOTALL).groups()
        if found := re.fullmatch(r"(\w+) of the (\w+)", question):
            direction, place = found.groups()
        else:
            place, direction = re.fullmatch(r"the (\w+) (\w+) of", question).groups()
            direction = OPPOSITE[direction]
        assert neighbours(told)[direction, place] == answer
        asked.add(bool(found))
        places.add(answer)
        assert len(re.findall(r"The \w+ is \w+ of the \w+\.", told)) >= 2
    assert asked == {True, False}
    assert places == set(PLACES)


def test_facts_stand_everywhere_and_always_between_sentences(make):
    """Each of 4 segments has about a quarter of 400 facts, although sentences are as long as a segment."""
    task, at = make("detect"), []
    for line in documents(task, rows=400, segments=4):
        end = line.rindex(" Where is")
        for found in re.finditer(rf" ({'|'.join(PEOPLE)}) [a-z ]+ to the ({'|'.join(PLACES)})\.", line):
            assert found.start() == 0 or line[found.start() - 1] in ".!?" or found.end() == end
            at.append(found.start() / end)
    counts, _ = np.histogram(at, bins=4, range=(0, 1))
    assert len(at) >= 400
    assert min(counts) > 0.15 * len(at)
    assert max(counts) < 0.35 * len(at)


def test_the_answer_alone_is_a_target_and_segments_are_full(make):
    batch = make().batch(3, 5, 4)
    assert batch.tokens.shape == (5, 4 * S)
    assert batch.targets.sum(1).tolist() == [1] * 5
    assert batch.targets[:, -1].all()
    assert batch.lengths.tolist() == [4 * S] * 5
    assert batch.fresh


def test_batches_follow_from_seed_and_step(make):
    first, again = make(distracting=0.5), make(distracting=0.5)
    assert torch.equal(first.batch(7, 4, 2).tokens, again.batch(7, 4, 2).tokens)
    assert not torch.equal(first.batch(7, 4, 2).tokens, first.batch(8, 4, 2).tokens)
    assert not torch.equal(first.batch(7, 4, 2).tokens, make(seed=1, distracting=0.5).batch(7, 4, 2).tokens)


def test_distracting_noise_has_the_words_of_facts(make):
    def share(task):
        words = torch.tensor(task._words)
        tokens = task.batch(0, 64, 4).tokens[:, S : 3 * S]
        return float(torch.isin(tokens.reshape(-1, S), words).any(1).float().mean())

    assert share(make("memorize", distracting=1.0)) > 2 * share(make("memorize"))


def test_a_distracting_run_holds_a_word_of_facts_and_begins_with_a_sentence_if_it_can(make):
    task, random = make(), np.random.default_rng(0)
    noise, begun = task._noise, 0
    for _ in range(200):
        run = noise.run_with(random, S, task._words)
        assert len(run) == S
        assert np.isin(run, task._words).any()
        begun += any(np.array_equal(run, noise.cut(start, start + S)) for start in noise._starts)
    assert begun > 150
    assert len(noise.run_with(random, S, [task.vocab_size])) == S  # a word that is nowhere


@pytest.mark.parametrize("kind", ["detect", "reasoning"])
def test_lookalikes_are_facts_but_for_one_word(make, kind):
    task, random = make(kind, lookalikes=1.0), np.random.default_rng(0)
    people, places = rf"({'|'.join(PEOPLE)})", rf"({'|'.join(PLACES)})"
    if kind == "detect":
        fact, almost = (
            rf" {people} [a-z ]+ to the {places}",
            rf" ({people}|[A-Z][a-z]*) [a-z ]+ to the ({places}|[a-z]+)",
        )
    else:
        fact = rf" The {places} is [a-z]+ of the {places}"
        almost = rf" The ({places} is [a-z]+ of the [a-z]+|[a-z]+ is [a-z]+ of the {places})"
    for _ in range(200):
        said = task.tokenizer.decode(task._lookalike(random, kind))
        assert re.fullmatch(almost + r"\.?", said)
        assert not re.match(fact, said)
    lines = documents(task, segments=4)
    assert sum(len(re.findall(almost, line)) for line in lines) > 1.5 * len(lines)


def test_cut_noise_has_words_of_facts_behind_borders_and_leaves_facts_whole(make):
    def share(task):
        """Return the share of segments that have a word of the facts within their first three tokens."""
        heads = task.batch(0, 64, 4).tokens[:, S : 3 * S].reshape(-1, S)[:, :3]
        return float(torch.isin(heads, torch.tensor(task._words)).any(1).float().mean())

    assert share(make("memorize", cut=1.0)) > 0.6
    assert share(make("memorize")) < 0.2
    test_the_fact_answers_the_question(lambda kind: make(kind, cut=1.0, lookalikes=0.5), "detect")
    test_two_facts_answer_the_question(lambda kind: make(kind, cut=1.0))


@pytest.mark.parametrize("kind", ["detect", "reasoning"])
def test_segments_without_a_fact_are_idle(make, kind):
    task = make(kind, recited=0.5)
    batch = task.batch(0, 32, 5)
    told = r" The \w+ is \w+ of the \w+\." if kind == "reasoning" else r" \w+ [a-z ]+ to the \w+\."
    for row, idle in zip(batch.tokens.tolist(), batch.idle.tolist(), strict=True):
        busy = {4}
        for fact in re.findall(told, task.tokenizer.decode(row)):
            ids = task.tokenizer.encode(fact)
            at = [place for place in range(len(row)) if row[place : place + len(ids)] == ids]
            busy |= {token // S for place in at for token in range(place, place + len(ids))}
        assert {segment for segment in range(5) if not idle[segment]} <= busy
        assert not idle[4]
    assert 0.3 < batch.idle.float().mean() < 0.8
    memorize = make("memorize").batch(0, 4, 3)
    assert memorize.idle.tolist() == [[False, True, False]] * 4


def test_facts_may_be_told_early(make):
    def first(**fields):
        idle = make("reasoning", **fields).batch(0, 64, 5).idle
        return float((~idle[:, 0] & idle[:, 1:4].all(1)).float().mean())

    assert first(early=1.0) == 1
    assert first() < 0.3
    assert 0.3 < first(early=0.5) < 0.8
    told = make("reasoning", early=1.0)
    assert len({line[:20] for line in documents(told, rows=64)}) > 32, "not always at the very beginning"
    test_two_facts_answer_the_question(lambda kind: make(kind, early=1.0))


def test_more_of_the_questions_to_learn_from_may_be_direct(make):
    def direct(**fields):
        lines = documents(make("reasoning", **fields), rows=100, segments=1)
        return sum(bool(re.search(r"What is \w+ of", line)) for line in lines)

    assert 30 < direct() < 70
    assert direct(direct=0.9) > 80


def test_held_out_text_is_not_learnt_from(make, data):
    task = make()
    windows = np.lib.stride_tricks.sliding_window_view
    seen = {tuple(window) for window in windows(task._noise._ids, 40)}
    unseen = [tuple(window) for window in windows(task._held_out._ids, 40)]
    assert len(unseen) > 100_000
    assert not any(window in seen for window in unseen)


def test_one_book_in_ten_is_held_out_whatever_the_others_are(tmp_path):
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text("A.")
    kept, held_out = text.books(tmp_path)
    assert not {*kept} & {*held_out}
    assert 1 <= len(held_out) <= 12
    kept[0].unlink()
    assert text.books(tmp_path)[1] == held_out


class Listener:
    """A memory that holds the last fact: a perfect model for `memorize` and `detect`."""

    segment_length = S

    def __init__(self, task, *, deaf=False):
        self.task, self.deaf = task, deaf

    def initial_state(self, rows=1):
        return MemoryState({"place": torch.zeros(rows, dtype=torch.int64), "tail": torch.zeros(rows, 12).long()})

    def read(self, tokens, state):
        """Also keeps the last 12 tokens, because a fact may cross a border of segments."""
        line, places = torch.cat([state["tail"], tokens], dim=1), state["place"].clone()
        for row, ids in enumerate(line.tolist()):
            said = self.task.tokenizer.decode(ids)
            for place in re.findall(rf" (?:{'|'.join(PEOPLE)}) [a-z ]+ to the ({'|'.join(PLACES)})\.", said):
                places[row] = PLACES.index(place)
        return MemoryState({"place": places, "tail": line[:, -12:]})

    def forward(self, tokens, state):
        logits = torch.zeros(*tokens.shape, self.task.vocab_size)
        for row, place in enumerate(self.read(tokens, state)["place"].tolist()):
            logits[row, -1, self.task._answers[PLACES[0 if self.deaf else place]]] = 1
        return logits


@pytest.mark.parametrize("kind", ["memorize", "detect"])
def test_accuracy_of_who_knows_and_of_who_guesses(make, kind):
    task = make(kind)
    known = task.accuracies(Listener(task), samples=48, lengths=[4, 1, 4], rows=32)
    guessed = task.accuracies(Listener(task, deaf=True), samples=48, lengths=[1, 4], rows=32)
    assert set(known) == {1, 4}
    assert min(known.values()) >= 0.97  # a novel may say by itself that John went to the office
    assert max(guessed.values()) < 0.45
    assert task.evaluate(Listener(task), samples=48, segments=4) == {"accuracy": known[4]}


def test_facts_are_said_again_before_the_question(make):
    task = make("reasoning", recited=0.5)
    words = {f" {word}" for word in (*PLACES, *OPPOSITE)}
    again = 0
    for segments in (1, 3):
        batch = task.batch(0, 48, segments)
        for tokens, targets in zip(batch.tokens.tolist(), batch.targets, strict=True):
            line = task.tokenizer.decode(tokens)
            told = re.findall(rf" The (?:{'|'.join(PLACES)}) is \w+ of the (?:{'|'.join(PLACES)})\.", line)
            learnt = [
                task.tokenizer.decode([token]) for token, is_one in zip(tokens, targets.tolist(), strict=True) if is_one
            ]
            assert line.endswith(f"? Answer:{learnt[-1]}")
            if len(learnt) > 1:
                assert segments == 3
                assert told == told[:2] * 2, "in the order in which they were told"
                recital = re.findall(r" \w+", "".join(told[2:]))
                assert learnt[:-1] == [word for word in recital if word in words]
                assert re.search(rf"{re.escape(''.join(told[2:]))} What is [\w ]+\? Answer: \w+$", line)
                again += 1
            elif segments == 3:
                assert len(told) == 2
    assert 12 < again < 36


class Scribe:
    """Remembers everything, and answers from the facts recited in the open segment. `confused`: it recites every direction
    as its opposite."""

    def __init__(self, task, confused=False):
        self.task = task
        self.confused = confused

    def initial_state(self, rows):
        return MemoryState({"line": torch.zeros(rows, 0, dtype=torch.int64)})

    def read(self, tokens, state):
        return MemoryState({"line": torch.cat([state["line"], tokens], dim=1)})

    def forward(self, tokens, state):
        logits = torch.zeros(*tokens.shape, self.task.vocab_size)
        decode = self.task.tokenizer.decode
        for row, (before, now) in enumerate(zip(state["line"].tolist(), tokens.tolist(), strict=True)):
            said = decode(now)
            if asked := re.search(r" What is (.*)\? Answer:$", said):
                logits[row, -1, self._answer(said, asked[1])] = 1
            else:
                logits[row, -1, self._next(decode(before) + said)] = 1
        return logits

    def _next(self, line):
        told = "".join(re.findall(rf" The (?:{'|'.join(PLACES)}) is \w+ of the (?:{'|'.join(PLACES)})\.", line)[:2])
        told = self.task.tokenizer.encode(told)
        line = self.task.tokenizer.encode(line)
        done = max(n for n in range(len(told)) if line[len(line) - n :] == told[:n])
        word = self.task.tokenizer.decode([told[done]]).strip()
        return self.task.tokenizer.encode(f" {OPPOSITE[word]}" if self.confused and word in OPPOSITE else f" {word}")[0]

    def _answer(self, said, asked):
        if direct := re.fullmatch(r"(\w+) of the (\w+)", asked):
            direction, place = direct.groups()
        else:
            place, direction = re.fullmatch(r"the (\w+) (\w+) of", asked).groups()
            direction = OPPOSITE[direction]
        return self.task._answers[neighbours(said).get((direction, place), PLACES[0])]


def test_who_says_the_facts_again_answers_from_its_own_words(make):
    task = make("reasoning", recited=0.5)
    clear, confused = Scribe(task), Scribe(task, confused=True)
    assert task.accuracies(clear, samples=48, lengths=[4], recite=True) == {4: 1.0}
    assert task.accuracies(confused, samples=48, lengths=[4], recite=True)[4] < 0.3
    assert task.accuracies(clear, samples=48, lengths=[4])[4] < 0.6, "without, few facts stand in the last segment"
    scores = task.evaluate(clear, samples=48, segments=4)
    assert scores["recited"] == 1.0
    assert scores["accuracy"] < 0.6


def test_what_does_not_fit_is_named(make, tmp_path, tokenizer):
    with pytest.raises(ConfigError, match=r"segment_length=4.*must hold the question and its answer"):
        make(segment_length=4)
    with pytest.raises(ConfigError, match=r"segment_length=16.*must hold the facts, the question and its answer"):
        make("reasoning", segment_length=16, recited=0.5)
    with pytest.raises(TokenError, match="1 segments of 16 tokens do not hold the facts"):
        make("reasoning", segment_length=16).batch(0, 1, 1)

    def learn():
        Facts(FactsConfig(kind="detect"), Setting(tokenizer, S, tmp_path, 0)).batch(0, 1, 1)

    with pytest.raises(DataError, match=r"no data set 'books-260'"):
        learn()
    books = tmp_path / "books-260"
    books.mkdir()
    (books / "one.txt").write_text("Once upon a time. It rained. It ended.")
    with pytest.raises(DataError, match="has 1 texts"):
        learn()
    (books / "one.txt").write_bytes(b"\xff\xfe\x00")
    (books / "two.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match=r"cannot read .*(one|two)\.txt"):
        learn()
    (books / "one.txt").write_text("  \n")
    (books / "two.txt").write_text("  \n")
    with pytest.raises(DataError, match=r"(one|two)\.txt is empty"):
        learn()


def test_packed_data_is_unpacked_once_and_a_broken_archive_is_named(tmp_path, monkeypatch):
    import tarfile

    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("A.")
    with tarfile.open(tmp_path / "words.tar.xz", "w:xz") as packed:
        packed.add(tmp_path / "letters", "letters")
    folder = text.find(tmp_path, "words")
    assert (folder / "letters" / "a.txt").read_text() == "A."
    (folder / "letters" / "a.txt").write_text("B.")
    assert text.find(tmp_path, "words") == folder
    assert (folder / "letters" / "a.txt").read_text() == "B."
    whole = (tmp_path / "words.tar.xz").read_bytes()
    (tmp_path / "half.tar.xz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot unpack .*half\.tar\.xz"):
        text.find(tmp_path, "half")
