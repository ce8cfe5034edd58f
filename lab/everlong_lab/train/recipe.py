"""`Recipe`: everything that describes a training run, read from a YAML file. Unknown keys are errors.

    everlong train facts-detect --set optimizer.lr=3e-4

A file may extend another recipe, `extends: NAME`, and then has only the keys that differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from everlong_lab.tasks import TaskChoice
from everlong_models.errors import ConfigError, RecipeError
from everlong_models.weights import TemplateName


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ScratchBackbone(_Section):
    """A Llama with random weights. `initial_std`: their standard deviation; narrow models need more than the default."""

    width: int = Field(ge=2)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    feed_forward: int = Field(ge=1)
    positions: int = Field(2048, ge=2)
    initial_std: float = Field(0.02, gt=0)


class Adapters(_Section):
    """Low-rank updates of all linear layers of the backbone (Hu et al. 2021): W + (alpha/rank) B A.

    `first_layer`: decoder layers before it have none, so training does not go back through them. 0: the first.
    """

    rank: int = Field(16, ge=1)
    alpha: int = Field(32, ge=1)
    dropout: float = Field(0.0, ge=0, lt=1)
    first_layer: int = Field(0, ge=0)


class LearnerRecipe(_Section):
    """The model to train: a memory by name with its options, around a backbone by name, a new backbone, or none.

    `learn`: train "all" weights, or only the "memory" with its `adapters`. `start`: name or folder of a model whose
    weights the run starts from; it must have been made by a recipe with the same learner. `template`: see `Manifest`.
    """

    memory: str
    options: dict[str, Any] = {}
    backbone: str | ScratchBackbone | None = None
    adapters: Adapters | None = None
    learn: Literal["all", "memory"] = "memory"
    start: str | None = None
    template: TemplateName | None = None


class Stage(_Section):
    """One step of the curriculum: `steps` batches of documents of up to `segments` segments.

    `rows`: documents in a batch, if not the recipe's `rows`; longer documents need more memory each.
    `until`: end the stage early once this share of the targets of the last 50 batches was predicted correctly.
    """

    segments: int = Field(ge=1)
    steps: int = Field(ge=1)
    rows: int | None = Field(None, ge=1)
    until: float | None = Field(None, gt=0, le=1)


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerRecipe(_Section):
    """AdamW. `warmup`: steps until the learning rate `lr` is reached. `decay`: share of the last stage's steps over
    which the rate falls linearly to `final` times `lr`. `clip`: largest norm of the gradient."""

    lr: float = Field(gt=0)
    weight_decay: float = Field(0.01, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    warmup: int = Field(100, ge=0)
    decay: float = Field(0.8, ge=0, le=1)
    final: float = Field(0.05, ge=0, le=1)
    clip: float = Field(1.0, gt=0)


class DriftRecipe(_Section):
    """Drift augmentation of RMT's memory, see `train.drift`. `segments`: how many further segments to simulate at most.
    `share`: of the documents that have a suitable position. `limit`: largest change, as a root mean square, relative to
    the memory's."""

    segments: float = Field(gt=0)
    share: float = Field(0.9, ge=0, le=1)
    limit: float = Field(0.5, gt=0)


class Check(_Section):
    """Scoring during training. `every`: steps between two scores; 0 scores only at the end. `samples`: held-out documents."""

    every: int = Field(0, ge=0)
    samples: int = Field(128, ge=1)
    segments: int | None = Field(None, ge=1, description="default: those of the last stage")


