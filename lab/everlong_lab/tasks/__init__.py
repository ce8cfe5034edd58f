"""Tasks that memories are trained and evaluated on: one a file, each with its data, its batches and its metric."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from everlong_lab.tasks.babilong import Babilong, BabilongConfig
from everlong_lab.tasks.continuation import Continuation, ContinuationConfig
from everlong_lab.tasks.dialogue import DialogueConfig, DialogueTask
from everlong_lab.tasks.facts import Facts, FactsConfig
from everlong_lab.tasks.language import Language, LanguageConfig
from everlong_lab.tasks.mixture import Mixture, MixtureConfig
from everlong_lab.tasks.prompts import Prompts, PromptsConfig
from everlong_lab.tasks.reading import Reading, ReadingConfig
from everlong_lab.tasks.sorting import Sorting, SortingConfig
from everlong_lab.tasks.task import Batch, Setting, Task

TaskChoice = (
    BabilongConfig
    | ContinuationConfig
    | DialogueConfig
    | FactsConfig
    | LanguageConfig
    | MixtureConfig
    | PromptsConfig
    | ReadingConfig
    | SortingConfig
)
"""The config of any task; its `name` tells which one."""

TASKS: dict[str, type[Task]] = {
    "babilong": Babilong,
    "continuation": Continuation,
    "dialogue": DialogueTask,
    "facts": Facts,
    "language": Language,
    "mixture": Mixture,
    "prompts": Prompts,
    "reading": Reading,
    "sorting": Sorting,
}
"""All tasks by name."""


def make_task(config: TaskChoice, setting: Setting) -> Task:
    """Build the task of a config."""
    return TASKS[config.name](config, setting)


def made_tokenizer(config: TaskChoice, data: Path) -> PreTrainedTokenizerBase:
    """Build a tokenizer from the task's data, for models from scratch."""
    return TASKS[config.name].make_tokenizer(config, data)


__all__ = ["TASKS", "Batch", "Setting", "Task", "TaskChoice", "made_tokenizer", "make_task"]
