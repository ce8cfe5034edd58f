"""`everlong eval remembers`: what a memory holds of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Option

from everlong_lab.cli.common import (
    DataDir,
    Device,
    MemoryOption,
    ModelOption,
    Output,
    Seed,
    Threads,
    load,
    names_of,
    options_of,
    progress,
    reported,
    show,
    sizes,
)
from everlong_server.cli.common import ModelsDir


def remembers(
    data: DataDir = Path("data"),
    model: ModelOption = None,
    memory: MemoryOption = None,
    options: Annotated[str | None, Option(help='Set options of the memory: JSON, such as {"entries": 256}.')] = None,
    sets: Annotated[str, Option(help="Use these sets of questions.")] = "squality,qmsum,fairytaleqa,squad",
    lengths: Annotated[
        str, Option(help="Smallest lengths of the documents in tokens, separated by commas.")
    ] = "4000,16000,64000",
    ways: Annotated[str | None, Option(help="Measure answers from these sources; default: all.")] = None,
    documents: Annotated[
        int, Option(min=2, help="Read this many documents per set and length, if there are as many.")
    ] = 8,
    questions: Annotated[int, Option(min=1, help="Ask this many questions about each document.")] = 8,
    written: Annotated[int, Option(min=0, help="Also generate the answers to this many of the questions.")] = 0,
    whole: Annotated[
        int, Option(min=1, help="Put documents of at most this many tokens into the backbone's context.")
    ] = 31_000,
    embeddings: Annotated[
        str, Option(help="Search passages also by meaning: auto, off or a folder, as in everlong serve.")
    ] = "auto",
    split: Annotated[
        Literal["test", "tune"], Option(help="Use this split of the data; we chose settings with tune.")
    ] = "test",
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure what a memory holds of a text: the likelihood of right answers, compared with the whole text.

    With --json, results are kept after each way of asking about a document: the same command continues after an interruption.
    """
    from everlong_lab.eval.remembers.measure import WAYS, RemembersPlan
    from everlong_lab.eval.remembers.run import evaluate
    from everlong_lab.eval.remembers.texts import SETS

    plan = RemembersPlan(
        sets=names_of(sets, SETS, "--sets"),
        lengths=sizes(lengths, "--lengths"),
        ways=tuple(WAYS) if ways is None else names_of(ways, WAYS, "--ways"),
        documents=documents,
        questions=questions,
        written=written,
        split=split,
        seed=seed,
        most=whole,
        embeddings=embeddings,
    )
    with reported():
        loaded = load(model, models_dir, threads, memory=memory, options=options_of(options), device=device)
        rows, figures = evaluate(loaded, plan, data, output, progress)
    show(f"everlong eval remembers: {loaded.name}, {loaded.memory_name}", rows, output, **figures)
