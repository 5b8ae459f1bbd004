"""Traffic readings: the bytes that machines have transferred, as counted by their hosts.

Invariants:
- a figure is never too high. A reading holds the maximum that one ledger of one node has ever reported for a month, so
  a repeated or late report counts nothing twice; the figures of a new ledger are added to those of the old one;
- a node's report counts only for the time in which the machine was on the node by the records, and is limited to what
  the machine's highest rate there (without a rate limit, a link's rate) could carry in that time;
- every figure comes with `resets`, `samples` and `first_at`, which say why it may be too low (specification, Plan
  policies).

Why: docs/decisions/0023-what-a-node-says-is-bounded.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.controller.traffic.periods import Period, next_period, period_of, shifted, start_of
from svc_actors.store import Queryable, Record, Transaction
from svc_nodeagent.protocol import TrafficReading

HISTORY_MONTHS: Final = 12
"""How many months back the bandwidth history reaches (specification, Limits)."""


@dataclass(frozen=True)
class Month:
    """The least number of bytes that a machine received and sent in one month. `resets`: how often counting restarted
    (because the guest, agent or host restarted, or the machine moved to another host). `samples`: how often the
    counters were read; 0 means never. `first_at`: when they were read first."""

    period: Period
    received_bytes: int = 0
    sent_bytes: int = 0
    resets: int = 0
    samples: int = 0
    first_at: datetime | None = None


MONTHS: Final = """
SELECT vm_id, period, sum(received)::numeric AS received, sum(sent)::numeric AS sent, sum(samples)::numeric AS samples,
       (sum(resets) + count(*) - 1)::numeric AS resets, min(first_at) AS first_at
FROM traffic_readings"""
"""Figures by machine and month; WHERE and `GROUP BY vm_id, period` have to be added. Each further ledger counts as a
reset."""


async def month_of(queryable: Queryable, vm_id: UUID, period: Period) -> Month:
    """One machine's month; zeros if nothing was read."""
    row = await queryable.fetchrow(f"{MONTHS} WHERE vm_id = $1 AND period = $2 GROUP BY vm_id, period", vm_id, period)
    return Month(period) if row is None else _month(row)


async def months_of(queryable: Queryable, vm_id: UUID, last: Period, count: int = HISTORY_MONTHS) -> list[Month]:
    """The machine's last `count` months up to `last`, newest first, with zeros for months without readings."""
    rows = await queryable.fetch(
        f"{MONTHS} WHERE vm_id = $1 AND period BETWEEN $2 AND $3 GROUP BY vm_id, period",
        vm_id,
        shifted(last, 1 - count),
        last,
    )
    known = {row["period"]: _month(row) for row in rows}
    periods = [shifted(last, -back) for back in range(count)]
    return [known.get(period, Month(period)) for period in periods]


MOST_LEDGERS: Final = 32
"""The most ledgers per machine, month and node: an agent starts a new ledger if its file was lost, and each ledger is a
row."""
LINK_MBPS: Final = 100_000
"""The highest rate that is believed of a machine without a limit of its own: no host has a faster link."""
_SKEW: Final = timedelta(hours=1)
"""Clocks may differ by this much; it is added to the time that a machine was on the node."""
_HEADERS: Final = 1.1
"""Counted bytes per byte of the rate limit: frames have headers that some rate limits do not count."""


@dataclass(frozen=True)
class RefusedReadings:
    """Machines whose readings were not accepted in full. `foreign`: they were never on the node. `untimely`: the month
    is impossible (before the machine came to the node, after it left, or beyond the next month by the controller's
    clock). `beyond`: readings were cut to what the rate could carry, or dropped because the machine had too many
    ledgers."""

    foreign: frozenset[UUID]
    untimely: frozenset[UUID]
    beyond: frozenset[UUID] = frozenset()


@dataclass(frozen=True)
class _Stay:
    """The time in which the machine was on the node; `until` None: it is still there."""

    since: datetime
    until: datetime | None
    most_mbps: int

    def may_count(self, period: str, now: datetime) -> bool:
        # Figures from a month before `since` are accepted: the node's clock may be behind, or the controller's clock
        # was ahead when the machine was created.
        last = next_period(period_of(now)) if self.until is None else period_of(self.until)
        return shifted(period_of(self.since), -1) <= period <= last

    def seconds_in(self, period: str, now: datetime) -> float:
        first, end = start_of(Period(period)), start_of(next_period(Period(period)))
        there = min(self.until or now, now, end) - max(self.since, first)
        return max(0.0, there.total_seconds())


async def store_readings(
    tx: Transaction, node_id: UUID, ledger_id: UUID, readings: Sequence[TrafficReading], *, now: datetime
) -> RefusedReadings:
    """Store a node's readings. The month after the current one is accepted, too: the node's clock may be ahead."""
    named = sorted({reading.vm_id for reading in readings})
    rows = await tx.fetch(
        """SELECT vms.id, stays.since, least(stays.until, vms.deleted_at) AS until, stays.most_mbps
           FROM machine_stays stays JOIN vms ON vms.id = stays.vm_id
           WHERE stays.node_id = $1 AND stays.vm_id = ANY($2::uuid[])""",
        node_id,
        named,
    )
    stays: dict[UUID, list[_Stay]] = {}
    for row in rows:
        stays.setdefault(row["id"], []).append(_Stay(row["since"], row["until"], row["most_mbps"] or LINK_MBPS))
    own = [reading for reading in readings if reading.vm_id in stays]
    timely = _merged(each for each in own if any(stay.may_count(each.period, now) for stay in stays[each.vm_id]))
    elsewhere = await _counted_elsewhere(tx, node_id, ledger_id, timely)
    nothing = _Elsewhere()
    counted = [(each, elsewhere.get((each.vm_id, each.period), nothing)) for each in timely]
    bounded = [_bounded(each, stays[each.vm_id], other, now) for each, other in counted if other.ledgers < MOST_LEDGERS]
    await _write(tx, node_id, ledger_id, bounded)
    return RefusedReadings(
        foreign=frozenset(named) - stays.keys(),
        untimely=frozenset(each.vm_id for each in own) - {each.vm_id for each in timely},
        beyond=frozenset(each.vm_id for each in {*timely} - {*bounded}),
    )


