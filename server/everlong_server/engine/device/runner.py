"""`Runner`: the one thread that owns the device. Answers and documents go in; tokens and states come out.

Rows of all answers are stepped as one batch. What a caller is told, it is told by callbacks that the runner calls on
its own thread: they must be quick and thread-safe.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from everlong_models import CUDAGraphs, MemoryState, Model, ReadGraphs, Recorded, Sampler, StepGraphs
from everlong_models.generate.sampling import choose, drawn
from everlong_models.kernels.pause import pausing
from everlong_server.engine.device.decode_batch import DecodeBatch
from everlong_server.engine.device.detokeniser import Detokeniser, logprobs
from everlong_server.engine.device.event_loop_bridge import EventLoopBridge
from everlong_server.engine.device.prefill_batch import PrefillBatch
from everlong_server.engine.device.requests import Answer, Delta, Failed, Finished, Item, Look, Read
from everlong_server.engine.device.scheduler import Scheduler, Work

log = logging.getLogger(__name__)


class Runner:
    """Start with `start`; hand in work with `submit`; end with `stop`, which fails what is unfinished."""

    def __init__(
        self,
        model: Model,
        *,
        max_streams: int | None,
        reading_share: float,
        max_stall: float,
        reading_rows: int | None = None,
        graphs: bool = True,
        on_step: Callable[[float], None] = lambda fill: None,
        post: EventLoopBridge | None = None,
    ) -> None:
        """`max_streams`: answers generated at once. None: 8 on a CPU, else 64. `reading_rows`: documents whose segments are
        read in one pass. None: 1 on a CPU, which a segment keeps busy, else 64. `graphs`: on a GPU, steps,
        the reading of segments and drawing are CUDA graphs. `post`: what sinks go through, if anything; it is held while a step is made ready."""
        self._model = model
        self._on_step, self._bridge = on_step, post or EventLoopBridge()
        self._memory = model.memory
        self._device = next(iter(model.memory.initial_state(1).tensors.values())).device
        rows = reading_rows or (1 if self.on_cpu else 64)
        recorded = graphs and self._device.type == "cuda"
        self._segments = PrefillBatch(
            model.memory, self._device, rows, ReadGraphs(model.memory, CUDAGraphs(self._device)) if recorded else None
        )
        self.max_streams = max_streams or (8 if self.on_cpu else 64)
        self._scheduler = Scheduler(self.max_streams, reading_share, max_stall, rows)
        self._inbox: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._work: dict[int, Item] = {}
        self._batch = DecodeBatch(
            model.memory, self._device, StepGraphs(model.memory.step, CUDAGraphs(self._device)) if recorded else None
        )
        self._draw = Recorded(drawn, CUDAGraphs(self._device), "a draw") if recorded else None
        self._full: deque[tuple[Answer, Callable[[Answer], None]]] = deque()
        """Answers whose segment is full, out of the batch, and what is done with them: they go on, or end."""
        self._last_id = 0
        self._stepped = 0.0
        """When the answers were stepped last."""
        self._took = 0.0
        """Seconds of that step."""
        self._between = 0.0
        """Seconds of steps in the middle of the work at hand."""
        self._thread = threading.Thread(target=self._run, name="everlong-device", daemon=True)
        self._stopping = threading.Event()
        self.dead: BaseException | None = None
        """What ended the thread before its time, if anything did."""

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after the work at hand; what is unfinished gets `Failed`."""
        self._stopping.set()
        self._inbox.put(None)
        self._thread.join()

    @property
    def on_cpu(self) -> bool:
        """Whether the model is on a CPU."""
        return self._device.type == "cpu"

    @property
    def rows(self) -> int:
        """Answers in the batch."""
        return len(self._batch.rows)

    def submit(self, work: Item) -> None:
        """Takes on `work`; its sink hears of it. Thread-safe. To cancel it, set `work.cancelled` and `wake`."""
        if self.dead is not None or self._stopping.is_set():
            work.sink(Failed(self.dead or RuntimeError("the engine has stopped")))
            return
        self._inbox.put(work)
        if self._stopping.is_set():  # it may have ended between the two
            self._refuse(self.dead or RuntimeError("the engine has stopped"))

    def _refuse(self, reason: BaseException) -> None:
        """Fails what nobody will take out of the inbox any more."""
        while True:
            try:
                late = self._inbox.get_nowait()
            except queue.Empty:
                return
            if late is not None:
                late.sink(Failed(reason))

    def wake(self) -> None:
        """Lets the thread look at what was cancelled while it has nothing to do."""
        self._inbox.put(None)

    # The thread

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while not self._stopping.is_set():
                    self._receive()
                    self._drop_cancelled()
                    work = self._scheduler.next() or (Work("step") if self._full else None)
                    if work is not None:
                        start, self._between = time.perf_counter(), 0.0
                        self._do(work)
                        self._scheduler.record(work, time.perf_counter() - start - self._between)
                        self._scheduler.record(Work("step"), self._between)
        # Nothing more can be computed after an AcceleratorError, which therefore passes all that would go on. And the thread
        # must not die silently: whoever waits is told.
        except BaseException as error:
            self.dead = error
            raise
        finally:
            reason = self.dead or RuntimeError("the engine has stopped")
            self._stopping.set()
            for item in list(self._work.values()):
                item.sink(Failed(reason))
            self._refuse(reason)

    def _receive(self) -> None:
        """Takes in what has arrived; waits for something if there is nothing to do."""
        idle = not self._work
        while idle or not self._inbox.empty():
            item = self._inbox.get()
            idle = False
            if item is None:
                continue
            self._last_id += 1
            item.id = self._last_id
            self._work[item.id] = item
            if isinstance(item, Answer) and item.alone:
                item.newest, item.skipped = 0, len(item.open)
            if not isinstance(item, Answer) or len(item.open) + len(item.prompt) > self._memory.segment_length:
                self._scheduler.add_document(item.id, item.owner)
            else:
                self._scheduler.add_prompt(item.id, item.owner)
            if isinstance(item, Answer) and item.params.repetition_penalty != 1:
                self._try(self._look_back, item)

    def _look_back(self, item: Answer) -> None:
        """Puts together the answer's context, before segments of its prompt go into the memory."""
        kept = self._memory.kept_tokens(item.state)
        newest = len(kept) if item.newest is None else min(item.newest, len(kept))
        item.context = [*kept[len(kept) - newest :], *item.open[item.skipped :], *item.prompt]

    def _end_cancelled(self) -> None:
        """Answers of the batch that nobody wants to go on."""
        for item in [item for item in self._batch.rows if item.cancelled]:
            self._try(partial(self._finish, reason="cancelled"), item)

    def _drop_cancelled(self) -> None:
        self._end_cancelled()
        ending = {item for item, _ in self._full}
        for item in [item for item in self._work.values() if item.cancelled and item not in ending]:
            if isinstance(item, Answer) and item.sampler is None:
                # Its prompt was not read: nothing has happened to the session.
                self._fail(item, InterruptedError("cancelled before it began"))
            else:
                self._fail(item, InterruptedError("cancelled"))

    def _do(self, work: Work) -> None:
        if work.kind == "step":
            self._step_all()
        items = [self._work[id] for id in work.ids]
        for item in items:
            if isinstance(item, Answer) and item.began is None:
                item.began = time.perf_counter()
        with pausing(self._step_if_due):
            if work.kind == "read":
                self._read(items)
            elif work.kind == "open":
                for item in items:
                    self._try(self._open, item)
            while self._full:
                item, go_on = self._full.popleft()
                self._try(go_on, item)

    def _try(self, do: Callable[[Any], None], item: Item) -> None:
        try:
            do(item)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # the fault of this row (a damaged state, say): the others go on
            self._fail(item, error)

    def _step_if_due(self) -> None:
        """In the middle of something long: the answers go on if they have waited for long enough."""
        start = time.perf_counter()
        if self._scheduler.due(start - self._stepped, self._took):
            self._step_all()
            self._between += time.perf_counter() - start

    def _step_all(self) -> None:
        self._end_cancelled()
        start = time.perf_counter()
        try:
            with self._bridge.held():
                self._step()
        except torch.AcceleratorError:
            raise
        except Exception as error:
            self._break(error)
        self._stepped = time.perf_counter()
        self._took = self._stepped - start

    def _break(self, error: Exception) -> None:
        """The batch is lost (out of memory, say): every answer in it fails, what waits goes on."""
        lost = {*self._batch.rows, *(self._work[id] for id in self._scheduler.streams if id in self._work)}
        self._batch.clear()
        for item in lost:
            self._fail(item, error)

    def _fail(self, item: Item, error: BaseException) -> None:
        try:
            self._forget(item)
        finally:
            item.sink(Failed(error))

    def _forget(self, item: Item) -> None:
        self._take_out(item)
        self._work.pop(item.id, None)

    def _take_out(self, item: Item) -> None:
        """Out of its queue, or the batch."""
        self._scheduler.remove(item.id)
        if isinstance(item, Answer) and item in self._batch.rows:
            self._batch.leave(item)

    # Documents

    def _read(self, items: list[Item]) -> None:
        """A segment further for every document and long prompt."""
        for item in items:
            if isinstance(item, Look):
                self._try(self._look, item)
        for item, read in self._segments.read([item for item in items if not isinstance(item, Look)]):
            if isinstance(read, MemoryState):
                self._try(partial(self._keep, state=read), item)
            else:
                self._fail(item, read)
        self._scheduler.reading_rows = self._segments.rows
        if self._device.type == "cuda":  # or the answers are charged for it, which come next
            torch.cuda.synchronize(self._device)

    def _keep(self, item: Read | Answer, state: MemoryState) -> None:
        """`state` has the item's next segment."""
        S = self._memory.segment_length
        if isinstance(item, Read):
            item.state = state
            item.at += S
            if item.at >= len(item.tokens):
                self._forget(item)
                item.sink(item.state.to("cpu"))
            return
        item.at += S - len(item.open)
        item.remember(state, S)
        if len(item.prompt) - item.at <= S:
            self._scheduler.remove(item.id)
            self._scheduler.add_prompt(item.id, item.owner)

    def _look(self, item: Look) -> None:
        """At most a pass over one segment: its turn comes as a document's does, so that answers do not wait for it."""
        view = self._memory.view(item.state.to(self._device), self._tensor(item.open), item.read)
        self._forget(item)
        item.sink(view)

    # Answers

    def _open(self, item: Answer) -> None:
        """Reads the last 1 … S tokens before the answer into a cache, which joins the batch."""
        item.state = item.state.to(self._device)
        item.open, item.at = item.open + item.prompt[item.at :], len(item.prompt)
        item.sampler = Sampler(item.params, item.seed, item.context, self._memory.vocab_size, item.grammar)
        item.wording = Detokeniser(self._model.tokenizer, item.params.stop)
        self._batch.enter(item)
        self._scheduler.opened(item.id)

    def _remember(self, item: Answer) -> None:
        """Takes the answer's segment, which is full, into its state.

        It is read again, alone: what its tokens left in the batch's cache depends, in the last bits, on the rows that were
        beside it then. So a state follows from its tokens, and is the same whatever else the server did. One pass over a
        segment is a small part of what its generation took.
        """
        item.remember(self._segments.after(torch.tensor([item.open]), item.state), len(item.open))

    def _begin_segment(self, item: Answer, token: int) -> None:
        """The answer's segment goes into its memory; `token`, drawn already, begins the next one."""
        self._remember(item)
        item.open = [token]
        self._batch.enter(item)
        self._scheduler.opened(item.id)

    def _step(self) -> None:
        """Draws a token for every row and reads it: one token further for every answer."""
        drawn: dict[int, int] = {}
        for item, token in self._chosen():
            try:
                if self._say(item, token):
                    drawn[item.id] = token
            except Exception as error:  # a sink or a grammar that fails ends its own answer only
                self._fail(item, error)
        S = self._memory.segment_length
        for item in [item for item in self._batch.rows if len(item.open) == S]:
            try:
                went_on = self._batch.go_on(item)
            except torch.AcceleratorError:
                raise
            except Exception as error:  # as above; its row may be neither here nor there
                del drawn[item.id]
                self._fail(item, error)
            else:
                if not went_on:
                    self._set_aside(item, partial(self._begin_segment, token=drawn.pop(item.id)))
        self._on_step(len(drawn) / self.max_streams)
        with pausing(self._bridge.deliver):
            self._batch.step(drawn)

    def _set_aside(self, item: Answer, go_on: Callable[[Answer], None]) -> None:
        """Its segment goes into the memory, which takes long: the others are stepped in the middle of that."""
        self._take_out(item)
        self._full.append((item, go_on))

    def _chosen(self) -> list[tuple[Answer, int]]:
        """The next token of every answer."""
        rows = [
            (item, item.sampler, item.logits) for item in self._batch.rows if item.sampler and item.logits is not None
        ]
        if not rows:
            return []
        scores = torch.stack([logits for *_, logits in rows]).float()  # of all in one go
        there: list[int] = []
        for row, (item, sampler, _) in enumerate(rows):
            try:
                if sampler.adjusts:
                    scores[row] = sampler.adjust(scores[row])
            except torch.AcceleratorError:
                raise
            except Exception as error:  # as above
                self._fail(item, error)
            else:
                there.append(row)
        if len(there) < len(rows):
            rows, scores = [rows[row] for row in there], scores[there]
        tokens = choose([sampler for _, sampler, _ in rows], scores, self._draw) if rows else []
        return [(item, token) for (item, *_), token in zip(rows, tokens, strict=True)]

    def _say(self, item: Answer, token: int) -> bool:
        """Tells the sink of an answer its next token. False if that was its end."""
        assert item.sampler is not None
        assert item.wording is not None
        assert item.logits is not None
        params, tokenizer, grammar = item.params, self._model.tokenizer, item.grammar
        item.sampler.take(token)
        # An answer that follows a grammar can have come to the one end that it allows.
        ends = not params.ignore_eos or grammar is not None
        if token in params.stop_token_ids or (ends and token in tokenizer.eos_ids):
            self._finish(item, "stop")
            return False
        item.generated += 1
        text = item.wording.take(token)
        likely = [logprobs(tokenizer, item.logits, token, params.top_logprobs)] if params.logprobs else []
        item.sink(Delta(text, likely))
        over = item.wording.stopped or (grammar is not None and grammar.over)
        if over or item.generated >= params.max_tokens:
            self._finish(item, "stop" if over else "length", token)
            return False
        return True

    def _finish(self, item: Answer, reason: str, last: int | None = None) -> None:
        """Ends an answer. `last`: a token that belongs to it and was not read yet.

        What is held back, half a character or what may become a stop string, is said at the end. Of a cancelled answer it
        is not: had it gone on, or is it made again because a server was lost, it says what it says then.
        """
        assert item.wording is not None
        if reason != "cancelled" and (rest := item.wording.end()):
            item.sink(Delta(rest, []))
        end = partial(self._end, reason=reason, last=last)
        if len(item.open) + (last is not None) >= self._memory.segment_length:
            self._set_aside(item, end)
        else:
            end(item)

    def _end(self, item: Answer, reason: str, last: int | None) -> None:
        """Hands out what the answer leaves."""
        assert item.wording is not None
        for token in (None, last):
            if token is not None:
                item.open = [*item.open, token]
            if len(item.open) == self._memory.segment_length:
                self._remember(item)
        finished = Finished(
            reason, item.wording.text, item.state.to("cpu"), list(item.open), item.generated, len(item.prompt),
            time.perf_counter() - (item.began or 0.0),
        )  # fmt: skip
        self._forget(item)
        item.sink(finished)

    def _tensor(self, tokens: list[int]) -> Tensor:
        return torch.tensor([tokens], dtype=torch.int64, device=self._device)
