"""Traces of the controller, where an operator has named a collector: docs/monitoring.md, section Traces."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from svc.controller.config import ControllerConfig
from svc_actors.store import background_nursery
from svc_actors.tracing import Tracer, TracingSettingsError
from svc_http.metrics import Figure, Metrics

if TYPE_CHECKING:
    from svc_actors.spans import SpanQueue

_RATIOS: Final = {"always_on": 1.0, "always_off": 0.0, "parentbased_always_on": 1.0, "parentbased_always_off": 0.0}


@dataclass(frozen=True)
class Tracing:
    tracer: Tracer
    queue: SpanQueue

    def watch(self, metrics: Metrics) -> None:
        queue = self.queue
        metrics.watch(
            [
                Figure(
                    "svc_trace_spans_exported_total",
                    "Spans that the collector has accepted.",
                    lambda: float(queue.exported),
                ),
                Figure(
                    "svc_trace_spans_dropped_total",
                    "Spans that the collector did not get, by reason.",
                    lambda: {(reason.value,): float(number) for reason, number in queue.dropped.items()},
                    ("reason",),
                ),
            ]
        )


@asynccontextmanager
async def open_tracing(config: ControllerConfig, environ: Mapping[str, str]) -> AsyncIterator[Tracing | None]:
    """None without a collector. OpenTelemetry's SDK reads its other variables, besides the endpoint and the ratio, by
    itself. Raises `TracingSettingsError`."""
    endpoint = _endpoint(config, environ)
    ratio = _RATIOS.get(environ.get("OTEL_TRACES_SAMPLER", ""), config.trace_ratio)
    if endpoint is None or ratio == 0:
        yield None
        return
    # These imports take a second, so they are made only if traces are exported.
    from svc_actors.spans import ExportSettings, SdkTracer, SpanQueue, open_exporter

    try:
        settings = ExportSettings.of(environ)
    except ValueError as error:
        raise TracingSettingsError(f"The OTEL_BSP_ variables of the environment are invalid: {error}") from error
    queue = SpanQueue(open_exporter(endpoint), settings)
    async with background_nursery() as nursery:
        nursery.start_soon(queue.run)
        yield Tracing(SdkTracer(queue, service="svc-controller", ratio=ratio, environ=environ), queue)


def _endpoint(config: ControllerConfig, environ: Mapping[str, str]) -> str | None:
    off = environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER") == "none"
    if off:
        return None
    if whole := environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        return whole
    return config.otlp_endpoint.rstrip("/") + "/v1/traces" if config.otlp_endpoint else None
