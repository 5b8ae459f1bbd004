"""What is made of readings, in whatever order they come: a floor that never reads high."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from svc_actors.controller.traffic.periods import Period, period_of, shifted, start_of, until
from svc_actors.controller.traffic.readings import LINK_MBPS, MOST_LEDGERS, Month, month_of, months_of, store_readings
from tests.support.traffic import TrafficHarness, reading

NOVEMBER = Period("2026-11")


class Said(NamedTuple):
    """What one ledger says at one moment: `steps` of its growing figures in a month."""

    ledger: int
    month: int
    steps: int


said = st.builds(Said, ledger=st.integers(0, 1), month=st.integers(0, 1), steps=st.integers(0, 6))


async def test_the_figure_is_the_sum_of_what_each_ledger_said_at_most(stage: TrafficHarness) -> None:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.lists(said, min_size=1, max_size=4), max_size=8))
    def holds(answers: list[list[Said]]) -> None:
        trio.from_thread.run(the_figure_is_the_sum_of_maxima, stage, answers)

    await trio.to_thread.run_sync(holds)


async def the_figure_is_the_sum_of_maxima(stage: TrafficHarness, answers: list[list[Said]]) -> None:
    vm_id, ledgers = await stage.machine(f"vm-{uuid4()}"), (uuid4(), uuid4())
    most: dict[tuple[int, int], int] = {}
    for answer in answers:
        for ledger in {each.ledger for each in answer}:
            of_it = [each for each in answer if each.ledger == ledger]
            readings = [
                reading(vm_id, 100 * each.steps, 10 * each.steps, period=f"2026-1{each.month}", samples=each.steps)
                for each in of_it
            ]
            await stage.hear(*readings, ledger_id=ledgers[ledger])
            for each in of_it:
                key = (each.ledger, each.month)
                most[key] = max(most.get(key, 0), each.steps)
    for month in (0, 1):
        counts = [count for (_, its_month), count in most.items() if its_month == month]
        found = await month_of(stage.database, vm_id, Period(f"2026-1{month}"))
        assert (found.sent_bytes, found.received_bytes) == (100 * sum(counts), 10 * sum(counts))
        assert found.samples == sum(counts)
        assert found.resets == max(0, len(counts) - 1), "another ledger is counting begun anew"


async def test_a_figure_never_goes_back(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("web")
    await stage.hear(reading(vm_id, 500, 50, samples=9, resets=2))
    await stage.hear(reading(vm_id, 400, 60, samples=3))
    assert await month_of(stage.database, vm_id, NOVEMBER) == Month(
        NOVEMBER, received_bytes=60, sent_bytes=500, resets=2, samples=9, first_at=datetime(2026, 11, 2, tzinfo=UTC)
    )


async def test_two_nodes_with_the_same_ledger_count_beside_each_other(stage: TrafficHarness) -> None:
    vm_id, other = await stage.machine("web"), await stage.node("beta")
    await stage.hear(reading(vm_id, 100))
    await move(stage, vm_id, other)
    await stage.hear(reading(vm_id, 30), node_id=other)
    # Where it came from still answers for what it counted.
    await stage.hear(reading(vm_id, 110))
    assert (await month_of(stage.database, vm_id, NOVEMBER)).sent_bytes == 140


async def move(stage: TrafficHarness, vm_id: UUID, node_id: UUID) -> None:
    """At the moment that the stage has for now."""
    await stage.database.execute("UPDATE vms SET node_id = $2 WHERE id = $1", vm_id, node_id)
    await stage.database.execute(
        """UPDATE machine_stays SET since = CASE WHEN since > $2 THEN $2 ELSE since END,
                                    until = CASE WHEN until > $2 THEN $2 ELSE until END WHERE vm_id = $1""",
        vm_id,
        stage.now,
    )


async def refused(stage: TrafficHarness, node_id: UUID, *vm_ids: UUID, period: str = "2026-11") -> tuple[int, int]:
    """How many machines' readings were refused as another's, and as of another time."""
    readings = [reading(vm_id, 1000).model_copy(update={"period": period}) for vm_id in vm_ids]
    async with stage.database.transaction() as tx:
        answer = await store_readings(tx, node_id, uuid4(), readings, now=stage.now)
    return len(answer.foreign), len(answer.untimely)


async def test_a_node_counts_for_no_machine_but_its_own(stage: TrafficHarness) -> None:
    own, liar = await stage.machine("own"), await stage.node("liar")
    await stage.hear(reading(own, 5))
    assert await refused(stage, liar, own, uuid4()) == (2, 0)
    assert (await month_of(stage.database, own, NOVEMBER)).sent_bytes == 5


async def test_after_a_machine_has_left_its_node_counts_to_then_and_no_longer(stage: TrafficHarness) -> None:
    vm_id, other = await stage.machine("web"), await stage.node("beta")
    await stage.hear(reading(vm_id, 100))
    await move(stage, vm_id, other)
    stage.now = datetime(2026, 12, 20, tzinfo=UTC)
    # Its last reading comes late, since the node was away; the months after it are the other node's.
    await stage.hear(reading(vm_id, 150))
    assert (await month_of(stage.database, vm_id, NOVEMBER)).sent_bytes == 150
    assert await refused(stage, stage.node_id, vm_id, period="2026-12") == (0, 1)
    assert await refused(stage, other, vm_id, period="2026-12") == (0, 0)
    await move(stage, vm_id, stage.node_id)
    assert await refused(stage, stage.node_id, vm_id, period="2026-12") == (0, 0)
    assert (await month_of(stage.database, vm_id, Period("2026-12"))).sent_bytes == 2000


@pytest.mark.parametrize("rate_mbps", [None, 8])
@pytest.mark.parametrize("left", [False, True])
async def test_no_node_counts_more_than_the_rate_could_carry_while_the_machine_was_there(
    stage: TrafficHarness, rate_mbps: int | None, left: bool
) -> None:
    came = datetime(2026, 11, 20, 12, tzinfo=UTC)
    vm_id = await stage.machine("web", created_at=came, rate_mbps=rate_mbps)
    if left:
        await move(stage, vm_id, await stage.node("beta"))
        stage.now = datetime(2026, 11, 28, tzinfo=UTC)
    # A day, an hour for clocks that differ, and a tenth for headers; whatever number of ledgers it is said in.
    most = 25 * 3600 * (rate_mbps or LINK_MBPS) * 1_000_000 // 8 * 11 // 10
    for _ in range(3):
        async with stage.database.transaction() as tx:
            told = await store_readings(tx, stage.node_id, uuid4(), [reading(vm_id, 2**53, 2**53)], now=stage.now)
        assert told.beyond == {vm_id}
        month = await month_of(stage.database, vm_id, NOVEMBER)
        assert (month.sent_bytes, month.received_bytes) == (most, most)


async def test_a_node_that_begins_ledgers_without_end_has_so_many_rows(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("web")
    for number in range(MOST_LEDGERS + 3):
        async with stage.database.transaction() as tx:
            told = await store_readings(tx, stage.node_id, UUID(int=number), [reading(vm_id, 10)], now=stage.now)
        assert told.beyond == (set() if number < MOST_LEDGERS else {vm_id})
    async with stage.database.transaction() as tx:
        told = await store_readings(tx, stage.node_id, UUID(int=0), [reading(vm_id, 15)], now=stage.now)
    assert told.beyond == set(), "one that is known goes on"
    assert (await month_of(stage.database, vm_id, NOVEMBER)).sent_bytes == 10 * MOST_LEDGERS + 5


@pytest.mark.parametrize(("rates", "most_mbps"), [((10,), 1000), ((None, 10), LINK_MBPS), ((10, 2000, 10), 2000)])
async def test_what_was_counted_at_a_higher_rate_is_believed_once_the_rate_is_lowered(
    stage: TrafficHarness, rates: tuple[int | None, ...], most_mbps: int
) -> None:
    came = datetime(2026, 11, 20, 12, tzinfo=UTC)
    vm_id = await stage.machine("web", created_at=came, rate_mbps=1000)
    for rate_mbps in rates:
        await stage.database.execute("UPDATE vms SET rate_mbps = $2 WHERE id = $1", vm_id, rate_mbps)
    most = 25 * 3600 * most_mbps * 1_000_000 // 8 * 11 // 10
    for said, refused_of in ((most, set()), (most + 1, {vm_id})):
        async with stage.database.transaction() as tx:
            told = await store_readings(tx, stage.node_id, stage.ledger_id, [reading(vm_id, said)], now=stage.now)
        assert told.beyond == refused_of
    assert (await month_of(stage.database, vm_id, NOVEMBER)).sent_bytes == most
    # Where it goes, the rate of then is the highest.
    other = await stage.node("beta")
    await move(stage, vm_id, other)
    async with stage.database.transaction() as tx:
        told = await store_readings(tx, other, stage.ledger_id, [reading(vm_id, most)], now=stage.now)
    assert told.beyond == {vm_id}


async def test_a_month_that_cannot_be_is_not_taken(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("web", created_at=datetime(2026, 10, 5, tzinfo=UTC))
    impossible = dict.fromkeys(("0000-01", "2026-08", "2027-01", "9999-12"), False)
    for period, taken in {**impossible, "2026-09": True, "2026-12": True}.items():
        assert await refused(stage, stage.node_id, vm_id, period=period) == (0, 0 if taken else 1)
        found = await month_of(stage.database, vm_id, Period(period))
        assert found.sent_bytes == (1000 if taken else 0)


async def test_a_moment_outside_its_month_is_read_as_within_it(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("web")
    odd = {"first_at": datetime(1, 1, 1), "last_at": datetime(9999, 12, 31, tzinfo=UTC)}
    await stage.hear(reading(vm_id, 5).model_copy(update=odd))
    assert (await month_of(stage.database, vm_id, NOVEMBER)).first_at == datetime(2026, 11, 1, tzinfo=UTC)


async def test_a_deleted_machine_is_counted_to_its_end(stage: TrafficHarness) -> None:
    vm_id = await stage.machine("gone")
    await stage.database.execute("UPDATE vms SET status = 'deleted', deleted_at = now() WHERE id = $1", vm_id)
    await stage.sent(vm_id, 1)
    assert (await month_of(stage.database, vm_id, NOVEMBER)).sent_bytes == 2**30


async def test_twelve_months_are_told_newest_first_with_nothing_for_those_without_readings(
    stage: TrafficHarness,
) -> None:
    vm_id = await stage.machine("web")
    await stage.hear(reading(vm_id, 7), reading(vm_id, 9, period="2026-01"), reading(vm_id, 1, period="2025-11"))
    months = await months_of(stage.database, vm_id, NOVEMBER)
    assert [month.period for month in months] == [f"2026-{n:02d}" for n in range(11, 0, -1)] + ["2025-12"]
    assert {month.period: month.sent_bytes for month in months if month.samples} == {"2026-11": 7, "2026-01": 9}


def test_months_are_those_of_utc() -> None:
    assert period_of(datetime.fromisoformat("2026-12-01T00:30:00+02:00")) == "2026-11"
    assert start_of(Period("2026-12")) == datetime(2026, 12, 1, tzinfo=UTC)
    assert (shifted(NOVEMBER, 2), shifted(NOVEMBER, -11)) == ("2027-01", "2025-12")
    assert until(Period("2026-11"), Period("2027-01")) == ["2027-01", "2026-12", "2026-11"]
    assert until(Period("2026-11"), Period("2026-10")) == []
