"""Metrics of guests: counters read every ten seconds, stored as amounts per span in three tiers.

    tier      span      kept in   for
    recent    10 s      memory    2 hours
    minutes   60 s      memory    2 days
    hours     3,600 s   a file    400 days

Invariants: libvirt's counters only grow within one run of a guest and start at 0 in the next, so an amount is the
difference of two readings or, after a restart, the new reading: it is never negative, and nothing is counted twice. A
rate is an amount divided by the seconds in which it was observed; a span in which the guest did not run has no point. A
wall clock that jumps moves points, and changes no amount.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import libvirt
import structlog
import trio

from svc_nodeagent.host import HostError
from svc_nodeagent.hypervisor.connection import Connection, Libvirt
from svc_nodeagent.hypervisor.files import in_thread
from svc_nodeagent.hypervisor.naming import Naming
from svc_nodeagent.protocol import MetricPoint

SAMPLE_SECONDS = 10
HOUR_SECONDS = 3600
HOURS_KEPT = 400 * 24
MIB_KIB = 1024
log = structlog.get_logger()


@dataclass(frozen=True)
class Counters:
    """libvirt's counters of one running guest since its start. `cpu_ns` is the sum over all vCPUs; memory is a
    level."""

    cpu_ns: int
    vcpus: int
    memory_used_mib: float | None
    disk_read: int
    disk_written: int
    net_received: int
    net_sent: int


@dataclass
class Bucket:
    """The amounts of one span. `watched`: for how many seconds of the span the guest was observed running."""

    start: int
    watched: float = 0.0
    cpu_seconds: float = 0.0
    """Per vCPU: the processor time divided by the number of vCPUs."""
    memory_mib_seconds: float = 0.0
    memory_watched: float = 0.0
    disk_read: float = 0.0
    disk_written: float = 0.0
    net_received: float = 0.0
    net_sent: float = 0.0

    def add(self, other: Bucket) -> None:
        self.watched += other.watched
        self.cpu_seconds += other.cpu_seconds
        self.memory_mib_seconds += other.memory_mib_seconds
        self.memory_watched += other.memory_watched
        self.disk_read += other.disk_read
        self.disk_written += other.disk_written
        self.net_received += other.net_received
        self.net_sent += other.net_sent

    def point(self) -> MetricPoint:
        return MetricPoint(
            at=datetime.fromtimestamp(self.start, UTC),
            cpu_percent=min(100.0, 100 * self.cpu_seconds / self.watched),
            memory_used_mib=self.memory_mib_seconds / self.memory_watched if self.memory_watched else None,
            disk_read_bytes=self.disk_read / self.watched,
            disk_written_bytes=self.disk_written / self.watched,
            net_received_bytes=self.net_received / self.watched,
            net_sent_bytes=self.net_sent / self.watched,
        )


def amount(before: int, now: int) -> int:
    """The amount between two readings of a counter that starts at 0 whenever its guest starts."""
    return now - before if now >= before else now


def difference(before: Counters, now: Counters, *, start: int, seconds: float) -> Bucket:
    """The amounts between two readings, `seconds` apart by a clock that does not jump."""
    memory = now.memory_used_mib
    return Bucket(
        start=start,
        watched=seconds,
        cpu_seconds=amount(before.cpu_ns, now.cpu_ns) / 1e9 / max(1, now.vcpus),
        memory_mib_seconds=0.0 if memory is None else memory * seconds,
        memory_watched=0.0 if memory is None else seconds,
        disk_read=amount(before.disk_read, now.disk_read),
        disk_written=amount(before.disk_written, now.disk_written),
        net_received=amount(before.net_received, now.net_received),
        net_sent=amount(before.net_sent, now.net_sent),
    )


@dataclass
class Tier:
    span: int
    buckets: deque[Bucket]

    @property
    def kept_seconds(self) -> int:
        return self.span * (self.buckets.maxlen or 0)

    @classmethod
    def of(cls, span: int, keep_seconds: int) -> Tier:
        return cls(span, deque(maxlen=keep_seconds // span))

    def add(self, seen: Bucket) -> Bucket | None:
        """Add these amounts to the bucket of their span; returns the previous bucket if a new span starts with this."""
        start = seen.start - seen.start % self.span
        last = self.buckets[-1] if self.buckets else None
        # If the clock was set back, the open bucket is continued, so that buckets stay in order.
        if last is not None and start <= last.start:
            last.add(seen)
            return None
        fresh = Bucket(start)
        fresh.add(seen)
        self.buckets.append(fresh)
        return last


@dataclass
class Series:
    """One machine's metrics."""

    recent: Tier = field(default_factory=lambda: Tier.of(SAMPLE_SECONDS, 2 * HOUR_SECONDS))
    minutes: Tier = field(default_factory=lambda: Tier.of(60, 48 * HOUR_SECONDS))
    hours: Tier = field(default_factory=lambda: Tier.of(HOUR_SECONDS, HOURS_KEPT * HOUR_SECONDS))
    _last: tuple[float, Counters] | None = None

    def sample(self, counters: Counters | None, *, monotonic: float, wall: float) -> Bucket | None:
        """Add a reading; None if the guest does not run. If an hour has ended, it is returned, to be stored."""
        last, self._last = self._last, None if counters is None else (monotonic, counters)
        if last is None or counters is None or monotonic <= last[0]:
            return None
        seen = difference(last[1], counters, start=int(wall), seconds=monotonic - last[0])
        self.recent.add(seen)
        self.minutes.add(seen)
        return self.hours.add(seen)

    def points(self, *, resolution_seconds: int, hours: int, now: float) -> tuple[int, tuple[MetricPoint, ...]]:
        """Averages of the last `hours`, oldest first, and their resolution: the requested resolution, or else that of
        the finest tier that reaches back so far."""
        tiers = (self.hours, self.minutes, self.recent)
        fine = [tier for tier in tiers if tier.span <= max(resolution_seconds, SAMPLE_SECONDS)]
        tier = fine[0]
        if tier.kept_seconds < hours * HOUR_SECONDS:
            tier = next((long for long in reversed(tiers) if long.kept_seconds >= hours * HOUR_SECONDS), self.hours)
        resolution = max(resolution_seconds, tier.span)
        since = now - hours * HOUR_SECONDS
        buckets = merged((bucket for bucket in tier.buckets if bucket.start + tier.span > since), resolution)
        return resolution, tuple(bucket.point() for bucket in buckets if bucket.watched)


