"""`Scheduler`: decides what the device does next. Pure: it knows ids and seconds, but no tensors, Redis or HTTP.

Four kinds of work share the device:

- "step": one decode step of all answers;
- "open": opening an answer, which prefills the last part of its prompt;
- "read": prefilling one segment of each of a batch of documents;
- "suspend": taking a background answer out of the decode batch, to open it again later.

Answers go before documents. Documents get all the time that answers leave and, while there are answers, `reading_share`
of the time, so that a document never starves. Work that takes longer than `max_stall` is interrupted by decode steps.
Owners (tenants) take turns, however many requests each of them has.

Background requests (batches, background responses) wait until no other request waits. While other answers run, at most one
background answer runs, so that background work never starves. It is suspended if other answers need its place. Documents go
before background answers, which then get `reading_share` of the time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["step", "open", "read", "suspend"]


@dataclass(frozen=True, slots=True)
class Work:
    """One use of the device. `ids`: the prompt to open, the documents to read or the answer to suspend; empty for a step, which takes
    all answers."""

    kind: Kind
    ids: tuple[int, ...] = ()


@dataclass(slots=True)
class FairQueue:
    """A queue of ids by owner. Owners take turns. An owner's own ids take turns (`turn`) or are served in order (`take`)."""

    _ids: dict[str, deque[int]] = field(default_factory=dict)
    """Ids by owner. The first owner is served next."""

    def __len__(self) -> int:
        return sum(map(len, self._ids.values()))

    def add(self, id: int, owner: str) -> None:
        """Append `id` to its owner's ids."""
        self._ids.setdefault(owner, deque()).append(id)

    def take(self) -> int:
        """Remove and return the next id."""
        id = self.turn()
        self.remove(id)
        return id

    def turn(self) -> int:
        """Return the next id, and move it behind its owner's other ids and the owner behind the other owners."""
        owner, ids = next(iter(self._ids.items()))
        self._ids[owner] = self._ids.pop(owner)
        ids.rotate(-1)
        return ids[-1]

    def turns(self, most: int) -> tuple[int, ...]:
        """Return the next `most` different ids, or all if there are fewer, in the order of `turn`."""
        chosen: dict[int, None] = {}
        while len(chosen) < min(most, len(self)):
            chosen[self.turn()] = None
        return tuple(chosen)

    def remove(self, id: int) -> None:
        """Remove `id`. No error if it is not in the queue."""
        for owner, ids in list(self._ids.items()):
            if id in ids:
                ids.remove(id)
            if not ids:
                del self._ids[owner]


@dataclass(slots=True)
class PriorityQueue:
    """A queue whose background ids are served only when there are no others."""

    others: FairQueue = field(default_factory=FairQueue)
    background: FairQueue = field(default_factory=FairQueue)

    def __len__(self) -> int:
        return len(self.others) + len(self.background)

    def add(self, id: int, owner: str, *, background: bool = False) -> None:
        """Append `id` to its owner's ids."""
        (self.background if background else self.others).add(id, owner)

    def take(self) -> int:
        """Remove and return the next id."""
        return (self.others or self.background).take()

    def turns(self, most: int) -> tuple[int, ...]:
        """Return the next `most` different ids, or all if there are fewer. Background ids only fill what the others leave."""
        first = self.others.turns(most)
        return first + self.background.turns(most - len(first))

    def remove(self, id: int) -> None:
        """Remove `id`. No error if it is not in the queue."""
        self.others.remove(id)
        self.background.remove(id)


@dataclass(slots=True)
class Scheduler:
    """Queues of ids, and the device time that each kind of work has used lately.

    `max_streams`: number of answers generated at once; further prompts wait. `reading_share`: in ]0, 1[. `max_stall`:
    seconds after which answers are due a step, whatever else is running. `reading_rows`: documents prefilled in one batch.
    """

    max_streams: int
    reading_share: float
    max_stall: float
    reading_rows: int = 1
    prompts: PriorityQueue = field(default_factory=PriorityQueue)
    streams: set[int] = field(default_factory=set)
    background: set[int] = field(default_factory=set)
    """Those of `streams` that are in the background."""
    documents: PriorityQueue = field(default_factory=PriorityQueue)
    _reading_debt: float = 0.0
    """Seconds that answers are owed for the reading done since they arrived. If negative, reading is owed time."""

    def add_prompt(self, id: int, owner: str = "", *, background: bool = False) -> None:
        """Queue an answer whose prompt is to be opened, or that is suspended."""
        self.prompts.add(id, owner, background=background)

    def add_document(self, id: int, owner: str = "", *, background: bool = False) -> None:
        """Queue a document, or a long prompt, that has segments to prefill."""
        self.documents.add(id, owner, background=background)

    def opened(self, id: int, *, background: bool = False) -> None:
        """Record that the answer's prompt is prefilled, so that steps include the answer."""
        self.streams.add(id)
        if background:
            self.background.add(id)

    def remove(self, id: int) -> None:
        """Remove all work of `id`."""
        self.streams.discard(id)
        self.background.discard(id)
        self.prompts.remove(id)
        self.documents.remove(id)

    def next(self) -> Work | None:
        """Return the work to do now, or None if there is none."""
        full = len(self.streams) >= self.max_streams
        if self.prompts.others and full and self.background:
            return Work("suspend", (max(self.background),))  # the newest one, which has done least
        if self._may_open(full=full) and not (self.documents and self._reading_debt < 0):
            return Work("open", (self.prompts.take(),))
        if self.documents and (not self.streams or self._reading_debt <= 0):
            return Work("read", self.documents.turns(self.reading_rows))  # one segment of each
        return Work("step") if self.streams else None

    def _may_open(self, *, full: bool) -> bool:
        if full or self.prompts.others:
            return not full
        return bool(self.prompts.background) and (not self.background or self.streams == self.background)

    @property
    def _share(self) -> float:
        """The share of the time that documents get while there are answers."""
        only_background = self.streams == self.background and not self.prompts.others
        if only_background and self.documents.others:
            return max(self.reading_share, 1 - self.reading_share)
        return self.reading_share

    def due(self, waited: float, took: float) -> bool:
        """Return whether answers are due a step. `waited`: seconds since the last step; `took`: seconds that it took.

        If steps take long, they wait longer, so that reading keeps its share.
        """
        return bool(self.streams) and waited >= max(self.max_stall, took * self._share / (1 - self._share))

    def record(self, work: Work, seconds: float) -> None:
        """Account `seconds` of device time to `work`."""
        if work.kind == "read" and (self.streams or self._reading_debt < 0):
            self._reading_debt += seconds * (1 - self._share) / self._share
        elif work.kind != "read":
            self._reading_debt -= seconds
            if not self.documents:
                self._reading_debt = max(0.0, self._reading_debt)
        if not (self.streams or self.prompts):
            self._reading_debt = 0.0
