from __future__ import annotations

import json
import math

import pytest
import torch

from everlong_lab.eval.answer_scores import overlap_scores
from everlong_lab.eval.babilong import in_window
from everlong_lab.eval.dialogue import dialogue, sample, table
from everlong_lab.tasks import Setting
from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_lab.tasks.dialogue import DialogueConfig, DialogueTask, Utterance, dialogues, encode_dialogue, perplexity
from everlong_models.backbone.loading import load_backbone
from everlong_models.errors import ConfigError, DataError
from everlong_models.text.tokenizer import Tokenizer
from tests.lab.tasks.oracle import Oracle
from tests.models import model_folders
from tests.tinymodel import make_tokenizer

FILM = {
    "0": {
        "movieName": "The Lamp",
        "year": "1931",
        "director": "A. Smith",
        "genre": ["Drama", "Crime"],
        "cast": ["B. Jones as Carl", "D. Brown as Eve"],
        "introduction": "The Lamp is a film about a lamp.",
        "rating": ["Papers: 3/5"],
        "critical_response": ["A bright film.", "Too dark."],
    },
    "1": "Carl finds a lamp. ",
    "2": "Eve breaks it.",
    "3": "They mend it.",
    "wikiDocumentIdx": 7,
}
CHAT = [
    ("user2", 0, "Hello!"),
    ("user2", 0, " Seen it?\n"),
    ("user1", 0, "The Lamp, yes."),
    ("user2", 1, "And how is it?"),
    ("user1", 1, "Carl is good."),
    ("user1", 2, "Eve too."),
    ("user1", 2, "  "),
    ("user2", 3, "Bye"),
]


def store(folder, chats, split="test", saw=("user1",)):
    for index, chat in enumerate(chats):
        file = folder / "cmu_dog" / "cmu_dog" / "Conversations" / split / f"{index:04}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        history = [{"uid": who, "docIdx": section, "text": said} for who, section, said in chat]
        file.write_text(json.dumps({"history": history, "whoSawDoc": list(saw), "wikiDocumentIdx": 7}))
    films = folder / "cmu_dog" / "cmu_dog" / "WikiData"
    films.mkdir(exist_ok=True)
    (films / "lamp.json").write_text(json.dumps(FILM))
    return folder


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer(make_tokenizer(400))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    chats = [[*CHAT, ("user1", 3, f"Bye, number {number}.")] for number in range(12)]
    for split in ("train", "valid", "test"):
        store(folder, chats, split)
    return folder


def test_who_saw_the_document_responds_and_messages_in_a_row_are_one(tmp_path):
    (found,) = dialogues(store(tmp_path, [CHAT]), "test")
    assert found.utterances == (
        Utterance("Hello! Seen it?", False, 0),
        Utterance("The Lamp, yes.", True, 0),
        Utterance("And how is it?", False, 1),
        Utterance("Carl is good. Eve too.", True, 1),
        Utterance("Bye", False, 3),
    )
    first, *others = found.document
    assert others == ["Carl finds a lamp.", "Eve breaks it.", "They mend it."]
    assert "The Lamp (1931)\nDirector: A. Smith\nGenre: Drama, Crime\nCast: B. Jones as Carl, D. Brown as Eve" in first
    both = dialogues(store(tmp_path, [CHAT], saw=("user2", "user1")), "test")[0]
    assert [turn.response for turn in both.utterances] == [False, True, False, True, False]
    opener = dialogues(store(tmp_path, [CHAT], saw=("user2",)), "test")[0]
    assert [turn.response for turn in opener.utterances] == [True, False, True, False, True]


def test_a_dialogue_is_read_as_the_chat_template_has_it(data, tokenizer):
    encoder, one = ChatEncoder(tokenizer), dialogues(data, "test")[0]
    line = encode_dialogue(encoder, one)
    content = "\n\n".join([*one.document, one.utterances[0].text])
    messages = [{"role": "user", "content": content}] + [
        {"role": "assistant" if turn.response else "user", "content": turn.text} for turn in one.utterances[1:]
    ]
    rendered = tokenizer.render(messages, answer=False)
    assert tokenizer.decode(line.ids.tolist(), skip_special=False) == rendered.rstrip("\n")
    said = [tokenizer.decode(line.ids[start:end].tolist(), skip_special=False) for start, end in line.responses]
    assert said == [f"{turn.text}<|im_end|>" for turn in one.utterances if turn.response]
    alone = encode_dialogue(encoder, one, document=False)
    assert "lamp." not in tokenizer.decode(alone.ids.tolist())
    assert len(alone.responses) == 3


def test_training_dialogues_fit_and_know_their_sections(data, tokenizer):
    task = DialogueTask(DialogueConfig(), Setting(tokenizer, 64, data, 0))
    for segments in (2, 4, 8):
        batch = task.batch(0, 16, segments)
        assert int(batch.lengths.max()) <= 64 * segments
        assert bool(batch.targets.any(1).all())
        for ids, length in zip(batch.tokens, batch.lengths.tolist(), strict=True):
            line = tokenizer.decode(ids[:length].tolist())
            if "Carl finds" in line and "They mend it" not in line:
                assert "Bye" not in line  # that was said with the last section at hand
    assert "They mend it" in line
    assert torch.equal(task.batch(3, 4, 2).tokens, task.batch(3, 4, 2).tokens)
    assert not torch.equal(task.batch(3, 4, 8).tokens, task.batch(4, 4, 8).tokens)
    window = in_window(load_backbone(str(model_folders.backbone()), models_dir=data)[0], 64)
    with pytest.raises(Exception, match="token ids must be in"):  # a tokenizer of 400 for a model of 300
        task.evaluate(window, samples=2, segments=2)


