"""Run a recipe for `everlong train`, with a progress bar."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
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
    """Trains until the recipe is done, `max_minutes` are over, or the process is told to stop; always saves.

    Raises whatever `Run` does.
    """
    began = time.monotonic()
    run = Run(
        recipe,
        folder,
        data=data,
        models_dir=models_dir,
        device=device,
        resume=resume,
        bfloat16=bfloat16,
        progress=lambda message: console.print(f"[dim]{message}[/]"),
    )
    learning = sum(parameter.numel() for parameter in run.learner.parameters.values())
    peak, needed = matmul_peak(run.device, run.dtype), flops_per_token(run.learner.memory)
    kind = str(run.dtype).removeprefix("torch.")
    console.print(
        f"{learning:,} parameters learn, {torch.get_num_threads()} threads, device {device}, "
        f"{kind}, matmul peak {peak / 1e12:.2f} TFLOP/s"
    )
    if bfloat16 and peak < (other := matmul_peak(run.device, torch.float32)):
        console.print(f"[yellow]float32 is faster here, {other / 1e12:.2f} TFLOP/s: leave out --bfloat16[/]")
    columns = (
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with _asked_to_stop() as asked, Progress(*columns, console=console) as bar:
        shown = bar.add_task("", total=run.total_steps, completed=run.position.step)

        def stop() -> bool:
            return asked.is_set() or (max_minutes is not None and time.monotonic() - began > 60 * max_minutes)

        smooth: float | None = None
        for update in run.steps(stop=stop):
            smooth = update.loss if smooth is None else 0.95 * smooth + 0.05 * update.loss
            bar.update(
                shown,
                completed=update.step,
                description=f"{update.segments} segments  loss {smooth:.3f}  right {update.correct:.0%}  "
                f"{update.tokens / update.seconds:,.0f} tokens/s, {update.tokens * needed / update.seconds / peak:.0%} of peak",
            )
    position = run.position
    if position.seconds:
        rate = position.tokens / position.seconds
        console.print(f"{rate:,.0f} tokens/s of documents, {rate * needed / peak:.1%} of the matmul peak")
    run.save_model()  # first: what is trained is not lost if it cannot be scored
    if not run.finished:
        console.print(f"stopped at step {position.step}: {folder / MODEL} has learnt that much; go on with --resume")
        return
    console.print("scoring on held-out documents")
    scores = run.score()
    curve = run.journal.draw(recipe.description or folder.name)
    console.print(
        "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        + f"  after {position.step} steps, {position.tokens:,} tokens, {position.seconds / 60:.1f} minutes"
    )
    console.print(f"model in {folder / MODEL}, curve in {curve}", soft_wrap=True)


@contextmanager
def _asked_to_stop() -> Iterator[Event]:
    """Set by SIGINT and SIGTERM: the step is finished and a checkpoint written."""
    event = Event()

    def ask(number: int, frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
