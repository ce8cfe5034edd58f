"""`Run`: train a recipe in a folder: batches, gradients, steps, checkpoints, scores.

The recipe and the step determine everything except what a checkpoint stores, so a run that was stopped and resumed gives
the same result as one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from everlong_lab.tasks import Setting, Task, made_tokenizer, make_task
from everlong_lab.tasks.task import Batch
from everlong_lab.tasks.unroll import unroll
from everlong_lab.train import checkpoint
from everlong_lab.train.drift import DriftAugmentation
from everlong_lab.train.journal import Journal
from everlong_lab.train.learner import Learner, make_learner
from everlong_lab.train.prefetch import AHEAD, Prefetch
from everlong_lab.train.recipe import Recipe, ScratchBackbone, Stage
from everlong_models.backbone.loading import Progress, resolve_device
from everlong_models.errors import ConfigError, RunError, StateNotFinite
from everlong_models.memories.state import MemoryState

MODEL = "model"
"""Name of the trained model's folder within the run's folder."""
_RECENT = 50


@dataclass(slots=True)
class Position:
    """How far a run has got. `recent`: shares of correct predictions, by which a stage may end early."""

    step: int = 0
    stage: int = 0
    step_in_stage: int = 0
    tokens: int = 0
    seconds: float = 0.0
    recent: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Update:
    """Figures of one step. `loss`: mean over the targets. `correct`: share of targets that were the most likely token."""

    step: int
    segments: int
    loss: float
    auxiliary: float
    correct: float
    lr: float
    norm: float
    tokens: int
    seconds: float


class Run:
    """A run in `folder`, new or resumed.

    `data`: folder of data sets. `bfloat16`: multiply in bfloat16, as always on CUDA; slow on a CPU without instructions
    for it. Raises `RunError` if the folder holds another run, or none to `resume`; `RecipeError`, `ConfigError`,
    `DataError` or `BackboneError` if the recipe cannot be carried out.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        data: Path,
        models_dir: Path,
        device: torch.device | str = "cpu",
        resume: bool = False,
        bfloat16: bool = False,
        progress: Progress = lambda message: None,
    ) -> None:
        if not resume and (held := [name for name in (checkpoint.FILE, MODEL) if (folder / name).exists()]):
            raise RunError(f"{folder} contains a run ({held[0]}): resume it, or choose another folder")
        self.recipe = recipe
        self.folder = folder
        self.device = resolve_device(device)
        self.dtype = torch.bfloat16 if bfloat16 or self.device.type == "cuda" else torch.float32
        scratch = recipe.learner.backbone is None or isinstance(recipe.learner.backbone, ScratchBackbone)
        self.learner: Learner = make_learner(
            recipe.learner,
            made_tokenizer=made_tokenizer(recipe.task, data) if scratch else None,
            models_dir=models_dir,
            device=self.device,
            seed=recipe.seed,
            started=resume,
            bfloat16=self.dtype == torch.bfloat16,
            progress=progress,
        )
        self._tokenizer = self.learner.tokenizer.digest()
        progress("preparing the data")
        memory = self.learner.memory
        self.task: Task = make_task(
            recipe.task, Setting(self.learner.tokenizer, memory.segment_length, data, recipe.seed)
        )
        self._require_fitting()
        options, weights = recipe.optimizer, list(self.learner.parameters.values())
        self._optimizer = torch.optim.AdamW(
            weights, lr=options.lr, betas=options.betas, weight_decay=options.weight_decay, fused=True
        )
        averaged = self.learner.parameters if recipe.average else {}
        self._average = {name: parameter.detach().clone() for name, parameter in averaged.items()}
        self.position = Position()
        self._carried: list[MemoryState] = []
        self._prefetch = Prefetch(self.task)
        torch.manual_seed(recipe.seed)
        if resume:
            restored = checkpoint.restore(folder, **self._checkpointed())
            self.position, self._carried = Position(**restored.position), restored.carried
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create the run's folder {folder}: {error}") from error
        self.journal = Journal(folder, self.position.step)
        self._saved_at = self.position.step if resume else None

    def _require_fitting(self) -> None:
        """Raise `ConfigError` for settings that do not fit the recipe's task or memory."""
        recipe = self.recipe
        if self.task.continues and (recipe.mixed or len({(stage.segments, stage.rows) for stage in recipe.stages}) > 1):
            limit = f"must be 0, and all stages alike: the batches of {recipe.task.name} continue from each other"
            raise ConfigError("mixed", recipe.mixed, limit)
        if recipe.drift and recipe.learner.memory != "rmt":
            raise ConfigError("drift", recipe.drift.segments, f"needs the memory rmt, not {recipe.learner.memory}")

    @property
    def total_steps(self) -> int:
        """Number of steps if no stage ends early."""
        return sum(stage.steps for stage in self.recipe.stages)

    @property
    def finished(self) -> bool:
        """Whether all stages are done."""
        return self.position.stage >= len(self.recipe.stages)

    def steps(self, *, stop: Callable[[], bool] = lambda: False) -> Iterator[Update]:
        """Train, yielding an `Update` per step, until the recipe is done or `stop` returns True; then save a checkpoint.

        Raises `RunError` if the loss is not finite; the last good checkpoint stays.
        """
        self.learner.memory.train()
        saved = time.monotonic()
        if self._due():  # the run was interrupted while scoring
            self.score()
        try:
            while not self.finished and not stop():
                yield self._step()
                if self._due():
                    self.save()  # before scoring, which may fail
                    self.score()
                    saved = time.monotonic()
                if time.monotonic() - saved > 60 * self.recipe.save_minutes:
                    self.save()
                    saved = time.monotonic()
        finally:
            self._prefetch.keep([])
        self.save()

    def _due(self) -> bool:
        """Return whether the recipe asks for a score at this step."""
        step, every = self.position.step, self.recipe.check.every
        return bool(every and step) and step % every == 0 and not self.finished

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this step."""
        if self._saved_at == self.position.step:
            return
        checkpoint.save(self.folder, position=asdict(self.position), carried=self._carried, **self._checkpointed())
        self._saved_at = self.position.step

    def _checkpointed(self) -> dict[str, Any]:
        """Return what a checkpoint saves and restores in place."""
        return {
            "recipe": self.recipe.digest(), "tokenizer": self._tokenizer, "parameters": self.learner.parameters,
            "optimizer": self._optimizer, "average": self._average,
        }  # fmt: skip

    def save_model(self) -> None:
        """Write the trained model to `folder`/model. Raises `RunError`."""
        with self._averaged():
            self.learner.save(self.folder / MODEL, self.recipe.description)

    def score(self) -> dict[str, float]:
        """Return the task's scores on held-out documents and log them. Scores already logged for this step are reused."""
        for entry in self.journal.read():
            if entry["step"] == self.position.step and "scores" in entry:
                logged: dict[str, float] = entry["scores"]
                return logged
        memory, check = self.learner.memory, self.recipe.check
        memory.eval()
        segments = check.segments or self.recipe.stages[-1].segments
        try:
            with torch.no_grad(), self._precision(), self._averaged():
                scores = self.task.evaluate(memory, samples=check.samples, segments=segments)
        except torch.OutOfMemoryError as error:
            raise self._failure(f"out of memory scoring documents of {segments} segments: {error}") from error
        memory.train()
        self.journal.write(step=self.position.step, scores=scores)
        return scores

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """Swap the averaged weights in for the duration of the block, if the recipe averages."""
        weights = {name: self.learner.parameters[name].data for name in self._average}
        for name, average in self._average.items():
            self.learner.parameters[name].data = average
        try:
            yield
        finally:
            for name, weight in weights.items():
                self.learner.parameters[name].data = weight

    def _step(self) -> Update:
        position, recipe, stage = self.position, self.recipe, self.recipe.stages[self.position.stage]
        began = time.monotonic()
        batch, segments = self._batch(stage)
        lr = self._learning_rate(stage)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        if recipe.drift and batch.idle is None:
            raise ConfigError(
                "drift", recipe.drift.segments, f"{recipe.task.name} does not mark segments without facts"
            )
        targets = int(batch.targets.sum())
        if not targets:
            raise RunError(f"step {position.step}: no token of the batch is a target")
        self._optimizer.zero_grad(set_to_none=True)
        loss, auxiliary, correct = self._gradients(batch, targets)
        norm = float(torch.nn.utils.clip_grad_norm_(list(self.learner.parameters.values()), recipe.optimizer.clip))
        if not np.isfinite([loss, auxiliary, norm]).all():
            raise self._failure(f"the loss is {loss:g}, its gradient's norm {norm:g}")
        self._optimizer.step()
        if self._average:
            weights = list(self.learner.parameters.values())
            get_ema_multi_avg_fn(recipe.average)(list(self._average.values()), weights, position.step)
        tokens = int(batch.lengths.sum())
        position.step += 1
        position.step_in_stage += 1
        position.tokens += tokens
        position.recent = [*position.recent, correct][-_RECENT:]
        seconds = time.monotonic() - began
        position.seconds += seconds
        if position.step_in_stage >= stage.steps or (
            stage.until is not None
            and len(position.recent) == _RECENT
            and sum(position.recent) / _RECENT >= stage.until
        ):
            position.stage += 1
            position.step_in_stage = 0
            position.recent = []
        update = Update(position.step, segments, loss, auxiliary, correct, lr, norm, tokens, seconds)
        self.journal.write(
            **{
                key: float(f"{value:.7g}") if isinstance(value, float) else value
                for key, value in asdict(update).items()
            }
        )
        return update

    def _batch(self, stage: Stage) -> tuple[Batch, int]:
        """Return this step's batch and its number of segments. For a GPU, prepare the next batches in the background."""
        step = self.position.step
        left = min(AHEAD, stage.steps - self.position.step_in_stage - 1) if self.device.type != "cpu" else 0
        key, *upcoming = (
            (step + n, stage.rows or self.recipe.rows, self._segments(step + n, stage)) for n in range(left + 1)
        )
        return self._prefetch.take(key, upcoming), key[-1]

    def _gradients(self, batch: Batch, targets: int) -> tuple[float, float, float]:
        """Accumulate the batch's gradient. Return mean loss, mean auxiliary loss, and share of correct predictions."""
        recipe, rows = self.recipe, len(batch.tokens)
        at_once = recipe.rows_at_once or rows
        loss, auxiliary, correct = (torch.zeros((), device=self.device) for _ in range(3))
        carried = MemoryState.stack(self._carried) if self._carried and not batch.fresh else None
        self._carried = []
        random = np.random.default_rng([recipe.seed, 2, self.position.step])
        for first in range(0, rows, at_once):
            some = slice(first, first + at_once)
            pending: Tensor | None = None
            state = carried and MemoryState({name: tensor[some] for name, tensor in carried.tensors.items()})
            try:
                with self._precision():
                    parts = unroll(
                        self.learner.memory,
                        batch.tokens[some].to(self.device),
                        lengths=batch.lengths[some],
                        loss_mask=batch.targets[some].to(self.device),
                        state=state,
                        truncate=recipe.truncate,
                        checkpointed=recipe.checkpointed,
                        between=None
                        if batch.idle is None or not recipe.drift
                        else DriftAugmentation(recipe.drift, batch.idle[some], random),
                    )
                    for part in parts:
                        term = part.loss.sum() / targets + recipe.auxiliary * part.auxiliary.sum() / rows
                        pending = term if pending is None else pending + term
                        loss += part.loss.detach().sum() / targets
                        auxiliary += part.auxiliary.detach().sum() / rows
                        correct += part.correct.sum() / targets
                        state = part.state
                        if part.border and pending.requires_grad:
                            pending.backward()
                            pending = None
                if pending is not None and pending.requires_grad:
                    pending.backward()
            except StateNotFinite as error:
                raise self._failure(str(error)) from error
            except torch.OutOfMemoryError as error:
                limit = f"rows_at_once={at_once} rows of {batch.tokens.shape[1]} tokens do not fit in memory: use fewer"
                raise self._failure(f"{limit} ({error})") from error
            if state is not None and self.task.continues:
                self._carried.append(MemoryState({name: tensor.detach() for name, tensor in state.tensors.items()}))
        return float(loss), float(auxiliary), float(correct)

    def _failure(self, reason: str) -> RunError:
        kept = "none was written yet" if self._saved_at is None else f"step {self._saved_at}"
        return RunError(f"step {self.position.step}: {reason}; last good checkpoint: {kept}")

    def _precision(self) -> Any:
        # Without the cache: before torch's #165068, weights first used without a gradient got none afterwards either.
        on = self.dtype != torch.float32
        return torch.autocast(self.device.type, self.dtype, cache_enabled=False) if on else nullcontext()

    def _segments(self, step: int, stage: Stage) -> int:
        """Return the step's number of segments. Random numbers keep the model good at short documents."""
        random = np.random.default_rng([self.recipe.seed, 1, step])
        return int(random.integers(1, stage.segments + 1)) if random.random() < self.recipe.mixed else stage.segments

    def _learning_rate(self, stage: Stage) -> float:
        position, options = self.position, self.recipe.optimizer
        lr = options.lr * min(1.0, (position.step + 1) / max(1, options.warmup))
        if position.stage == len(self.recipe.stages) - 1 and options.decay:
            progress = position.step_in_stage / stage.steps - (1 - options.decay)
            lr *= 1 - (1 - options.final) * max(0.0, progress) / options.decay
        return lr
