"""`Metrics`: the metrics that Prometheus scrapes at `/metrics`, in base units and with the prefix `everlong_`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

__all__ = ["CONTENT_TYPE_LATEST", "Metrics"]

RewritingOutcome = Literal["rewritten", "unchanged", "rejected", "timeout"]
"""What happened to a question that the model was asked to rewrite."""
VoteOutcome = Literal["kept", "replaced", "timeout"]
"""Whether a vote kept or replaced the first answer, or took too long."""
_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_SHARE = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1)
_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1)


class Metrics:
    """All metrics of one app. Each app has its own registry, so that one process can run several apps."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        self.requests = counter("everlong_requests_total", "Requests answered", ["method", "route", "status"])
        self.rejections = counter("everlong_rejections_total", "Refused requests, by error code", ["code"])

        self.answers = counter("everlong_answers_total", "Complete answers, by finish reason", ["reason"])
        self.answering = gauge("everlong_answering", "Answers being generated or queued")
        self.rows = gauge("everlong_rows", "Answers in the current decode batch")
        self.batch_fill = histogram(
            "everlong_batch_fill_ratio",
            "Size of the decode batch as a share of EVERLONG_MAX_STREAMS, per step",
            buckets=_SHARE,
        )
        self.tokens_read = counter("everlong_tokens_read_total", "Tokens of documents read into memory")
        self.tokens_prompt = counter("everlong_tokens_prompt_total", "Tokens of messages that were prefilled")
        self.tokens_generated = counter("everlong_tokens_generated_total", "Tokens generated")
        self.tokens_drafted = counter(
            "everlong_tokens_drafted_total", "Guesses of an answer's next tokens that were verified"
        )
        self.tokens_accepted = counter(
            "everlong_tokens_accepted_total",
            "Verified guesses that were right: these tokens needed no decode step of their own",
        )
        self.tokens_reused = counter(
            "everlong_tokens_reused_total", "Context tokens reused from memory instead of prefilled again"
        )
        self.tokens_embedded = counter(
            "everlong_tokens_embedded_total", "Tokens of texts sent for embedding or reranking"
        )
        self.rewritings = counter(
            "everlong_rewritings_total",
            "Follow-up questions that the model rewrote before the search: rewritten, unchanged (it returned the same question), rejected (the "
            "search did not use its question) or timeout (the device was too busy)",
            ["outcome"],
        )
        self.tokens_rewriting = counter(
            "everlong_tokens_rewriting_total", "Tokens that were prefilled and generated to rewrite follow-up questions"
        )
        self.votes = counter(
            "everlong_votes_total",
            "Questions put to a vote of several answers, by outcome: kept (the first answer was returned), replaced (another one was returned) or "
            "timeout (the vote took too long)",
            ["outcome"],
        )
        self.tokens_voting = counter(
            "everlong_tokens_voting_total", "Tokens generated for the further answers of votes"
        )
        self.first_token_seconds = histogram(
            "everlong_first_token_seconds", "Time from the request to the first token", buckets=_LATENCY
        )
        self.token_seconds = histogram(
            "everlong_token_seconds",
            "Time between two tokens of one answer; about 0 for a right guess, which arrives together with the token before it",
            buckets=_TOKEN,
        )
        self.answer_seconds = histogram(
            "everlong_answer_seconds", "Time from the request to the end of the answer", buckets=_LONG
        )
        self.segment_seconds = histogram(
            "everlong_segment_seconds", "Time to prefill one segment, queueing included", buckets=_LATENCY
        )

        self.queued = gauge(
            "everlong_queued", "Jobs of this model in Redis, waiting or running, on all replicas", ["queue"]
        )
        self.redeliveries = counter(
            "everlong_redeliveries_total", "Jobs taken over from a replica that died", ["queue"]
        )
        self.batch_requests = counter(
            "everlong_batch_requests_total", "Requests of batches that were answered: completed or failed", ["result"]
        )
        self.lease_losses = counter("everlong_lease_losses_total", "Writers that lost their lease", ["of"])
        self.state_bytes = gauge("everlong_state_bytes", "Size of one session's memory")
        self.checkpoint_seconds = histogram(
            "everlong_checkpoint_seconds", "Time to write a document's state to Redis", buckets=_LATENCY
        )
        self.redis_seconds = histogram(
            "everlong_redis_seconds", "Round-trip time to Redis, measured with each heartbeat", buckets=_TOKEN
        )
        self.model_loaded = gauge("everlong_model_loaded", "Whether a model is loaded: 1, or 0", ["model"])
        self.model_loads = counter(
            "everlong_model_loads_total", "Models loaded because a request named them", ["model"]
        )
        self.model_load_seconds = histogram(
            "everlong_model_load_seconds", "Time to load a model that a request named", buckets=_LONG
        )
        # These series exist from the start, so that alerts on them work before the first event.
        for queue in ("readings", "responses", "batches"):
            self.redeliveries.labels(queue)
            self.queued.labels(queue)
        for of in ("session", "reading", "batch"):
            self.lease_losses.labels(of)
        for result in ("completed", "failed"):
            self.batch_requests.labels(result)
        for outcome in get_args(RewritingOutcome):
            self.rewritings.labels(outcome)
        for vote in get_args(VoteOutcome):
            self.votes.labels(vote)

    def watch_engines(self, answering: Callable[[], int], rows: Callable[[], int], state_bytes: int) -> None:
        """Report the running answers and batch sizes of all models at each scrape, and the size in bytes of the first one's memory."""
        self.answering.set_function(answering)
        self.rows.set_function(rows)
        self.state_bytes.set(state_bytes)

    def record_load(self, model: str, seconds: float) -> None:
        """Record that the model was loaded on demand."""
        self.model_loaded.labels(model).set(1)
        self.model_loads.labels(model).inc()
        self.model_load_seconds.observe(seconds)

    def record_step(self, fill: float) -> None:
        """Record one decode step. `fill`: the batch size as a share of the largest batch."""
        self.batch_fill.observe(fill)

    def answer_timer(self) -> AnswerTimer:
        """Start the timer of one answer."""
        return AnswerTimer(self)

    def record_answer(
        self, reason: str, *, prompt: int, generated: int, reused: int, drafted: int, accepted: int
    ) -> None:
        """Record a complete answer, its token counts, how many guesses of its tokens were verified, and how many of them were right."""
        self.answers.labels(reason).inc()
        self.tokens_prompt.inc(prompt)
        self.tokens_generated.inc(generated)
        self.tokens_reused.inc(reused)
        self.tokens_drafted.inc(drafted)
        self.tokens_accepted.inc(accepted)

    def record_rewriting(self, outcome: RewritingOutcome) -> None:
        """Record that the model was asked to rewrite a question."""
        self.rewritings.labels(outcome).inc()

    def record_vote(self, outcome: VoteOutcome) -> None:
        """Record that a question was answered several times."""
        self.votes.labels(outcome).inc()

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
