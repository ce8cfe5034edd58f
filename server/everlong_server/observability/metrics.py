"""`Metrics`: what Prometheus scrapes at `/metrics`. Base units, `everlong_` prefix."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHARE = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """One registry for each app, so that several can live in one process."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "everlong_requests_total", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.tokens_read = Counter("everlong_tokens_read_total", "Document tokens read", registry=registry)
        self.tokens_prompt = Counter("everlong_tokens_prompt_total", "Tokens of messages read", registry=registry)
        self.tokens_generated = Counter("everlong_tokens_generated_total", "Tokens generated", registry=registry)
        self.tokens_reused = Counter(
            "everlong_tokens_reused_total", "Context tokens held in memory that were not read again", registry=registry
        )
        self.answers = Counter("everlong_answers_total", "Answers by how they ended", ["reason"], registry=registry)
        self.rejections = Counter("everlong_rejections_total", "Requests refused", ["code"], registry=registry)
        self.answering = Gauge("everlong_answering", "Answers being generated or waiting", registry=registry)
        self.first_token_seconds = Histogram(
            "everlong_first_token_seconds", "From request to first token", buckets=_LATENCY, registry=registry
        )
        self.token_seconds = Histogram(
            "everlong_token_seconds", "Between tokens of one answer", buckets=_TOKEN, registry=registry
        )
        self.segment_seconds = Histogram(
            "everlong_segment_seconds", "Reading one segment, waiting included", buckets=_LATENCY, registry=registry
        )

        self.answer_seconds = Histogram(
            "everlong_answer_seconds", "From request to the end of the answer", buckets=_LONG, registry=registry
        )
        self.rows = Gauge("everlong_rows", "Answers in the batch now", registry=registry)
        self.batch_fill = Histogram(
            "everlong_batch_fill_ratio",
            "Share of EVERLONG_MAX_STREAMS that a step generated for",
            buckets=_SHARE,
            registry=registry,
        )
        self.queued = Gauge(
            "everlong_queued", "Jobs of this model in Redis, waiting or under way, on all replicas", ["queue"],
            registry=registry,
        )  # fmt: skip
        self.redeliveries = Counter(
            "everlong_redeliveries_total", "Jobs taken over from a replica that died", ["queue"], registry=registry
        )
        self.lease_losses = Counter(
            "everlong_lease_losses_total", "Writers that lost the right to write", ["of"],
            registry=registry,
        )  # fmt: skip
        self.state_bytes = Gauge("everlong_state_bytes", "A session's memory", registry=registry)
        self.checkpoint_seconds = Histogram(
            "everlong_checkpoint_seconds", "Writing a document's state to Redis", buckets=_LATENCY, registry=registry
        )
        self.redis_seconds = Histogram(
            "everlong_redis_seconds",
            "A round trip to Redis, measured with each heartbeat",
            buckets=_TOKEN,
            registry=registry,
        )
        # Series that are there from the start: an alert on what never happened yet has something to look at.
        for queue in ("readings", "responses"):
            self.redeliveries.labels(queue)
            self.queued.labels(queue)
        for of in ("session", "reading"):
            self.lease_losses.labels(of)

    def watch_engine(self, answering: Callable[[], int], rows: Callable[[], int], state_bytes: int) -> None:
        """What an engine is at, whenever it is asked for."""
        self.answering.set_function(answering)
        self.rows.set_function(rows)
        self.state_bytes.set(state_bytes)

    def record_step(self, fill: float) -> None:
        """The answers are a token further."""
        self.batch_fill.observe(fill)

    def answer_timer(self) -> AnswerTimer:
        """A clock for one answer."""
        return AnswerTimer(self)

    def record_answer(self, reason: str, *, prompt: int, generated: int, reused: int) -> None:
        """An answer is complete; what it used, in tokens."""
        self.answers.labels(reason).inc()
        self.tokens_prompt.inc(prompt)
        self.tokens_generated.inc(generated)
        self.tokens_reused.inc(reused)

    def render(self) -> bytes:
        """The text format."""
        return generate_latest(self.registry)


class AnswerTimer:
    """Times the tokens of one answer, from the moment that it is made."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histogram = metrics.first_token_seconds
        self._then = metrics.token_seconds
        self._began = self._last = time.monotonic()

    def end(self) -> None:
        """The answer is complete."""
        self._metrics.answer_seconds.observe(time.monotonic() - self._began)

    def token(self) -> None:
        """A token is there."""
        moment = time.monotonic()
        self._histogram.observe(moment - self._last)
        self._histogram, self._last = self._then, moment