def merged(buckets: Iterable[Bucket], resolution: int) -> list[Bucket]:
    """Sum consecutive buckets into spans of `resolution` seconds."""
    spans: dict[int, Bucket] = {}
    for bucket in buckets:
        start = bucket.start - bucket.start % resolution
        spans.setdefault(start, Bucket(start)).add(bucket)
    return [spans[start] for start in sorted(spans)]


class Measurements:
    """The series of all machines, each with a file of its finished hours: one JSON object a line.

    Blocking, and safe to call from several threads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._series: dict[UUID, Series] = {}
        self._lock = threading.Lock()

    def sample(self, counters: Mapping[UUID, Counters], *, monotonic: float, wall: float) -> None:
        """Take one reading of every running machine."""
        with self._lock:
            for vm_id in counters.keys() | self._series.keys():
                hour = self._of(vm_id).sample(counters.get(vm_id), monotonic=monotonic, wall=wall)
                if hour is not None:
                    self._append(vm_id, hour)

    def points(
        self, vm_id: UUID, *, resolution_seconds: int, hours: int, now: float
    ) -> tuple[int, tuple[MetricPoint, ...]]:
        """The points of one machine's series, as `Series.points` returns them."""
        with self._lock:
            return self._of(vm_id).points(resolution_seconds=resolution_seconds, hours=hours, now=now)

    def forget(self, vm_id: UUID) -> None:
        with self._lock:
            self._series.pop(vm_id, None)
            self._path(vm_id).unlink(missing_ok=True)

    def flush(self) -> None:
        """Write the hours that are still open, before the agent ends; later readings are added to them when it is
        back."""
        with self._lock:
            for vm_id, series in self._series.items():
                if series.hours.buckets:
                    self._append(vm_id, series.hours.buckets[-1])

    def _of(self, vm_id: UUID) -> Series:
        if vm_id not in self._series:
            self._series[vm_id] = self._load(vm_id)
        return self._series[vm_id]

    def _append(self, vm_id: UUID, hour: Bucket) -> None:
        with self._path(vm_id).open("a") as file:
            file.write(json.dumps(asdict(hour)) + "\n")

    def _load(self, vm_id: UUID) -> Series:
        series = Series()
        try:
            lines = self._path(vm_id).read_text().splitlines()
        except FileNotFoundError:
            return series
        for line in lines[-HOURS_KEPT:]:
            try:
                bucket = Bucket(**json.loads(line))
            except (ValueError, TypeError):
                continue  # a line truncated by a crash: one average is missing
            last = series.hours.buckets[-1] if series.hours.buckets else None
            if last is not None and last.start == bucket.start:
                series.hours.buckets.pop()
            series.hours.buckets.append(bucket)
        return series

    def _path(self, vm_id: UUID) -> Path:
        return self._folder / str(vm_id)


