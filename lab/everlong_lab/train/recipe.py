"""`Recipe`: all that a training run is told, from a YAML file; unknown keys are errors.

everlong train facts-detect --set optimizer.lr=3e-4
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everlong_lab.tasks import TaskChoice
from everlong_models.errors import ConfigError, RecipeError


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScratchBackbone(_Section):
    """A Llama with random weights: `initial_std`: their standard deviation; small widths want more than the usual."""

    width: int = Field(ge=2)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward: int = Field(ge=1)
    positions: int = Field(2048, ge=2)
    initial_std: float = Field(0.02, gt=0)


class Adapters(_Section):
    """Low-rank updates of all linear layers of the backbone (Hu et al. 2021): W + (alpha/rank) B A."""

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)


class LearnerRecipe(_Section):
    """What learns: a memory by name with its options; around a backbone by name, or one made here, or none.

    `learn`: "all" weights, or the "memory" alone, with `adapters` if there are any. `start`: a model's name or folder, made
    by a recipe with the same learner, whose weights are those that the run begins with.
    """

    memory: str
    options: dict[str, Any] = {}
    backbone: str | ScratchBackbone | None = None
    adapters: Adapters | None = None
    learn: Literal["all", "memory"] = "memory"
    start: str | None = None


class Stage(_Section):
    """A step of the curriculum: `steps` batches of documents of up to `segments` segments.

    `rows`: documents in a batch, where it is not the recipe's: longer ones leave room for fewer.
    `until`: the stage ends early when the right predictions among the last 50 batches' targets reach this share.
    """

    segments: int = Field(ge=1)
    steps: int = Field(ge=1)
    rows: int | None = Field(None, ge=1)
    until: float | None = Field(None, gt=0, le=1)


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerRecipe(_Section):
    """AdamW. `warmup`: steps until the learning rate `lr` is reached. `decay`: the share of the last stage's steps over
    which it falls linearly to `final` times `lr`. `clip`: the gradient's largest norm."""

    lr: float = Field(gt=0)
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    warmup: int = Field(100, ge=0)
    decay: float = Field(0.8, ge=0, le=1)
    final: float = Field(0.05, ge=0, le=1)
    clip: float = Field(1.0, gt=0)


class DriftRecipe(_Section):
    """Memories moved on in training, for RMT: see `drift`. `segments`: up to how many further. `share`: of the documents
    with a place for it. `limit`: of the change, both measured as root mean squares, the memory's being 1."""

    segments: float = Field(gt=0)
    share: float = Field(0.9, ge=0, le=1)
    limit: float = Field(0.5, gt=0)


class Check(_Section):
    """How often and on how much the task's score is taken while training. `every`: steps; 0 is only at the end."""

    every: int = Field(0, ge=0)
    samples: int = Field(128, ge=1)
    segments: int | None = Field(None, ge=1, description="default: those of the last stage")


class Recipe(_Section):
    """A training run.

    `rows`: documents in a batch, computed `rows_at_once` at a time (default all). `mixed`: the share of batches whose
    number of segments is drawn from 1 … the stage's, all others have the stage's. `truncate`: segments that a gradient
    reaches back over. `checkpointed`: activations are computed again in the backward pass. `auxiliary`: weight of the
    memory's own loss. `average`: decay by step of the weights' moving average (Polyak and Juditsky 1992), which then is
    what is scored and saved; 0: the weights of the last step are. `save_minutes`: between checkpoints.
    """

    description: str = ""
    learner: LearnerRecipe
    task: Annotated[TaskChoice, Field(discriminator="name")]
    stages: tuple[Stage, ...] = Field(min_length=1)
    rows: int = Field(32, ge=1)
    rows_at_once: int | None = Field(None, ge=1)
    mixed: float = Field(0.5, ge=0, le=1)
    optimizer: OptimizerRecipe
    truncate: int | None = Field(None, ge=1)
    checkpointed: bool = False
    auxiliary: float = Field(0.0, ge=0)
    average: float = Field(0.0, ge=0, lt=1)
    drift: DriftRecipe | None = None
    seed: int = Field(0, ge=0, lt=2**63)
    check: Check = Check()
    save_minutes: float = Field(5.0, gt=0)

    def digest(self) -> str:
        """SHA-256 of what is learnt, and by which steps; two runs of one digest are the same run, but for rounding.

        What only says how a step is computed, or how the run is looked at, may change when it is resumed.
        """
        content = self.model_dump_json(exclude={"description", "save_minutes", "rows_at_once", "checkpointed", "check"})
        return hashlib.sha256(content.encode()).hexdigest()


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("everlong_lab") / "recipes"
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_recipe(name: str, changes: Sequence[str] = ()) -> Recipe:
    """The recipe in the file `name`, or of that name in the package, with `changes` like "optimizer.lr=1e-3".

    Raises `RecipeError` naming the file, and the key, value and limit that are wrong.
    """
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read the recipe {path}: {error}") from error
    elif name in recipe_names():
        source = (resources.files("everlong_lab") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        raise RecipeError(f"no recipe {name!r}: a file ending in .yaml, or one of {', '.join(recipe_names())}")
    try:
        tree = yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise RecipeError(f"{name}: no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"{name}: a recipe is a mapping of keys, found {type(tree).__name__}")
    for change in changes:
        _apply(tree, change)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        first = max(error.errors(), key=lambda each: len(each["loc"]))  # where there is a choice, what came furthest
        key = ".".join(str(part) for part in first["loc"] if part not in _BRANCHES) or "the recipe"
        raise RecipeError(f"{name}: {key}={first['input']!r}: {first['msg']}") from error


_BRANCHES = {"str", ScratchBackbone.__name__}
"""What pydantic calls the kinds of backbones; no keys."""


def _apply(tree: dict[str, Any], change: str) -> None:
    path, found, value = change.partition("=")
    if not found:
        raise ConfigError("--set", change, "must be KEY=VALUE, with dots between the parts of the key")
    at: Any = tree
    *parents, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    try:
        for part in parents:
            at = at.setdefault(part, {}) if isinstance(at, dict) else at[part]
        at[last] = _parsed(value)
    except (TypeError, IndexError, AttributeError) as error:
        raise ConfigError("--set", change, f"{path!r} leads to nothing in the recipe") from error


def _parsed(value: str) -> Any:
    try:
        parsed = yaml.safe_load(value)
        return float(parsed) if isinstance(parsed, str) else parsed  # YAML 1.1 takes 1e-3 for a word
    except (ValueError, yaml.YAMLError):
        return value
