"""Language modelling on whole books: each row is running text that continues in the next batch, with the memory carried.

The texts of a data set are joined to one stream. Row r of R starts at r/R of the stream and advances by one batch with
every step, as in Transformer-XL (Dai et al. 2019) and its successors. Held out is one text in ten, as a whole; the last
tenth if there is only one text; or what the recipe names.

Every token is a target except the first of a batch, which no token of the batch predicts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text, vocabulary
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_models.errors import ConfigError, DataError
from everlong_models.memories.base import SegmentReader
from everlong_models.memories.state import MemoryState
from everlong_models.text.tokenizer import Tokenizer

_SHOWN, _SHOWN_IN_ALL = 100_000, 2_000_000
"""A tokenizer is made from the first `_SHOWN` characters of each text; from more of each, `_SHOWN_IN_ALL` in all, if there are few."""


class LanguageConfig(TaskConfig):
    """`texts`: a data set, or one file of it as NAME/PATH. `held_out`: evaluate on this instead of a part of `texts`, in
    the same form; WikiText has its own. `characters`: whole texts are used until there are this many; of the held-out texts,
    equal shares add up to this many. `vocabulary`: size of the tokenizer made for a model from scratch; 257 (the bytes and
    an end mark) makes a character-level model of English."""

    name: Literal["language"] = "language"
    texts: str = "books-260"
    held_out: str | None = None
    characters: int = Field(8_000_000, ge=1000)
    vocabulary: int = Field(2048, ge=257)


class Scores(NamedTuple):
    """Sums over held-out text. `nats`: negative log-likelihood. The other sums are its denominators. `words`: separated by
    white space, plus the ends of lines if these are counted."""

    nats: float
    tokens: int
    characters: int
    words: int

    def figures(self) -> dict[str, float]:
        """Return `perplexity` per token, `word_perplexity` and `bits_per_character`. The last two are independent of the tokenizer."""
        return {
            "perplexity": math.exp(self.nats / self.tokens),
            "word_perplexity": math.exp(min(self.nats / self.words, 700.0)),  # exp(710) overflows
            "bits_per_character": self.nats / math.log(2) / self.characters,
            "tokens": float(self.tokens),
        }


class Language(Task):
    """Language modelling. Raises `DataError` for texts that are missing, damaged or too short.

    All batches must have the same number of segments: the position of a row follows from the step alone.
    """

    continues = True

    config: LanguageConfig

    def __init__(self, config: LanguageConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        kept, held_out = _select_texts(config, setting.data)
        order = np.random.default_rng([setting.seed, 2]).permutation(len(kept))
        self._stream = encode(_until([kept[i] for i in order], config.characters), self.tokenizer)
        self._held_out = encode(middle_shares(held_out, config.characters), self.tokenizer)

    @classmethod
    def make_tokenizer(cls, config: LanguageConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from the texts that are not held out."""
        kept, _ = _select_texts(config, data)
        shown = max(_SHOWN, _SHOWN_IN_ALL // len(kept))
        return vocabulary.byte_level((piece.read()[:shown] for piece in kept), config.vocabulary)

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        length = segments * self._S
        if len(self._stream) < length:
            raise DataError(
                f"{self.config.texts} has {len(self._stream)} tokens; a batch needs {length} consecutive ones"
            )
        start = np.arange(rows) * (len(self._stream) // rows) + step * length
        index = (start[:, None] + np.arange(length)) % len(self._stream)
        targets = torch.ones(rows, length, dtype=torch.bool)
        targets[:, 0] = False  # no token of this batch predicts it
        return Batch(torch.from_numpy(self._stream[index]), torch.full((rows,), length), targets, fresh=step == 0)

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return `Scores.figures` of `samples` runs of held-out text, each `segments` segments long."""
        return measure(model, self.tokenizer, self.held_out(samples, segments)).figures()

    def held_out(self, samples: int, segments: int) -> Tensor:
        """Return `samples` runs (samples, segments · S) at even distances in the held-out text."""
        return runs(self._held_out, samples, segments * self._S, self.config.held_out or self.config.texts)


class TextSlice(NamedTuple):
    """A part of a file: from `first` to `last`, as shares of its characters."""

    file: Path
    first: float = 0.0
    last: float = 1.0

    def read(self) -> str:
        """Return the text. Raises `DataError` naming the file."""
        whole = text.read(self.file)
        return whole[int(self.first * len(whole)) : int(self.last * len(whole))]


def locate(data: Path, texts: str) -> tuple[Path, Path | None]:
    """Return the folder of a data set, and the file if `texts` is NAME/PATH. Raises `DataError` if there is no such data set."""
    name, _, path = texts.partition("/")
    folder = text.find(data, name)
    return folder, folder / path if path else None


def held_out_texts(data: Path, texts: str) -> list[TextSlice]:
    """Return the held-out texts of a data set, or the whole file of NAME/PATH."""
    folder, file = locate(data, texts)
    return split(folder)[1] if file is None else [TextSlice(file)]


def _select_texts(config: LanguageConfig, data: Path) -> tuple[list[TextSlice], list[TextSlice]]:
    """Return the texts to learn from and those held out. Raises `ConfigError` if there are only held-out texts."""
    folder, file = locate(data, config.texts)
    if config.held_out in (None, config.texts):
        return split(folder) if file is None else ([TextSlice(file, last=0.9)], [TextSlice(file, first=0.9)])
    held_out = held_out_texts(data, config.held_out)
    excluded = {piece.file.resolve() for piece in held_out}
    files = text.files(folder) if file is None else [file]
    kept = [TextSlice(each) for each in files if each.resolve() not in excluded]
    if not kept:
        raise ConfigError(
            "task.held_out", config.held_out, f"contains all of {config.texts}: no text is left to learn from"
        )
    return kept, held_out


def split(folder: Path) -> tuple[list[TextSlice], list[TextSlice]]:
    """Return the texts to learn from and those held out. Raises `DataError` if there are none."""
    files = text.files(folder)
    if len(files) == 1:
        return [TextSlice(files[0], last=0.9)], [TextSlice(files[0], first=0.9)]
    kept, held_out = text.books(folder)
    return [TextSlice(file) for file in kept], [TextSlice(file) for file in held_out]


def _until(pieces: Sequence[TextSlice], characters: int) -> Iterator[str]:
    """Yield whole texts until there are `characters` characters."""
    for piece in pieces:
        if characters <= 0:
            return
        content = piece.read()
        characters -= len(content)
        yield content


def middle_shares(pieces: Sequence[TextSlice], characters: int) -> Iterator[str]:
    """Yield an equal share of each text, from its middle, `characters` in all. Many short shares give a better mean than
    one book, because books differ in difficulty."""
    share = -(-characters // len(pieces))
    for piece in pieces:
        content = piece.read()
        start = max(0, (len(content) - share) // 2)
        yield content[start : start + share]


def encode(contents: Iterator[str], tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Return the tokens of texts, concatenated."""
    return np.concatenate([np.array(tokenizer.encode(content), dtype=np.int64) for content in contents])


def runs(stream: NDArray[np.int64], samples: int, length: int, source: str) -> Tensor:
    """Return `samples` runs of `length` tokens (samples, length) at even distances. Raises `ConfigError` if they overlap."""
    if samples * length > len(stream):
        limit = f"{samples} runs of {length} tokens exceed the {len(stream)} held-out tokens of {source}"
        raise ConfigError("samples", samples, limit)
    start = np.arange(samples) * (len(stream) // samples)
    return torch.from_numpy(stream[start[:, None] + np.arange(length)])


@torch.no_grad()
def measure(
    model: SegmentReader,
    tokenizer: Tokenizer,
    tokens: Tensor,
    *,
    rows: int = 16,
    forget: Sequence[str] = (),
    line_ends: bool = False,
) -> Scores:
    """Return the model's sums over `tokens` (runs, n·S). Each run starts from an empty memory, which is then carried.

    `forget`: state tensors to reset before every segment. `line_ends`: count the ends of lines as words. Raises
    `ConfigError` if the state has no tensor of that name.
    """
    S, empty = model.segment_length, model.initial_state(1)
    for name in forget:
        if name not in empty.tensors:
            raise ConfigError("forget", name, f"must be one of {', '.join(sorted(empty.tensors))}")
    device = empty.device
    nats, characters, words = 0.0, 0, 0
    for some in tokens.split(rows):
        batch = some.to(device)
        blank = model.initial_state(len(some))
        state = blank
        for start in range(0, batch.shape[1], S):
            logits, state = model.segment(batch[:, start : start + S], state)
            following = batch[:, start + 1 : start + S + 1]  # nothing follows the last token of a run
            scores = logits[:, : following.shape[1]].float()
            nats += float(F.cross_entropy(scores.flatten(0, 1), following.flatten(), reduction="sum"))
            if forget:
                state = MemoryState({**state.tensors, **{name: blank[name] for name in forget}})
        for line in some.tolist():
            content = tokenizer.decode(line[1:], skip_special=False)
            characters += len(content)
            words += len(content.split()) + line_ends * content.count("\n")
    return Scores(nats, tokens.numel() - len(tokens), characters, words)
