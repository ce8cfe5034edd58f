"""Tasks that memories are trained and evaluated on: one a file, each with its data, its batches and its metric."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from everlong_lab.tasks.language import Language, LanguageConfig
from everlong_lab.tasks.mixture import PARTS, Mixture, MixtureConfig, PartChoice
from everlong_lab.tasks.sorting import Sorting, SortingConfig
from everlong_lab.tasks.task import Batch, Setting, Task

TaskChoice = PartChoice | LanguageConfig | MixtureConfig | SortingConfig
"""The config of any task; its `name` tells which one."""

TASKS: dict[str, type[Task]] = PARTS | {"language": Language, "mixture": Mixture, "sorting": Sorting}
"""All tasks by name."""


def make_task(config: TaskChoice, setting: Setting) -> Task:
    """Build the task of a config."""
    return TASKS[config.name](config, setting)


def made_tokenizer(config: TaskChoice, data: Path) -> PreTrainedTokenizerBase:
    """Build a tokenizer from the task's data, for models from scratch."""
    return TASKS[config.name].make_tokenizer(config, data)


__all__ = ["TASKS", "Batch", "Setting", "Task", "TaskChoice", "made_tokenizer", "make_task"]
