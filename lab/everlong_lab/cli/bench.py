"""`everlong bench`: benchmarks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option, Typer

from everlong_lab.cli.common import Device, Output, measured, names_of, progress, reported, writable
from everlong_lab.cli.formats import formats, readers
from everlong_server.cli.common import ModelsDir, chosen_models_dir, fail

bench = Typer(add_completion=False, no_args_is_help=True, help="Measure performance and compare it with targets.")

Quick = Annotated[bool, Option(help="Use smaller sizes, for a quick trial.")]


@bench.command()
def flat(
    streams: Annotated[str, Option(help="Numbers of answers at a time, separated by commas.")] = "1",
    memories: Annotated[str | None, Option(help="Measure these memories, separated by commas.")] = None,
    backbone: Annotated[str | None, Option(help="Use this backbone; default: a tiny random one.")] = None,
    device: Device = "cpu",
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Check that time per token and memory do not depend on the number of tokens read."""
    from everlong_lab.benchmarks import flat
    from everlong_models.model import MEMORIES

    numbers = _numbers("--streams", streams, 1)
    chosen = [] if memories is None else names_of(memories, MEMORIES, "--memories")
    if backbone is not None and (scratch := [name for name in chosen if not MEMORIES[name].around]):
        raise fail(f"--memories: {scratch[0]} does not use a backbone; leave it out or omit --backbone")
    if backbone is not None and (own := [name for name in chosen if MEMORIES[name].recurrent]):
        raise fail(f"--memories: {own[0]} is measured with a tiny model of its own; leave it out or omit --backbone")
    _on(device)
    measured(
        lambda: flat.run(
            quick=quick, progress=progress, streams=numbers, device=device, memories=chosen, backbone=backbone
        ),
        output,
    )


