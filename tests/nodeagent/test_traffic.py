"""The ledger of traffic reads a floor of the truth, whatever becomes of guests, agent, host and clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from svc_nodeagent.protocol import MAX_FRAME_BYTES, TrafficReading, TrafficResult
from svc_nodeagent.traffic import READINGS_TOLD, Ledger, TapReading

MACHINES = [UUID(int=number) for number in range(1, 4)]
BYTES = st.integers(min_value=0, max_value=10**9)
START = datetime(2026, 1, 31, 23, 0, tzinfo=UTC)


def tap(
    received: int, sent: int, *, origin: str = "boot/1", device: str = "tap1", vm_id: UUID = MACHINES[0]
) -> TapReading:
    return TapReading(device=device, vm_id=vm_id, origin=origin, received=received, sent=sent)


def begun(*readings: TapReading, at: datetime = START) -> Ledger:
    """A ledger that has had its first look."""
    ledger = Ledger()
    ledger.observe(readings, at)
    return ledger


def only(ledger: Ledger) -> TrafficReading:
    (reading,) = ledger.result().readings
    return reading


def totals(result: TrafficResult) -> dict[UUID, tuple[int, int]]:
    found: dict[UUID, tuple[int, int]] = {}
    for reading in result.readings:
        received, sent = found.get(reading.vm_id, (0, 0))
        found[reading.vm_id] = received + reading.received, sent + reading.sent
    return found


def test_traffic_is_what_the_counters_moved_by() -> None:
    ledger = begun()
    for received, sent in ((100, 10), (100, 10), (350, 40)):
        ledger.observe([tap(received, sent)], START)
    reading = only(ledger)
    assert (reading.received, reading.sent, reading.resets, reading.samples) == (350, 40, 0, 3)


def test_a_tap_made_anew_is_a_reset_and_counts_from_zero() -> None:
    ledger = begun()
    ledger.observe([tap(500, 50)], START)
    ledger.observe([tap(700, 70, origin="boot/2")], START)
    reading = only(ledger)
    assert (reading.received, reading.sent, reading.resets) == (1200, 120, 1)


def test_counters_that_went_back_are_a_reset() -> None:
    ledger = begun()
    ledger.observe([tap(500, 50)], START)
    ledger.observe([tap(500, 20)], START)
    reading = only(ledger)
    assert (reading.received, reading.sent, reading.resets) == (1000, 70, 1)


def test_a_tap_that_changes_hands_counts_for_the_new_one_from_there_on() -> None:
    ledger = begun()
    ledger.observe([tap(500, 50)], START)
    ledger.observe([tap(700, 70, vm_id=MACHINES[1])], START)
    assert totals(ledger.result()) == {MACHINES[0]: (500, 50), MACHINES[1]: (200, 20)}


def test_a_second_nic_is_no_reset() -> None:
    ledger = begun()
    ledger.observe([tap(500, 50)], START)
    ledger.observe([tap(600, 60), tap(7, 8, device="tap2", origin="boot/2")], START)
    reading = only(ledger)
    assert (reading.received, reading.sent, reading.resets, reading.samples) == (607, 68, 0, 2)


def test_a_new_ledger_does_not_count_what_an_earlier_one_may_have_counted() -> None:
    first, second = begun(tap(10**12, 10**12)), begun()
    assert totals(first.result()) == {MACHINES[0]: (0, 0)}
    assert first.result().ledger_id != second.result().ledger_id


def test_a_difference_over_the_end_of_a_month_belongs_to_the_month_it_began_in() -> None:
    ledger = begun()
    ledger.observe([tap(100, 1)], START)
    ledger.observe([tap(300, 3)], START + timedelta(hours=2))
    ledger.observe([tap(1000, 9)], START + timedelta(hours=3))
    by_month = {reading.period: (reading.received, reading.sent) for reading in ledger.result().readings}
    assert by_month == {"2026-01": (300, 3), "2026-02": (700, 6)}


def test_a_look_at_one_tap_moves_nothing_of_another_into_the_next_month() -> None:
    ledger = begun(tap(0, 0), tap(0, 0, device="tap2", vm_id=MACHINES[1]))
    ledger.observe([tap(5, 5)], START + timedelta(hours=2))
    ledger.observe([tap(100, 100, device="tap2", vm_id=MACHINES[1])], START + timedelta(hours=2))
    assert {reading.period for reading in ledger.result().readings} == {"2026-01"}


def test_a_ledger_is_taken_up_where_it_was_put_down() -> None:
    ledger = begun()
    ledger.observe([tap(100, 10)], START)
    again = Ledger(ledger.text())
    again.observe([tap(150, 15)], START)
    assert again.result().ledger_id == ledger.result().ledger_id
    assert totals(again.result()) == {MACHINES[0]: (150, 15)}


def test_this_month_and_two_earlier_ones_are_kept_of_machines_that_have_gone_too() -> None:
    ledger = begun(at=datetime(2026, 1, 1, tzinfo=UTC))
    ledger.observe([tap(1, 1, vm_id=MACHINES[1], device="tap2")], datetime(2026, 1, 1, tzinfo=UTC))
    for month in range(1, 7):
        for day in (2, 3):
            ledger.observe([tap(month * 100, 0)], datetime(2026, month, day, tzinfo=UTC))
        kept = {reading.period for reading in ledger.result().readings if reading.vm_id == MACHINES[0]}
        assert kept == {f"2026-{number:02}" for number in range(max(1, month - 2), month + 1)}
        assert (MACHINES[1] in totals(ledger.result())) == (month <= 3)


def test_a_clock_that_jumps_ahead_for_a_while_costs_no_month() -> None:
    ledger = begun()
    for at, received in ((START, 10), (START.replace(year=2031), 20), (START, 30)):
        ledger.observe([tap(received, 0)], at)
    assert totals(ledger.result()) == {MACHINES[0]: (30, 0)}


def test_of_more_machines_than_an_answer_holds_those_that_changed_last_are_told() -> None:
    """Ten thousands that came and went in a month; one was there from the beginning and still is."""
    lasting, gone = UUID(int=1), [UUID(int=2**100 + number) for number in range(READINGS_TOLD + 5000)]
    ledger = begun(tap(0, 0, vm_id=lasting))
    ledger.observe([tap(0, 0, device=f"tap{each.int}", vm_id=each) for each in gone], START)
    last = START + timedelta(seconds=1)
    ledger.observe([tap(10**12, 10**12, vm_id=lasting)], last)
    told = ledger.result()
    assert len(told.readings) == READINGS_TOLD
    assert totals(told)[lasting] == (10**12, 10**12)
    assert len(told.model_dump_json()) < MAX_FRAME_BYTES * 3 // 4


@pytest.mark.parametrize("text", [b"", b"{", b'{"ledger_id": 3}', b"\xff"])
def test_what_is_no_ledger_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        Ledger(text)


class _Truth(RuleBasedStateMachine):
    """Machines with one NIC each; what passes is known, what the ledger says of it must not be more."""

    texts = Bundle("texts")

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.boot, self.index = 1, 0
        self.counters: dict[UUID, tuple[str, int, int]] = {}
        self.true: dict[UUID, tuple[int, int]] = dict.fromkeys(MACHINES, (0, 0))
        self.lost: set[UUID] = set()
        self.unread: set[UUID] = set()
        self.ledger = Ledger()

    @initialize(target=texts)
    def first_look(self) -> bytes:
        self.ledger.observe([], self.now)
        return self.ledger.text()

    @rule(vm_id=st.sampled_from(MACHINES), received=BYTES, sent=BYTES)
    def traffic_passes(self, vm_id: UUID, received: int, sent: int) -> None:
        if vm_id not in self.counters:
            self._make_tap(vm_id)
        origin, got, gave = self.counters[vm_id]
        self.counters[vm_id] = origin, got + received, gave + sent
        total = self.true[vm_id]
        self.true[vm_id] = total[0] + received, total[1] + sent
        self.unread.add(vm_id)

    @rule(target=texts, vm_ids=st.sets(st.sampled_from(MACHINES)))
    def counters_are_read(self, vm_ids: set[UUID]) -> bytes:
        self.ledger.observe([self._reading(vm_id) for vm_id in self.counters if vm_id in vm_ids], self.now)
        self.unread -= vm_ids
        return self.ledger.text()

    @rule(vm_id=st.sampled_from(MACHINES))
    def a_tap_goes(self, vm_id: UUID) -> None:
        self.counters.pop(vm_id, None)
        self.lost |= self.unread & {vm_id}

    @rule(before=st.booleans())
    def the_host_restarts(self, before: bool) -> None:
        self.boot += 1
        self.index = 0 if before else self.index
        self.lost |= self.unread
        self.counters.clear()

    @rule(text=consumes(texts))
    def the_agent_ends_and_takes_up_an_earlier_state(self, text: bytes) -> None:
        self.ledger = Ledger(text)
        self.lost |= set(MACHINES)

    @rule(seconds=st.integers(min_value=-(10**7), max_value=10**7))
    def the_clock_jumps(self, seconds: int) -> None:
        self.now = max(
            START - timedelta(days=20), min(START + timedelta(days=40), self.now + timedelta(seconds=seconds))
        )

    @invariant()
    def nothing_reads_high(self) -> None:
        for vm_id, (received, sent) in totals(self.ledger.result()).items():
            assert received <= self.true[vm_id][0]
            assert sent <= self.true[vm_id][1]

    @invariant()
    def nothing_is_missing_that_was_read_in_time(self) -> None:
        read = totals(self.ledger.result())
        for vm_id in set(MACHINES) - self.lost - self.unread:
            assert read.get(vm_id, (0, 0)) == self.true[vm_id]

    def _make_tap(self, vm_id: UUID) -> None:
        self.index += 1
        self.counters[vm_id] = f"boot-{self.boot}/{self.index}", 0, 0

    def _reading(self, vm_id: UUID) -> TapReading:
        origin, received, sent = self.counters[vm_id]
        return TapReading(device=f"tap{vm_id.int}", vm_id=vm_id, origin=origin, received=received, sent=sent)


TestTruth = _Truth.TestCase
TestTruth.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def test_what_was_told_never_shrinks_when_the_agent_goes_on_from_what_it_wrote() -> None:
    told: dict[UUID, tuple[int, int]] = {}
    ledger, vm_id = begun(), uuid4()
    counter = 0
    for step in range(50):
        counter += step * 7
        ledger.observe([tap(counter, counter, vm_id=vm_id, origin=f"boot/{step // 9}")], START + timedelta(days=step))
        if step % 9 == 8:
            counter = 0
        now = totals(ledger.result())
        if step < 20:  # before the first month is forgotten
            assert all(now[key] >= value for key, value in told.items())
        told = now
        ledger = Ledger(ledger.text())
