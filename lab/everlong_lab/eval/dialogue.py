"""The ∞-former paper's Table 2 with any model: how much the document before a dialogue helps its responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from everlong_lab.eval.answer_scores import overlap_scores
from everlong_lab.eval.babilong import in_window, window_positions
from everlong_lab.tasks import greedy
from everlong_lab.tasks.dialogue import Dialogue, perplexity, encode_dialogue
from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import ConfigError
from everlong_models.memories.base import MemoryModel
from everlong_models.text.tokenizer import Tokenizer

Way = Literal["none", "window", "dialogue", "memory"]
WAYS: dict[Way, str] = {
    "none": "no document, dialogue in the window",
    "window": "document and dialogue in the window",
    "dialogue": "no document, dialogue through the memory",
    "memory": "document and dialogue through the memory",
}
DOCUMENTED: tuple[Way, ...] = ("window", "memory")
READ: tuple[Way, ...] = ("dialogue", "memory")
"""Through the memory; the others are the backbone's window."""
MOST = 40
"""Tokens of a response."""
PUBLISHED: tuple[tuple[str, float, float, float, float, float], ...] = (
    ("GPT-2 without the document", 19.43, 7.82, 12.18, 10.17, 6.10),
    ("GPT-2 with the document in its window", 18.53, 8.64, 14.61, 12.03, 7.15),
    ("Compressive", 18.02, 8.78, 14.74, 12.14, 7.29),
    ("∞-former", 18.02, 8.92, 15.28, 12.51, 7.52),
    ("∞-former, sticky", 18.04, 9.01, 15.37, 12.56, 7.55),
)
"""Perplexity, F1, ROUGE-1, ROUGE-L, METEOR of models fine-tuned on the task (Martins et al. 2022, Table 2)."""


class DialogueScores(NamedTuple):
    """`perplexity`: of a token of all `responses`. The others, in percent: means over the `written` of them, see
    `wording`. `answers`: what was expected and what was written."""

    way: Way
    dialogues: int
    responses: int
    perplexity: float
    written: int
    wording: dict[str, float]
    answers: list[dict[str, str]]


class DialogueSample(NamedTuple):
    """`dialogues`, whole, and which of their responses, by (dialogue, response), are to be written."""

    dialogues: list[Dialogue]
    written: list[tuple[int, int]]


def sample(found: Sequence[Dialogue], *, responses: int, written: int, seed: int) -> DialogueSample:
    """Dialogues drawn until they have so many `responses`, and `written` of these. Raises `ConfigError`."""
    random = np.random.default_rng(seed)
    chosen: list[Dialogue] = []
    places: list[tuple[int, int]] = []
    for index in random.permutation(len(found)):
        if len(places) >= responses:
            break
        count = sum(turn.response for turn in found[index].utterances[1:])
        places += [(len(chosen), response) for response in range(count)]
        chosen.append(found[index])
    if len(places) < responses:
        raise ConfigError("samples", responses, f"the data set has {len(places)} responses")
    if not 1 <= written <= len(places):
        raise ConfigError("written", written, f"must be from 1 to {len(places)}")
    picked = random.permutation(len(places))[:written]
    return DialogueSample(chosen, [places[i] for i in sorted(picked)])


def default_ways(backbone: Backbone | None, tokenizer: Tokenizer, sampled: DialogueSample, *, most: int = MOST) -> tuple[Way, ...]:
    """The ways that a model is asked in unless some are named: with and without the document, and in the window of its
    `backbone` where that holds the longest dialogue; a model from scratch has none that does."""
    encoder = ChatEncoder(tokenizer)
    longest = max(len(encode_dialogue(encoder, one).ids) for one in sampled.dialogues) + most
    held = backbone is not None and longest <= window_positions(backbone)
    return ("none", "window", "memory") if held else ("dialogue", "memory")


def dialogue(
    memory: MemoryModel | None,
    backbone: Backbone | None,
    tokenizer: Tokenizer,
    *,
    sampled: DialogueSample,
    ways: Sequence[Way],
    most: int = MOST,
    progress: Callable[[Way], None] = lambda way: None,
) -> Iterator[DialogueScores]:
    """One row of the table for each of the `ways`.

    `none` and `window` see all in the `backbone`'s own window, `dialogue` and `memory` read it segment by segment.
    Responses are written greedily, at most `most` tokens, each after the dialogue as it was. Raises `ConfigError` for a
    way that lacks its model, or a dialogue that the window does not hold.
    """
    encoder = ChatEncoder(tokenizer)
    for way in ways:
        lines = [encode_dialogue(encoder, one, document=way in DOCUMENTED) for one in sampled.dialogues]
        longest = max(len(line.ids) for line in lines) + most
        if way in READ:
            model: MemoryModel | None = memory
        else:
            model = None if backbone is None else in_window(backbone, longest)
        if model is None:
            raise ConfigError("ways", way, "this model lacks what it takes: a memory, or a backbone")
        answers = []
        for one, response in sampled.written:
            start, end = lines[one].responses[response]
            state, rest = greedy.read_stream(model, [[lines[one].ids[:start]]])
            (given,) = greedy.answer(model, state, rest, most=most, ends=encoder.ends)
            expected = tokenizer.decode(lines[one].ids[start:end].tolist())
            answers.append({"expected": expected.strip(), "written": tokenizer.decode(given).strip()})
            progress(way)
        yield DialogueScores(
            way,
            dialogues=len(lines),
            responses=sum(len(line.responses) for line in lines),
            perplexity=perplexity(model, [line.example() for line in lines], rows=4 if way in READ else 1),
            written=len(answers),
            wording=overlap_scores([a["written"] for a in answers], [a["expected"] for a in answers]),
            answers=answers,
        )


def table(name: str, found: Sequence[DialogueScores]) -> list[dict[str, Any]]:
    """Rows for people, the published ones below."""
    columns = ("perplexity", "f1", "rouge1", "rougeL", "meteor")
    rows: list[dict[str, Any]] = [
        {"model": f"{name}: {WAYS[one.way]}", "perplexity": round(one.perplexity, 2)}
        | {column: round(one.wording[column], 2) for column in columns[1:]}
        for one in found
    ]
    return rows + [{"model": f"published: {row[0]}"} | dict(zip(columns, row[1:], strict=True)) for row in PUBLISHED]
