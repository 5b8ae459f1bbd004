"""Figures for Prometheus, in a collector registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "svc_http_requests", "Requests answered.", ["operation", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "svc_http_request_seconds",
            "Time from a request's head to the end of its answer.",
            ["operation"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.event_streams = Gauge("svc_event_streams", "Event streams open now.", registry=self.registry)
        self._children: dict[tuple[str, int | None], tuple[Counter, Histogram]] = {}

    def answered(self, operation: str, status: int | None, seconds: float) -> None:
        """`status` is None when the client was gone before the answer began."""
        children = self._children.get((operation, status))
        if children is None:
            children = (self._requests.labels(operation, str(status or "none")), self._seconds.labels(operation))
            self._children[(operation, status)] = children
        requests, duration = children
        requests.inc()
        duration.observe(seconds)

    def watch(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        """Have figures read at each scrape: a name ending in its unit, and where to read it."""
        self.registry.register(_Watched(gauges))

    def exposition(self) -> bytes:
        """The text format: these figures, the process's own, and what other parts keep in the default registry."""
        return generate_latest(self.registry) + generate_latest(REGISTRY)


class _Watched(Collector):
    def __init__(self, gauges: Mapping[str, Callable[[], float]]) -> None:
        self._gauges = dict(gauges)

    def collect(self) -> Iterable[GaugeMetricFamily]:
        for name, read in self._gauges.items():
            yield GaugeMetricFamily(name, name.replace("_", " "), value=read())