async def keep_sampling(connection: Connection, naming: Naming, measurements: Measurements) -> None:
    """Read the counters of all running machines at a steady interval; a failed reading only leaves a gap."""

    def read(connected: Libvirt) -> dict[UUID, Counters]:
        groups = (
            libvirt.VIR_DOMAIN_STATS_CPU_TOTAL
            | libvirt.VIR_DOMAIN_STATS_BALLOON
            | libvirt.VIR_DOMAIN_STATS_VCPU
            | libvirt.VIR_DOMAIN_STATS_INTERFACE
            | libvirt.VIR_DOMAIN_STATS_BLOCK
        )
        flags = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_RUNNING
        counted: dict[UUID, Counters] = {}
        for domain, stats in connected.getAllDomainStats(groups, flags):
            uuid = UUID(domain.UUIDString())
            if naming.machine(uuid, domain.name()) is not None:
                counted[uuid] = counters_of(stats)
        return counted

    while True:
        await trio.sleep(SAMPLE_SECONDS)
        try:
            counters = await connection.call(read, timeout=SAMPLE_SECONDS)
        except HostError as error:
            log.warning("metrics.sample_failed", error=error.message)
            continue
        await in_thread(measurements.sample, counters, monotonic=time.monotonic(), wall=time.time())


def counters_of(stats: Mapping[str, Any]) -> Counters:
    """One domain's answer from virConnectGetAllDomainStats."""
    return Counters(
        cpu_ns=int(stats.get("cpu.time", 0)),
        vcpus=int(stats.get("vcpu.current", 1)),
        memory_used_mib=_memory_used(stats),
        disk_read=_summed(stats, "block", "rd.bytes"),
        disk_written=_summed(stats, "block", "wr.bytes"),
        # The tap of the host receives what the guest sends, but libvirt already counts from the guest's side.
        net_received=_summed(stats, "net", "rx.bytes"),
        net_sent=_summed(stats, "net", "tx.bytes"),
    )


def _memory_used(stats: Mapping[str, Any]) -> float | None:
    """The memory that the guest uses, as its balloon driver reports it; None while the driver reports nothing."""
    available, usable = stats.get("balloon.available"), stats.get("balloon.usable", stats.get("balloon.unused"))
    if available is None or usable is None:
        return None
    return float(max(0, available - usable)) / MIB_KIB


def _summed(stats: Mapping[str, Any], group: str, counter: str) -> int:
    return sum(int(stats.get(f"{group}.{index}.{counter}", 0)) for index in range(int(stats.get(f"{group}.count", 0))))
