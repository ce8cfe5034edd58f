from __future__ import annotations

import re
from collections import Counter

import numpy as np
import pytest
import torch

from everlong_lab.corpora import text
from everlong_lab.corpora.haystack import hide
from everlong_lab.eval.babilong import babilong, in_window, parse_length, table
from everlong_lab.eval.interval import wilson
from everlong_lab.tasks import Setting, babi, greedy
from everlong_lab.tasks.babi import LABELS, PLACES, BabiQuestion
from everlong_lab.tasks.babilong import ANSWER, Babilong, BabilongConfig, is_right
from everlong_models.backbone.loading import load_backbone
from everlong_models.errors import ConfigError, DataError, TokenError
from everlong_models.text.tokenizer import Tokenizer
from tests.lab.tasks.oracle import Oracle
from tests.models import model_folders
from tests.tinymodel import NOVEL, STORY

S = 64
PEOPLE = ("Anna", "Boris", "Clara")  # not bAbI's: nothing of it is stored here


def story_file(file, seed, stories=60):
    """Return qa1 in bAbI's format; a question is about all facts before it."""
    random, lines = np.random.default_rng(seed), []
    for _ in range(stories):
        where, said, number = {}, {}, 0
        for _ in range(3):
            for _ in range(2):
                person, place = str(random.choice(PEOPLE)), str(random.choice(PLACES))
                where[person], number = place, number + 1
                said[person] = number
                lines.append(f"{number} {person} moved to the {place}.")
            person = str(random.choice(list(where)))
            number += 1
            lines.append(f"{number} Where is {person}? \t{where[person]}\t{said[person]}")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "books-260").mkdir()
    for file in (NOVEL, STORY):
        (folder / "books-260" / file.name).write_text(file.read_text()[:60_000])
    tasks = folder / "babi" / "babi" / "tasks"
    story_file(tasks / "en-10k" / "qa1_one_train.txt", 1)
    story_file(tasks / "en-10k" / "qa1_one_test.txt", 2)
    return folder


@pytest.fixture(scope="module")
def tokenizer(data):
    return Tokenizer(Babilong.make_tokenizer(BabilongConfig(tasks=("qa1",)), data))


@pytest.fixture(scope="module")
def task(data, tokenizer):
    return Babilong(BabilongConfig(tasks=("qa1",), noise_characters=60_000), Setting(tokenizer, S, data, 0))


def latest(told):
    """Return where the person of the last question is, by the last fact about them."""
    person = re.findall(r"Where is (\w+)\?", told)[-1]
    places = re.findall(rf" {person} moved to the (\w+)\.", told)
    return places[-1] if places else "nowhere"


def test_a_question_is_about_all_facts_of_its_story_before_it(tmp_path):
    file = tmp_path / "qa1_a_test.txt"
    file.write_text(
        "1 Anna moved to the garden.\n2 Where is Anna? \tgarden\t1\n3 Anna moved to the office.\n"
        "4 Where is Anna?\toffice\t3\n1 Boris moved to the kitchen.\n2 Where is Boris?\tkitchen\t1\n"
    )
    assert babi.read(file, PLACES) == [
        BabiQuestion(("Anna moved to the garden.",), "Where is Anna?", "garden", (0,)),
        BabiQuestion(("Anna moved to the garden.", "Anna moved to the office."), "Where is Anna?", "office", (1,)),
        BabiQuestion(("Boris moved to the kitchen.",), "Where is Boris?", "kitchen", (0,)),
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("1 Anna moved.\nAnna stayed.\n", "line 2: must be a number and a sentence"),
        ("1 Anna moved.\n3 Anna stayed.\n", "line 2: number 3 after 1; a line is missing"),
        ("2 Anna moved.\n", "line 1: number 2 after 0"),
        ("1 Anna moved.\n2 Where is Anna?\tattic\t1\n", "line 2: the answer 'attic' must be one of bathroom"),
        ("1 Where is Anna?\toffice\t1\n", "line 1: supporting facts '1' must be lines of this story"),
        ("1 Anna moved.\n2 Where is Anna?\toffice\n", "line 2: supporting facts '' must be"),
        ("1 Anna moved.\n", "has no questions"),
        ("\n", "is empty"),
    ],
)
def test_broken_lines_are_named(tmp_path, lines, said):
    file = tmp_path / "qa1_a_test.txt"
    file.write_text(lines)
    with pytest.raises(DataError, match=rf"qa1_a_test\.txt.*{re.escape(said)}"):
        babi.read(file, PLACES)


