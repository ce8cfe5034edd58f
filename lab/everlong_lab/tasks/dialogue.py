"""Document-grounded dialogue: CMU-DoG (Zhou et al. 2018), the document before the dialogue only, as in ∞-former (4.3).

    head  document  separator  message  ask  response  turn  message  ask  response …

Two people chat about a film; the one who was given a document about it responds, the other one writes the messages (if
both were, the one who did not begin responds). What a person writes in a row is one message. A response that begins the
dialogue is context, no target. The documents are the same films in training and test: only dialogues are held out.

The data set has no licence: it is measured with, and no part of it is kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedTokenizerBase

from everlong_lab.corpora import text, vocabulary
from everlong_lab.corpora.datasets import checked, files, json_file
from everlong_lab.tasks.chat_encoder import ChatEncoder, Example, pad_batch
from everlong_lab.tasks.task import Batch, Setting, Task, TaskConfig
from everlong_lab.tasks.unroll import unroll
from everlong_models.errors import DataError
from everlong_models.memories.base import MemoryModel

Split = Literal["train", "valid", "test"]


class DialogueConfig(TaskConfig):
    """`documents`: the share of training dialogues that are told with their document. `vocabulary`: tokens of the
    tokenizer that is made for a model from scratch."""

    name: Literal["dialogue"] = "dialogue"
    documents: float = Field(0.9, ge=0, le=1)
    vocabulary: int = Field(4096, ge=512)


class Utterance(NamedTuple):
    """What one person writes. `response`: it is the one who answers. `section`: of the document that lay before them."""

    text: str
    response: bool
    section: int


class Dialogue(NamedTuple):
    """`document`: the sections about the film, in their order. `name`: of the file."""

    name: str
    document: tuple[str, ...]
    utterances: tuple[Utterance, ...]


class EncodedDialogue(NamedTuple):
    """A dialogue as token ids (N,); `responses`: the places [start, end) of the responses, their end tokens with them."""

    ids: np.ndarray
    responses: list[tuple[int, int]]

    def example(self) -> Example:
        """With the responses as targets."""
        targets = np.zeros(len(self.ids), dtype=bool)
        for start, end in self.responses:
            targets[start:end] = True
        return Example(self.ids, targets)


class DialogueTask(Task):
    """Dialogues to learn from, and those held out. Raises `DataError`."""

    def __init__(self, config: DialogueConfig, setting: Setting) -> None:
        self.config = config
        self.encoder = ChatEncoder(setting.tokenizer)
        self._seed = setting.seed
        self._S = setting.segment_length
        self._data = setting.data
        self._encode = functools.lru_cache(1000)(self.encoder.tokenizer.encode)

    @classmethod
    def make_tokenizer(cls, config: DialogueConfig, data: Path) -> PreTrainedTokenizerBase:
        """Byte-level, from the training dialogues and their documents."""
        found = dialogues(data, "train")
        documents = dict.fromkeys(section for dialogue in found for section in dialogue.document)
        texts = (*documents, *(turn.text for dialogue in found for turn in dialogue.utterances))
        return vocabulary.byte_level(texts, config.vocabulary)

    @property
    def vocab_size(self) -> int:
        return self.encoder.tokenizer.vocab_size

    @functools.cached_property
    def _train(self) -> list[Dialogue]:
        return dialogues(self._data, "train")

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """Dialogues of at most `segments` segments: with as many sections of the document as leave half of the room to
        the dialogue, which is cut where it goes on to a section that was not told."""
        random = self.random(self._seed, step)
        lines: list[Example] = []
        while len(lines) < rows:
            dialogue = self._train[random.integers(len(self._train))]
            documented = random.random() < self.config.documents
            told = self._shortened(dialogue, segments * self._S, documented=documented)
            if told.responses:
                lines.append(told.example())
        return pad_batch(lines)

    def _shortened(self, dialogue: Dialogue, most: int, *, documented: bool) -> EncodedDialogue:
        sections = 0
        if documented:
            held = np.cumsum([len(self._encode(section)) for section in dialogue.document])
            sections = int((held <= most // 2).sum())
        seen = [turn.section < sections for turn in dialogue.utterances]
        turns = dialogue.utterances[: seen.index(False)] if sections and False in seen else dialogue.utterances
        return encode_dialogue(self.encoder, dialogue._replace(document=dialogue.document[:sections], utterances=turns), most=most)

    def evaluate(self, model: MemoryModel, *, samples: int, segments: int) -> dict[str, float]:
        """`perplexity` of a token of the responses of the first `samples` dialogues held out for it (`valid`), with
        their whole documents."""
        found = dialogues(self._data, "valid")[:samples]
        return {"perplexity": perplexity(model, [encode_dialogue(self.encoder, dialogue).example() for dialogue in found])}


def encode_dialogue(encoder: ChatEncoder, dialogue: Dialogue, *, document: bool = True, most: int | None = None) -> EncodedDialogue:
    """The dialogue as it is read; without its `document`, or cut before the response that ends behind `most` tokens."""
    sections = dialogue.document if document else ()
    ids = encoder.head("\n\n".join(sections))
    asked, responses = bool(sections), []
    for index, turn in enumerate(dialogue.utterances):
        if not turn.response:
            if index and dialogue.utterances[index - 1].response:
                ids += encoder.turn
            elif asked:
                ids += encoder.format.separator
            ids += encoder.question(turn.text, document=False)
            continue
        if index == 0:  # nobody asked
            ids += encoder.question("", document=False)
        answer = encoder.answer(turn.text)
        if most is not None and len(ids) + len(answer) > most:
            break
        if index:
            responses.append((len(ids), len(ids) + len(answer)))
        ids += answer
    end = responses[-1][1] if responses else len(ids)  # what nobody responded to is not read either
    return EncodedDialogue(np.array(ids[:end], dtype=np.int64), responses)


@torch.no_grad()
def perplexity(model: MemoryModel, lines: Sequence[Example], *, rows: int = 4) -> float:
    """exp of the mean negative log-likelihood of a target, each line read from an empty memory on."""
    device = next(iter(model.initial_state(1).tensors.values())).device
    nats, targets = 0.0, 0
    # Of one length, more or less: what stands behind a document's end is computed in vain.
    ordered = sorted(lines, key=lambda line: len(line.ids))
    for first in range(0, len(ordered), rows):
        batch = pad_batch(ordered[first : first + rows])
        parts = unroll(model, batch.tokens.to(device), lengths=batch.lengths, loss_mask=batch.targets.to(device))
        for part in parts:
            nats += float(part.loss.double().sum())
            targets += int(part.targets.sum())
    return math.exp(nats / targets)


def dialogues(data: Path, split: Split) -> list[Dialogue]:
    """The dialogues of a split in which somebody responds, in the order of their files' names. Raises `DataError`."""
    folder = text.find(data, "cmu_dog")
    documents = _documents(folder)
    found = []
    for file in files(folder, f"Conversations/{split}/*.json"):
        stored = json_file(file)
        with checked(str(file)):
            film = int(stored["wikiDocumentIdx"])
            turns = _turns(stored["history"], stored["whoSawDoc"])
        if film not in documents:
            raise DataError(f"{file}: no document {film} in WikiData")
        if any(turn.response for turn in turns[1:]):
            found.append(Dialogue(file.stem, documents[film], turns))
    if not found:
        raise DataError(f"{folder}, {split}: holds no dialogue with a response")
    return found


