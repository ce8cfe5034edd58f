"""`everlong eval`: quality of models and answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, Typer

from everlong_lab.cli.common import (
    DataDir,
    Device,
    MemoryOption,
    ModelOption,
    Output,
    Seed,
    Threads,
    command,
    load,
    names_of,
    progress,
    progress_bar,
    reported,
    show,
    sizes,
    writable,
    write,
)
from everlong_lab.cli.remembers import remembers
from everlong_server.cli.common import ModelsDir, fail, out

if TYPE_CHECKING:
    from everlong_lab.eval.seeds import SeededModel
    from everlong_models.model import Model
    from everlong_server.engine.answering.evidence.grounding import Recall


def _drawable(file: Path | None) -> Path | None:
    if file is not None and find_spec("matplotlib") is None:
        raise fail("--plot needs matplotlib: pip install 'everlong-lab[train]'")
    return writable(file)


eval = Typer(add_completion=False, no_args_is_help=True, help="Measure the quality of models and answers.")

ModelNames = Annotated[
    list[str], Argument(help="Measure these models; models of one recipe count as its seeds.", metavar="MODEL")
]
eval.command()(remembers)

Plot = Annotated[Path | None, Option(help="Write a plot to this file, as PNG.", callback=_drawable)]


@eval.command()
def horizon(
    updates: Annotated[int, Option(help="Read this many segments.", min=1)] = 32,
    basis: Annotated[int, Option(help="Use this many basis functions, N.", min=1)] = 512,
    segment_length: Annotated[int, Option(help="Use segments of this many tokens, S.", min=2)] = 512,
    tau: Annotated[float, Option(help="Let the past keep this share of the signal.")] = 0.5,
    plot: Plot = None,
    output: Output = None,
) -> None:
    """Measure how much of the first segment an ∞-former's memory still holds."""
    from everlong_lab.eval.horizon import curves, draw_curves
    from everlong_models.memories.infinite.long_term import LongTermConfig

    with reported():
        config = LongTermConfig(basis=basis, samples=basis, segment_length=segment_length, tau=tau)
        found = curves(config, updates=updates)
    rows = []
    for curve in found:
        last = curve.points[-1]
        rows.append({"memory": curve.name, "gist ≥ 0.5 until": curve.horizon(), f"gist after {updates}": last.gist})
    show("everlong eval horizon", rows, output, curves=[curve._asdict() for curve in found])
    _draw(plot, lambda file: draw_curves(found, file))


