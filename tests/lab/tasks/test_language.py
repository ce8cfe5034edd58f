"""Language modelling: streams, held-out texts, and scores."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from everlong_lab.tasks.language import Language, LanguageConfig, TextSlice, measure, middle_shares, split
from everlong_lab.tasks.task import Setting
from everlong_models.errors import ConfigError, DataError
from everlong_models.memories.relative.transformer_xl import TransformerXL, TransformerXLConfig
from everlong_models.memories.state import MemoryState
from everlong_models.text.tokenizer import Tokenizer

S = 8


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Eleven texts without common words."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for index in range(11):
        word = "abcdefghijk"[index] * 3
        (folder / f"book {index}.txt").write_text(f"{word} {word}s. " * 60)
    return tmp_path


def task(data: Path, seed: int = 0, **changes: object) -> Language:
    config = LanguageConfig(texts="texts", vocabulary=280, **changes)  # type: ignore[arg-type]
    tokenizer = Tokenizer(Language.make_tokenizer(config, data))
    return Language(config, Setting(tokenizer, S, data, seed))


class Uniform:
    """A model for which all tokens are equally likely. Records its calls."""

    segment_length = S

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.seen: list[int] = []

    def initial_state(self, rows: int = 1) -> MemoryState:
        return MemoryState({"segments": torch.zeros(rows, dtype=torch.int64)})

    def forward(self, tokens: Tensor, state: MemoryState) -> Tensor:
        return torch.zeros(*tokens.shape, self.vocab_size)

    def segment(self, tokens: Tensor, state: MemoryState) -> tuple[Tensor, MemoryState]:
        self.seen += state["segments"].tolist()
        return self.forward(tokens, state), MemoryState({"segments": state["segments"] + 1})


def test_rows_go_on_where_the_batch_before_ended(data: Path) -> None:
    language = task(data)
    first, second = language.batch(0, 3, 2), language.batch(1, 3, 2)
    assert first.fresh
    assert not second.fresh
    assert first.tokens.shape == second.tokens.shape == (3, 2 * S)
    assert first.targets[:, 1:].all()
    assert not first.targets[:, 0].any(), "nothing predicts it"
    both = language.batch(0, 3, 4).tokens
    assert torch.equal(torch.cat([first.tokens, second.tokens], dim=1), both)
    assert not torch.equal(first.tokens[0], first.tokens[1])


def test_batches_follow_from_seed_and_step_alone(data: Path) -> None:
    one, other = task(data), task(data)
    other.batch(0, 3, 2)
    assert torch.equal(one.batch(10_000, 3, 2).tokens, other.batch(10_000, 3, 2).tokens)
    assert not torch.equal(one.batch(5, 3, 2).tokens, task(data, seed=1).batch(5, 3, 2).tokens)


def test_held_out_text_is_never_trained_on(data: Path) -> None:
    language = task(data)
    tokenizer = language.tokenizer
    kept, held_out = split(data / "texts")
    assert kept
    assert held_out
    assert not {piece.file for piece in kept} & {piece.file for piece in held_out}
    trained = tokenizer.decode([t for step in range(200) for t in language.batch(step, 2, 4).tokens.flatten().tolist()])
    measured = tokenizer.decode(language.held_out(2, 4).flatten().tolist())
    letters = {piece.file: piece.read()[:3] for piece in [*kept, *held_out]}
    assert all(letters[piece.file] in trained for piece in kept)
    assert not any(letters[piece.file] in trained for piece in held_out)
    assert any(letters[piece.file] in measured for piece in held_out)
    assert not any(letters[piece.file] in measured for piece in kept)


def test_every_held_out_text_is_measured_from_its_middle(tmp_path: Path) -> None:
    pieces = []
    for letter in "abc":
        (tmp_path / letter).write_text("-" * 100 + letter * 50 + "-" * 100)
        pieces.append(TextSlice(tmp_path / letter))
    assert list(middle_shares(pieces, 30)) == ["a" * 10, "b" * 10, "c" * 10]
    assert [len(content) for content in middle_shares(pieces, 10_000)] == [250] * 3


def test_something_is_left_to_learn_from_whatever_texts_are_called(tmp_path: Path) -> None:
    """By the hashes of their names, both would be held out."""
    for name in ("part15.txt", "part22.txt"):
        (tmp_path / name).write_text("a" * 100)
    (kept,), (held_out,) = split(tmp_path)
    assert (kept.file.name, held_out.file.name) == ("part15.txt", "part22.txt")


def test_the_last_tenth_of_a_single_text_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "input.txt").write_text("a" * 9000 + "b" * 1000)
    (kept,), (held_out,) = split(tmp_path / "texts")
    assert set(kept.read()) == {"a"}
    assert set(held_out.read()) == {"b"}
    assert len(held_out.read()) == 1000


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(data: Path) -> None:
    language = task(data)
    V = language.vocab_size
    model = Uniform(V)
    scores = language.evaluate(model, samples=2, segments=5)
    assert scores["perplexity"] == pytest.approx(V, rel=1e-6)
    assert scores["tokens"] == 2 * (5 * S - 1)
    assert model.seen == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4], "the memory is carried from segment to segment"


def test_bits_and_words_follow_from_the_text(data: Path) -> None:
    tokenizer = task(data).tokenizer
    text = "aaa aaas. aaa aaas."
    tokens = torch.tensor([[tokenizer.encode("a")[0], *tokenizer.encode(text)]])
    rest = -tokens.shape[1] % S
    tokens = torch.cat([tokens, torch.full((1, rest), tokenizer.encode(".")[0])], dim=1)
    found = measure(Uniform(tokenizer.vocab_size), tokenizer, tokens)
    nats = (tokens.shape[1] - 1) * math.log(tokenizer.vocab_size)
    assert found.characters == len(text) + rest
    assert found.words == 4
    figures = found.figures()
    assert figures["bits_per_character"] == pytest.approx(nats / math.log(2) / (len(text) + rest), rel=1e-6)
    assert figures["word_perplexity"] == pytest.approx(math.exp(nats / 4), rel=1e-5)


def test_the_ends_of_lines_are_words_where_wikitext_is_measured(data: Path) -> None:
    tokenizer = task(data).tokenizer
    text = " = Aaa = \n \n aaa aaas .\n"  # six words in three lines, as WikiText is written
    encoded = tokenizer.encode(text)
    tokens = torch.tensor([[tokenizer.encode("a")[0], *encoded, *tokenizer.encode(" ") * (-(len(encoded) + 1) % S)]])
    nats = (tokens.shape[1] - 1) * math.log(tokenizer.vocab_size)
    for line_ends, words in ((False, 6), (True, 9)):
        found = measure(Uniform(tokenizer.vocab_size), tokenizer, tokens, line_ends=line_ends)
        assert found.words == words
        assert found.figures()["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-5)


def test_one_file_is_learnt_from_and_another_one_measured(data: Path) -> None:
    """As with WikiText, whose splits are files."""
    parts = data / "wiki" / "deep"
    parts.mkdir(parents=True)
    (parts / "train.tokens").write_text("x" * 9000 + "y" * 1000)
    (parts / "test.tokens").write_text("z" * 4000)

    def read(**chosen: str) -> tuple[set[str], set[str]]:
        config = LanguageConfig(vocabulary=257, **chosen)  # type: ignore[arg-type]
        language = Language(config, Setting(Tokenizer(Language.make_tokenizer(config, data)), S, data, 0))
        trained = [t for step in range(300) for t in language.batch(step, 4, 5).tokens.flatten().tolist()]
        return set(language.tokenizer.decode(trained)), set(
            language.tokenizer.decode(language.held_out(2, 3).tolist()[1])
        )

    train, test = "wiki/deep/train.tokens", "wiki/deep/test.tokens"
    (data / "own").mkdir()
    for letter in "uvw":
        (data / "own" / f"{letter}.txt").write_text(letter * 4000)
    assert read(texts="own", held_out="own/v.txt") == (set("uw"), set("v"))
    assert read(texts=train, held_out=train) == (set("x"), set("y")), "as if it were not named twice"
    aside = split(data / "own")[1][0].file.name
    with pytest.raises(ConfigError, match=rf"task.held_out='own': contains all of own/{aside}"):
        read(texts=f"own/{aside}", held_out="own")
    assert read(texts=train, held_out=test) == (set("xy"), set("z"))
    assert read(texts=train) == (set("x"), set("y")), "the last tenth"
    learnt, measured = read(texts="texts", held_out=test)
    assert measured == set("z")
    assert len(learnt) > 9
    learnt, measured = read(texts=train, held_out="texts")
    assert learnt == set("xy")
    assert measured <= set("abcdefghijks. ")
    for chosen in ({"texts": "wiki/none"}, {"texts": train, "held_out": "wiki/none"}):
        with pytest.raises(DataError, match=r"cannot read .*wiki/none"):
            read(**chosen)
    with pytest.raises(DataError, match="no data set 'weki'"):
        read(texts=train, held_out="weki")
    with pytest.raises(ConfigError, match=r"held-out tokens of wiki/deep/test\.tokens"):
        language = Language(
            LanguageConfig(texts=train, held_out=test, vocabulary=257), Setting(task(data).tokenizer, S, data, 0)
        )
        language.held_out(500, 5)


def test_a_single_text_is_shown_to_the_tokenizer_beyond_its_beginning(data: Path) -> None:
    (data / "one").mkdir()
    (data / "one" / "train.txt").write_text("ab " * 40_000 + "qrst " * 40_000)
    (data / "one" / "test.txt").write_text("ab")
    config = LanguageConfig(texts="one/train.txt", held_out="one/test.txt", vocabulary=280)
    assert len(Tokenizer(Language.make_tokenizer(config, data)).encode(" qrst")) == 1


def test_measuring_in_batches_of_rows_changes_nothing(data: Path) -> None:
    language = task(data)
    torch.manual_seed(0)
    config = TransformerXLConfig(
        vocab_size=language.vocab_size,
        segment_length=S,
        width=16,
        layers=2,
        heads=2,
        feed_forward=16,
        memory_length=6,
        initial_std=0.3,
    )
    model = TransformerXL(config).eval()
    tokens = language.held_out(3, 4)
    one, many = (measure(model, language.tokenizer, tokens, rows=rows) for rows in (1, 3))
    assert one.nats == pytest.approx(many.nats, rel=1e-6)
    # And the memory counts: without it the same weights say something else.
    alone = TransformerXL(config.model_copy(update={"memory_length": 0})).eval()
    alone.load_state_dict(model.state_dict())
    assert abs(measure(alone, language.tokenizer, tokens).nats - one.nats) > 1e-3


def test_what_is_forgotten_is_empty_in_every_segment(data: Path) -> None:
    language = task(data)
    model = Uniform(language.vocab_size)
    measure(model, language.tokenizer, language.held_out(2, 3), forget=["segments"])
    assert model.seen == [0] * 6
    with pytest.raises(ConfigError, match="forget='dreams': must be one of segments"):
        measure(model, language.tokenizer, language.held_out(2, 3), forget=["dreams"])


def test_missing_broken_and_empty_texts_are_named(data: Path) -> None:
    with pytest.raises(DataError, match="no data set 'nothing'"):
        Language.make_tokenizer(LanguageConfig(texts="nothing"), data)
    kept, _ = split(data / "texts")
    kept[0].file.write_bytes(b"caf\xe9 caf\xe9")
    with pytest.raises(DataError, match=kept[0].file.name):
        task(data)
    kept[0].file.write_text(" \n")
    with pytest.raises(DataError, match=rf"{kept[0].file.name} is empty"):
        task(data)


def test_too_little_text_is_an_error_with_its_size(data: Path) -> None:
    language = task(data)
    with pytest.raises(ConfigError, match="samples=500: 500 runs of 16 tokens exceed the"):
        language.evaluate(Uniform(language.vocab_size), samples=500, segments=2)
    with pytest.raises(DataError, match=r"texts has \d+ tokens; a batch needs 800000 consecutive"):
        language.batch(0, 1, 100_000)
