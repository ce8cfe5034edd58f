"""`EvalResult`: what `everlong eval babilong` and `dialogue` measure: a table, and figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, Literal, NamedTuple

from everlong_lab.eval.answer_scores import overlap_scores
from everlong_lab.eval.babilong import babilong, parse_length, table
from everlong_lab.eval.dialogue import Way, default_ways, dialogue, sample
from everlong_lab.eval.dialogue import table as of_dialogue
from everlong_lab.harness.progress import Progress
from everlong_lab.tasks.babi import BabiTask
from everlong_lab.tasks.dialogue import dialogues
from everlong_models.backbone.backbone import Backbone
from everlong_models.errors import ConfigError
from everlong_models.model import Model


class EvalResult(NamedTuple):
    """`rows`: the table. `figures`: everything else, for `--json`; `notes` among it is what a reader must know."""

    title: str
    rows: list[dict[str, Any]]
    figures: dict[str, Any]


def measure_babilong(
    model: Model,
    *,
    plain: bool,
    tasks: Sequence[BabiTask],
    lengths: Sequence[str],
    samples: int,
    prompt: Literal["auto", "few-shot", "bare"],
    seed: int,
    rows: int | None,
    data: Path,
    progress: Progress,
) -> EvalResult:
    """Measure BABILong. `plain`: use only the model's backbone. Raises what `babilong` raises."""
    run, notes = list(lengths), []
    if plain:
        positions = backbone_of(model).max_positions
        run = [length for length in lengths if (parse_length(length) or 0) <= positions]
        if not run:
            raise ConfigError(
                "lengths", ",".join(lengths), f"must be at most {positions:,} tokens, the backbone's window"
            )
        if left := [length for length in lengths if length not in run]:
            notes.append(f"not run: {', '.join(left)}; the backbone's window holds {positions:,} tokens")
    # A memory trained here has learnt the bare form; other models must be told the task.
    used = prompt if prompt != "auto" else "bare" if model.trained and model.tuned and not plain else "few-shot"
    total, done = len(tasks) * len(run) * samples, count(1)
    found = babilong(
        backbone_of(model) if plain else model.memory,
        model.tokenizer,
        data=data,
        tasks=tasks,
        lengths=run,
        samples=samples,
        prompt=used,
        seed=seed,
        rows=rows,
        progress=lambda task, length: progress(f"{task} {length}", next(done) / total),
    )
    cells = list(found)
    name = f"{model.name}, {'its own window' if plain else model.memory_name}"
    notes.append(
        f"{samples} questions per task and length, {used} prompt, seed {seed}; 95 % intervals (Wilson). An answer is right if its "
        "first sentence has the expected word and none of the task's other answers"
    )
    figures = {"model": name, "fingerprint": model.fingerprint, "prompt": used, "seed": seed}
    return EvalResult(
        f"everlong eval babilong: {name}",
        table(name, cells, lengths),
        figures | {"notes": notes, "cells": [asdict(cell) for cell in cells]},
    )


def measure_dialogue(
    model: Model, *, ways: Sequence[Way] | None, samples: int, written: int, seed: int, data: Path, progress: Progress
) -> EvalResult:
    """Measure dialogue. `ways`: default `default_ways`. Raises what `dialogue` raises."""
    overlap_scores(["a"], ["a"])  # fail now, not after an hour, if a library is missing
    sampled = sample(dialogues(data, "test"), responses=samples, written=written, seed=seed)
    own = getattr(model.memory, "backbone", None)
    backbone = own if isinstance(own, Backbone) else None
    ways = ways or default_ways(backbone, model.tokenizer, sampled)
    total, done = len(ways) * len(sampled.written), count(1)
    rows = dialogue(
        model.memory, backbone, model.tokenizer, sampled=sampled, ways=ways,
        progress=lambda way: progress(way, next(done) / total),
    )  # fmt: skip
    found = list(rows)
    name = f"{model.name}, {model.memory_name}"
    notes = [
        f"perplexity of a token over {found[0].responses} responses in {found[0].dialogues} dialogues of the test split, "
        f"seed {seed}; the rest over {found[0].written} of them, written greedily; METEOR without WordNet's synonyms"
    ]
    figures = {"model": name, "fingerprint": model.fingerprint, "seed": seed, "notes": notes}
    return EvalResult(
        f"everlong eval dialogue: {name}",
        of_dialogue(model.name, found),
        figures | {"ways": [one._asdict() for one in found]},
    )


def backbone_of(model: Model) -> Backbone:
    """Return the model's backbone. Raises `ConfigError` for a model from scratch, which has none."""
    backbone = getattr(model.memory, "backbone", None)
    if not isinstance(backbone, Backbone):
        raise ConfigError("model", model.name, f"{model.memory_name} has no backbone to measure without it")
    return backbone
