"""Spans by the OpenTelemetry SDK, sent to a collector by OTLP over HTTP. Imported only where tracing is on.

Invariants:

- nothing waits for the collector: an ended span goes into a queue, and one thread at a time sends the queue;
- the queue is bounded, and spans that are not sent are counted: `dropped` says why;
- whether a trace is sampled is decided at its start in this service, by its id, whatever flag its caller has set. Later
  parts of the trace, and a task that is resumed after a restart, follow that decision.

The SDK's own batch processor does the same in a thread, but does not report what it has dropped.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from importlib.metadata import version
from typing import Final

import structlog
import trio
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from svc_actors.tracing import Attributes, Kind, Span

_LAST_SECONDS: Final = 3.0
"""How long a stopping service waits for the collector to take the remaining spans."""
_KINDS: Final = {
    Kind.SERVER: trace.SpanKind.SERVER,
    Kind.CLIENT: trace.SpanKind.CLIENT,
    Kind.INTERNAL: trace.SpanKind.INTERNAL,
}
_PROPAGATOR: Final = TraceContextTextMapPropagator()

log = structlog.get_logger(__name__)


class Drop(StrEnum):
    """Why a span did not reach the collector."""

    QUEUE_FULL = "queue_full"
    NOT_TAKEN = "not_taken"


@dataclass(frozen=True)
class ExportSettings:
    """OpenTelemetry's OTEL_BSP_* settings: spans in the queue, spans per request, seconds between requests."""

    queue: int = 2048
    batch: int = 512
    period: float = 5.0

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> ExportSettings:
        """Raises ValueError if a variable is not a number, or out of range."""
        queue = int(environ.get("OTEL_BSP_MAX_QUEUE_SIZE", cls.queue))
        batch = int(environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", cls.batch))
        period = float(environ.get("OTEL_BSP_SCHEDULE_DELAY", cls.period * 1000)) / 1000
        if not (0 < batch <= queue and period > 0):
            raise ValueError(f"a queue of {queue} spans, {batch} at once, every {period:g} seconds")
        return cls(queue, batch, period)


class SpanQueue(SpanProcessor):
    """Ended spans on their way to the collector. `run` sends them."""

    def __init__(self, exporter: SpanExporter, settings: ExportSettings) -> None:
        self.exported = 0
        self.dropped: Counter[Drop] = Counter(dict.fromkeys(Drop, 0))
        self._exporter = exporter
        self._settings = settings
        self._spans: deque[ReadableSpan] = deque()
        self._enough = trio.Event()
        self._one_at_a_time = trio.CapacityLimiter(1)
        self._taken = True

    def on_end(self, span: ReadableSpan) -> None:
        if len(self._spans) >= self._settings.queue:
            self.dropped[Drop.QUEUE_FULL] += 1
            return
        self._spans.append(span)
        if len(self._spans) >= self._settings.batch:
            self._enough.set()

    async def run(self) -> None:
        """Send until cancelled, then send the rest once more."""
        try:
            while True:
                with trio.move_on_after(self._settings.period):
                    await self._enough.wait()
                self._enough = trio.Event()
                await self._send_all()
        finally:
            with trio.CancelScope(shield=True, relative_deadline=_LAST_SECONDS):
                await self._send_all()
            self.dropped[Drop.NOT_TAKEN] += len(self._spans)
            self._spans.clear()
            self._exporter.shutdown()

    async def _send_all(self) -> None:
        while self._spans:
            batch = [self._spans.popleft() for _ in range(min(len(self._spans), self._settings.batch))]
            try:
                taken = await trio.to_thread.run_sync(
                    self._export, batch, abandon_on_cancel=True, limiter=self._one_at_a_time
                )
            except trio.Cancelled:
                self.dropped[Drop.NOT_TAKEN] += len(batch)
                raise
            self._count(len(batch), taken)

    def _export(self, batch: Sequence[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:
            # A defect of the exporter loses these spans, but must not end the service.
            log.exception("traces.export_crashed")
            return False

    def _count(self, spans: int, taken: bool) -> None:
        if taken:
            self.exported += spans
        else:
            self.dropped[Drop.NOT_TAKEN] += spans
        if taken is not self._taken:
            self._taken = taken
            if taken:
                log.info("traces.taken_again")
            else:
                log.warning("traces.not_taken", spans=spans)


class SdkTracer:
    """Starts traces (`svc_actors.tracing.Tracer`), whose spans go into `queue`."""

    def __init__(self, queue: SpanQueue, *, service: str, ratio: float, environ: Mapping[str, str]) -> None:
        named = {"service.name": service} if "OTEL_SERVICE_NAME" not in environ else {}
        by_id = TraceIdRatioBased(ratio)
        provider = TracerProvider(
            sampler=ParentBased(by_id, remote_parent_sampled=by_id, remote_parent_not_sampled=by_id),
            resource=Resource.create({**named, "service.version": version("svc")}),
            shutdown_on_exit=False,
        )
        provider.add_span_processor(queue)
        self._tracer = provider.get_tracer("svc", version("svc"))

    def start(self, name: str, kind: Kind, attributes: Attributes, *, caller: str | None) -> Span:
        return self._begin(name, kind, attributes, _context(caller))

    def resume(self, name: str, kind: Kind, attributes: Attributes, *, parent: str | None) -> Span:
        context = _context(parent)
        known = trace.get_current_span(context).get_span_context()
        if known.is_valid:
            # If the parent is local, the sampling was decided with it: the sampler follows the parent's flag.
            own = trace.SpanContext(known.trace_id, known.span_id, is_remote=False, trace_flags=known.trace_flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(own), context)
        return self._begin(name, kind, attributes, context)

    def _begin(self, name: str, kind: Kind, attributes: Attributes, context: Context) -> Span:
        return _SdkSpan(self._tracer, self._tracer.start_span(name, context, _KINDS[kind], attributes))


class _SdkSpan:
    __slots__ = ("_span", "_tracer", "sampled")

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span
        self.sampled = span.is_recording()

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def traceparent(self) -> str:
        context = self._span.get_span_context()
        return f"00-{self.trace_id}-{trace.format_span_id(context.span_id)}-{context.trace_flags:02x}"

    def child(self, name: str, kind: Kind, attributes: Attributes, *, started_at: datetime | None = None) -> Span:
        if not self.sampled:
            return self
        context = trace.set_span_in_context(self._span, Context())
        return _SdkSpan(
            self._tracer, self._tracer.start_span(name, context, _KINDS[kind], attributes, start_time=_ns(started_at))
        )

    def note(self, attributes: Attributes) -> None:
        self._span.set_attributes(attributes)

    def fail(self, error: str) -> None:
        self._span.set_attribute("error.type", error)
        self._span.set_status(trace.StatusCode.ERROR)

    def end(self, *, at: datetime | None = None) -> None:
        self._span.end(_ns(at))


def open_exporter(endpoint: str) -> SpanExporter:
    """`endpoint` is the whole URL. Headers, timeout, certificates and compression come from the environment
    (OTEL_EXPORTER_OTLP_HEADERS and so on). The exporter's own log of an unreachable collector is silenced: this module
    reports it once."""
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return OTLPSpanExporter(endpoint=endpoint)


def _context(traceparent: str | None) -> Context:
    """The context of a remote parent; an empty one if `traceparent` is None or malformed."""
    return _PROPAGATOR.extract({"traceparent": traceparent} if traceparent else {}, Context())


def _ns(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp() * 1_000_000_000)