def test_training_questions_that_were_not_released_are_those_made_later(data, tmp_path):
    story_file(tmp_path / "babi" / "generated" / "qa3_made_train.txt", 3, stories=5)
    story_file(tmp_path / "babi" / "tasks" / "en" / "qa3_small_train.txt", 4, stories=2)
    assert [len(file) for file in babi.questions(tmp_path, "qa3", held_out=False)] == [15, 6]
    with pytest.raises(DataError, match=r"has no en-10k/qa3_\*_test\.txt"):
        babi.questions(tmp_path, "qa3", held_out=True)
    (train,), (test,) = (babi.questions(data, "qa1", held_out=held) for held in (False, True))
    assert len(train) == len(test) == 180
    assert train != test


def test_documents_hold_the_facts_in_order_between_sentences_and_the_answer_is_the_target(task):
    batch = task.batch(0, 32, 3)
    ends, shares = set(), []
    for ids, length, targets in zip(batch.tokens, batch.lengths.tolist(), batch.targets, strict=True):
        assert 2 * S < length <= 3 * S
        ends.add(length % S)
        assert targets[:length].sum() == targets.sum()
        line = task.encoder.tokenizer.decode(ids[:length].tolist())
        told, answer = line.rsplit("Answer:", 1)
        said = task.encoder.tokenizer.decode(ids[targets].tolist())
        assert answer == said
        assert said.strip() == latest(told)
        for fact in re.finditer(rf" (?:{'|'.join(PEOPLE)}) moved to the \w+\.", told):
            before = told[: fact.start()].rstrip()
            last = re.fullmatch(r"(?: \w+ moved to the \w+\.)*\n\nWhere is \w+\?\s*", told[fact.end() :])
            assert not before or before[-1] in '.!?"' or last
            shares.append(fact.start() / len(told))
    assert len(ends) > 10  # questions stand anywhere in the last segment
    assert min(shares) < 0.1
    assert max(shares) > 0.75


def test_batches_follow_from_seed_and_step(task, data, tokenizer):
    again, other = (Babilong(task.config, Setting(tokenizer, S, data, seed)) for seed in (0, 1))
    assert torch.equal(task.batch(5, 4, 2).tokens, again.batch(5, 4, 2).tokens)
    assert not torch.equal(task.batch(5, 4, 2).tokens[:, :S], task.batch(6, 4, 2).tokens[:, :S])
    assert not torch.equal(task.batch(5, 4, 2).tokens[:, :S], other.batch(5, 4, 2).tokens[:, :S])


def test_held_out_noise_and_questions_are_not_learnt_from(task):
    windows = np.lib.stride_tricks.sliding_window_view
    seen = {tuple(window) for window in windows(task._noise._ids, 40)}
    assert not any(tuple(window) in seen for window in windows(task._held_out._ids, 40))
    asked = {sample.question for sample in task.samples("qa1", None, 180, seed=0)}
    assert asked == set(babi.questions(task._data, "qa1", held_out=True)[0])


def test_samples_have_their_length_and_the_same_questions(task):
    alone, short, long = (task.samples("qa1", length, 20, seed=3, prompt="few-shot") for length in (None, 256, 1000))
    assert [s.question for s in alone] == [s.question for s in short] == [s.question for s in long]
    assert {len(sample.haystack) for sample in long} == {1000 - ANSWER}
    assert all(len(sample.haystack.ids()) == len(sample.haystack) for sample in (*alone, *short))
    assert max(len(sample.haystack) for sample in alone) < 256
    assert task.samples("qa1", 256, 20, seed=4) != short
    line = task.encoder.tokenizer.decode(alone[0].haystack.ids().tolist())
    assert line.index("Rose") < line.index(alone[0].question.facts[0])
    assert "Rose" not in task.encoder.tokenizer.decode(task.samples("qa1", None, 1, seed=3)[0].haystack.ids().tolist())
    assert 0 < len(task.samples("qa1", 60, 170, seed=0, fewer=True)) < 170
    with pytest.raises(TokenError, match="0 questions of qa1 fit into 40 tokens, need 1"):
        task.samples("qa1", 40, 1, seed=0)


