"""`Tracing`: OpenTelemetry spans, if the standard `OTEL_…` variables configure an exporter. Otherwise it does nothing.

Attributes are numbers, ids and model names. Users' words, paths and addresses never become attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

Attribute = str | int | float | bool
Kind = Literal["internal", "server", "consumer", "producer"]


class TracingError(Exception):
    """The `OTEL_…` variables configure traces, but a package is missing."""


class Span:
    """One timed operation. `traceparent` identifies it to other processes (W3C Trace Context); "" if it is not recorded."""

    def __init__(self, span: Any = None, traceparent: str = "") -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, **attributes: Attribute) -> None:
        """Set attributes. A `__` in a name becomes a dot."""
        if self._span is not None:
            for name, value in attributes.items():
                self._span.set_attribute(name.replace("__", "."), value)

    def rename(self, name: str) -> None:
        """Change the span's name."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, why: str) -> None:
        """Mark the span as failed. `why` is the error's type or code, never its message."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415

            self._span.set_status(StatusCode.ERROR, why)


_CURRENT: ContextVar[Span] = ContextVar("everlong_span", default=Span())  # noqa: B039 - an empty span cannot change


def current_span() -> Span:
    """Return the span of the current context."""
    return _CURRENT.get()


class Tracing:
    """Creates spans with OpenTelemetry's `tracer`; None disables them."""

    def __init__(self, tracer: Any = None, shutdown: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.shutdown = shutdown
        """Send the remaining spans. Blocks."""

    @contextmanager
    def span(
        self, name: str, kind: Kind = "internal", *, parent: str | None = None, **attributes: Attribute
    ) -> Iterator[Span]:
        """Open a span for the duration of the context. `parent` is a `traceparent`; by default, the current span.

        A `__` in an attribute's name becomes a dot. The context may end in a task other than the one that entered it, as
        generators do.
        """
        if self._tracer is None:
            yield _DISABLED
            return
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        before = current_span()
        span = self._tracer.start_span(
            name,
            context=_context(before.traceparent if parent is None else parent),
            kind=SpanKind[kind.upper()],
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
            record_exception=False,  # its message may quote a user's words
            set_status_on_exception=False,
        )
        opened = Span(span, _traceparent(span))
        _CURRENT.set(opened)
        try:
            yield opened
        except Exception as error:
            opened.fail(getattr(error, "code", type(error).__name__))
            raise
        finally:
            _CURRENT.set(before)
            span.end()


_DISABLED = Span()


def _context(traceparent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def start_tracing(wanted: bool) -> Tracing:
    """Return tracing as the `OTEL_…` variables configure it; disabled tracing if not `wanted`.

    Raises `TracingError` if OpenTelemetry is not installed.
    """
    if not wanted:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise TracingError(
            f"OTEL_… variables configure traces, but the package {error.name} is missing: pip install 'everlong[tracing]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith(
        "unknown_service"
    ):  # the environment does not name the service
        resource = resource.merge(Resource({"service.name": "everlong"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider.get_tracer("everlong"), provider.shutdown)
