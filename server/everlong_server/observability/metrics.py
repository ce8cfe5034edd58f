"""`Metrics`: the metrics that Prometheus scrapes at `/metrics`, in base units and with the prefix `everlong_`."""

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
    """All metrics of one app. Each app has its own registry, so that one process can run several apps."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._create_counters()
        self._create_answer_metrics()
        self._create_storage_metrics()
        # These series exist from the start, so that alerts on them work before the first event.
        for queue in ("readings", "responses"):
            self.redeliveries.labels(queue)
            self.queued.labels(queue)
        for of in ("session", "reading"):
            self.lease_losses.labels(of)

    def _create_counters(self) -> None:
        registry = self.registry
        self.requests = Counter(
            "everlong_requests_total", "Requests answered", ["method", "route", "status"], registry=registry
        )
        self.tokens_read = Counter(
            "everlong_tokens_read_total", "Tokens of documents read into memory", registry=registry
        )
        self.tokens_prompt = Counter(
            "everlong_tokens_prompt_total", "Tokens of messages that were prefilled", registry=registry
        )
        self.tokens_generated = Counter("everlong_tokens_generated_total", "Tokens generated", registry=registry)
        self.tokens_reused = Counter(
            "everlong_tokens_reused_total",
            "Context tokens reused from memory instead of prefilled again",
            registry=registry,
        )
        self.answers = Counter(
            "everlong_answers_total", "Complete answers, by finish reason", ["reason"], registry=registry
        )
        self.rejections = Counter(
            "everlong_rejections_total", "Refused requests, by error code", ["code"], registry=registry
        )

    def _create_answer_metrics(self) -> None:
        registry = self.registry
        self.answering = Gauge("everlong_answering", "Answers being generated or queued", registry=registry)
        self.first_token_seconds = Histogram(
            "everlong_first_token_seconds",
            "Time from the request to the first token",
            buckets=_LATENCY,
            registry=registry,
        )
        self.token_seconds = Histogram(
            "everlong_token_seconds", "Time between two tokens of one answer", buckets=_TOKEN, registry=registry
        )
        self.segment_seconds = Histogram(
            "everlong_segment_seconds",
            "Time to prefill one segment, queueing included",
            buckets=_LATENCY,
            registry=registry,
        )

        self.answer_seconds = Histogram(
            "everlong_answer_seconds",
            "Time from the request to the end of the answer",
            buckets=_LONG,
            registry=registry,
        )
        self.rows = Gauge("everlong_rows", "Answers in the current decode batch", registry=registry)
        self.batch_fill = Histogram(
            "everlong_batch_fill_ratio",
            "Size of the decode batch as a share of EVERLONG_MAX_STREAMS, per step",
            buckets=_SHARE,
            registry=registry,
        )

    def _create_storage_metrics(self) -> None:
        registry = self.registry
        self.queued = Gauge(
            "everlong_queued", "Jobs of this model in Redis, waiting or running, on all replicas", ["queue"],
            registry=registry,
        )  # fmt: skip
        self.redeliveries = Counter(
            "everlong_redeliveries_total", "Jobs taken over from a replica that died", ["queue"], registry=registry
        )
        self.lease_losses = Counter(
            "everlong_lease_losses_total", "Writers that lost their lease", ["of"],
            registry=registry,
        )  # fmt: skip
        self.state_bytes = Gauge("everlong_state_bytes", "Size of one session's memory", registry=registry)
        self.checkpoint_seconds = Histogram(
            "everlong_checkpoint_seconds",
            "Time to write a document's state to Redis",
            buckets=_LATENCY,
            registry=registry,
        )
        self.redis_seconds = Histogram(
            "everlong_redis_seconds",
            "Round-trip time to Redis, measured with each heartbeat",
            buckets=_TOKEN,
            registry=registry,
        )

    def watch_engine(self, answering: Callable[[], int], rows: Callable[[], int], state_bytes: int) -> None:
        """Report the engine's running answers and batch size at each scrape, and the size of one memory in bytes."""
        self.answering.set_function(answering)
        self.rows.set_function(rows)
        self.state_bytes.set(state_bytes)

    def record_step(self, fill: float) -> None:
        """Record one decode step. `fill`: the batch size as a share of the largest batch."""
        self.batch_fill.observe(fill)

    def answer_timer(self) -> AnswerTimer:
        """Start the timer of one answer."""
        return AnswerTimer(self)

    def record_answer(self, reason: str, *, prompt: int, generated: int, reused: int) -> None:
        """Record a complete answer and its token counts."""
        self.answers.labels(reason).inc()
        self.tokens_prompt.inc(prompt)
        self.tokens_generated.inc(generated)
        self.tokens_reused.inc(reused)

    def render(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class AnswerTimer:
    """Times the tokens of one answer. Starts when it is created."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._histogram = metrics.first_token_seconds
        self._started = self._last = time.monotonic()

    def end(self) -> None:
        """Record the end of the answer."""
        self._metrics.answer_seconds.observe(time.monotonic() - self._started)

    def token(self) -> None:
        """Record one token."""
        moment = time.monotonic()
        self._histogram.observe(moment - self._last)
        self._histogram, self._last = self._metrics.token_seconds, moment
