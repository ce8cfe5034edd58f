"""`Prefetch`: prepare the next batches in the background while a GPU computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from everlong_lab.tasks.task import Batch, Task

AHEAD = 4
"""Batches prepared at a time, one per thread: tokenizing a batch may take longer than a step on the GPU."""
Key = tuple[int, int, int]
"""Arguments of `Task.batch`: step, rows, segments."""


class Prefetch:
    """Prepares the training batches of `task`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._threads = ThreadPoolExecutor(AHEAD, "batch")
        self._pending: dict[Key, Future[Batch]] = {}

    def take(self, key: Key, upcoming: Sequence[Key]) -> Batch:
        """Return a batch, and prepare the `upcoming` ones instead of any others."""
        prepared = self._pending.pop(key, None)
        # The first batch is made on this thread, so that the task loads its data once.
        batch = self._task.batch(*key) if prepared is None else prepared.result()
        self.keep(upcoming)
        for each in upcoming:
            if each not in self._pending:
                self._pending[each] = self._threads.submit(self._task.batch, *each)
        return batch

    def keep(self, keys: Sequence[Key]) -> None:
        """Cancel all other batches."""
        for each in self._pending.keys() - set(keys):
            self._pending.pop(each).cancel()
