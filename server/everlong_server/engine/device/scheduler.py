"""`Scheduler`: decides what the device does next. Pure: it knows ids and seconds, but no tensors, Redis or HTTP.

Three kinds of work share the device:

- "step": one decode step of all answers;
- "open": opening an answer, which prefills the last part of its prompt;
- "read": prefilling one segment of each of a batch of documents.

Answers go before documents. Documents get all the time that answers leave and, while there are answers, `reading_share`
of the time, so that a document never starves. Work that takes longer than `max_stall` is interrupted by decode steps.
Owners (tenants) take turns, however many requests each of them has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["step", "open", "read"]


@dataclass(frozen=True, slots=True)
class Work:
    """One use of the device. `ids`: the prompt to open or the documents to read; empty for a step, which takes all answers."""

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
class Scheduler:
    """Queues of ids, and the device time that each kind of work has used lately.

    `max_streams`: number of answers generated at once; further prompts wait. `reading_share`: in ]0, 1[. `max_stall`:
    seconds after which answers are due a step, whatever else is running. `reading_rows`: documents prefilled in one batch.
    """

    max_streams: int
    reading_share: float
    max_stall: float
    reading_rows: int = 1
    prompts: FairQueue = field(default_factory=FairQueue)
    streams: set[int] = field(default_factory=set)
    documents: FairQueue = field(default_factory=FairQueue)
    _reading_debt: float = 0.0
    """Seconds that answers are owed for the reading done since they arrived. If negative, reading is owed time."""

    def add_prompt(self, id: int, owner: str = "") -> None:
        """Queue an answer whose prompt is to be opened."""
        self.prompts.add(id, owner)

    def add_document(self, id: int, owner: str = "") -> None:
        """Queue a document, or a long prompt, that has segments to prefill."""
        self.documents.add(id, owner)

    def opened(self, id: int) -> None:
        """Record that the answer's prompt is prefilled, so that steps include the answer."""
        self.streams.add(id)

    def remove(self, id: int) -> None:
        """Remove all work of `id`."""
        self.streams.discard(id)
        self.prompts.remove(id)
        self.documents.remove(id)

    def next(self) -> Work | None:
        """Return the work to do now, or None if there is none."""
        opening = bool(self.prompts) and len(self.streams) < self.max_streams
        if opening and not (self.documents and self._reading_debt < 0):
            return Work("open", (self.prompts.take(),))
        if self.documents and (not self.streams or self._reading_debt <= 0):
            return Work("read", self.documents.turns(self.reading_rows))  # one segment of each
        return Work("step") if self.streams else None

    def due(self, waited: float, took: float) -> bool:
        """Return whether answers are due a step. `waited`: seconds since the last step; `took`: seconds that it took.

        If steps take long, they wait longer, so that reading keeps its share.
        """
        share = self.reading_share / (1 - self.reading_share)
        return bool(self.streams) and waited >= max(self.max_stall, took * share)

    def record(self, work: Work, seconds: float) -> None:
        """Account `seconds` of device time to `work`."""
        if work.kind == "read" and (self.streams or self._reading_debt < 0):
            self._reading_debt += seconds * (1 - self.reading_share) / self.reading_share
        elif work.kind != "read":
            self._reading_debt -= seconds
            if not self.documents:
                self._reading_debt = max(0.0, self._reading_debt)
        if not (self.streams or self.prompts):
            self._reading_debt = 0.0
