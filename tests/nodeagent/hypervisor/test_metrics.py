"""Measurements: nothing negative, nothing counted twice, whatever guests and clocks do."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc_nodeagent.hypervisor.metrics import Counters, Measurements, Series, amount, counters_of

START = 1_800_000_000.0


def counters(sent: int = 0, *, cpu_ns: int = 0, vcpus: int = 1, memory: float | None = None) -> Counters:
    return Counters(
        cpu_ns=cpu_ns,
        vcpus=vcpus,
        memory_used_mib=memory,
        disk_read=0,
        disk_written=0,
        net_received=0,
        net_sent=sent,
    )


@given(st.lists(st.lists(st.integers(0, 10**9), min_size=1, max_size=5), min_size=1, max_size=5))
def test_amounts_add_up_to_what_was_counted_across_restarts(runs: list[list[int]]) -> None:
    """Each run counts from 0; the first reading of a later run may already be past the last of the one before."""
    before, total = 0, 0
    expected = 0
    for run in runs:
        readings = sorted(run)
        for now in readings:
            total += amount(before, now)
            before = now
        expected += readings[-1]
    assert 0 <= total <= expected


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.booleans(), st.floats(0.1, 60)), min_size=2, max_size=60),
    st.floats(-7200, 7200),
)
def test_no_point_is_ever_negative(readings: list[tuple[int, bool, float]], jump: float) -> None:
    series, monotonic, wall = Series(), 100.0, START
    for index, (value, running, pause) in enumerate(readings):
        monotonic += pause
        wall += pause + (jump if index == len(readings) // 2 else 0)
        series.sample(counters(value, cpu_ns=value) if running else None, monotonic=monotonic, wall=wall)
    for resolution in (10, 60, 3600):
        _, points = series.points(resolution_seconds=resolution, hours=24, now=wall)
        for point in points:
            assert point.net_sent_bytes >= 0
            assert 0 <= point.cpu_percent <= 100


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=300), st.sampled_from([10, 30, 60, 300, 3600]))
def test_a_rate_times_its_time_is_what_was_sent_at_any_resolution(deltas: list[int], resolution: int) -> None:
    series, sent = Series(), 0
    series.sample(counters(0), monotonic=0.0, wall=START)
    for index, delta in enumerate(deltas, start=1):
        sent += delta
        series.sample(counters(sent), monotonic=index * 10.0, wall=START + index * 10.0)
    _, points = series.points(resolution_seconds=resolution, hours=2, now=START + len(deltas) * 10)
    spans: dict[int, int] = {}
    for index in range(1, len(deltas) + 1):
        start = int(START) + index * 10
        spans[start - start % resolution] = spans.get(start - start % resolution, 0) + 10
    total = sum(point.net_sent_bytes * spans[int(point.at.timestamp())] for point in points)
    assert total == pytest.approx(sent)


def test_cpu_is_of_all_virtual_processors_together() -> None:
    series = Series()
    series.sample(counters(vcpus=4), monotonic=0.0, wall=START)
    series.sample(counters(vcpus=4, cpu_ns=20 * 10**9), monotonic=10.0, wall=START + 10)
    _, (point,) = series.points(resolution_seconds=10, hours=1, now=START + 10)
    assert point.cpu_percent == pytest.approx(50)


def test_a_guest_without_a_balloon_driver_has_unknown_memory_not_zero() -> None:
    assert counters_of({"balloon.current": 262144}).memory_used_mib is None
    used = counters_of({"balloon.available": 262144, "balloon.usable": 131072}).memory_used_mib
    assert used == pytest.approx(128)


def test_time_in_which_the_guest_was_off_has_no_points() -> None:
    series = Series()
    for second, reading in ((0, 0), (10, 100), (20, None), (30, None), (40, 5), (50, 25)):
        series.sample(None if reading is None else counters(reading), monotonic=float(second), wall=START + second)
    _, points = series.points(resolution_seconds=10, hours=1, now=START + 50)
    assert [(point.at.timestamp() - START, point.net_sent_bytes) for point in points] == [(10, 10), (50, 2)]


def test_a_resolution_finer_than_what_is_kept_is_answered_with_what_there_is_and_says_so() -> None:
    resolution, _ = Series().points(resolution_seconds=10, hours=24 * 30, now=START)
    assert resolution == 3600


def test_hours_outlive_the_agent(tmp_path: Path) -> None:
    vm_id = uuid4()
    before = Measurements(tmp_path)
    for second in range(0, 7210, 10):
        before.sample({vm_id: counters(second)}, monotonic=float(second), wall=START + second)
    before.flush()
    _, told = before.points(vm_id, resolution_seconds=3600, hours=24, now=START + 7200)
    _, kept = Measurements(tmp_path).points(vm_id, resolution_seconds=3600, hours=24, now=START + 7200)
    assert kept == told
    assert len(kept) >= 2


def test_an_hour_interrupted_by_a_restart_is_not_counted_twice(tmp_path: Path) -> None:
    vm_id = uuid4()
    wall, sent = START - START % 3600 + 10, 0
    for _ in range(3):  # the agent is started three times within the hour
        measurements = Measurements(tmp_path)
        for _ in range(4):
            measurements.sample({vm_id: counters(sent)}, monotonic=wall, wall=wall)
            wall, sent = wall + 10, sent + 1000
        measurements.flush()
    _, (point,) = Measurements(tmp_path).points(vm_id, resolution_seconds=3600, hours=2, now=wall)
    assert point.net_sent_bytes == pytest.approx(100)


def test_a_line_cut_short_by_a_crash_costs_that_hour_only(tmp_path: Path) -> None:
    vm_id = uuid4()
    measurements = Measurements(tmp_path)
    for second in (0, 10):
        measurements.sample({vm_id: counters(second)}, monotonic=float(second), wall=START + second)
    measurements.flush()
    with (tmp_path / str(vm_id)).open("a") as file:
        file.write('{"start": 18000')
    _, points = Measurements(tmp_path).points(vm_id, resolution_seconds=3600, hours=1, now=START + 10)
    assert len(points) == 1
