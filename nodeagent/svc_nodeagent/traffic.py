"""The ledger of traffic: the sums of a host's counters, by machine and calendar month (UTC).

A reading of a tap has the values of its counters, and `origin` identifies when they started at zero. The difference to
the previous reading is added to the machine's account. By these rules the sum is a lower bound:

- counters with another origin, or that went back, started again at zero: their value is added, and `resets` grows; what
  an earlier tap counted after its last reading is lost;
- a new ledger takes its first readings as its start and adds nothing: another ledger may have counted them;
- a difference belongs to the month in which it started, or to the present one if the clock was set back meanwhile: a
  clock that jumps moves traffic between months, and never counts it twice;
- positions and accounts are stored in one text, so whatever earlier text a ledger resumes from, traffic counted since
  is found again at the taps or lost, but not added twice.

Pure: the clock and the counters are parameters. The current month and the two before it are kept, including those of
deleted machines.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4

from pydantic import BaseModel, ConfigDict

from svc_nodeagent.protocol import TrafficReading, TrafficResult

MONTHS_KEPT = 3
READINGS_TOLD = 12_000
"""If a host has had more machines in these months, only those that changed last are reported, because an answer is one
frame. The receiver keeps the earlier values of the others."""


@dataclass(frozen=True)
class TapReading:
    """Bytes as the guest sees them. `origin` identifies the counters' start: it differs whenever they start at zero."""

    device: str
    vm_id: UUID
    origin: str
    received: int
    sent: int


class Ledger:
    def __init__(self, text: bytes | None = None) -> None:
        """Resume the ledger in `text`, or start one. Raises `ValueError` for an invalid text."""
        self._state = _State(ledger_id=uuid4()) if text is None else _State.model_validate_json(text)

    def text(self) -> bytes:
        return self._state.model_dump_json().encode()

    def result(self) -> TrafficResult:
        accounts = [
            (vm_id, period, account)
            for vm_id, months in sorted(self._state.accounts.items())
            for period, account in sorted(months.items())
        ]
        if len(accounts) > READINGS_TOLD:
            accounts = sorted(accounts, key=lambda each: each[2].last_at)[-READINGS_TOLD:]
        return TrafficResult(
            ledger_id=self._state.ledger_id,
            readings=tuple(
                TrafficReading(
                    vm_id=vm_id,
                    period=period,
                    received=account.received,
                    sent=account.sent,
                    resets=account.resets,
                    samples=account.samples,
                    first_at=account.first_at,
                    last_at=account.last_at,
                )
                for vm_id, period, account in accounts
            ),
        )

    def observe(self, readings: Iterable[TapReading], at: datetime) -> bool:
        """Add one reading of taps, all or some, taken at `at` (UTC). True if a month has started since the last."""
        state = self._state
        before, state.sampled_at = state.sampled_at, at
        seen: set[UUID] = set()
        for reading in readings:
            last = state.positions.get(reading.device)
            state.positions[reading.device] = _Position(
                vm_id=reading.vm_id, origin=reading.origin, at=at, received=reading.received, sent=reading.sent
            )
            # Without an earlier reading: a new tap was created after the ledger's last reading, so its traffic started
            # then.
            began = last.at if last is not None else before or at
            account = state.account(reading.vm_id, period_of(min(began, at)), at)
            if reading.vm_id not in seen:
                seen.add(reading.vm_id)
                account.samples += 1
                account.last_at = at
            if last is not None and last.is_continued_by(reading):
                account.received += reading.received - last.received
                account.sent += reading.sent - last.sent
            elif before is not None:
                account.resets += last is not None
                account.received += reading.received
                account.sent += reading.sent
        state.forget_old_months(period_of(at))
        return before is None or period_of(before) != period_of(at)


def period_of(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m")


class _Position(BaseModel):
    model_config = ConfigDict(extra="forbid")

    vm_id: UUID
    origin: str
    at: datetime
    received: int
    sent: int

    def is_continued_by(self, reading: TapReading) -> bool:
        counters_grew = reading.received >= self.received and reading.sent >= self.sent
        return reading.origin == self.origin and counters_grew


class _Account(BaseModel):
    model_config = ConfigDict(extra="forbid")

    first_at: datetime
    last_at: datetime
    received: int = 0
    sent: int = 0
    resets: int = 0
    samples: int = 0


class _State(BaseModel):
    """The stored ledger. `positions`: the last reading by device. It is kept as long as the machine has an account, so
    that a tap that was created again is recognised as such."""

    model_config = ConfigDict(extra="forbid")

    ledger_id: UUID
    sampled_at: datetime | None = None
    positions: dict[str, _Position] = {}
    accounts: dict[UUID, dict[str, _Account]] = {}

    def account(self, vm_id: UUID, period: str, at: datetime) -> _Account:
        months = self.accounts.setdefault(vm_id, {})
        if period not in months:
            months[period] = _Account(first_at=at, last_at=at)
        return months[period]

    def forget_old_months(self, present: str) -> None:
        """Remove months beyond the newest `MONTHS_KEPT`. They are counted, not compared with the clock, so a clock that
        jumps ahead for a while loses no data."""
        periods = sorted({period for months in self.accounts.values() for period in months})
        kept = {*periods[-MONTHS_KEPT:], present}
        if kept.issuperset(periods):
            return
        for vm_id, months in list(self.accounts.items()):
            self.accounts[vm_id] = {period: account for period, account in months.items() if period in kept}
            if not self.accounts[vm_id]:
                del self.accounts[vm_id]
        self.positions = {
            device: position for device, position in self.positions.items() if position.vm_id in self.accounts
        }
