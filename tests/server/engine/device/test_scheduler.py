"""The scheduler: answers go first, documents never starve, and all work is done."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlong_server.engine.device.scheduler import Scheduler, Work


def test_nothing_to_do() -> None:
    assert Scheduler(2, 0.3, 0.1).next() is None


def test_a_document_alone_gets_all_the_time() -> None:
    scheduler = Scheduler(2, 0.3, 0.1)
    scheduler.add_document(1)
    for _ in range(10):
        work = scheduler.next()
        assert work == Work("read", (1,))
        scheduler.record(work, 1.0)


def test_documents_take_turns() -> None:
    scheduler = Scheduler(2, 0.3, 0.1)
    for document in (1, 2, 3):
        scheduler.add_document(document)
    order = []
    for _ in range(6):
        work = scheduler.next()
        assert work is not None
        order.append(work.ids[0])
        scheduler.record(work, 1.0)
    assert order == [1, 2, 3, 1, 2, 3]


def test_prompts_go_first_and_wait_while_all_streams_are_used() -> None:
    scheduler = Scheduler(1, 0.3, 0.1)
    scheduler.add_prompt(1)
    scheduler.add_prompt(2)
    assert scheduler.next() == Work("open", (1,))
    scheduler.opened(1)
    assert scheduler.next() == Work("step")
    scheduler.remove(1)
    assert scheduler.next() == Work("open", (2,))


def test_owners_take_turns_however_many_requests_they_have() -> None:
    scheduler = Scheduler(1, 0.3, 0.1)
    for document in (1, 2, 3):
        scheduler.add_document(document, "many")
    scheduler.add_document(4, "one")
    order = []
    for _ in range(6):
        work = scheduler.next()
        assert work is not None
        order.append(work.ids[0])
        scheduler.record(work, 1.0)
    assert order == [1, 4, 2, 4, 3, 4]
    for prompt in (5, 6, 7):
        scheduler.add_prompt(prompt, "many")
    scheduler.add_prompt(8, "one")
    opened = []
    while scheduler.prompts:
        work = scheduler.next()
        assert work is not None
        assert work.kind == "open"
        opened.append(work.ids[0])
        scheduler.opened(opened[-1])
        scheduler.remove(opened[-1])
    assert opened == [5, 8, 6, 7]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=60))
def test_no_owner_is_served_twice_while_another_waits(wants: list[tuple[int, bool]]) -> None:
    """Between two segments of one owner, every other owner with documents gets one."""
    scheduler, owners = Scheduler(1, 0.3, 0.1), {}
    for id, (owner, gone) in enumerate(wants):
        scheduler.add_document(id, str(owner))
        owners[id] = owner
        if gone:
            scheduler.remove(id)
            del owners[id]
    waiting = set(owners.values())
    served = []
    for _ in range(4 * len(waiting)):
        work = scheduler.next()
        assert work is not None
        served.append(owners[work.ids[0]])
        scheduler.record(work, 1.0)
    for start in range(0, len(served), max(1, len(waiting))):
        assert set(served[start : start + len(waiting)]) == waiting


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 8),
)
def test_a_batch_has_each_document_once_and_none_starves(owners: list[int], rows: int) -> None:
    scheduler = Scheduler(1, 0.3, 0.1, rows)
    for id, owner in enumerate(owners):
        scheduler.add_document(id, str(owner))
    last = dict.fromkeys(range(len(owners)), -1)
    for turn in range(3 * len(owners)):
        work = scheduler.next()
        assert work is not None
        assert len(set(work.ids)) == len(work.ids) == min(rows, len(owners))
        assert {owners[id] for id in work.ids} == set(owners) or len(set(owners)) > rows
        last |= dict.fromkeys(work.ids, turn)
        scheduler.record(work, 1.0)
    assert all(turn >= 0 for turn in last.values())


def test_answers_are_due_when_they_have_waited_for_long_enough() -> None:
    scheduler = Scheduler(2, 0.3, 0.1)
    assert not scheduler.due(1.0, 0.01), "nobody waits"
    scheduler.opened(1)
    assert not scheduler.due(0.09, 0.01)
    assert scheduler.due(0.1, 0.01)
    assert not scheduler.due(0.4, 1.0), "reading has less than its 0.3"
    assert scheduler.due(0.43, 1.0)
    scheduler.remove(1)
    assert not scheduler.due(1.0, 0.01)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_reading_gets_its_share_while_answers_are_generated(share: float) -> None:
    scheduler = Scheduler(4, share, 0.1)
    scheduler.add_document(1)
    scheduler.streams.add(2)
    spent, between, longest = {"read": 0.0, "step": 0.0}, 0, 0
    cost = {"read": 1.0, "step": 0.05}
    for _ in range(5000):
        work = scheduler.next()
        assert work is not None
        scheduler.record(work, cost[work.kind])
        spent[work.kind] += cost[work.kind]
        between = between + 1 if work.kind == "read" else 0
        longest = max(longest, between)
    assert spent["read"] / sum(spent.values()) == pytest.approx(share, abs=0.02)
    if share < 0.5:
        assert longest == 1, "a stream stalls for one segment at most"


@pytest.mark.parametrize("tokens", [1, 4, 64])
@pytest.mark.parametrize("places", [1, 8])
def test_reading_gets_its_share_while_prompts_wait(tokens: int, places: int) -> None:
    """Prompts always wait: free streams are used at once."""
    scheduler, left, next_id = Scheduler(places, 0.3, 0.1), {}, 1
    spent, cost = {"read": 0.0, "open": 0.0, "step": 0.0}, {"read": 1.0, "open": 0.4, "step": 0.05}
    scheduler.add_document(0)
    for n in range(5000):
        while len(scheduler.prompts) < 3:
            next_id += 1
            scheduler.add_prompt(next_id)
        work = scheduler.next()
        assert work is not None
        if n == 0:
            assert work.kind == "open", "the first one waits for nothing"
        if work.kind == "open":
            scheduler.opened(work.ids[0])
            left[work.ids[0]] = tokens
        elif work.kind == "step":
            for stream in list(scheduler.streams):
                left[stream] -= 1
                if not left[stream]:
                    scheduler.remove(stream)
        scheduler.record(work, cost[work.kind])
        spent[work.kind] += cost[work.kind]
    assert spent["read"] / sum(spent.values()) == pytest.approx(0.3, abs=0.02)


@given(
    st.lists(
        st.tuples(st.sampled_from(["prompt", "document", "cancel"]), st.integers(0, 5), st.floats(0.001, 2.0)),
        max_size=80,
    ),
    st.integers(1, 3),
    st.floats(0.05, 0.95),
)
def test_all_work_is_done_in_the_end(events: list[tuple[str, int, float]], streams: int, share: float) -> None:
    """Every prompt is opened and ends, every document is read, and every step has an answer."""
    scheduler, left, segments, next_id = Scheduler(streams, share, 0.1), {}, {}, 0

    def work_once(seconds: float) -> bool:
        work = scheduler.next()
        if work is None:
            assert not left
            assert not segments
            return False
        if work.kind == "open":
            assert work.ids[0] in left
            assert len(scheduler.streams) < streams
            scheduler.opened(work.ids[0])
        elif work.kind == "read":
            segments[work.ids[0]] -= 1
            if segments[work.ids[0]] == 0:
                del segments[work.ids[0]]
                scheduler.remove(work.ids[0])
        else:
            assert scheduler.streams
            for stream in list(scheduler.streams):
                left[stream] -= 1
                if left[stream] == 0:
                    del left[stream]
                    scheduler.remove(stream)
        scheduler.record(work, seconds)
        return True

    for kind, n, seconds in events:
        next_id += 1
        if kind == "prompt":
            left[next_id] = n + 1
            scheduler.add_prompt(next_id)
        elif kind == "document":
            segments[next_id] = n + 1
            scheduler.add_document(next_id)
        else:
            victim = n + 1
            left.pop(victim, None)
            segments.pop(victim, None)
            scheduler.remove(victim)
        work_once(seconds)
    for _ in range(5000):
        if not work_once(0.1):
            return
    raise AssertionError("work is left that is never done")


def test_the_background_waits_for_all_others() -> None:
    scheduler = Scheduler(2, 0.3, 0.1)
    for id in (1, 2, 3):
        scheduler.add_prompt(id, "batch", background=True)
    scheduler.add_prompt(4, "person")
    assert scheduler.next() == Work("open", (4,))
    scheduler.opened(4)
    assert scheduler.next() == Work("open", (1,)), "one background answer beside others"
    scheduler.opened(1, background=True)
    assert scheduler.next() == Work("step")
    scheduler.remove(4)
    assert scheduler.next() == Work("open", (2,)), "alone, the background has all places"
    scheduler.opened(2, background=True)
    assert scheduler.next() == Work("step")


def test_no_second_background_answer_is_opened_beside_others() -> None:
    scheduler = Scheduler(8, 0.3, 0.1)
    scheduler.opened(1)
    for id in (2, 3):
        scheduler.add_prompt(id, background=True)
    assert scheduler.next() == Work("open", (2,))
    scheduler.opened(2, background=True)
    assert scheduler.next() == Work("step")


def test_a_background_answer_gives_its_place_to_another_and_resumes() -> None:
    scheduler = Scheduler(2, 0.3, 0.1)
    for id in (1, 2):
        scheduler.opened(id, background=True)
    scheduler.add_prompt(3)
    assert scheduler.next() == Work("suspend", (2,))
    scheduler.remove(2)
    scheduler.add_prompt(2, background=True)
    assert scheduler.next() == Work("open", (3,))
    scheduler.opened(3)
    assert scheduler.next() == Work("step")
    scheduler.remove(3)
    assert scheduler.next() == Work("open", (2,))


def test_documents_of_the_background_fill_what_others_leave() -> None:
    scheduler = Scheduler(1, 0.3, 0.1, reading_rows=2)
    for id in (1, 2, 3):
        scheduler.add_document(id, background=True)
    scheduler.add_document(4)
    assert scheduler.next() == Work("read", (4, 1))
    for id in (5, 6):
        scheduler.add_document(id)
    assert set(scheduler.next().ids) <= {4, 5, 6}  # type: ignore[union-attr]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_background_answers_get_the_smaller_share_beside_documents(share: float) -> None:
    scheduler = Scheduler(4, share, 0.1)
    scheduler.add_document(1)
    scheduler.opened(2, background=True)
    spent, cost = {"read": 0.0, "step": 0.0}, {"read": 1.0, "step": 0.05}
    for _ in range(5000):
        work = scheduler.next()
        assert work is not None
        scheduler.record(work, cost[work.kind])
        spent[work.kind] += cost[work.kind]
    assert spent["step"] / sum(spent.values()) == pytest.approx(min(share, 1 - share), abs=0.02)
