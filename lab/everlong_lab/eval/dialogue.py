"""Table 2 of the ∞-former paper for any model: how much the document before a dialogue helps its responses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from everlong_lab.eval.answer_scores import overlap_scores
from everlong_lab.eval.babilong import in_window
from everlong_lab.tasks import greedy
from everlong_lab.tasks.chat_encoder import ChatEncoder
from everlong_lab.tasks.dialogue import Dialogue, encode_dialogue, perplexity
from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import ConfigError
from everlong_models.memories.base import SegmentReader
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
"""Ways that go through the memory; the others use the backbone's window."""
MOST = 40
"""Maximum number of tokens of a response."""
PUBLISHED: tuple[tuple[str, float, float, float, float, float], ...] = (
    ("GPT-2 without the document", 19.43, 7.82, 12.18, 10.17, 6.10),
    ("GPT-2 with the document in its window", 18.53, 8.64, 14.61, 12.03, 7.15),
    ("Compressive", 18.02, 8.78, 14.74, 12.14, 7.29),
    ("∞-former", 18.02, 8.92, 15.28, 12.51, 7.52),
    ("∞-former, sticky", 18.04, 9.01, 15.37, 12.56, 7.55),
)
"""Perplexity, F1, ROUGE-1, ROUGE-L, METEOR of models fine-tuned on the task (Martins et al. 2022, Table 2)."""


class DialogueScores(NamedTuple):
    """Scores of one way. `perplexity`: of the tokens of all `responses`. `wording`: `overlap_scores` of the `written` ones, in
    percent. `answers`: the expected and the written responses."""

    way: Way
    dialogues: int
    responses: int
    perplexity: float
    written: int
    wording: dict[str, float]
    answers: list[dict[str, str]]


class DialogueSample(NamedTuple):
    """Whole `dialogues`, and which of their responses to write, as (dialogue, response)."""

    dialogues: list[Dialogue]
    written: list[tuple[int, int]]


def sample(found: Sequence[Dialogue], *, responses: int, written: int, seed: int) -> DialogueSample:
    """Sample dialogues until they have `responses` responses, and `written` of these to write. Raises `ConfigError`."""
    random = np.random.default_rng(seed)
    chosen: list[Dialogue] = []
    places: list[tuple[int, int]] = []
    for index in random.permutation(len(found)):
        if len(places) >= responses:
            break
        count = sum(utterance.response for utterance in found[index].utterances[1:])
        places += [(len(chosen), response) for response in range(count)]
        chosen.append(found[index])
    if len(places) < responses:
        raise ConfigError("samples", responses, f"must be at most {len(places)}, the data set's responses")
    if not 1 <= written <= len(places):
        raise ConfigError("written", written, f"must be from 1 to {len(places)}")
    picked = random.permutation(len(places))[:written]
    return DialogueSample(chosen, [places[i] for i in sorted(picked)])


def default_ways(backbone: Backbone | None, tokenizer: Tokenizer, sampled: DialogueSample) -> tuple[Way, ...]:
    """Return the default ways for a model: with and without the document, in the window of its `backbone` if the longest
    dialogue fits, otherwise through the memory."""
    encoder = ChatEncoder(tokenizer)
    longest = max(len(encode_dialogue(encoder, one).ids) for one in sampled.dialogues) + MOST
    fits = backbone is not None and longest <= backbone.max_positions
    return ("none", "window", "memory") if fits else ("dialogue", "memory")


def dialogue(
    memory: SegmentReader | None,
    backbone: Backbone | None,
    tokenizer: Tokenizer,
    *,
    sampled: DialogueSample,
    ways: Sequence[Way],
    progress: Callable[[Way], None] = lambda way: None,
) -> Iterator[DialogueScores]:
    """Yield one row of the table for each of the `ways`.

    `none` and `window` see everything in the `backbone`'s own window; `dialogue` and `memory` read it segment by segment.
    Responses are generated greedily, at most `MOST` tokens, each after the original dialogue up to it. Raises
    `ConfigError` if the model lacks what a way needs, or if a dialogue does not fit into the window.
    """
    encoder = ChatEncoder(tokenizer)
    for way in ways:
        encoded = [encode_dialogue(encoder, one, document=way in DOCUMENTED) for one in sampled.dialogues]
        longest = max(len(one.ids) for one in encoded) + MOST
        if way in READ:
            model: SegmentReader | None = memory
        else:
            model = None if backbone is None else in_window(backbone, longest)
        if model is None:
            raise ConfigError(
                "ways", way, f"needs a {'memory' if way in READ else 'backbone'}, which this model does not have"
            )
        answers = []
        for number, response in sampled.written:
            start, end = encoded[number].responses[response]
            state, rest = greedy.read_stream(model, [[encoded[number].ids[:start]]])
            (answer,) = greedy.answer(model, state, rest, most=MOST, ends=encoder.ends)
            expected = tokenizer.decode(encoded[number].ids[start:end].tolist())
            answers.append({"expected": expected.strip(), "written": tokenizer.decode(answer).strip()})
            progress(way)
        yield DialogueScores(
            way,
            dialogues=len(encoded),
            responses=sum(len(one.responses) for one in encoded),
            perplexity=perplexity(model, [one.example() for one in encoded], rows=4 if way in READ else 1),
            written=len(answers),
            wording=overlap_scores([a["written"] for a in answers], [a["expected"] for a in answers]),
            answers=answers,
        )


def table(name: str, found: Sequence[DialogueScores]) -> list[dict[str, Any]]:
    """Return the table's rows, followed by the published ones."""
    columns = ("perplexity", "f1", "rouge1", "rougeL", "meteor")
    rows: list[dict[str, Any]] = [
        {"model": f"{name}: {WAYS[one.way]}", "perplexity": round(one.perplexity, 2)}
        | {column: round(one.wording[column], 2) for column in columns[1:]}
        for one in found
    ]
    return rows + [{"model": f"published: {row[0]}"} | dict(zip(columns, row[1:], strict=True)) for row in PUBLISHED]
