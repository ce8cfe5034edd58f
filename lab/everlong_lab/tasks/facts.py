"""Facts in noise: memorize, detect & memorize, reasoning (Bulatov et al. 2023, section 3).

A document is n segments of real text with one or two facts, as in bAbI (Weston et al. 2016, tasks 1 and 4). Its last
segment ends with a question and the answer, one of six places.

    memorize    the fact starts the document
    detect      the fact is anywhere before the question
    reasoning   two facts are anywhere before the question, in either order; some questions need one, some the other
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text, vocabulary
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import ConfigError, TokenError
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState

PEOPLE = ("Mary", "John", "Sandra", "Daniel")
MOVES = ("moved to", "went to", "went back to", "journeyed to", "travelled to")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}

Kind = Literal["memorize", "detect", "reasoning"]


class FactsConfig(TaskConfig):
    """`kind`: see the module. `noise`: data set of books for the training noise. `noise_characters`: how much of it is kept
    in memory. `vocabulary`: size of the tokenizer made for a model from scratch.

    The rest applies to training only. `distracting`: share of the noise, in pieces of a segment's length, that is chosen
    around a word of the facts. `lookalikes`: share of pieces that contain a sentence like a fact with one word replaced.
    `cut`: share of borders between segments with noise that looks like the second half of a fact after the border, see
    `_crossing`. `early`: share of documents with all facts in the first segment. `direct`: share of reasoning questions
    that name the direction as the fact does, the others name its opposite; 0.5 in evaluation. `recited`: share of
    documents of several segments that repeat the facts before the question. Their words (places, people, directions) are
    targets like the answer, so that the memory must hold all facts, whatever is asked."""

    name: Literal["facts"] = "facts"
    kind: Kind
    noise: str = "books-260"
    noise_characters: int = Field(4_000_000, ge=10_000)
    distracting: float = Field(0.0, ge=0, le=1)
    lookalikes: float = Field(0.0, ge=0, le=1)
    cut: float = Field(0.0, ge=0, le=1)
    early: float = Field(0.0, ge=0, le=1)
    direct: float = Field(0.5, ge=0, le=1)
    recited: float = Field(0.0, ge=0, le=1)
    vocabulary: int = Field(1024, ge=512)


class FactsBatch(NamedTuple):
    """`tokens` (B, N): documents with question and answer. `endings`: the recited facts, if any, and the question. `recited`
    (B, N): mask of the words of recited facts. `idle`: as in `Batch`."""

    tokens: Tensor
    endings: list[list[int]]
    recited: Tensor
    idle: Tensor


class Facts(Task):
    """Facts in noise. Raises `ConfigError` if the end of a document does not fit into a segment."""

    config: FactsConfig

    def __init__(self, config: FactsConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self._answers = {place: self._word(place) for place in PLACES}
        self._fact_words = sorted({self.tokenizer.encode(f" {word}")[0] for word in (*PLACES, *PEOPLE, *OPPOSITE)})
        self._words = sorted({self.tokenizer.encode(f" {word}")[0] for word in (*PLACES, *PEOPLE)})
        questions = [_question(config.kind, np.random.default_rng(i)) for i in range(64)]
        ends = ["".join(facts) * (config.recited > 0) + question for facts, question, _ in questions]
        longest = max(len(self.tokenizer.encode(end)) for end in ends) + 1
        if longest > self._S:
            what = "the facts, the question and its answer" if config.recited else "the question and its answer"
            raise ConfigError("segment_length", self._S, f"must hold {what}, {longest} tokens")

    @functools.cached_property
    def _books(self) -> list[str]:
        """Texts of the books to learn from."""
        kept, _ = text.books(text.find(self._data, self.config.noise))
        return text.middles(kept, self.config.noise_characters)

    @functools.cached_property
    def _noise(self) -> text.Noise:
        return text.Noise(self._books, self.tokenizer)

    @functools.cached_property
    def _others(self) -> tuple[list[str], list[str]]:
        """Words that books use where a fact has a person, and where it has a place, as often as they occur."""
        whole = " ".join(self._books)
        people, places = re.findall(r"\b[A-Z][a-z]*\b", whole), re.findall(r"\bthe ([a-z]+)", whole)
        return [word for word in people if word not in PEOPLE], [word for word in places if word not in PLACES]

    @functools.cached_property
    def _held_out(self) -> text.Noise:
        return text.Noise([text.packaged()], self.tokenizer)

    @classmethod
    def make_tokenizer(cls, config: FactsConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from noise and many facts, so that every word of a fact is one token."""
        random, sentences = np.random.default_rng(0), []
        for kind in get_args(Kind):
            for _ in range(3000):
                facts, question, answer = _question(kind, random)
                sentences.append("".join(facts) + question + " " + answer)
        kept, _ = text.books(text.find(data, config.noise))
        noise = (" ".join(text.read(file)[:100_000].split()) for file in kept)
        return vocabulary.byte_level(itertools.chain(sentences, noise), config.vocabulary)

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        random = self.random(self._seed, step)
        tokens, _, recited, idle = self._documents(random, rows, segments, self._noise, self.config)
        targets = recited.clone()
        targets[:, -1] = True
        return Batch(tokens, torch.full((rows,), tokens.shape[1]), targets, idle=idle)

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return `accuracy`: the share of answers that are the most probable of the six places; and `recited`, if the model
        learns to recite: the same after the model has repeated the facts itself."""
        ways = {"accuracy": False} | ({"recited": True} if self.config.recited else {})
        return {
            name: self.accuracies(model, samples=samples, lengths=[segments], recite=recite)[segments]
            for name, recite in ways.items()
        }

    @torch.no_grad()
    def accuracies(
        self, model: SegmentReader, *, samples: int, lengths: Sequence[int], rows: int = 64, recite: bool = False
    ) -> dict[int, float]:
        """Return accuracy by length, in segments. `recite`: see `_recite`; it needs documents of several segments.

        `memorize` reads one stream of noise for all lengths; the memory is forked where a question is asked. `detect` and
        `reasoning` place the facts anew for every length, so each length has streams of its own.
        """
        lengths = sorted(set(lengths))
        right = dict.fromkeys(lengths, 0)
        groups = [sorted(lengths)] if self.config.kind == "memorize" else [[length] for length in lengths]
        for group in groups:
            for first in range(0, samples, rows):
                count = min(rows, samples - first)
                random = self.random(first, group[-1], held_out=True)
                for length, correct in self._ask(model, random, count, group, recite):
                    right[length] += correct
        return {length: count / samples for length, count in right.items()}

    def _ask(
        self, model: SegmentReader, random: np.random.Generator, rows: int, lengths: list[int], recite: bool
    ) -> Iterator[tuple[int, int]]:
        """Yield each length with the number of right answers among `rows` documents."""
        device = model.initial_state(1).device
        plain = FactsConfig(kind=self.config.kind, recited=float(recite))
        documents = self._documents(random, rows, lengths[-1], self._held_out, plain)
        tokens, answers = documents.tokens[:, :-1].to(device), documents.tokens[:, -1]
        choices = torch.tensor(list(self._answers.values()))
        state, done = model.initial_state(rows), 0
        for length in lengths:
            state = model.read(tokens[:, done : (length - 1) * self._S], state)
            done = (length - 1) * self._S
            last = tokens[:, done : done + self._S - 1].clone()
            for row, ending in enumerate(documents.endings):
                last[row, len(last[row]) - len(ending) :] = torch.as_tensor(ending, device=device)
            self._recite(model, last, state, documents.recited[:, -self._S : -1])
            scores = model.forward(last, state)[:, -1].cpu()
            found = choices[scores[:, choices].argmax(-1)]
            yield length, int((found == answers).sum())

    def _recite(self, model: SegmentReader, last: Tensor, state: MemoryState, recited: Tensor) -> None:
        """Replace the `recited` words (B, T) of `last` (B, T), in place and in order, by the model's most likely tokens.

        The question then follows what the model itself has recited. The rest of the sentences is given.
        """
        for at in range(last.shape[1]):
            if recited[:, at].any():
                likeliest = model.forward(last[:, :at], state)[:, -1].argmax(-1)
                last[:, at] = torch.where(recited[:, at].to(last.device), likeliest, last[:, at])

    def _documents(
        self, random: np.random.Generator, rows: int, segments: int, noise: text.Noise, how: FactsConfig
    ) -> FactsBatch:
        """Return full documents of exactly `segments` segments: facts, noise, question, answer."""
        length = segments * self._S
        tokens = np.empty((rows, length), dtype=np.int64)
        endings, recited = [], np.zeros((rows, length), dtype=bool)
        idle = np.zeros((rows, segments), dtype=bool)  # the last segment has the question
        for row in range(rows):
            sentences, sentence, answer = _question(how.kind, random, how.direct)
            question = self.tokenizer.encode(sentence)
            facts = [self.tokenizer.encode(fact) for fact in sentences]
            recites = segments > 1 and how.recited > 0 and random.random() < how.recited
            room = length - (1 + recites) * sum(map(len, facts)) - len(question) - 1
            if room < 0:
                raise TokenError(f"{segments} segments of {self._S} tokens do not hold the facts and the question")
            line = self._line(random, room, noise, how)
            places = self._places(random, facts, room, noise.borders(line), how)
            facts = [facts[fact] for fact in random.permutation(len(facts))]
            pieces: list[np.ndarray | list[int]] = []
            done, free = 0, np.ones(length, dtype=bool)
            for place, fact in zip(places, facts, strict=True):
                pieces += [line[done:place], fact]
                done, end = place, sum(map(len, pieces))
                free[end - len(fact) : end] = False
            again = [token for fact in facts for token in fact] if recites else []
            tokens[row] = np.concatenate([*pieces, line[done:], again, question, [self._answers[answer]]])
            start = length - 1 - len(question) - len(again)
            if how.cut:
                self._cut(random, tokens[row, :start], free, noise, how)
            recited[row, start : start + len(again)] = np.isin(again, self._fact_words)
            idle[row, :-1] = free.reshape(segments, self._S)[:-1].all(1)
            endings.append(again + question)
        return FactsBatch(torch.from_numpy(tokens), endings, torch.from_numpy(recited), torch.from_numpy(idle))

    def _places(
        self, random: np.random.Generator, facts: list[list[int]], room: int, borders: np.ndarray, how: FactsConfig
    ) -> list[int]:
        """Return where in `room` tokens of noise the facts are inserted, in ascending order."""
        if how.kind == "memorize":
            return [0]
        early = how.early > 0 and random.random() < how.early
        until = min(room, max(0, self._S - sum(map(len, facts)))) if early else room
        return sorted(_choose(random, borders[borders <= until], until, len(facts)))

    def _line(self, random: np.random.Generator, length: int, noise: text.Noise, how: FactsConfig) -> np.ndarray:
        """Return `length` tokens of noise, with distractions as configured."""
        if not (how.distracting or how.lookalikes):
            return noise.run(random, length)
        pieces = []
        for _ in range(0, length, self._S):
            near = random.random() < how.distracting
            piece = noise.run_with(random, self._S, self._words) if near else noise.run(random, self._S)
            if random.random() < how.lookalikes:
                at = int(random.choice(noise.borders(piece)))
                piece = np.concatenate([piece[:at], self._lookalike(random, how.kind), piece[at:]])[: self._S]
            pieces.append(piece)
        return np.concatenate(pieces or [np.empty(0, dtype=np.int32)])[:length]

    def _cut(
        self, random: np.random.Generator, tokens: np.ndarray, free: np.ndarray, noise: text.Noise, how: FactsConfig
    ) -> None:
        """Put `_crossing` noise across a share of the borders between segments, in place, where the text is `free`."""
        for border in range(self._S, len(tokens), self._S):
            if random.random() < how.cut:
                piece, before = self._crossing(random, noise, how.kind)
                start, end = border - before, border - before + len(piece)
                if end <= len(tokens) and free[start:end].all():
                    tokens[start:end] = piece

    def _crossing(self, random: np.random.Generator, noise: text.Noise, kind: Kind) -> tuple[np.ndarray, int]:
        """Return noise that looks like the end of a fact after a border, and how many of its tokens precede the border.

        It is one of four, equally often: a lookalike; book text with a word of the facts after the border; book text in
        which such a word replaces any token; or one in which it replaces the last word of a sentence.
        """
        variant = random.integers(4)
        if variant == 0:
            lookalike = np.array(self._lookalike(random, kind))
            return lookalike, int(random.integers(1, len(lookalike)))
        before, behind = self._S // 2, int(random.integers(3))
        natural = noise.place(random, self._words) if variant == 1 else None
        if natural is not None:
            place = natural
        elif variant == 2:
            place = noise.start(random) + int(random.integers(self._S))
        else:
            place = noise.start(random) - 2  # before the full stop
        piece = noise.cut(place - before - behind, place - before - behind + self._S)
        if natural is None:
            piece[before + behind] = random.choice(self._words)
        return piece, before

    def _lookalike(self, random: np.random.Generator, kind: Kind) -> list[int]:
        """Return a fact with one person or place replaced by another word; half of them end without a full stop."""
        facts, _, _ = _question(kind, random)
        words = facts[int(random.integers(len(facts)))].rstrip(".").split(" ")
        at = int(random.choice([place for place, word in enumerate(words) if word in (*PEOPLE, *PLACES)]))
        others = self._others[words[at] in PLACES]
        words[at] = others[int(random.integers(len(others)))]
        return self.tokenizer.encode(" ".join(words) + ("." if random.random() < 0.5 else ""))

    def _word(self, word: str) -> int:
        ids = self.tokenizer.encode(f" {word}")
        if len(ids) != 1:
            raise ConfigError("tokenizer", ids, f"the answer {word!r} must be one token")
        return ids[0]


def _choose(random: np.random.Generator, borders: np.ndarray, room: int, count: int) -> list[int]:
    """Return positions for `count` facts: sentence borders, or the end, nearest to uniformly random positions."""
    places = np.append(borders, room)
    return [int(places[np.abs(places - at).argmin()]) for at in random.integers(0, room + 1, count)]


def _question(kind: Kind, random: np.random.Generator, direct: float = 0.5) -> tuple[list[str], str, str]:
    """Return the facts, the question, and the answer. `direct`: see `FactsConfig`."""
    if kind != "reasoning":
        person, move, place = random.choice(PEOPLE), random.choice(MOVES), random.choice(PLACES)
        return [f" {person} {move} the {place}."], f" Where is {person}? Answer:", str(place)
    # bAbI 4: three places in a line. A fact names the middle place last; in one of three cases, first.
    north, middle, south = (str(place) for place in random.choice(PLACES, 3, replace=False))
    direction = str(random.choice(list(OPPOSITE)))
    facts = []
    for end, at in ((north, direction), (south, OPPOSITE[direction])):
        facts.append((middle, OPPOSITE[at], end) if random.integers(3) == 0 else (end, at, middle))
    subject, at, object_ = facts[int(random.integers(2))]
    sentences = [f" The {first} is {where} of the {second}." for first, where, second in facts]
    if random.random() < direct:
        return sentences, f" What is {at} of the {object_}? Answer:", subject
    return sentences, f" What is the {object_} {OPPOSITE[at]} of? Answer:", subject
