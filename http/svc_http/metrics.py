"""Metrics for Prometheus, in a collector registry of their own, named by its conventions: base units, counters in
`_total`. docs/monitoring.md lists them all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import trio
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

Labelled = Mapping[tuple[str, ...], float]
"""Numbers by the values of a metric's labels."""


@dataclass(frozen=True)
class Figure:
    """A metric that is read at each scrape: one number, or one for each combination of `labels`; None without a value.
    If its name ends in `_total` it is a counter, since the start of the process, else a gauge."""

    name: str
    help: str
    read: Callable[[], float | Labelled]
    labels: tuple[str, ...] = ()


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "svc_http_requests", "Requests answered.", ["operation", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "svc_http_request_duration_seconds",
            "Time from a request's head to the end of its answer.",
            ["operation"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.event_streams = Gauge("svc_event_streams", "Event streams open now.", registry=self.registry)
        self._children: dict[tuple[str, int | None], tuple[Counter, Histogram]] = {}
        self._preparations: list[Callable[[], Awaitable[None]]] = []

    def answered(self, operation: str, status: int | None, seconds: float) -> None:
        """`status` is None if the client was gone before the answer started."""
        children = self._children.get((operation, status))
        if children is None:
            children = (self._requests.labels(operation, str(status or "none")), self._seconds.labels(operation))
            self._children[(operation, status)] = children
        requests, duration = children
        requests.inc()
        duration.observe(seconds)

    def watch(self, figures: Sequence[Figure], prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Read these metrics at each scrape, after `prepare` has run; `prepare` reports in a metric what it could not
        find out."""
        self.registry.register(_Watched(figures))
        if prepare is not None:
            self._preparations.append(prepare)

    async def exposition(self) -> bytes:
        """The text format: these metrics, the process's own, and those of other parts in the default registry."""
        async with trio.open_nursery() as nursery:
            for prepare in self._preparations:
                nursery.start_soon(prepare)
        return generate_latest(self.registry) + generate_latest(REGISTRY)


class _Watched(Collector):
    def __init__(self, figures: Sequence[Figure]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        """The metrics without values, so that registering this collector reads nothing."""
        return [_family(figure) for figure in self._figures]

    def collect(self) -> Iterable[GaugeMetricFamily | CounterMetricFamily]:
        for figure in self._figures:
            family = _family(figure)
            found = figure.read()
            for values, number in found.items() if isinstance(found, Mapping) else [((), found)]:
                family.add_metric(values, number)
            yield family


def _family(figure: Figure) -> GaugeMetricFamily | CounterMetricFamily:
    if figure.name.endswith("_total"):
        return CounterMetricFamily(figure.name, figure.help, labels=figure.labels)
    return GaugeMetricFamily(figure.name, figure.help, labels=figure.labels)