@eval.command()
def sorting(
    models: ModelNames,
    lengths: Annotated[
        list[int] | None, Option(help="Sort this many symbols; may be repeated; default: 4096, 8192, 16384.")
    ] = None,
    samples: Annotated[int, Option(help="Sort this many sequences of each length.", min=1)] = 64,
    windows: Annotated[
        list[int] | None, Option(help="Compare with counting only the last symbols, this many; may be repeated.")
    ] = None,
    plot: Plot = None,
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure accuracy of sorting symbols by frequency, over growing sequences."""
    from everlong_lab.eval.sorting import draw_sorting
    from everlong_lab.eval.sorting import sorting as measure

    with reported():
        rows = measure(
            [_seed(load(name, models_dir, threads, device=device)) for name in models],
            lengths=lengths or (4096, 8192, 16384),
            samples=samples,
            windows=windows or (),
        )
    show("everlong eval sorting", rows, output)
    _draw(plot, lambda file: draw_sorting(rows, file))


@eval.command()
def language(
    models: ModelNames,
    data: DataDir = Path("data"),
    texts: Annotated[str, Option(help="Read a data set's held-out texts, or a file, NAME/PATH.")] = "books-260",
    samples: Annotated[int, Option(help="Read this many runs of text.", min=1)] = 16,
    segments: Annotated[int, Option(help="Read this many segments per run.", min=1)] = 128,
    memory_lengths: Annotated[
        list[int] | None, Option(help="Use this many positions; default: as in training.")
    ] = None,
    forget: Annotated[list[str] | None, Option(help="Reset this state tensor before every segment.")] = None,
    line_ends: Annotated[
        bool, Option("--line-ends", help="Count ends of lines as words, as usual for WikiText.")
    ] = False,
    plot: Plot = None,
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure perplexity on held-out text, with the memory carried from segment to segment."""
    from everlong_lab.eval.language import draw_language
    from everlong_lab.eval.language import language as measure

    if plot is not None and not memory_lengths:
        raise fail("--plot shows perplexity by memory length: give some with --memory-lengths")
    with reported():
        rows = measure(
            [_seed(load(name, models_dir, threads, device=device)) for name in models],
            data=data,
            texts=texts,
            samples=samples,
            segments=segments,
            memory_lengths=memory_lengths or (),
            forget=forget or (),
            line_ends=line_ends,
        )
    show("everlong eval language", rows, output)
    _draw(plot, lambda file: draw_language(rows, file))


def _draw(plot: Path | None, draw: Callable[[Path], None]) -> None:
    if plot is not None:
        try:
            draw(plot)
        except OSError as error:
            raise fail(f"cannot write {plot}: {error}") from None


def _seed(loaded: Model) -> SeededModel:
    """Name a model by its description up to the colon, so that all seeds of a recipe have the same name."""
    from everlong_lab.eval.seeds import SeededModel

    return SeededModel(loaded.description.partition(":")[0] or loaded.name, loaded.memory, loaded.tokenizer)


def _recall(given: str) -> Recall:
    from everlong_server.engine.answering.evidence.grounding import Recall

    sizes = given.split(",")
    if len(sizes) != 2 or not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise fail(f"--recall: {given!r}; must be two positive numbers, PASSAGES,TOKENS")
    passages, tokens = map(int, sizes)
    return Recall(passages, tokens)


@eval.command()
def grounded(
    data: Annotated[Path, Option(help="Find data sets in this folder: NAME.tar.xz or NAME/, and books/.")],
    model: Annotated[str | None, Option(help="Use this model, as in everlong serve.")] = None,
    memory: Annotated[str | None, Option(help="Use this memory, as in everlong serve.")] = None,
    sets: Annotated[str, Option(help="Use these sets of questions.")] = "squad,fairytaleqa,squality",
    lengths: Annotated[
        str, Option(help="Lengths of the documents in tokens, separated by commas.")
    ] = "2000,8000,32000",
    ways: Annotated[str, Option(help="Measure answers from these sources; empty: measure only the search.")] = (
        "neither,memory,recall,both,ceiling,floor"
    ),
    samples: Annotated[int, Option(min=1, help="Answer this many questions per set and length.")] = 60,
    searches: Annotated[int, Option(min=1, help="Search for at least this many questions.")] = 300,
    split: Annotated[
        Literal["test", "tune"], Option(help="Use this split of the data; we chose settings with tune.")
    ] = "test",
    template: Annotated[str, Option(help="Combine passages and question by this template.")] = "few-words",
    recall: Annotated[str | None, Option(help="Use at most PASSAGES,TOKENS; default: as on the server.")] = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None, Option("--json", help="Write figures, answers and scores to this file.", callback=writable)
    ] = None,
) -> None:
    """Compare answers from memory, recall, both or neither with the backbone's best and worst case."""
    from everlong_lab.eval.grounded.grounded import evaluate
    from everlong_lab.eval.grounded.questions import SETS
    from everlong_lab.eval.grounded.report import TEMPLATES, WAYS, GroundedPlan
    from everlong_server.errors import ServerError
    from everlong_server.settings import SettingsError, load_settings
    from everlong_server.store.redis.embedded import EmbeddedRedisError

    with reported(SettingsError, ServerError, EmbeddedRedisError), progress_bar("loading") as bar:
        settings = load_settings()
        given = {"model": model or settings.model, "memory": memory or settings.memory}
        plan = GroundedPlan(
            sets=names_of(sets, SETS, "--sets"),
            lengths=sizes(lengths, "--lengths"),
            ways=names_of(ways, WAYS, "--ways", none=True),
            samples=samples,
            searches=searches,
            split=split,
            seed=seed,
            template=names_of(template, TEMPLATES, "--template")[0],
            recall=None if recall is None else _recall(recall),
        )
        report, cells = evaluate(settings.model_copy(update=given), plan, data, bar)
    report.show(out)
    write(report.document(command=command()) | {"cells": [asdict(cell) for cell in cells]}, output)


@eval.command()
def questions(
    file: Annotated[
        Path, Argument(help="Ask the questions of this file of JSON lines: text, question, pattern.", metavar="FILE")
    ],
    texts: Annotated[list[Path] | None, Option(help="Find texts in this folder; default: the file's own.")] = None,
    url: Annotated[str | None, Option(help="Ask this server; default: start one.")] = None,
    key: Annotated[str | None, Option(help="Use this API key.", envvar="EVERLONG_API_KEY")] = None,
    model: Annotated[str | None, Option(help="Without --url: serve this model.")] = None,
    evidence_only: Annotated[
        bool,
        Option(
            "--evidence-only",
            help="Search only, without a server; takes seconds once texts are indexed. Follow-up questions are not rewritten.",
        ),
    ] = False,
    embeddings: Annotated[
        str, Option(help="With --evidence-only: auto, off or a folder, as in everlong serve.")
    ] = "auto",
    recall: Annotated[
        str | None, Option(help="With --evidence-only: at most PASSAGES,TOKENS; default: as on the server.")
    ] = None,
    tokens: Annotated[int, Option(help="Let an answer have at most this many tokens.", min=1)] = 160,
    one_session: Annotated[
        bool, Option("--one-session", help="Ask all questions about a text one after the other in one session.")
    ] = False,
    full: Annotated[bool, Option("--full", help="Print each question and its answer.")] = False,
    output: Output = None,
) -> None:
    """Ask questions about texts; count the right answers, and how often the evidence holds the answer."""
    from everlong_lab.cli.questions import run

    run(file, [*(texts or []), file.parent], url=url, key=key, model=model, evidence_only=evidence_only,
        embeddings=embeddings, recall=None if recall is None else _recall(recall), tokens=tokens, one_session=one_session, full=full,
        output=output)  # fmt: skip


