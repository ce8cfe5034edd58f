"""Tensor parallelism: a model spread over several processes (see `everlong_models.parallel`), of which the server is the first.

The others are *workers*. The server sends them each call that computes with the model, and makes the same call itself. So all keep in step;
workers drop the results. A worker ends when its pipe closes, so it never outlives the server. `python -m` of this module is a worker.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread, Timer
from typing import Any, BinaryIO, TypeVar, cast

import torch
from torch import Tensor

from everlong_models import EverlongModelError, MemoryState, Model, load_model
from everlong_models.kernels.yield_point import at_yield_points
from everlong_models.memories.base import SegmentReader
from everlong_models.parallel import Ranks, device_of
from everlong_server.engine.device.decode_rows import DecodeRows

log = logging.getLogger(__name__)

T = TypeVar("T")
_MEMORY, _ROWS = "memory", "rows"
_CALLS = {
    _MEMORY: {"read", "view", "segment", "forward"},
    _ROWS: {"open", "start_next_segment", "remove", "step", "rewind", "clear"},
}
"""The methods of the model's memory and of the `DecodeRows` that all processes must call."""
_RENDEZVOUS = "rendezvous"
"""Name of the file by which the processes find each other (PyTorch's `FileStore`)."""
_EXIT_SECONDS = 10.0
"""How long the server has to exit after a worker's end: its device thread may wait for that worker for ever. Also how long it waits for a worker
that it has killed."""
_FIRST_REPORTS_SECONDS = 10.0
"""How long a worker that cannot load the model waits for the server, which usually has the same error and reports it."""


class ProcessesDiffer(torch.AcceleratorError):
    """A call failed in a way that may have left the processes with different caches, so nothing more can be computed."""