class Recipe(_Section):
    """A training run.

    `rows`: documents in a batch, computed `rows_at_once` at a time (default all). `mixed`: share of batches whose number
    of segments is random, from 1 to the stage's; the others have the stage's. `truncate`: segments that a gradient
    reaches back over. `checkpointed`: recompute activations in the backward pass to save memory. `auxiliary`: weight of
    the memory's own loss. `average`: decay per step of a moving average of the weights (Polyak and Juditsky 1992), which
    is then scored and saved; 0 uses the last step's weights. `save_minutes`: time between checkpoints.
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
        """Return the SHA-256 of everything that affects the result. Runs with equal digests are equal up to rounding.

        Keys that only change how a step is computed or how the run is observed may differ when a run is resumed.
        """
        free = {"description", "save_minutes", "rows_at_once", "checkpointed", "check"}
        content = self.model_dump_json(exclude=dict.fromkeys(free, True) | {"learner": {"template"}})
        return hashlib.sha256(content.encode()).hexdigest()


def recipe_names() -> list[str]:
    """Return the names of the recipes in the package."""
    return sorted(name for name in _packaged() if not name.startswith("_"))


def load_recipe(name: str, changes: Sequence[str] = ()) -> Recipe:
    """Load a recipe from the file `name` or from the package, with `changes` like "optimizer.lr=1e-3".

    Raises `RecipeError` naming the file, the key, its value and the limit.
    """
    tree = _tree(name)
    for change in changes:
        _apply(tree, change)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        # Of the alternatives of a union, report the one that matched furthest.
        first = max(error.errors(), key=lambda each: len(each["loc"]))
        key = ".".join(str(part) for part in first["loc"] if part not in _UNION_TAGS) or "the recipe"
        raise RecipeError(f"{name}: {key}={first['input']!r}: {first['msg']}") from error


def _packaged() -> dict[str, Traversable]:
    """Return the recipe files of the package by name; those that only serve to be extended begin with an underscore."""
    folders = (resources.files("everlong_lab") / "recipes").iterdir()
    files = (file for entry in folders for file in (entry.iterdir() if entry.is_dir() else (entry,)))
    return {file.name.removesuffix(".yaml"): file for file in files if file.name.endswith(".yaml")}


def _tree(name: str, extending: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a recipe's keys, merged into those of the recipe that it extends. Raises `RecipeError`."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"}:
        try:
            source = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(f"cannot read the recipe {path}: {error}") from error
    elif name in _packaged():
        source = _packaged()[name].read_text(encoding="utf-8")
    else:
        raise RecipeError(f"no recipe {name!r}: must be a file ending in .yaml, or one of {', '.join(recipe_names())}")
    try:
        tree = yaml.safe_load(source)
    except yaml.YAMLError as error:
        raise RecipeError(f"{name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise RecipeError(f"{name}: must be a mapping of keys, found {type(tree).__name__}")
    if (extended := tree.pop("extends", None)) is None:
        return tree
    if not isinstance(extended, str) or extended in (*extending, name):
        raise RecipeError(f"{name}: extends={extended!r}: must be the name or file of another recipe")
    return _merged(_tree(extended, (*extending, name)), tree)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the values of `above`; mappings in both are merged."""
    both = {key for key in above if isinstance(above[key], dict) and isinstance(below.get(key), dict)}
    return below | above | {key: _merged(below[key], above[key]) for key in both}


_UNION_TAGS = {"str", ScratchBackbone.__name__}
"""Parts of pydantic's error locations that name a type of backbone, not a key of the recipe."""


def _apply(tree: dict[str, Any], change: str) -> None:
    path, equals, value = change.partition("=")
    if not equals:
        raise ConfigError("--set", change, "must be KEY=VALUE, with dots between the parts of the key")
    node: Any = tree
    *parents, last = (int(part) if part.isdecimal() else part for part in path.split("."))
    try:
        for part in parents:
            node = node.setdefault(part, {}) if isinstance(node, dict) else node[part]
        node[last] = _parsed(value)
    except (TypeError, IndexError, AttributeError) as error:
        raise ConfigError("--set", change, f"{path!r} is not a key of the recipe") from error


def _parsed(value: str) -> Any:
    try:
        parsed = yaml.safe_load(value)
        return float(parsed) if isinstance(parsed, str) else parsed  # YAML 1.1 reads 1e-3 as a string
    except (ValueError, yaml.YAMLError):
        return value
