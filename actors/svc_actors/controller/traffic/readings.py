"""What machines have transferred, as their hosts have counted it.

Invariants:
- a figure never reads high: a reading holds the most that one ledger of one node has ever said for a month, so one that
  is repeated or overtaken counts nothing twice, and a ledger that was begun anew adds beside the old;
- a node's report counts only for the time in which the machine was on it, as the records have that, and is no more
  than the highest rate that the machine had there, or a link's where it had none, could carry in that time;
- every figure comes with `resets`, `samples` and `first_at`, which say why it may read low (specification, Plan
  policies).
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
"""How far bandwidth history reaches (specification, Limits)."""


@dataclass(frozen=True)
class Month:
    """Bytes that a machine received and sent, at least, in one month. `resets`: how often counting began anew (a guest,
    an agent or a host restart, another host); `samples`: how often the counters were read; `first_at`: when first.
    Nothing was read where `samples` is 0."""

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
"""Figures by machine and month, to be followed by WHERE and `GROUP BY vm_id, period`. Where one ledger follows another,
counting began anew."""


async def month_of(queryable: Queryable, vm_id: UUID, period: Period) -> Month:
    """One machine's month; zeros where nothing was read."""
    row = await queryable.fetchrow(f"{MONTHS} WHERE vm_id = $1 AND period = $2 GROUP BY vm_id, period", vm_id, period)
    return Month(period) if row is None else _month(row)


async def months_of(queryable: Queryable, vm_id: UUID, last: Period, count: int = HISTORY_MONTHS) -> list[Month]:
    """The machine's last `count` months up to `last`, newest first, with zeros where nothing was read."""
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
"""Of one machine, month and node: an agent begins a ledger anew where its file was lost, and each is a row."""
LINK_MBPS: Final = 100_000
"""What is believed of a machine without a rate of its own: no host has a faster link."""
_SKEW: Final = timedelta(hours=1)
"""By which clocks may differ: so much longer a machine may have been there."""
_HEADERS: Final = 1.1
"""Counted bytes for a byte of the rate: frames have headers that some rates leave out."""


@dataclass(frozen=True)
class Refused:
    """What of a node's answer was not taken in: readings of machines that never were its own, of months that cannot be
    (before the machine came, after it left, or past the next month by the controller's clock), and, of those that were
    cut, what no rate could have carried; what came in one ledger too many is all cut."""

    foreign: frozenset[UUID]
    untimely: frozenset[UUID]
    beyond: frozenset[UUID] = frozenset()


@dataclass(frozen=True)
class _Stay:
    """When a machine was on the node; `until` None: it is there."""

    since: datetime
    until: datetime | None
    most_mbps: int

    def may_count(self, period: str, now: datetime) -> bool:
        # A month early: the node's clock may be behind, or the controller's was ahead when it made the machine.
        last = next_period(period_of(now)) if self.until is None else period_of(self.until)
        return shifted(period_of(self.since), -1) <= period <= last

    def seconds_in(self, period: str, now: datetime) -> float:
        first, end = start_of(Period(period)), start_of(next_period(Period(period)))
        there = min(self.until or now, now, end) - max(self.since, first)
        return max(0.0, there.total_seconds())


async def store_readings(
    tx: Transaction, node_id: UUID, ledger_id: UUID, readings: Sequence[TrafficReading], *, now: datetime
) -> Refused:
    """Take in what a node has counted. The month after this one is taken too: the node's clock may be ahead."""
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
    return Refused(
        foreign=frozenset(named) - stays.keys(),
        untimely=frozenset(each.vm_id for each in own) - {each.vm_id for each in timely},
        beyond=frozenset(each.vm_id for each in {*timely} - {*bounded}),
    )


@dataclass(frozen=True)
class _Elsewhere:
    """What a node's other ledgers have of a machine and month."""

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
    """One reading a machine and month, the most that any of them says; in an order that all writers share."""
    merged: dict[tuple[UUID, str], TrafficReading] = {}
    for reading in map(_sound, readings):
        key = (reading.vm_id, reading.period)
        other = merged.get(key)
        merged[key] = reading if other is None else _most(reading, other)
    return [merged[key] for key in sorted(merged)]


def _sound(reading: TrafficReading) -> TrafficReading:
    """The reading with its moments within its month, whatever the node's clock said."""
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
