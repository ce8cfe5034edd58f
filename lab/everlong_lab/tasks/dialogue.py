"""Document-grounded dialogue: CMU-DoG (Zhou et al. 2018), with the document only before the dialogue (∞-former, 4.3).

    head  document  separator  message  ask  response  turn  message  ask  response …

Two people chat about a film. The one who was shown a document about it gives the responses, the other one the messages.
If both were shown it, the one who did not start responds. What a person writes in a row is one message. A response that
starts the dialogue is context, not a target. Training and test documents are about the same films: only dialogues are
held out.

The data set has no licence: it is used for measurements only, and no part of it is kept.
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
from everlong_models.memories.base import SegmentReader

Split = Literal["train", "valid", "test"]


class DialogueConfig(TaskConfig):
    """`documents`: share of training dialogues that include their document. `vocabulary`: size of the tokenizer made for
    a model from scratch."""

    name: Literal["dialogue"] = "dialogue"
    documents: float = Field(0.9, ge=0, le=1)
    vocabulary: int = Field(4096, ge=512)


class Utterance(NamedTuple):
    """Consecutive messages of one person. `response`: written by the person who answers. `section`: the document section
    that they saw at the time."""

    text: str
    response: bool
    section: int


class Dialogue(NamedTuple):
    """`document`: the sections about the film, in order. `name`: of the file."""

    name: str
    document: tuple[str, ...]
    utterances: tuple[Utterance, ...]


class EncodedDialogue(NamedTuple):
    """A dialogue as token ids (N,). `responses`: positions [start, end) of the responses, with their end tokens."""

    ids: np.ndarray
    responses: list[tuple[int, int]]

    def example(self) -> Example:
        """Return the dialogue with its responses as targets."""
        targets = np.zeros(len(self.ids), dtype=bool)
        for start, end in self.responses:
            targets[start:end] = True
        return Example(self.ids, targets)


class DialogueTask(Task):
    """Training dialogues and held-out dialogues. Raises `DataError`."""

    config: DialogueConfig

    def __init__(self, config: DialogueConfig, setting: Setting) -> None:
        super().__init__(config, setting)
        self.encoder = ChatEncoder(setting.tokenizer)
        self._encode = functools.lru_cache(1000)(self.tokenizer.encode)

    @classmethod
    def make_tokenizer(cls, config: DialogueConfig, data: Path) -> PreTrainedTokenizerBase:
        """Return a byte-level tokenizer made from the training dialogues and their documents."""
        found = dialogues(data, "train")
        documents = dict.fromkeys(section for dialogue in found for section in dialogue.document)
        texts = (*documents, *(utterance.text for dialogue in found for utterance in dialogue.utterances))
        return vocabulary.byte_level(texts, config.vocabulary)

    @functools.cached_property
    def _train(self) -> list[Dialogue]:
        return dialogues(self._data, "train")

    def batch(self, step: int, rows: int, segments: int) -> Batch:
        """Return dialogues of at most `segments` segments. Each has as many document sections as leave half of the tokens
        to the dialogue, which is cut before the first message about a section that is not included."""
        random = self.random(self._seed, step)
        examples: list[Example] = []
        while len(examples) < rows:
            dialogue = self._train[random.integers(len(self._train))]
            documented = random.random() < self.config.documents
            encoded = self._shortened(dialogue, segments * self._S, documented=documented)
            if encoded.responses:
                examples.append(encoded.example())
        return pad_batch(examples)

    def _shortened(self, dialogue: Dialogue, most: int, *, documented: bool) -> EncodedDialogue:
        sections = 0
        if documented:
            lengths = np.cumsum([len(self._encode(section)) for section in dialogue.document])
            sections = int((lengths <= most // 2).sum())
        seen = [utterance.section < sections for utterance in dialogue.utterances]
        utterances = dialogue.utterances[: seen.index(False)] if sections and False in seen else dialogue.utterances
        dialogue = dialogue._replace(document=dialogue.document[:sections], utterances=utterances)
        return encode_dialogue(self.encoder, dialogue, most=most)

    def evaluate(self, model: SegmentReader, *, samples: int, segments: int) -> dict[str, float]:
        """Return the `perplexity` of the responses in the first `samples` dialogues of the `valid` split, with their whole
        documents."""
        found = dialogues(self._data, "valid")[:samples]
        return {
            "perplexity": perplexity(model, [encode_dialogue(self.encoder, dialogue).example() for dialogue in found])
        }


def encode_dialogue(
    encoder: ChatEncoder, dialogue: Dialogue, *, document: bool = True, most: int | None = None
) -> EncodedDialogue:
    """Return the dialogue as tokens, without its `document` if False, cut before the response that would exceed `most`."""
    sections = dialogue.document if document else ()
    ids = encoder.head("\n\n".join(sections))
    responses: list[tuple[int, int]] = []
    for index, utterance in enumerate(dialogue.utterances):
        if not utterance.response:
            if index and dialogue.utterances[index - 1].response:
                ids += encoder.turn
            elif sections:
                ids += encoder.format.separator
            ids += encoder.question(utterance.text, document=False)
            continue
        if index == 0:  # a response without a message before it
            ids += encoder.question("", document=False)
        answer = encoder.answer(utterance.text)
        if most is not None and len(ids) + len(answer) > most:
            break
        if index:
            responses.append((len(ids), len(ids) + len(answer)))
        ids += answer
    end = responses[-1][1] if responses else len(ids)  # messages without a response are left out
    return EncodedDialogue(np.array(ids[:end], dtype=np.int64), responses)


@torch.no_grad()
def perplexity(model: SegmentReader, examples: Sequence[Example], *, rows: int = 4) -> float:
    """Return exp of the mean negative log-likelihood of a target; each example starts from an empty memory."""
    device = model.initial_state(1).device
    nats, targets = 0.0, 0
    # Batches of similar lengths waste less computation on padding.
    ordered = sorted(examples, key=lambda example: len(example.ids))
    for first in range(0, len(ordered), rows):
        batch = pad_batch(ordered[first : first + rows])
        parts = unroll(model, batch.tokens.to(device), lengths=batch.lengths, loss_mask=batch.targets.to(device))
        for part in parts:
            nats += float(part.loss.double().sum())
            targets += int(part.targets.sum())
    return math.exp(nats / targets)


def dialogues(data: Path, split: Split) -> list[Dialogue]:
    """Return the split's dialogues that have a response, ordered by file name. Raises `DataError`."""
    folder = text.find(data, "cmu_dog")
    documents = _documents(folder)
    found = []
    for file in files(folder, f"Conversations/{split}/*.json"):
        stored = json_file(file)
        with checked(str(file)):
            film = int(stored["wikiDocumentIdx"])
            utterances = _utterances(stored["history"], stored["whoSawDoc"])
        if film not in documents:
            raise DataError(f"{file}: WikiData has no document {film}")
        if any(utterance.response for utterance in utterances[1:]):
            found.append(Dialogue(file.stem, documents[film], utterances))
    if not found:
        raise DataError(f"{folder}, {split}: has no dialogue with a response")
    return found


def _utterances(history: list[dict[str, Any]], saw: list[str]) -> tuple[Utterance, ...]:
    merged: list[tuple[str, list[str], int]] = []
    for message in history:
        user, content, section = str(message["uid"]), " ".join(str(message["text"]).split()), int(message["docIdx"])
        if not content:
            continue
        if merged and merged[-1][0] == user:
            merged[-1][1].append(content)
        else:
            merged.append((user, [content], section))
    if not saw:
        raise ValueError("whoSawDoc is empty")
    responder = saw[0] if len(saw) == 1 else next((user for user, _, _ in merged if user != merged[0][0]), "")
    return tuple(Utterance(" ".join(contents), user == responder, section) for user, contents, section in merged)


def _documents(folder: Path) -> dict[int, tuple[str, ...]]:
    """Return the four sections about each film, by its number."""
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