def test_noise_is_cut_at_sentences_also_where_it_begins_anew(tokenizer):
    noise = text.Noise(["One. Two two two. Three three. Four four four four."], tokenizer)
    n = len(noise._ids)
    assert noise.cut(0, 2 * n).tolist() == noise.cut(0, n).tolist() * 2
    for place in range(3 * n):
        found = noise.nearest(place)
        assert found % n in noise._starts
        assert all(
            abs(found - place) <= abs(turn * n + int(start) - place) for start in noise._starts for turn in range(4)
        )
    for seed in range(50):
        random = np.random.default_rng(seed)
        hidden = hide(random, noise, before=[1], needles=[[2], [3, 3]], after=[4], length=30)
        ids = hidden.ids().tolist()
        assert (len(ids), ids[0], ids[-1]) == (30, 1, 4)
        assert list(hidden.places) == sorted(hidden.places)
    with pytest.raises(TokenError, match="length must be at least 5 tokens to hold the facts, got 4"):
        hide(random, noise, before=[1], needles=[[2], [3, 3]], after=[4], length=4)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("office", True),
        ("The office. Or the garden?", True),
        ("Office or garden", False),
        ("Anna is in the OFFICE\n", True),
        ("garden", False),
        ("", False),
        ("Well. office", False),
    ],
)
def test_the_scorers_rule(given, right):
    assert is_right(given, BabiQuestion((), "Where is Anna?", "office", ()), LABELS["qa1"]) == right


def test_labels_of_the_question_do_not_count():
    asked = BabiQuestion((), "What is the kitchen north of?", "office", ())
    assert is_right("The kitchen is north of the office", asked, LABELS["qa4"])
    assert not is_right("the kitchen", asked, LABELS["qa4"])


def test_who_knows_is_right_and_who_guesses_is_not(task, data, tokenizer):
    knows = Oracle(tokenizer, latest)
    guesses = Oracle(tokenizer, lambda told: "garden")
    assert task.evaluate(knows, samples=20, segments=4) == {"accuracy": 1.0, "qa1": 1.0, "remembered": 1.0}
    assert task.evaluate(guesses, samples=60, segments=4)["accuracy"] < 0.4
    counted = Counter()
    cells = list(
        babilong(
            knows, tokenizer, data=data, tasks=["qa1"], lengths=["0k", "300", "3k"], samples=10, prompt="bare", rows=4,
            progress=lambda task, length: counted.update([length]),
        )
    )  # fmt: skip
    assert counted == {"0k": 10, "300": 10, "3k": 10}
    assert [(cell.length, cell.right, cell.accuracy, cell.high) for cell in cells] == [
        (length, 10, 1.0, 1.0) for length in ("0k", "300", "3k")
    ]
    assert cells[-1].tokens == 10 * (3 * 1024 - ANSWER)
    assert cells[0].answers[0]["said"].strip() == cells[0].answers[0]["expected"]
    rows = table("oracle", cells, ["0k", "3k", "16k"])
    assert rows[0] == {
        "model": "oracle",
        "task": "qa1",
        "0k": "100% (72%–100%)",
        "3k": "100% (72%–100%)",
        "16k": "not run",
    }
    assert rows[1] == {"model": "published: RMT, GPT-2 137M", "task": "qa1", "0k": "100%", "3k": "–", "16k": "100%"}


