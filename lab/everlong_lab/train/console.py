"""Run a recipe for `everlong train`, with a progress bar."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import FrameType

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from everlong_lab.train.recipe import Recipe
from everlong_lab.train.run import MODEL, Run
from everlong_lab.train.throughput import flops_per_token, matmul_peak


def train(
    recipe: Recipe,
    folder: Path,
    *,
    data: Path,
    models_dir: Path,
    device: str,
    resume: bool,
    bfloat16: bool,
    max_minutes: float | None,
    console: Console,
) -> None:
    """Train until the recipe is done, `max_minutes` are over, or a signal asks to stop; always save.

    Raises whatever `Run` does.
    """
    began = time.monotonic()
    run = Run(
        recipe, folder, data=data, models_dir=models_dir, device=device, resume=resume, bfloat16=bfloat16,
        progress=lambda message: console.print(f"[dim]{message}[/]"),
    )  # fmt: skip
    learning = sum(parameter.numel() for parameter in run.learner.parameters.values())
    peak, needed = matmul_peak(run.device, run.dtype), flops_per_token(run.learner.memory)
    kind = str(run.dtype).removeprefix("torch.")
    console.print(
        f"{learning:,} parameters learn, {torch.get_num_threads()} threads, device {device}, "
        f"{kind}, matmul peak {peak / 1e12:.2f} TFLOP/s"
    )
    if bfloat16 and peak < (other := matmul_peak(run.device, torch.float32)):
        console.print(f"[yellow]float32 is faster here, {other / 1e12:.2f} TFLOP/s: leave out --bfloat16[/]")
    with _stop_signals() as signalled:

        def stop() -> bool:
            return signalled.is_set() or (max_minutes is not None and time.monotonic() - began > 60 * max_minutes)

        _show_steps(run, stop, peak / needed, console)
    _finish(run, peak / needed, console)


def _show_steps(run: Run, stop: Callable[[], bool], peak: float, console: Console) -> None:
    """Train with a progress bar. `peak`: tokens/s at the matmul peak."""
    columns = (
        TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
        TimeRemainingColumn(),
    )  # fmt: skip
    smooth: float | None = None
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=run.total_steps, completed=run.position.step)
        for update in run.steps(stop=stop):
            smooth = update.loss if smooth is None else 0.95 * smooth + 0.05 * update.loss
            rate = update.tokens / update.seconds
            description = (
                f"{update.segments} segments  loss {smooth:.3f}  right {update.correct:.0%}  {rate:,.0f} tokens/s"
            )
            bar.update(task, completed=update.step, description=f"{description}, {rate / peak:.0%} of peak")


def _finish(run: Run, peak: float, console: Console) -> None:
    """Save the model and plot the run. Score the model if the recipe is done. `peak`: tokens/s at the matmul peak."""
    position = run.position
    if position.seconds:
        rate = position.tokens / position.seconds
        console.print(f"{rate:,.0f} tokens/s of documents, {rate / peak:.1%} of the matmul peak")
    run.save_model()  # before scoring, which may fail
    title = run.recipe.description or run.folder.name
    if not run.finished:
        console.print(
            f"stopped at step {position.step}: {run.folder / MODEL} is trained so far; continue with --resume"
        )
        console.print(f"curve in {run.journal.draw(title)}", soft_wrap=True)
        return
    console.print("scoring on held-out documents")
    scores = run.score()
    curve = run.journal.draw(title)
    console.print(
        "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        + f"  after {position.step} steps, {position.tokens:,} tokens, {position.seconds / 60:.1f} minutes"
    )
    console.print(f"model in {run.folder / MODEL}, curve in {curve}", soft_wrap=True)


@contextmanager
def _stop_signals() -> Iterator[Event]:
    """Yield an event that SIGINT and SIGTERM set, so that the current step ends and a checkpoint is written."""
    event = Event()

    def handle(number: int, frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
