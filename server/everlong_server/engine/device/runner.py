"""`Runner`: the one thread that owns the device. It takes requests and passes tokens, states and views to their sinks.

All answers are decoded as one batch. Sinks are called on the runner's thread, so they must be quick and thread-safe.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from everlong_models import CUDAGraphs, MemoryState, Model, ReadGraphs, StepGraphs
from everlong_models.kernels.yield_point import at_yield_points
from everlong_server.engine.device.decode_batch import DecodeBatch
from everlong_server.engine.device.decode_rows import DecodeRows
from everlong_server.engine.device.device_lock import DeviceLock
from everlong_server.engine.device.drafting import Drafting
from everlong_server.engine.device.event_loop_bridge import EventLoopBridge
from everlong_server.engine.device.inbox import Inbox
from everlong_server.engine.device.prefill_batch import Prefillable, PrefillBatch
from everlong_server.engine.device.requests import (
    AnswerRequest,
    MemoryViewRequest,
    PrefillRequest,
    Request,
    RequestFailed,
    ScoreRequest,
)
from everlong_server.engine.device.scheduler import Scheduler, Work
from everlong_server.engine.device.tensor_parallel import ParallelModel, on_all_processes
from everlong_server.engine.device.token_sampler import TokenSampler

log = logging.getLogger(__name__)


class Runner:
    """Start it with `start`, pass requests to `submit`, end it with `stop`, which fails unfinished requests."""

    def __init__(
        self,
        model: Model,
        *,
        max_streams: int | None,
        reading_share: float,
        max_stall: float,
        reading_rows: int | None = None,
        graphs: bool = True,
        draft_tokens: int | None = None,
        on_step: Callable[[float], None] = lambda fill: None,
        device_lock: DeviceLock | None = None,
    ) -> None:
        """`max_streams`: answers generated at once; None: 8 on a CPU, else 64. `reading_rows`: documents whose segments are prefilled in
        one batch; None: 1 on a CPU, which one segment keeps busy, else 64. `graphs`: on a GPU, record decode steps, prefill and sampling as
        CUDA graphs. `reading_share`, `max_stall`: see `Scheduler`. `draft_tokens`: see `Drafting.of`. `on_step`: called after each decode
        step with the share of streams in use. `device_lock`: held while the model computes; shared by the runners of other models."""
        self.model, self._on_step = model, on_step
        self.bridge = EventLoopBridge()
        """For sinks that call an event loop. The runner buffers the calls while it prepares a step."""
        self._device_lock = device_lock or DeviceLock()
        self._device = model.memory.initial_state(1).device
        rows = reading_rows or (1 if self.on_cpu else 64)
        recorded = graphs and self._device.type == "cuda" and not isinstance(model, ParallelModel)
        steps = StepGraphs(model.memory.steps, CUDAGraphs(self._device)) if recorded else None
        self._memory, cached = on_all_processes(model, DecodeRows(model.memory, self._device, steps))
        reads = ReadGraphs(model.memory, CUDAGraphs(self._device)) if recorded else None
        self._prefill_batch = PrefillBatch(self._memory, self._device, rows, reads)
        self.max_streams = max_streams or (8 if self.on_cpu else 64)
        self._scheduler = Scheduler(self.max_streams, reading_share, max_stall, rows)
        self._inbox, self._ids = Inbox(), itertools.count(1)
        self._requests: dict[int, Request] = {}
        self._decode_batch = DecodeBatch(cached, Drafting.of(draft_tokens, on_cpu=self.on_cpu))
        self._sampler = TokenSampler(CUDAGraphs(self._device) if recorded else None)
        self._full_answers: deque[tuple[AnswerRequest, Callable[[AnswerRequest], None]]] = deque()
        """Answers whose segment is full, taken out of the batch, and the action that commits it: to continue or to end them."""
        self._last_step = self._step_seconds = 0.0
        """Time of the last decode step, and how long it took."""
        self._started = self._interrupted_seconds = 0.0
        """When the current work began, and the seconds that decode steps have taken from it."""
        self._thread = threading.Thread(target=self._run, name="everlong-device", daemon=True)
        self.dead: BaseException | None = None
        """The error that killed the thread, if one did."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current work. Unfinished requests get `RequestFailed`."""
        self._inbox.close(RuntimeError("the engine has stopped"))
        self._inbox.wake()
        self._thread.join()

    @property
    def on_cpu(self) -> bool:
        """Whether the model is on a CPU."""
        return self._device.type == "cpu"

    @property
    def rows(self) -> int:
        """Number of answers in the decode batch."""
        return len(self._decode_batch.rows)

    def submit(self, request: Request) -> None:
        """Queue a request, whose sink receives its events. Thread-safe. To cancel, set `request.cancelled` and call `wake`."""
        self._inbox.put(request)

    def wake(self) -> None:
        """Wake an idle thread, so that it sees cancelled requests."""
        self._inbox.wake()

    # The thread

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._inbox.closed:
                    self._receive()
                    self._drop_cancelled()
                    work = self._scheduler.next() or (Work("step") if self._full_answers else None)
                    if work is not None:
                        with self._device_lock:
                            self._started, self._interrupted_seconds = time.perf_counter(), 0.0
                            self._do(work)
                        self._scheduler.record(work, time.perf_counter() - self._started - self._interrupted_seconds)
                        self._scheduler.record(Work("step"), self._interrupted_seconds)
        # Nothing can be computed after an AcceleratorError, so every handler passes it on to here.
        except BaseException as error:
            self.dead = error
            raise
        finally:
            reason = self.dead or RuntimeError("the engine has stopped")
            self._inbox.close(reason)
            for request in list(self._requests.values()):
                request.sink(RequestFailed(reason))
            self._inbox.fail_all()

    def _receive(self) -> None:
        """Schedule all requests of the inbox. Waits for one if there is no work."""
        for request in self._inbox.receive(wait=not self._requests):
            request.id = next(self._ids)
            self._requests[request.id] = request
            if isinstance(request, AnswerRequest):
                self._schedule_answer(request)
            else:
                self._scheduler.add_document(request.id, request.owner, background=request.background)

    def _schedule_answer(self, request: AnswerRequest) -> None:
        """Queue the answer: as a document while its prompt exceeds a segment."""
        if request.attended_before is not None:
            request.hide_earlier_tokens(request.attended_before)
        if len(request.open) + len(request.prompt) > self._memory.segment_length:
            self._scheduler.add_document(request.id, request.owner, background=request.background)
        else:
            self._queue_prompt(request)
        if request.params.repetition_penalty != 1:
            self._try(lambda answer: answer.collect_context(self._memory.kept_tokens(answer.state)), request)

    def _end_cancelled(self) -> None:
        """Finish the cancelled answers of the batch."""
        for request in [request for request in self._decode_batch.rows if request.cancelled]:
            self._try(partial(self._finish, reason="cancelled"), request)

    def _drop_cancelled(self) -> None:
        """Finish or fail all cancelled requests, except answers that are already ending."""
        self._end_cancelled()
        ending = {request for request, _ in self._full_answers}
        for request in [request for request in self._requests.values() if request.cancelled and request not in ending]:
            self._fail(request, InterruptedError("cancelled"))

    def _do(self, work: Work) -> None:
        """Do one piece of scheduled work; decode steps that become due interrupt it."""
        if work.kind == "step":
            self._step_all()
        requests = [self._requests[id] for id in work.ids]
        for request in requests:
            if isinstance(request, AnswerRequest):
                request.started = request.started or time.perf_counter()
        with at_yield_points(self._step_if_due):
            if work.kind == "read":
                self._prefill(requests)
            elif work.kind == "open":
                self._try(self._open, requests[0])
            elif work.kind == "suspend":
                self._queue_prompt(requests[0])
            while self._full_answers:
                request, action = self._full_answers.popleft()
                self._try(action, request)

    def _try(self, action: Callable[[Any], None], request: Request) -> None:
        """Run `action` on the request. An error fails this request alone."""
        try:
            action(request)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # of this request alone, such as a damaged state, a sink or a grammar that fails
            self._fail(request, error)

    def _step_if_due(self) -> None:
        """Run a decode step if one is due, after other models have had the device. Called at pauses within long work."""
        self._started += self._device_lock.pass_on()
        if self._scheduler.due((start := time.perf_counter()) - self._last_step, self._step_seconds):
            self._step_all()
            self._interrupted_seconds += time.perf_counter() - start

    def _step_all(self) -> None:
        """Run a decode step of all answers and measure it. If it fails, all of them fail."""
        self._end_cancelled()
        start = time.perf_counter()
        try:
            with self.bridge.buffered():
                self._step()
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._fail_batch(error)
        self._last_step = time.perf_counter()
        self._step_seconds = self._last_step - start

    def _fail_batch(self, error: Exception) -> None:
        """Fail all answers of the batch, as when the device is out of memory. Waiting requests are not affected."""
        opened = (self._requests[id] for id in self._scheduler.streams if id in self._requests)
        answers = {*self._decode_batch.rows, *opened}
        self._decode_batch.clear()
        for request in answers:
            self._fail(request, error)

    def _fail(self, request: Request, error: BaseException) -> None:
        try:
            self._remove(request)
        finally:
            request.sink(RequestFailed(error))

    def _remove(self, request: Request) -> None:
        self._unschedule(request)
        self._requests.pop(request.id, None)

    def _unschedule(self, request: Request) -> None:
        self._scheduler.remove(request.id)
        if isinstance(request, AnswerRequest) and request in self._decode_batch.rows:
            self._decode_batch.remove(request)

    def _queue_prompt(self, request: Request) -> None:
        """Queue an answer to be opened: a new one, or one of the batch, which continues where it was."""
        self._unschedule(request)
        self._scheduler.add_prompt(request.id, request.owner, background=request.background)

    # Prefill

    def _prefill(self, requests: list[Request]) -> None:
        """Prefill one segment of each document and long prompt, score one, and answer requests for memory views."""
        for other in [request for request in requests if not isinstance(request, Prefillable)]:
            self._try(self._score if isinstance(other, ScoreRequest) else self._view_memory, other)
        for request, result in self._prefill_batch.prefill([r for r in requests if isinstance(r, Prefillable)]):
            if isinstance(result, MemoryState):
                self._try(partial(self._store_segment, state=result), request)
            else:
                self._fail(request, result)
        self._scheduler.reading_rows = self._prefill_batch.rows
        if self._device.type == "cuda":  # otherwise the next decode step would be charged for this work
            torch.cuda.synchronize(self._device)

    def _store_segment(self, request: PrefillRequest | AnswerRequest, state: MemoryState) -> None:
        """Replace the request's state by `state`, which includes its next segment."""
        S = self._memory.segment_length
        if isinstance(request, PrefillRequest):
            request.state = state
            request.tokens_read += S
            if request.tokens_read >= len(request.tokens):
                self._remove(request)
                request.sink(request.state.to("cpu"))
            return
        request.prompt_read += S - len(request.open)
        request.commit_segment(state, S)
        if len(request.prompt) - request.prompt_read <= S:
            self._queue_prompt(request)

    def _view_memory(self, request: MemoryViewRequest) -> None:
        """Pass a view of the memory to the sink. It costs up to one segment's prefill and is scheduled like one."""
        open = torch.tensor([request.open], dtype=torch.int64, device=self._device)
        view = self._memory.view(request.state.to(self._device), open, request.tokens_read)
        self._remove(request)
        request.sink(view)

    def _score(self, request: ScoreRequest) -> None:
        """Score one segment. Passes the scores to the sink after the last."""
        if request.read(self._memory, self.model.tokenizer, request.state.to(self._device)):
            self._remove(request)
            request.sink(request.scores)

    # Answers

    def _open(self, request: AnswerRequest) -> None:
        """Prefill the answer's open segment of 1 … S tokens into a KV cache and add it to the decode batch."""
        request.state = request.state.to(self._device)
        if request.sampler is None:
            request.open_prompt(self.model.tokenizer, self._memory.vocab_size)
        self._decode_batch.add(request)
        self._scheduler.opened(request.id, background=request.background)

    def _commit_segment(self, request: AnswerRequest) -> None:
        """Commit the answer's full segment to its state. It is prefilled again, alone: the last bits of the batch's cache depend on other rows."""
        request.commit_segment(
            self._prefill_batch.read_segments(torch.tensor([request.open]), request.state), len(request.open)
        )

    def _begin_segment(self, request: AnswerRequest, token: int) -> None:
        """Commit the answer's full segment and start the next one with `token`, which is already sampled."""
        self._commit_segment(request)
        request.open = [token]
        self._open(request)

    def _step(self) -> None:
        """Sample a token for every answer, and more while they were guessed; run a decode step on the last ones."""
        sampled, answers = dict[int, int](), list(self._decode_batch.rows)
        while answers:
            tokens, answers = self._sampler.sample(answers, self._fail), []
            for request, token in tokens:
                self._try(partial(self._take, token=token, sampled=sampled, again=answers), request)
        self._decode_batch.rewind()
        self._start_next_segments(sampled)
        self._on_step(len(sampled) / self.max_streams)
        with at_yield_points(self.bridge.flush):
            self._decode_batch.step(sampled)

    def _take(self, request: AnswerRequest, token: int, sampled: dict[int, int], again: list[AnswerRequest]) -> None:
        """Emit a token. It goes to `sampled` if it must be decoded. If it was guessed and decoded, the answer goes to `again`."""
        token = request.next_token(token)
        if self._emit(request, token):
            if not request.take_guess(token):
                sampled[request.id] = token
            elif request.cancelled:
                self._finish(request, "cancelled")
            else:
                again.append(request)

    def _start_next_segments(self, sampled: dict[int, int]) -> None:
        """Start the next segment of each answer whose segment is full. Removes answers that leave the batch from `sampled`."""
        S = self._memory.segment_length
        for request in [request for request in self._decode_batch.rows if len(request.open) == S]:
            try:
                continued = self._decode_batch.start_next_segment(request)
            except torch.AcceleratorError:
                raise
            except Exception as error:  # of this answer alone; its row may be half updated
                del sampled[request.id]
                self._fail(request, error)
            else:
                if not continued:
                    self._defer(request, partial(self._begin_segment, token=sampled.pop(request.id)))

    def _defer(self, request: AnswerRequest, action: Callable[[AnswerRequest], None]) -> None:
        """Take the answer out of the batch, to run `action` later: committing a segment takes long, and steps can interrupt it."""
        self._unschedule(request)
        self._full_answers.append((request, action))

    def _emit(self, request: AnswerRequest, token: int) -> bool:
        """Pass an answer's next token to its sink. Returns False if the token ends the answer."""
        if request.ends_with(token, self.model.tokenizer.eos_ids):
            self._finish(request, "stop")
            return False
        reason = request.accept(token)
        if reason is not None:
            self._finish(request, reason, token)
        return reason is None

    def _finish(self, request: AnswerRequest, reason: str, last: int | None = None) -> None:
        """End an answer. `last`: its last token, if that is not prefilled yet."""
        if reason in ("cancelled", "repetition"):
            request.drop_held(unread=int(last is not None))
            last = None
        else:
            request.emit_held()
        end = partial(self._end, reason=reason, last=last)
        if len(request.open) + (last is not None) >= self._memory.segment_length:
            self._defer(request, end)
        else:
            end(request)

    def _end(self, request: AnswerRequest, reason: str, last: int | None) -> None:
        """Pass the finished answer, its memory and its open segment to the sink."""
        for token in (None, last):
            if token is not None:
                request.open = [*request.open, token]
            if len(request.open) == self._memory.segment_length:
                self._commit_segment(request)
        finished = request.finished(reason)
        self._remove(request)
        request.sink(finished)