def test_what_only_the_memory_knows_is_scored_by_itself(task, tokenizer):
    def forgetful(told):  # of the last two segments, it has seen one and a half
        ids = tokenizer.encode(told)
        return latest(tokenizer.decode(ids[-(S // 2) :]) + told[-60:])

    scores = task.evaluate(Oracle(tokenizer, forgetful, S), samples=60, segments=2)
    assert scores["remembered"] < 0.1 < scores["accuracy"] < 1
    for sample in task.samples("qa1", 2 * S, 20, seed=0):
        ids = sample.haystack.ids().tolist()
        for fact, end in zip(sample.question.facts, sample.haystack.ends(), strict=True):
            assert tokenizer.decode(ids[:end]).endswith(fact)


def test_a_stream_is_read_in_blocks_and_answered_across_segments(task, tokenizer, monkeypatch):
    monkeypatch.setattr(greedy, "_BLOCK", 64)
    for segment_length in (3, 16):
        oracle = Oracle(tokenizer, lambda told: "one two three four five six", segment_length)
        for length in (250, 256, 257):
            samples = task.samples("qa1", length + ANSWER, 2, seed=0)
            rows = [sample.haystack.pieces() for sample in samples]
            state, rest = greedy.read_stream(oracle, rows)
            read = torch.cat([state["tokens"], rest], dim=1)
            assert read.tolist() == [sample.haystack.ids().tolist() for sample in samples]
            assert 1 <= rest.shape[1] <= segment_length
            given = greedy.answer(oracle, state, rest, most=40, ends=oracle.encoder.ends)
            assert [tokenizer.decode(ids) for ids in given] == [" one two three four five six"] * 2
            assert [len(ids) for ids in greedy.answer(oracle, state, rest, most=3, ends=())] == [3, 3]
        assert max(oracle.read_at_once) <= 64
    with pytest.raises(TokenError, match="the same number of tokens"):
        greedy.read_stream(oracle, [[np.arange(4)], [np.arange(5)]])
    with pytest.raises(TokenError, match="at least one"):
        greedy.read_stream(oracle, [[]])


def test_greedy_answers_are_those_of_whole_passes(data):
    """Generate with `forward` over all previous tokens, in the backbone's own window."""
    backbone, tokenizer = load_backbone(str(model_folders.backbone()), models_dir=data)
    window = in_window(backbone, 40)
    tokens = torch.tensor([[5, 6, 7, 8, 9], [9, 8, 7, 6, 5]])
    state, rest = greedy.read_stream(window, [[row.numpy()] for row in tokens])
    given = greedy.answer(window, state, rest, most=8, ends=())
    for row, ids in zip(tokens, given, strict=True):
        line = torch.cat([row, torch.tensor(ids)])[None]
        scores = window.forward(line, window.initial_state(1))[0]
        assert scores[4:-1].argmax(-1).tolist() == ids
    cells = babilong(backbone, tokenizer, data=data, tasks=["qa1"], lengths=["10k"], samples=2, prompt="bare")
    assert list(cells) == []  # the window holds 64 tokens: not run


def test_lengths_by_name():
    assert [parse_length(length) for length in ("0k", "4k", "1M", "300")] == [None, 4096, 1 << 20, 300]
    for wrong in ("4K", "", "-1k", "1.5k", "many"):
        with pytest.raises(ConfigError, match="lengths="):
            parse_length(wrong)


def test_wilsons_interval():
    assert wilson(5, 20) == pytest.approx((0.25, 0.1118620, 0.4687042), abs=1e-5)
    assert wilson(0, 20)[:2] == pytest.approx((0, 0))
    assert wilson(0, 20).high == pytest.approx(0.1611252, abs=1e-5)
    assert wilson(20, 20).low == pytest.approx(1 - 0.1611252, abs=1e-5)


def test_what_is_missing_or_does_not_fit_is_named(tmp_path, tokenizer, data):
    task = Babilong(BabilongConfig(tasks=("qa1",)), Setting(tokenizer, S, tmp_path, 0))
    with pytest.raises(DataError, match="no data set 'babi'"):
        task.batch(0, 1, 1)
    short = Babilong(BabilongConfig(tasks=("qa1",), noise_characters=60_000), Setting(tokenizer, 12, data, 0))
    with pytest.raises(TokenError, match="no question of qa1 fits into 1 segments of 12 tokens"):
        short.batch(0, 1, 1)
    with pytest.raises(ConfigError, match="tasks='qa9'"):
        list(
            babilong(
                Oracle(tokenizer, latest), tokenizer, data=data, tasks=["qa9"], lengths=["0k"], samples=1, prompt="bare"
            )
        )