def test_perplexity_is_of_the_targets_alone(tokenizer, data):
    backbone, small = load_backbone(str(model_folders.backbone()), models_dir=data)
    window = in_window(backbone, 60)
    encoder = ChatEncoder(small)
    lines = [
        encoder.example(small.encode("the lamp is on the table"), answer) for answer in ("and so", "it is dark in here")
    ]
    nats, count = 0.0, 0
    for line in lines:
        scores = window.forward(torch.from_numpy(line.ids)[None], window.initial_state(1))[0].log_softmax(-1)
        for place in line.targets.nonzero()[0]:
            nats, count = nats - float(scores[place - 1, line.ids[place]]), count + 1
    assert perplexity(window, lines) == pytest.approx(math.exp(nats / count), rel=1e-5)
    assert perplexity(window, lines, rows=1) == pytest.approx(math.exp(nats / count), rel=1e-5)


def test_scores_of_words():
    same = overlap_scores(["Carl finds the lamp."], ["Carl finds a lamp"])
    assert same["f1"] == 100  # articles and punctuation do not count
    assert same["rouge1"] == same["rougeL"] == 75
    turned = overlap_scores(["lamp a finds Carl"], ["Carl finds a lamp"])
    assert (turned["rouge1"], turned["rougeL"]) == (100, 25)
    assert overlap_scores(["lamps"], ["lamp"])["meteor"] == pytest.approx(
        50
    )  # one stem; the penalty of a single chunk is half
    assert overlap_scores(["light"], ["lamp"])["meteor"] == 0  # no synonyms
    assert overlap_scores(["dark"], ["lamp"]) == {"f1": 0, "rouge1": 0, "rougeL": 0, "meteor": 0}
    assert overlap_scores(["lamp", "dark"], ["lamp", "lamp"])["f1"] == 50


def test_who_has_read_the_document_writes_the_responses(data, tokenizer):
    one = dialogues(data, "test")[0]
    asked = {
        turn.text: after.text for turn, after in zip(one.utterances, one.utterances[1:], strict=False) if after.response
    }

    def knows(read):
        last = max(asked, key=read.rfind)
        return asked[last] if "Carl finds a lamp" in read and last != "Bye" else "what?"

    oracle = Oracle(tokenizer, knows, 32)
    oracle_with_scores(oracle)
    sampled = sample(dialogues(data, "test"), responses=7, written=6, seed=0)
    assert (len(sampled.dialogues), len(sampled.written)) == (3, 6)
    assert sampled == sample(dialogues(data, "test"), responses=7, written=6, seed=0)
    (row,) = dialogue(oracle, None, tokenizer, sampled=sampled, ways=["memory"])
    right = [one for one in row.answers if one["expected"] == one["written"]]
    assert [one["written"] for one in row.answers if one not in right] == ["what?"] * (6 - len(right))
    assert 2 <= len(right) < 6
    assert row.responses == 9
    assert row.wording["f1"] == pytest.approx(100 * len(right) / 6)
    shown = table("oracle", [row])
    assert shown[0]["model"] == "oracle: document and dialogue through the memory"
    assert shown[1] == {
        "model": "published: GPT-2 without the document",
        "perplexity": 19.43, "f1": 7.82, "rouge1": 12.18, "rougeL": 10.17, "meteor": 6.10,
    }  # fmt: skip
    with pytest.raises(ConfigError, match="ways='window'"):
        list(dialogue(oracle, None, tokenizer, sampled=sampled, ways=["window"]))
    with pytest.raises(ConfigError, match="samples=99: must be at most 36"):
        sample(dialogues(data, "test"), responses=99, written=1, seed=0)


def oracle_with_scores(oracle):
    """Also predicts in training: all tokens are equally likely."""

    def forward(tokens, state):
        return torch.zeros(*tokens.shape, oracle.vocab_size)

    def training_segment(tokens, state, lengths=None):
        after = oracle.read(tokens, state) if tokens.shape[1] == oracle.segment_length else state
        return forward(tokens, state), after, torch.zeros(len(tokens))

    oracle.learns_without_targets, oracle.one_pass_tokens = False, oracle.segment_length
    oracle.forward = forward
    oracle.training_segment = training_segment


def test_broken_files_are_named(tmp_path):
    with pytest.raises(DataError, match="no data set 'cmu_dog'"):
        dialogues(tmp_path, "test")
    store(tmp_path, [CHAT])
    with pytest.raises(DataError, match=r"has no Conversations/train"):
        dialogues(tmp_path, "train")
    root = tmp_path / "cmu_dog" / "cmu_dog"
    file = root / "Conversations" / "test" / "0000.json"
    whole = file.read_text()
    for content, said in (
        ("", "is empty"),
        ('{\n"history": [\n', r"line \d"),
        ("[]", "must be an object, found list"),
        ("{}", "no 'wikiDocumentIdx'"),
        (whole.replace('"docIdx"', '"doc"'), "no 'docIdx'"),
        (whole.replace(": 7", ": 8"), "WikiData has no document 8"),
        (whole.replace('["user1"]', "[]"), "whoSawDoc is empty"),
    ):
        file.write_text(content)
        with pytest.raises(DataError, match=rf"0000\.json.*{said}"):
            dialogues(tmp_path, "test")
    file.write_text(json.dumps(json.loads(whole) | {"history": []}))
    with pytest.raises(DataError, match="has no dialogue with a response"):
        dialogues(tmp_path, "test")
    (root / "WikiData" / "lamp.json").write_text('{"0": {}}')
    with pytest.raises(DataError, match=r"lamp\.json: no 'movieName'"):
        dialogues(tmp_path, "test")