def _turns(history: list[dict[str, Any]], saw: list[str]) -> tuple[Utterance, ...]:
    merged: list[tuple[str, list[str], int]] = []
    for message in history:
        who, said, section = str(message["uid"]), " ".join(str(message["text"]).split()), int(message["docIdx"])
        if not said:
            continue
        if merged and merged[-1][0] == who:
            merged[-1][1].append(said)
        else:
            merged.append((who, [said], section))
    if not saw:
        raise ValueError("nobody saw the document")
    responds = saw[0] if len(saw) == 1 else next((who for who, _, _ in merged if who != merged[0][0]), "")
    return tuple(Utterance(" ".join(said), who == responds, section) for who, said, section in merged)


def _documents(folder: Path) -> dict[int, tuple[str, ...]]:
    """The four sections about each film."""
    found = {}
    for file in files(folder, "WikiData/*.json"):
        stored = json_file(file)
        with checked(str(file)):
            facts = stored["0"]
            first = (
                f"{facts['movieName']} ({facts['year']})\nDirector: {_listed(facts['director'])}\n"
                f"Genre: {_listed(facts['genre'])}\nCast: {_listed(facts['cast'])}\n{facts['introduction']}\n"
                f"Rating: {_listed(facts['rating'])}\nCritics: {_listed(facts['critical_response'], ' ')}"
            )
            found[int(stored["wikiDocumentIdx"])] = (first, *(str(stored[key]).strip() for key in "123"))
    return found


def _listed(value: object, separator: str = ", ") -> str:
    parts = value if isinstance(value, list) else [value]
    return separator.join(" ".join(str(part).split()) for part in parts)
