"""`Tracing`: OpenTelemetry spans, where the standard `OTEL_…` variables ask for them. Without them it does nothing.

Attributes are figures, ids and names of models: never what somebody wrote, and no path or address, which may hold it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

Attribute = str | int | float | bool
Kind = Literal["internal", "server", "consumer", "producer"]


class TracingError(Exception):
    """Traces are asked for and cannot be made."""


class Span:
    """Something that takes time. `traceparent`: its name for other processes, as W3C writes it; "" if nobody records it."""

    def __init__(self, span: Any = None, traceparent: str = "") -> None:
        self._span = span
        self.traceparent = traceparent

    def set(self, **attributes: Attribute) -> None:
        """What is to be known of it; in names `__` stands for a dot."""
        if self._span is not None:
            for name, value in attributes.items():
                self._span.set_attribute(name.replace("__", "."), value)

    def rename(self, name: str) -> None:
        """What it turned out to be."""
        if self._span is not None:
            self._span.update_name(name)

    def fail(self, why: str) -> None:
        """It ends with an error. `why`: its type or code, never its message."""
        if self._span is not None:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415

            self._span.set_status(StatusCode.ERROR, why)


_CURRENT: ContextVar[Span] = ContextVar("everlong_span", default=Span())  # noqa: B039 - of nothing nothing can be changed


def current_span() -> Span:
    """What is under way here."""
    return _CURRENT.get()


class Tracing:
    """Makes spans. `tracer`: OpenTelemetry's; None makes none."""

    def __init__(self, tracer: Any = None, shutdown: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self.shutdown = shutdown
        """Sends what is left. Blocks."""

    @contextmanager
    def span(
        self, name: str, kind: Kind = "internal", *, parent: str | None = None, **attributes: Attribute
    ) -> Iterator[Span]:
        """A span as long as the context lasts. `parent`: a `traceparent`; default: what is under way here. In names of
        attributes `__` stands for a dot.

        It may be left in another task than the one it was entered in, as generators are.
        """
        if self._tracer is None:
            yield _NOTHING
            return
        from opentelemetry.trace import SpanKind  # noqa: PLC0415

        before = current_span()
        span = self._tracer.start_span(
            name,
            context=_context(before.traceparent if parent is None else parent),
            kind=SpanKind[kind.upper()],
            attributes={key.replace("__", "."): value for key, value in attributes.items()},
            record_exception=False,  # its message may be what somebody wrote
            set_status_on_exception=False,
        )
        here = Span(span, _traceparent(span))
        _CURRENT.set(here)
        try:
            yield here
        except Exception as error:
            here.fail(getattr(error, "code", type(error).__name__))
            raise
        finally:
            _CURRENT.set(before)
            span.end()


_NOTHING = Span()


def _context(traceparent: str) -> Any:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

    return TraceContextTextMapPropagator().extract({"traceparent": traceparent})


def _traceparent(span: Any) -> str:
    context = span.get_span_context()
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"


def start_tracing(wanted: bool) -> Tracing:
    """As the `OTEL_…` variables say, if they want any. Raises `TracingError`."""
    if not wanted:
        return Tracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError as error:
        raise TracingError(
            f"OTEL_… variables ask for traces, and a package is missing ({error.name}): pip install 'everlong[tracing]'"
        ) from None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):  # the environment says nothing
        resource = resource.merge(Resource({"service.name": "everlong"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider.get_tracer("everlong"), provider.shutdown)
