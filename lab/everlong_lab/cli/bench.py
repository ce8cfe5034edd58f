"""`everlong bench`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from everlong_lab.cli.common import Output, command, names_of, writable, write
from everlong_server.cli.common import ModelsDir, chosen_models_dir, err, fail, out

if TYPE_CHECKING:
    from everlong_lab.harness.report import Report

bench = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Measure something, and hold it against its target."
)

Device = Annotated[str, typer.Option(help="cpu, cuda, …")]
Quick = Annotated[bool, typer.Option(help="smaller sizes, for trying it out")]


@bench.command()
def flat(
    streams: Annotated[str, typer.Option(help="answers side by side, with commas between them")] = "1",
    memories: Annotated[str | None, typer.Option(help="with commas between them; default: all")] = None,
    backbone: Annotated[str | None, typer.Option(help="around this one; default: a tiny one")] = None,
    device: Device = "cpu",
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Neither time per token nor memory depends on how much was read."""
    from everlong_lab.benchmarks import flat
    from everlong_models.model import MEMORIES

    numbers = _numbers("--streams", streams, 1)
    chosen = [] if memories is None else names_of(memories, MEMORIES, "--memories")
    if backbone is not None and (scratch := [name for name in chosen if not MEMORIES[name].around]):
        raise fail(f"--memories: {scratch[0]} is not around a backbone")
    _on(device)
    _report(
        lambda: flat.run(
            quick=quick, progress=_progress, streams=numbers, device=device, memories=chosen, backbone=backbone
        ),
        output,
    )


