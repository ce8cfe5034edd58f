"""The polling logic of `wait`, with a fake clock."""

from __future__ import annotations

import pytest

from everlong_client import (
    APIConnectionError,
    APITimeoutError,
    Document,
    NotFoundError,
    ReadingFailedError,
    ServiceUnavailableError,
    Session,
)
from everlong_client.transport.sse import ServerSentEvent
from everlong_client.transport.waiting import MAX_OUTAGE, READ_TIMEOUT, Waiting, document_of

READING = Document(id="doc_1", status="reading")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def waiting(timeout: float | None = None) -> tuple[Waiting[Document], Clock]:
    clock = Clock()
    return Waiting("doc_1", None, timeout, clock), clock


def lose(waiting: Waiting[Document], error: Exception | None = None) -> None:
    with waiting.tolerating_outage():
        raise error or APIConnectionError("gone")


def test_the_first_request_must_succeed():
    with pytest.raises(APIConnectionError):
        lose(waiting()[0])


def test_each_outage_is_tolerated_for_a_while():
    wait, clock = waiting()
    for _ in range(3):
        wait.observe(READING)
        lose(wait)
        clock.now += MAX_OUTAGE
        lose(wait)
    clock.now += 1
    with pytest.raises(APIConnectionError):
        lose(wait)


def test_a_permanent_error_is_raised_at_once():
    wait, _ = waiting()
    wait.observe(READING)
    with pytest.raises(NotFoundError):
        lose(wait, NotFoundError("deleted", status=404))


def test_pauses_grow_and_end_at_the_deadline():
    wait, clock = waiting(timeout=5)
    pauses = []
    while clock.now < 1005:
        pauses.append(wait.pause())
        clock.now += pauses[-1]
    with pytest.raises(APITimeoutError, match="not ready after 5 s"):
        wait.pause()
    assert sum(pauses) == pytest.approx(5)
    assert pauses[:-1] == sorted(pauses[:-1])
    assert pauses[0] <= 0.1


def test_retry_after_is_respected_until_the_next_success():
    wait, _ = waiting()
    wait.observe(READING)
    lose(wait, ServiceUnavailableError("draining", status=503, retry_after=17))
    assert wait.pause() == 17
    wait.observe(READING)
    assert wait.pause() < 1


def test_requests_keep_to_the_deadline():
    wait, clock = waiting(timeout=30)
    assert (wait.read_timeout, wait.may_stream) == (READ_TIMEOUT, True)
    clock.now += 27
    assert (wait.read_timeout, wait.may_stream) == (3, False)
    clock.now += 27
    assert wait.read_timeout == 1, "enough for one last request"
    assert waiting()[0].may_stream


def test_progress_is_called_once_per_change():
    seen: list[Session] = []
    wait = Waiting("ses_1", seen.append, None)
    first, second = Session(id="ses_1", status="reading"), Session(id="ses_1", status="reading", position=9)
    for session in (first, first, second):
        assert not wait.observe(session)
    assert seen == [first, second]
    assert wait.observe(Session(id="ses_1", status="ready"))


def test_a_failure_without_a_reason():
    with pytest.raises(ReadingFailedError, match="doc_1 could not be read: the server gave no reason"):
        waiting()[0].observe(Document(id="doc_1", status="failed"))


@pytest.mark.parametrize(
    "data",
    [
        '{"type": "document.progress", "id": "doc_1", "status": "reading"}',
        '{"type": "document.progress", "document": {"id": "doc_1", "status": "reading"}}',
    ],
)
def test_an_events_document(data: str):
    assert document_of(ServerSentEvent("document.progress", data)) == READING


@pytest.mark.parametrize("data", ['{"type": "document.deleted", "id": "doc_1"}', "[]", '{"document": null}'])
def test_an_event_without_a_document(data: str):
    assert document_of(ServerSentEvent("document.deleted", data)) is None