class Workers:
    """The worker processes of one model. `failure`: why no more calls can be made; None while they can."""

    def __init__(self, size: int, kind: str, load: dict[str, Any]) -> None:
        """Start the workers of `size` processes, which load the model with the arguments `load` of `load_model` at once.

        `kind`: of device, `cpu` or `cuda`. Raises `ConfigError` for more processes than GPUs, and `EverlongModelError` for a worker that ends
        at once.
        """
        self.device = device_of(0, size, kind)
        self.failure: str | None = None
        self._stopping = False
        self._folder = Path(tempfile.mkdtemp(prefix="everlong-ranks-"))
        self.ranks = Ranks(0, size, self._folder / _RENDEZVOUS)
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank in range(1, size):
            # A session of its own: Ctrl-C reaches the server alone, which may still have answers to finish.
            process = subprocess.Popen(
                ["env", f"LOCAL_RANK={rank}", sys.executable, "-m", __name__, str(self._folder), str(rank), str(size)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            self._processes.append(process)
            Thread(target=self._watch, args=(rank, process), name=f"everlong-rank-{rank}", daemon=True).start()
            try:
                self._send(process, (kind, torch.get_num_threads(), load))
            except BrokenPipeError as error:
                self.stop()
                raise EverlongModelError(
                    f"worker process {rank} of the tensor parallelism ended while it started"
                ) from error

    def _watch(self, rank: int, process: subprocess.Popen[bytes]) -> None:
        """Wait for the process to end. If it should not have, let the server exit."""
        status = process.wait()
        if self._stopping:
            return
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        self.failure = f"worker process {rank} of the tensor parallelism {how}"
        log.error("%s: the server exits and must be restarted", self.failure)
        deadline = Timer(
            _EXIT_SECONDS, os._exit, [1]
        )  # a worker may hang in its driver, and the device thread in a call
        deadline.daemon = True
        deadline.start()
        self.stop()

    @staticmethod
    def _send(process: subprocess.Popen[bytes], message: object) -> None:
        pipe = cast("BinaryIO", process.stdin)
        pipe.write(pickle.dumps(message))
        pipe.flush()

    def mirrored(self, name: str, target: T) -> T:
        """Return a proxy of `target`. All processes make those of its calls that `_CALLS` names. Only the device thread may use it."""
        return cast("T", _Mirror(target, _CALLS[name], partial(self._call, name)))

    def _call(self, target: str, method: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call in all processes, and return the result of this one."""
        if self.failure is not None:
            raise ProcessesDiffer(self.failure)
        try:
            message = target, method.__name__, [_moved(each, "cpu") for each in arguments]
            for process in self._processes:
                self._send(process, message)
            # A decode step in the middle of a call would have to be there in all processes.
            with at_yield_points(lambda: None):
                return method(*arguments)
        except EverlongModelError:  # of the arguments: raised in all processes
            raise
        except Exception as error:
            raise ProcessesDiffer(f"tensor parallelism: {self.failure or error}") from error

    def stop(self) -> None:
        """End the workers, which keep nothing that must be saved."""
        self._stopping = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):  # it ends with the call of its driver in which it hangs
                process.wait(_EXIT_SECONDS)
        shutil.rmtree(self._folder, ignore_errors=True)


class _Mirror:
    """A proxy of `target` that passes calls of the methods in `calls` to `call`."""

    def __init__(self, target: object, calls: set[str], call: Callable[..., Any]) -> None:
        self._target, self._calls, self._call = target, calls, call

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        return partial(self._call, found) if name in self._calls else found


def _moved(argument: Any, device: torch.device | str) -> Any:
    """Return a call's argument on `device`. A tensor is copied, because pickle writes all of the storage that it is a part of."""
    if isinstance(argument, MemoryState):
        return MemoryState({name: _moved(argument[name], device) for name in argument})
    return argument.to(device, copy=True) if isinstance(argument, Tensor) else argument


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelModel(Model):
    """A model that is spread over this process and `workers`."""

    workers: Workers


def on_all_processes(model: Model, rows: DecodeRows) -> tuple[SegmentReader, DecodeRows]:
    """Return the model's memory and `rows`. If workers share the model, their calls are made in all processes."""
    if not isinstance(model, ParallelModel):
        return model.memory, rows
    return model.workers.mirrored(_MEMORY, model.memory), model.workers.mirrored(_ROWS, rows)


def load_parallel(size: int, kind: str, **load: Any) -> ParallelModel:
    """Load a model into `size` processes. `kind`: of device, `cpu` or `cuda`. `load`: the other arguments of `load_model`.

    Raises `ConfigError` for a model, a memory or a machine for which this many are not possible, and the errors of `load_model`.
    """
    progress = load.pop("progress")
    workers = Workers(size, kind, load)
    model = load_model(**load, device=workers.device, ranks=workers.ranks, progress=progress)
    return ParallelModel(**{field.name: getattr(model, field.name) for field in fields(model)}, workers=workers)


def _work() -> None:
    """Make the calls of the server, until it ends. Ends this process."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the server stops its workers when it has finished
        signal.signal(number, signal.SIG_IGN)
    folder, rank, size = Path(sys.argv[1]), *map(int, sys.argv[2:])
    if not (folder / _RENDEZVOUS).exists():  # the server has ended
        return
    # Before `_receive` can remove the file: this would wait for it, and keep Python's other threads waiting.
    ranks = Ranks(rank, size, folder / _RENDEZVOUS)
    messages = SimpleQueue[Any]()
    Thread(target=_receive, args=(messages, folder), daemon=True).start()
    kind, threads, load = messages.get()
    torch.set_num_threads(threads)
    ranks.wait_for_first()
    try:
        model = load_model(**load, device=device_of(rank, size, kind), ranks=ranks)
    except EverlongModelError:  # the server has the same error and ends, unless it is one of this process alone
        time.sleep(_FIRST_REPORTS_SECONDS)
        raise
    device = model.memory.initial_state(1).device
    targets = {_MEMORY: model.memory, _ROWS: DecodeRows(model.memory, device)}
    with torch.inference_mode():
        while True:
            target, method, arguments = messages.get()
            try:
                getattr(targets[target], method)(*(_moved(each, device) for each in arguments))
            except EverlongModelError:  # the server's own call fails alike
                continue


def _receive(messages: SimpleQueue[Any], folder: Path) -> None:
    """Queue the server's messages. When the server has ended, end this process, whatever it is doing."""
    try:
        while True:
            messages.put(pickle.load(sys.stdin.buffer))  # noqa: S301 - the server wrote it
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a server that was killed leaves it
        os._exit(0)


if __name__ == "__main__":
    try:
        _work()
    except BaseException as error:
        if isinstance(error, EverlongModelError):
            sys.stderr.write(f"error: {error}\n")
        else:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # not by a normal exit: the thread above holds the pipe
