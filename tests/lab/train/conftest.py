"""Tiny recipes and data: two public-domain books, a Llama of one layer."""

from __future__ import annotations

import functools
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from everlong_lab.tasks import made_tokenizer
from everlong_lab.train import run as running
from everlong_lab.train.recipe import Recipe
from everlong_lab.train.run import Run
from tests.tinymodel import NOVEL, STORY


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    books = folder / "books-260"
    books.mkdir()
    for file in (NOVEL, STORY):
        (books / file.name).write_text(file.read_text())
    return folder


def recipe(**changes: Any) -> Recipe:
    tree: dict[str, Any] = {
        "learner": {
            "memory": "rmt",
            "options": {"segment_length": 24, "memory_tokens": 2},
            "backbone": {"width": 16, "layers": 1, "heads": 2, "feed_forward": 16, "positions": 32},
            "learn": "all",
        },
        "task": {"name": "facts", "kind": "detect", "noise_characters": 20_000, "vocabulary": 512},
        "stages": [{"segments": 1, "steps": 2}, {"segments": 2, "steps": 4}],
        "rows": 4,
        "optimizer": {"lr": 1e-3, "warmup": 2},
        "check": {"samples": 8},
    }
    return Recipe.model_validate(tree | changes)


made_once = functools.cache(made_tokenizer)
"""Cached: a task's tokenizer is always the same, and making it takes longer than the rest of a tiny run."""


@pytest.fixture
def start(data, tmp_path, monkeypatch):
    """Return a function that makes a run in a folder of a given name, new or resumed."""
    monkeypatch.setattr(running, "made_tokenizer", made_once)

    def make(of: Recipe, name: str = "run", *, resume: bool = False, data: Path = data) -> Run:
        return Run(of, tmp_path / name, data=data, models_dir=tmp_path / "models", resume=resume)

    return make


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Limit all files to `room` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def take(run: Run, steps: int) -> list[dict[str, float]]:
    """Return the figures of the next `steps` steps, without times."""
    figures = []
    wanted = run.position.step + steps
    for update in run.steps(stop=lambda: run.position.step >= wanted):
        figures.append({key: getattr(update, key) for key in ("step", "segments", "loss", "correct", "lr", "norm")})
    return figures


def weights(run):
    return {name: parameter.detach().clone() for name, parameter in run.learner.parameters.items()}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


DROPPING = recipe(
    learner={
        "memory": "lamemo",
        "options": {"segment_length": 24, "memory_length": 8, "width": 16, "layers": 1, "heads": 2, "feed_forward": 16,
                    "dropout": 0.2},
        "learn": "all",
    }
)  # fmt: skip


LASTING = recipe(
    average=0.9, drift={"segments": 9}, stages=[{"segments": 1, "steps": 1}, {"segments": 6, "steps": 5}], mixed=0
)