@bench.command()
def read(
    documents: Annotated[str, Option(help="Numbers of documents at a time, separated by commas.")] = "1",
    device: Device = "cpu",
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Measure prefill throughput as a share of the machine's matmul peak."""
    from everlong_lab.benchmarks import prefill as read

    numbers = _numbers("--documents", documents, 1)
    _on(device)
    measured(lambda: read.run(quick=quick, progress=progress, documents=numbers, device=device), output)


@bench.command()
def drafts(
    model: Annotated[str, Option(help="Use this model: a name that `everlong models list` shows.")],
    draft_tokens: Annotated[
        int | None, Option(help="Guess this many tokens in a step; default: the server's number.", min=1)
    ] = None,
    tokens: Annotated[int, Option(help="Generate at most this many tokens for an answer.", min=2)] = 96,
    turns: Annotated[int, Option(help="Ask each question this many times.", min=1)] = 1,
    device: Device = "cpu",
    output: Output = None,
) -> None:
    """Compare the speed of answers with and without guesses of their next tokens (prompt lookup decoding)."""
    from everlong_lab.benchmarks import drafts
    from everlong_server.settings import SettingsError

    _on(device)
    with reported(SettingsError, RuntimeError):
        measured(
            lambda: drafts.run(
                model=model, device=device, draft_tokens=draft_tokens, most=tokens, turns=turns, progress=progress
            ),
            output,
        )


@bench.command()
def restart(output: Output = None, quick: Quick = False) -> None:
    """Compare the time to the first token right after a restart with the time before it."""
    from everlong_lab.benchmarks import restart

    measured(lambda: restart.run(quick=quick, progress=progress), output)


@bench.command()
def restore(
    tokens: Annotated[int, Option(help="Read this many tokens.", min=1000)] = 15_000,
    width: Annotated[int, Option(help="Use a model of this width, a multiple of 64.", min=64)] = 768,
    layers: Annotated[int, Option(help="Use a model of this many layers.", min=3)] = 12,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Compare the time to an answer after `kill -9` with transformers and llama.cpp, for a random hybrid model."""
    from everlong_lab.benchmarks import restore

    if width % 64:
        raise fail(f"--width {width}: must be a multiple of 64")
    measured(lambda: restore.run(tokens=tokens, width=width, layers=layers, quick=quick, progress=progress), output)


@bench.command()
def start(
    starts: Annotated[int, Option(help="Measure this many starts, after one that does not count.", min=1)] = 5,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Measure the time from `everlong serve` to the first token, with a model that was served before."""
    from everlong_lab.benchmarks import start

    measured(lambda: start.run(starts=starts, quick=quick, progress=progress), output)


@bench.command()
def families(
    only: Annotated[str | None, Option(help="Measure these families, separated by commas; default: all.")] = None,
    width: Annotated[int, Option(help="Use models of this width, a multiple of 128.", min=128)] = 1024,
    layers: Annotated[int, Option(help="Use models of this many layers.", min=1)] = 6,
    tokens: Annotated[int, Option(help="Prefill this many tokens.", min=64)] = 1024,
    turns: Annotated[int, Option(help="Measure each model this many times.", min=1)] = 7,
    output: Output = None,
) -> None:
    """Compare the speed of every family that has the fast path with Llama's, at equal sizes."""
    from everlong_lab.benchmarks.families.ratio import run, supported

    if width % 128:
        raise fail(f"--width {width}: must be a multiple of 128")
    chosen = list(supported()) if only is None else names_of(only, supported(), "--only")
    measured(
        lambda: run(families=chosen, width=width, layers=layers, tokens=tokens, turns=turns, progress=progress), output
    )


@bench.command("one-copy")
def one_copy(
    file: Annotated[Path, Argument(help="A GGUF file.", metavar="FILE")],
    text: Annotated[Path, Option(help="Use the beginning of this text.")],
    tokens: Annotated[int, Option(help="Prefill this many tokens.", min=64)] = 1000,
    models_dir: ModelsDir = None,
    output: Output = None,
) -> None:
    """Measure speed, memory and quality of a GGUF file that is served from one copy of its weights."""
    from everlong_lab.benchmarks import one_copy
    from everlong_models.errors import BackboneError

    if not text.is_file():
        raise fail(f"--text: no file {text}")
    with reported(BackboneError):
        measured(
            lambda: one_copy.run(
                file, text.read_text(), models_dir=chosen_models_dir(models_dir), tokens=tokens, progress=progress
            ),
            output,
        )


@bench.command()
def peers(
    lengths: Annotated[str, Option(help="Lengths of documents in tokens, separated by commas.")] = "2000,8000",
    peers: Annotated[
        str, Option(help="Compare these: window and rmt (memories), transformers, llama.cpp, recall (the search).")
    ] = "window,rmt,transformers,llama.cpp,recall",
    model: Annotated[
        str, Option(help="Use this model for all: a name that `everlong models list` shows, or a GGUF file.")
    ] = "smollm2-135m-instruct",
    prompt: Annotated[
        int | None,
        Option(
            help="Instead, send chats of this many tokens to everlong and to llama.cpp's server, in turns.",
            min=50,
            max=8000,
        ),
    ] = None,
    turns: Annotated[int, Option(help="With --prompt, measure each server this many times.", min=1)] = 3,
    output: Output = None,
) -> None:
    """Compare everlong with transformers, llama.cpp, and the search alone, on the same documents and questions."""
    from everlong_lab.benchmarks.peers import PEERS, PeerMissing, run
    from everlong_lab.benchmarks.turns import run as run_turns

    if prompt is not None:
        with reported(PeerMissing):
            measured(lambda: run_turns(model=model, prompt=prompt, turns=turns, progress=progress), output)
        return
    chosen = names_of(peers, PEERS, "--peers")
    sizes = _numbers("--lengths", lengths, 500)
    with reported(PeerMissing):
        measured(lambda: run(lengths=sizes, peers=chosen, model=model, progress=progress), output)


@bench.command()
def serve(
    memory: Annotated[str, Option(help="Use this memory around the default backbone.")] = "rmt",
    lengths: Annotated[str, Option(help="Lengths of documents in tokens, separated by commas.")] = "1000,10000,100000",
    streams: Annotated[str, Option(help="Numbers of concurrent requests, separated by commas.")] = "1,4,16,32,64",
    rounds: Annotated[int, Option(help="Send this many requests per stream in each turn.", min=1)] = 2,
    turns: Annotated[int, Option(help="Alternate this often between the server and the engine.", min=1)] = 2,
    written: Annotated[int, Option(help="Generate this many tokens per answer.", min=2)] = 32,
    first_ms: Annotated[float, Option(help="Goodput: milliseconds to the first token, at most.", min=0)] = 5000.0,
    token_ms: Annotated[float, Option(help="Goodput: milliseconds for each further token, at most.", min=0)] = 200.0,
    recall: Annotated[bool, Option(help="Put passages before the questions.")] = False,
    guidellm: Annotated[str, Option(help="Use this program as the load generator.")] = "guidellm",
    ab: Annotated[str | None, Option(help="Also measure with Apache's ab, which needs little CPU time.")] = None,
    output: Output = None,
) -> None:
    """Measure the throughput of the server and of the engine alone, with many concurrent requests from guidellm."""
    from everlong_lab.benchmarks.serve import LoadGeneratorMissing, ServePlan, run

    sizes, at_once = _numbers("--lengths", lengths, 500), _numbers("--streams", streams, 1)
    plan = ServePlan(memory, sizes, at_once, rounds, turns, written, first_ms, token_ms, recall, guidellm, ab)
    with reported(LoadGeneratorMissing):
        measured(lambda: run(plan, progress=progress), output)


@bench.command()
def sessions(
    sessions: Annotated[int, Option(help="Create this many sessions.", min=2)] = 200,
    tokens: Annotated[int, Option(help="Give each session a document of this many tokens.", min=1000)] = 100_000,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Measure how many sessions with a long document fit into a gigabyte of Redis, and how fast they resume."""
    from everlong_lab.benchmarks import sessions as kept

    measured(lambda: kept.run(count=sessions, tokens=tokens, quick=quick, progress=progress), output)


@bench.command()
def crowd(
    sockets: Annotated[int, Option(help="Open this many idle WebSockets.", min=0)] = 200,
    uploads: Annotated[int, Option(help="Run this many endless uploads.", min=0)] = 64,
    written: Annotated[int, Option(help="Generate this many tokens per answer.", min=32)] = 128,
    output: Output = None,
    quick: Quick = False,
) -> None:
    """Compare the speed of an answer with and without many idle connections and uploads."""
    from everlong_lab.benchmarks import many_clients as crowd

    if not sockets + uploads:
        raise fail("--sockets and --uploads are both 0: at least one must be greater")
    measured(
        lambda: crowd.run(sockets=sockets, uploads=uploads, written=written, quick=quick, progress=progress), output
    )


bench.command("formats")(formats)
bench.command("readers")(readers)


@bench.command()
def recall(
    megabytes: Annotated[float, Option(help="Index this many megabytes.", min=0.1)] = 10.0,
    texts: Annotated[
        Path | None,
        Option(help="Use the texts (.md, .txt) in this folder; default: a novel, repeated.", file_okay=False),
    ] = None,
    questions: Annotated[int, Option(help="Search for this many questions.", min=1)] = 200,
    rounds: Annotated[int, Option(help="Alternate this many times between reading and indexing.", min=1)] = 3,
    models_dir: ModelsDir = None,
    output: Output = None,
) -> None:
    """Measure the cost of indexing a text relative to reading it, and of searching it."""
    from everlong_lab.benchmarks import recall

    folder = chosen_models_dir(models_dir)
    measured(
        lambda: recall.run(
            megabytes=megabytes, texts=texts, questions=questions, rounds=rounds, models_dir=folder, progress=progress
        ),
        output,
    )


@bench.command()
def soak(
    folder: Annotated[
        Path,
        Argument(
            help="Write samples, plot and the server's data to this folder; continue if it has samples.",
            metavar="FOLDER",
        ),
    ],
    minutes: Annotated[float, Option(help="Run the load for this many minutes, over all runs.", min=0.1)] = 180.0,
    clients: Annotated[int, Option(help="Run this many concurrent clients.", min=1, max=256)] = 4,
    every: Annotated[float, Option(help="Seconds between two samples.", min=0.1)] = 5.0,
    faults: Annotated[float, Option(help="Mean number of seconds between two faults.", min=0.1)] = 60.0,
    warm_up: Annotated[float, Option(help="Leave this many first minutes of a run out of the slopes.", min=0)] = 5.0,
    warm_up_answers: Annotated[
        int, Option(help="Also leave out this many first answers of a run: they fill the caches.", min=0)
    ] = 2000,
    rest: Annotated[float, Option(help="Let each client pause for this many seconds after a round.", min=0)] = 0.0,
    model: Annotated[str | None, Option(help="Serve this model; default: a tiny random one.")] = None,
    output: Output = None,
) -> None:
    """Check that memory, open files, Redis and latency stay level under hours of load with faults."""
    from everlong_lab.benchmarks.soak.measure import SoakPlan, run

    plan = SoakPlan(
        folder.absolute(), minutes, clients, every, faults, warm_up, model, warm_up_answers, rest_seconds=rest
    )
    with reported(ValueError, RuntimeError):
        measured(lambda: run(plan, progress), output)


@bench.command()
def history(
    file: Annotated[
        Path,
        Argument(help="Write the history to this file; continue if it has one.", metavar="FILE", callback=writable),
    ],
    operations: Annotated[int, Option(help="Record this many operations.", min=1)] = 100_000,
    faults: Annotated[int, Option(help="Inject this many faults.", min=0)] = 50,
    minutes: Annotated[float, Option(help="Stop after this many minutes.", min=0)] = 60.0,
    clients: Annotated[int, Option(help="Run this many concurrent clients.", min=1, max=256)] = 8,
    replicas: Annotated[int, Option(help="Run this many server processes on one Redis.", min=1, max=64)] = 3,
    seed: Annotated[int, Option(help="Choose operations by this seed.", min=0)] = 0,
    sentinel: Annotated[
        bool,
        Option(help="Use Redis with Sentinel, and cut the network between the hosts (Linux, as root)."),
    ] = False,
    output: Output = None,
) -> None:
    """Record concurrent operations on sessions during faults, for the linearizability checker in lab/checker."""
    from everlong_lab.chaos import ClusterError
    from everlong_lab.chaos.history import HistoryPlan, run

    plan = HistoryPlan(file, operations, faults, minutes, clients, replicas, seed, sentinel)
    with reported(ClusterError, RuntimeError):
        measured(lambda: run(plan, progress), output)


@bench.command()
def chaos(
    points: Annotated[int, Option(help="Kill this many replicas while they are busy.", min=0)] = 300,
    minutes: Annotated[float, Option(help="Stop after this many minutes.", min=0)] = 60.0,
    seed: Annotated[int, Option(help="Choose requests, faults and their times by this seed.", min=0)] = 0,
    replicas: Annotated[int, Option(help="Run this many server processes on one Redis.", min=1, max=64)] = 3,
    workers: Annotated[int, Option(help="Run this many concurrent callers.", min=1, max=256)] = 4,
    away: Annotated[float, Option(help="End each outage after at most this many seconds.", min=0.2)] = 6.0,
    burst: Annotated[
        int, Option(help="Kill at most this many replicas without recovery in between.", min=1, max=2)
    ] = 2,
    model: Annotated[Path | None, Option(help="Serve this model folder; default: a tiny random model.")] = None,
    fault: Annotated[list[str] | None, Option(help="Inject only the fault of this name; may be repeated.")] = None,
    redis_program: Annotated[
        str | None, Option(help="Use this redis-server or valkey-server; default: the server's.")
    ] = None,
    plot: Annotated[Path | None, Option(help="Plot memory and open files over time as PNG.", callback=writable)] = None,
    output: Output = None,
) -> None:
    """Inject faults into processes, connections and disks under load; check that nothing acknowledged is lost."""
    from everlong_lab.chaos import FAULTS, CampaignPlan, ClusterError, run

    if unknown := set(fault or ()) - set(FAULTS):
        raise fail(f"--fault: unknown fault {unknown.pop()!r}; choose from: {'; '.join(FAULTS)}")
    if redis_program and shutil.which(redis_program) is None:
        raise fail(f"--redis-program {redis_program}: no such program")
    if model is not None and not model.is_dir():
        raise fail(f"--model {model}: no such folder")
    plan = CampaignPlan(points, minutes, seed, replicas, workers, away, burst, model, fault or None, redis_program)
    try:
        report = measured(lambda: run(plan, progress, plot), output)
    except ClusterError as error:  # for example a folder without a model; the message ends with the server's log
        raise fail(" ".join(str(error).split())) from None
    if not all(target.met for target in report.targets[1:]):  # all but the number of points, which depends on time
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
        raise fail(f"{name} {given}: must be numbers separated by commas") from None
    if wrong := [number for number in numbers if not least <= number <= 10_000_000]:
        raise fail(f"{name} {wrong[0]}: must be from {least:,} to 10,000,000")
    return numbers
