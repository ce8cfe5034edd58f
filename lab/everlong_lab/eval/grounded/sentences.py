"""`everlong sentences`: put the answers of prompts into sentences.

Data sets answer in a few words ("his dog"), and a model trained on them does so too. People prefer "Ulysses was recognised by his dog."
An instruct model writes the sentence from question and answer. One that says more or less than the answer is not used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from everlong_lab.corpora.datasets import checked, json_lines
from everlong_lab.eval.grounded.scores import content_words
from everlong_lab.harness.files import replacing
from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_models.backbone.backbone import Backbone
from everlong_models.text.tokenizer import Tokenizer
from everlong_server.engine.answering.evidence.templates import REFUSAL

_ASK = """Write the answer as one complete sentence with the words of the question. Add nothing else.

Question: Who did the old king send to the tower?
Answer: his youngest son
Sentence: The old king sent his youngest son to the tower.

Question: Why was the shepherd afraid?
Answer: He heard wolves.
Sentence: The shepherd was afraid because he heard wolves.

Question: {question}
Answer: {answer}
Sentence:"""
_MAX_TOKENS = 48
_MAX_MORE = 3
"""Maximum number of content words of a sentence that are neither in the question nor in the answer ("lives", for "Where does he live?")."""
_NEGATIONS = frozenset(("no", "not", "nor", "neither", "never", "nobody", "nothing", "none", "cannot", "without", "t"))
"""Content words leave these out. `t`: of "didn't"."""
_ROWS = 256


def read(file: Path) -> list[dict[str, Any]]:
    """Return the lines of a file that `everlong prompts` has written. Raises `DataError`."""
    lines = []
    for where, line in json_lines(file.parent, file.name):
        with checked(where):
            for turn in line["turns"]:
                _pairs(turn)
        lines.append(line)
    return lines


def write(
    lines: list[dict[str, Any]], to: Path, write_sentences: Callable[[Sequence[tuple[str, str]]], list[str]]
) -> tuple[int, int]:
    """Write the prompts `lines` to the file `to`, with sentences for the answers to turns that have a `question`.

    `write_sentences`: for pairs of a question and an answer. Returns how many answers became sentences, and how many there were.
    """
    pairs = list(dict.fromkeys(pair for turn in _turns(lines) for pair in _pairs(turn)))
    sentences = {
        pair: sentence
        for pair, sentence in zip(pairs, write_sentences(pairs), strict=True)
        if says_the_same(*pair, sentence)
    }
    for turn in _turns(lines):
        turn["answers"] = [sentences.get(pair) or as_sentence(pair[1]) for pair in _pairs(turn)] or turn["answers"]
    with replacing(to) as part:  # so that an unfinished file is never trained on
        part.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return len(sentences), len(pairs)


def _turns(lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield from line["turns"]


def _pairs(turn: dict[str, Any]) -> list[tuple[str, str]]:
    answers = [] if "question" not in turn or turn["answers"] == [REFUSAL] else turn["answers"]
    return [(turn["question"], answer) for answer in answers]


def as_sentence(answer: str) -> str:
    """Return the answer with a capital letter and a full stop."""
    answer = answer.strip()
    return answer[:1].upper() + answer[1:] + ("" if answer[-1:] in ".!?\"'”’" else ".")


def says_the_same(question: str, answer: str, sentence: str) -> bool:
    """Return whether `sentence` has all content words of the answer, few that are neither there nor in the question, and a negation if and
    only if one of these has one."""
    words = content_words(sentence)
    more = words - content_words(answer) - content_words(question)
    return (
        bool(content_words(answer))
        and content_words(answer) <= words
        and _negates(sentence) == (_negates(question) or _negates(answer))
        and len(more) <= _MAX_MORE
        and re.fullmatch(r"[^\n]*[.!?][\"'”’]?", sentence) is not None
        and len(re.findall(r"[.!?](?=\s)", sentence)) <= len(re.findall(r"[.!?](?=\s)", answer))
    )


def _negates(text: str) -> bool:
    return not _NEGATIONS.isdisjoint(re.findall(r"[^\W_]+", text.lower()))


class SentenceWriter:
    """Writes sentences with an instruct model, on any device."""

    def __init__(
        self, backbone: Backbone, tokenizer: Tokenizer, progress: Callable[[float], None] = lambda done: None
    ) -> None:
        """`progress` is called with the share of the sentences that are written."""
        self._backbone, self._encoder, self._tokenizer = backbone, ChatEncoder(tokenizer), tokenizer
        self._progress = progress

    @torch.no_grad()
    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[str]:
        """Return a sentence for each question with its answer; the most likely tokens are taken."""
        encoder, device = self._encoder, self._backbone.device
        prompts = [
            [*encoder.head(_ASK.format(question=question, answer=answer)), *encoder.format.ask]
            for question, answer in pairs
        ]
        sentences = [""] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda n: len(prompts[n]))
        for first in range(0, len(order), _ROWS):
            some = order[first : first + _ROWS]
            rows = [torch.tensor(prompts[n]) for n in some]
            ids = pad_sequence(rows, batch_first=True, padding_side="left")
            mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True, padding_side="left")
            written = self._backbone.model.generate(
                input_ids=ids.to(device), attention_mask=mask.to(device), max_new_tokens=_MAX_TOKENS, do_sample=False,
                eos_token_id=sorted(encoder.ends), pad_token_id=encoder.end,
            )  # fmt: skip
            for row, n in enumerate(some):
                tokens = written[row, ids.shape[1] :].tolist()
                end = next((at for at, token in enumerate(tokens) if token in encoder.ends), len(tokens))
                sentences[n] = self._tokenizer.decode(tokens[:end]).strip()
            self._progress(min(1.0, (first + _ROWS) / len(order)))
        return sentences