@eval.command()
def facts(
    models: ModelNames,
    kind: Annotated[Literal["memorize", "detect", "reasoning"], Option(help="Measure this task.")],
    lengths: Annotated[
        str, Option(help="Lengths of the documents in segments, separated by commas.")
    ] = "1,7,32,128,512,1024,2048,4096",
    samples: Annotated[int, Option(help="Use this many documents per length and model.", min=1)] = 128,
    recite: Annotated[bool, Option("--recite", help="Let the model repeat the facts before the question.")] = False,
    plot: Plot = None,
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure accuracy on facts in noise over growing documents, next to the paper's figures."""
    from everlong_lab.eval.facts import draw_facts
    from everlong_lab.eval.facts import facts as measure

    with reported():
        loaded = [load(name, models_dir, threads, device=device) for name in models]
        rows = measure(
            [(model.memory, model.tokenizer) for model in loaded],
            kind,
            lengths=sizes(lengths, "--lengths", least=1),
            samples=samples,
            recite=recite,
            progress=progress,
        )
    show(f"everlong eval facts --kind {kind}: {', '.join(model.name for model in loaded)}", rows, output)
    _draw(plot, lambda file: draw_facts(rows, kind, file))


@eval.command()
def babilong(
    model: ModelOption = None,
    memory: MemoryOption = None,
    plain: Annotated[bool, Option("--plain", help="Measure the backbone alone, in its own window.")] = False,
    tasks: Annotated[str, Option(help="Measure these tasks, separated by commas.")] = "qa1,qa2,qa3,qa4,qa5",
    lengths: Annotated[
        str, Option(help="Lengths, separated by commas: 1k is 1,024 tokens, 0k has no noise.")
    ] = "0k,1k,2k,4k,8k,16k,32k",
    samples: Annotated[int, Option(help="Ask this many questions per task and length.", min=1)] = 100,
    prompt: Annotated[
        Literal["auto", "few-shot", "bare"],
        Option(help="Put instruction and examples into the prompt, or none; auto: none if the memory is trained."),
    ] = "auto",
    seed: Seed = 0,
    rows: Annotated[
        int | None, Option(help="Read this many samples at once; default: 8, or 1 if --plain.", min=1)
    ] = None,
    data: DataDir = Path("data"),
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure BABILong (questions about facts hidden in books, qa1 to qa5), next to published results."""
    from everlong_lab.eval.result import measure_babilong
    from everlong_lab.tasks.babi import LABELS

    chosen = names_of(tasks, LABELS, "--tasks")
    with reported(), progress_bar() as bar:
        measured = measure_babilong(
            load(model, models_dir, threads, memory=memory, device=device),
            plain=plain,
            tasks=[task for task in LABELS if task in chosen],
            lengths=[length.strip() for length in lengths.split(",")],
            samples=samples,
            prompt=prompt,
            seed=seed,
            rows=rows,
            data=data,
            progress=bar,
        )
    show(measured.title, measured.rows, output, **measured.figures)


@eval.command()
def dialogue(
    model: ModelOption = None,
    memory: MemoryOption = None,
    ways: Annotated[
        str | None,
        Option(
            help="Measure these: none, window (without and with the document, in the backbone's window), dialogue, memory "
            "(the same through the memory); default: none,window,memory, or dialogue,memory if the window is too small."
        ),
    ] = None,
    samples: Annotated[int, Option(help="Use whole dialogues, with at least this many responses in all.", min=1)] = 500,
    written: Annotated[int, Option(help="Generate this many of the responses.", min=1)] = 200,
    seed: Seed = 0,
    data: DataDir = Path("data"),
    device: Device = "cpu",
    threads: Threads = None,
    output: Output = None,
    models_dir: ModelsDir = None,
) -> None:
    """Measure CMU-DoG (responses in a dialogue about a document), next to published results."""
    from everlong_lab.eval.dialogue import WAYS
    from everlong_lab.eval.result import measure_dialogue

    chosen = None if ways is None else names_of(ways, WAYS, "--ways")
    with reported(), progress_bar() as bar:
        measured = measure_dialogue(
            load(model, models_dir, threads, memory=memory, device=device),
            ways=None if chosen is None else [way for way in WAYS if way in chosen],
            samples=samples,
            written=written,
            seed=seed,
            data=data,
            progress=bar,
        )
    show(measured.title, measured.rows, output, **measured.figures)
