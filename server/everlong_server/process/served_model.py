"""`served_model`: which model the settings ask for, or the machine's default."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from rich.markup import escape

from everlong_models.backbone.loading import DEFAULT_BACKBONE, Progress
from everlong_models.catalogue.default import HOW_TO_CHOOSE, defaults, described, rules
from everlong_models.catalogue.machine import Machine, require_memory, this_machine
from everlong_models.catalogue.pull import locate, pull
from everlong_models.errors import BackboneError
from everlong_models.model import EXCHANGEABLE
from everlong_models.naming import catalogue_entry
from everlong_server.settings import Settings


def default_models(settings: Settings) -> list[str]:
    """Return the models that a server without `model` tries, in this order: a plain backbone if the defaults do not take the memory."""
    if settings.memory is not None and settings.memory not in EXCHANGEABLE:
        return [DEFAULT_BACKBONE]
    return defaults(_machine(settings), _here(settings.models_dir.expanduser()))


def served_model(settings: Settings, progress: Progress) -> str:
    """Return the name of the model to serve. Announces and downloads a default; `progress` takes text with rich's markup.

    A default that cannot be downloaded, or does not fit into the memory that is free, is replaced by the next smaller one.
    """
    if settings.model is not None:
        return settings.model
    models_dir = settings.models_dir.expanduser()
    first, *smaller = default_models(settings)
    if first == DEFAULT_BACKBONE:
        return first
    progress(f"model: [bold]{first}[/], the default for {described(_machine(settings))}")
    progress(f"To serve another one: {HOW_TO_CHOOSE}")
    for name, next_name in pairwise([first, *smaller]):
        try:
            if (file := catalogue_entry(name, models_dir)) is not None:
                require_memory(name, file.bytes)
                pull(file, models_dir, lambda message: progress(escape(message)))
        except BackboneError as error:
            progress(
                f"[bold yellow]warning:[/] {escape(str(error))}.\n"
                f"Serving [bold]{next_name}[/] instead, which is smaller and answers worse."
            )
        else:
            return name
    return [first, *smaller][-1]  # needs no download where the wheel of its backbone is installed


def _machine(settings: Settings) -> Machine:
    return this_machine(settings.models_dir, device=settings.device, threads=settings.threads)


def _here(models_dir: Path) -> set[str]:
    files = {rule.model: catalogue_entry(rule.model, models_dir) for rule in rules()}
    return {name for name, file in files.items() if file is not None and locate(file, models_dir) is not None}