@dataclass(frozen=True)
class _Elsewhere:
    """The sums of a node's other ledgers for a machine and month."""

    received: int = 0
    sent: int = 0
    ledgers: int = 0


async def _counted_elsewhere(
    tx: Transaction, node_id: UUID, ledger_id: UUID, readings: Sequence[TrafficReading]
) -> dict[tuple[UUID, str], _Elsewhere]:
    rows = await tx.fetch(
        """SELECT vm_id, period, sum(received)::numeric AS received, sum(sent)::numeric AS sent, count(*) AS ledgers
           FROM traffic_readings
           WHERE vm_id = ANY($1::uuid[]) AND period = ANY($2::text[]) AND node_id = $3 AND ledger_id <> $4
           GROUP BY vm_id, period""",
        list({each.vm_id for each in readings}),
        list({each.period for each in readings}),
        node_id,
        ledger_id,
    )
    return {
        (row["vm_id"], row["period"]): _Elsewhere(int(row["received"]), int(row["sent"]), row["ledgers"])
        for row in rows
    }


def _bounded(reading: TrafficReading, stays: Sequence[_Stay], elsewhere: _Elsewhere, now: datetime) -> TrafficReading:
    seconds = sum(stay.seconds_in(reading.period, now) for stay in stays) + _SKEW.total_seconds()
    most = int(seconds * max(stay.most_mbps for stay in stays) * 1_000_000 / 8 * _HEADERS)
    received = min(reading.received, max(0, most - elsewhere.received))
    sent = min(reading.sent, max(0, most - elsewhere.sent))
    return reading.model_copy(update={"received": received, "sent": sent})


def _merged(readings: Iterable[TrafficReading]) -> list[TrafficReading]:
    """One reading per machine and month, with the maximum of each figure; in an order that all writers share, which
    prevents deadlocks."""
    merged: dict[tuple[UUID, str], TrafficReading] = {}
    for reading in map(_sound, readings):
        key = (reading.vm_id, reading.period)
        other = merged.get(key)
        merged[key] = reading if other is None else _most(reading, other)
    return [merged[key] for key in sorted(merged)]


def _sound(reading: TrafficReading) -> TrafficReading:
    """The reading with its times clamped to its month, whatever the node's clock said."""
    first, end = start_of(Period(reading.period)), start_of(next_period(Period(reading.period)))

    def within(moment: datetime) -> datetime:
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(first, min(aware, end))

    return reading.model_copy(update={"first_at": within(reading.first_at), "last_at": within(reading.last_at)})


def _most(one: TrafficReading, other: TrafficReading) -> TrafficReading:
    return TrafficReading(
        vm_id=one.vm_id,
        period=one.period,
        received=max(one.received, other.received),
        sent=max(one.sent, other.sent),
        resets=max(one.resets, other.resets),
        samples=max(one.samples, other.samples),
        first_at=min(one.first_at, other.first_at),
        last_at=max(one.last_at, other.last_at),
    )


async def _write(tx: Transaction, node_id: UUID, ledger_id: UUID, readings: Sequence[TrafficReading]) -> None:
    if not readings:
        return
    with tx.unmarked():
        await tx.execute(
            """
            INSERT INTO traffic_readings AS old
                (vm_id, period, node_id, ledger_id, received, sent, resets, samples, first_at, last_at)
            SELECT vm_id, period, $1, $2, received, sent, resets, samples, first_at, last_at
            FROM unnest($3::uuid[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[],
                        $9::timestamptz[], $10::timestamptz[])
                 AS new (vm_id, period, received, sent, resets, samples, first_at, last_at)
            ON CONFLICT (vm_id, period, node_id, ledger_id) DO UPDATE SET
                received = greatest(old.received, excluded.received), sent = greatest(old.sent, excluded.sent),
                resets = greatest(old.resets, excluded.resets), samples = greatest(old.samples, excluded.samples),
                first_at = least(old.first_at, excluded.first_at), last_at = greatest(old.last_at, excluded.last_at)
            WHERE (old.received, old.sent, old.resets, old.samples) IS DISTINCT FROM
                  (greatest(old.received, excluded.received), greatest(old.sent, excluded.sent),
                   greatest(old.resets, excluded.resets), greatest(old.samples, excluded.samples))
               OR excluded.first_at < old.first_at
            """,
            node_id,
            ledger_id,
            [each.vm_id for each in readings],
            [each.period for each in readings],
            [each.received for each in readings],
            [each.sent for each in readings],
            [each.resets for each in readings],
            [each.samples for each in readings],
            [each.first_at for each in readings],
            [each.last_at for each in readings],
        )


def _month(row: Record) -> Month:
    return Month(
        period=Period(row["period"]),
        received_bytes=int(row["received"]),
        sent_bytes=int(row["sent"]),
        resets=int(row["resets"]),
        samples=int(row["samples"]),
        first_at=row["first_at"],
    )