@bench.command()
def read(
    documents: Annotated[str, typer.Option(help="read side by side, with commas between them")] = "1",
    device: Device = "cpu",
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Reading, against what the matrix units can do."""
    from everlong_lab.benchmarks import prefill as read

    numbers = _numbers("--documents", documents, 1)
    _on(device)
    _report(lambda: read.run(quick=quick, progress=_progress, documents=numbers, device=device), output)


@bench.command()
def restart(output: Output = None, quick: Quick = False) -> None:
    """A second question right after a restart, against one without."""
    from everlong_lab.benchmarks import restart

    _report(lambda: restart.run(quick=quick, progress=_progress), output)


@bench.command()
def start(
    starts: Annotated[int, typer.Option(help="that are counted, after one that is not", min=1)] = 5,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """From the command to the first token, where the model was served before."""
    from everlong_lab.benchmarks import start

    _report(lambda: start.run(starts=starts, quick=quick, progress=_progress), output)


@bench.command()
def peers(
    lengths: Annotated[str, typer.Option(help="of the document, in tokens, with commas between them")] = "2000,8000",
    peers: Annotated[
        str, typer.Option(help="everlong's memories window and rmt, transformers, llama.cpp, recall")
    ] = "window,rmt,transformers,llama.cpp,recall",
    output: Output = None,
) -> None:
    """The same document and questions with transformers, llama.cpp, and recall alone."""
    from everlong_lab.benchmarks.peers import PEERS, PeerMissing, run

    chosen = [name.strip() for name in peers.split(",")]
    if unknown := [name for name in chosen if name not in PEERS]:
        raise fail(f"no peer {unknown[0]!r}; there are {', '.join(PEERS)}")
    sizes = _numbers("--lengths", lengths, 500)
    try:
        _report(lambda: run(lengths=sizes, peers=chosen, progress=_progress), output)
    except PeerMissing as error:
        raise fail(str(error)) from None


@bench.command()
def serve(
    memory: Annotated[str, typer.Option(help="around the default backbone")] = "rmt",
    lengths: Annotated[str, typer.Option(help="of documents that were read, in tokens")] = "1000,10000,100000",
    streams: Annotated[str, typer.Option(help="requests at a time")] = "1,4,16,32,64",
    rounds: Annotated[int, typer.Option(help="requests of a stream, in each turn", min=1)] = 2,
    turns: Annotated[int, typer.Option(help="of the server and the engine alone, one after the other", min=1)] = 2,
    written: Annotated[int, typer.Option(help="tokens of an answer", min=2)] = 32,
    first_ms: Annotated[float, typer.Option(help="goodput: for the first token", min=0)] = 5000.0,
    token_ms: Annotated[float, typer.Option(help="goodput: for each further token", min=0)] = 200.0,
    recall: Annotated[bool, typer.Option(help="passages before the questions")] = False,
    guidellm: Annotated[str, typer.Option(help="the load generator's program")] = "guidellm",
    ab: Annotated[
        str | None,
        typer.Option(help="Apache's ab: the same requests by a program that takes next to none of the cores"),
    ] = None,
    output: Output = None,
) -> None:
    """Many at once, by a load generator that is not ours: first tokens, tokens per second, goodput; beside the engine alone."""
    from everlong_lab.benchmarks.serve import LoadGeneratorMissing, Plan, run

    sizes, at_once = _numbers("--lengths", lengths, 500), _numbers("--streams", streams, 1)
    plan = Plan(memory, sizes, at_once, rounds, turns, written, first_ms, token_ms, recall, guidellm, ab)
    try:
        _report(lambda: run(plan, progress=_progress), output)
    except LoadGeneratorMissing as error:
        raise fail(str(error)) from None


@bench.command()
def sessions(
    sessions: Annotated[int, typer.Option(help="that are made and counted", min=2)] = 200,
    tokens: Annotated[int, typer.Option(help="of each session's own document", min=1000)] = 100_000,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """How many sessions with a long document of their own a gigabyte of Redis keeps, and what it takes to bring one back."""
    from everlong_lab.benchmarks import sessions as measured

    _report(lambda: measured.run(count=sessions, tokens=tokens, quick=quick, progress=_progress), output)


@bench.command()
def crowd(
    sockets: Annotated[int, typer.Option(help="WebSockets that say nothing", min=0)] = 200,
    uploads: Annotated[int, typer.Option(help="uploads that go on and on", min=0)] = 64,
    written: Annotated[int, typer.Option(help="tokens of an answer", min=32)] = 128,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """An answer alone, and beside many idle connections and uploads."""
    from everlong_lab.benchmarks import many_clients as crowd

    if not sockets + uploads:
        raise fail("--sockets and --uploads: 0 of both are no crowd")
    _report(
        lambda: crowd.run(sockets=sockets, uploads=uploads, written=written, quick=quick, progress=_progress), output
    )


@bench.command()
def recall(
    megabytes: Annotated[float, typer.Option(help="of text", min=0.1)] = 10.0,
    texts: Annotated[
        Path | None, typer.Option(help="folder of texts (.md, .txt); default: a novel, over and over", file_okay=False)
    ] = None,
    questions: Annotated[int, typer.Option(help="that are searched for", min=1)] = 200,
    rounds: Annotated[int, typer.Option(help="of reading and indexing in turns", min=1)] = 3,
    models_dir: ModelsDir = None,
    output: Output = None,
) -> None:
    """What indexing a text costs beside reading it, and a search in it."""
    from everlong_lab.benchmarks import recall

    folder = chosen_models_dir(models_dir)
    _report(
        lambda: recall.run(
            megabytes=megabytes, texts=texts, questions=questions, rounds=rounds, models_dir=folder, progress=_progress
        ),
        output,
    )


@bench.command()
def chaos(
    points: Annotated[int, typer.Option(help="kill replicas in the middle of something so often", min=0)] = 300,
    minutes: Annotated[float, typer.Option(help="end after so long at the latest", min=0)] = 60.0,
    seed: Annotated[int, typer.Option(help="of what is done and broken, and when", min=0)] = 0,
    replicas: Annotated[int, typer.Option(help="server processes on one Redis", min=1, max=64)] = 3,
    workers: Annotated[int, typer.Option(help="callers at once", min=1, max=256)] = 4,
    away: Annotated[float, typer.Option(help="what goes away comes back after so many seconds at most", min=0.2)] = 6.0,
    burst: Annotated[
        int, typer.Option(help="replicas killed in a row at most, without waiting for recovery", min=1)
    ] = 8,
    model: Annotated[Path | None, typer.Option(help="a model folder; default: a tiny one with random weights")] = None,
    fault: Annotated[
        list[str] | None, typer.Option(help="only this one, by its name in the report; may be repeated")
    ] = None,
    redis_program: Annotated[
        str | None, typer.Option(help="redis-server or valkey-server; default: the one that the server would start")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="a picture of memory and open files over the time", callback=writable)
    ] = None,
    output: Output = None,
) -> None:
    """Break processes, connections and disks while they are used: nothing acknowledged may be lost."""
    from everlong_lab.chaos import FAULTS, Gone, Plan, run

    if unknown := set(fault or ()) - set(FAULTS):
        raise fail(f"no fault {unknown.pop()!r}; there are: {'; '.join(FAULTS)}")
    if redis_program and shutil.which(redis_program) is None:
        raise fail(f"--redis-program {redis_program}: there is no such program")
    if model is not None and not model.is_dir():
        raise fail(f"--model {model}: there is no such folder")
    plan = Plan(points, minutes, seed, replicas, workers, away, burst, model, fault or None, redis_program)
    try:
        report = _report(lambda: run(plan, _progress, plot), output)
    except Gone as error:  # a folder without a model, say; the end of its log comes last
        raise fail(" ".join(str(error).split())) from None
    if not all(target.met for target in report.targets[1:]):  # what was lost; not whether there was time for all points
        raise typer.Exit(1)


def _on(device: str) -> None:
    from everlong_models.backbone.loading import resolve_device
    from everlong_models.errors import ConfigError

    try:
        resolve_device(device)
    except ConfigError as error:
        raise fail(f"--device {device}: {error.limit}") from None


def _numbers(name: str, given: str, least: int) -> list[int]:
    try:
        numbers = [int(number) for number in given.split(",")]
    except ValueError:
        raise fail(f"{name} {given}: numbers with commas between them") from None
    if wrong := [number for number in numbers if not least <= number <= 10_000_000]:
        raise fail(f"{name} {wrong[0]}: must be from {least:,} to 10,000,000")
    return numbers


def _report(measure: Callable[[], Report], output: Path | None) -> Report:
    """What was measured, shown and written. A model that cannot be had or used ends it with a line."""
    from everlong_models.errors import EverlongModelError

    try:
        report = measure()
    except EverlongModelError as error:
        raise fail(str(error)) from None
    report.show(out)
    write(report.document(command=command()), output)
    return report


def _progress(message: str) -> None:
    err.print(f"[dim]{message}[/]")
