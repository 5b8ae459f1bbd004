"""Names that a certificate does without because the authority refused them, so that the others get theirs.

Invariants: an order has at least one name; a name that a valid certificate covers is dropped only shortly before that
certificate expires, or for the sake of a name that it does not cover; a name stays recorded until a certificate has it.

Rejected: to look names up before an order and leave out those that do not resolve. What the authority's resolvers see
may differ from what this server's resolver does, and then no order would ever show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

FIRST_PAUSE: Final = timedelta(minutes=15)
LONGEST_PAUSE: Final = timedelta(days=1)
"""Authorities limit refused names by the hour, and orders of an account by three hours."""
LONGEST_RETRY_AFTER: Final = timedelta(days=7)
"""Authorities' longest rate limits are weekly."""
PATIENT_UNTIL: Final = 6
"""The part of its lifetime that a certificate has left when names it covers are dropped from the next one: half of the
time for renewals, so that the others have the other half."""
_TRIES_BEFORE_OTHERS: Final = 2
"""Failed attempts, within some 15 minutes, before a covered name is dropped for the sake of a new one."""


@dataclass(frozen=True)
class Refusal:
    """A name that the authority refused. `reason`: why, and who can change it. `found`: what its DNS said.
    `retry_after`: the seconds that the authority asks to wait, if given."""

    name: str
    reason: str
    found: tuple[str, ...] = ()
    retry_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class LeftOut(Refusal):
    """`tries`: refusals in a row, the last one at `at`. `out`: the order under way is without it. `reported`: its owner
    was notified."""

    tries: int
    at: datetime
    out: bool = False
    reported: bool = False

    @property
    def next_try(self) -> datetime:
        """When the authority may be asked about it again."""
        pause: timedelta = min(FIRST_PAUSE * 2 ** min(self.tries - 1, 20), LONGEST_PAUSE)
        asked = timedelta(seconds=self.retry_after or 0.0)
        return self.at + max(pause, min(asked, LONGEST_RETRY_AFTER))


@dataclass(frozen=True)
class CurrentCertificate:
    """The certificate in use. `due`: it is being renewed."""

    names: frozenset[str]
    left: timedelta
    lifetime: timedelta
    due: bool


def read(stored: Mapping[str, Mapping[str, Any]]) -> list[LeftOut]:
    return [
        LeftOut(**{**each, "name": name, "found": tuple(each["found"]), "at": datetime.fromisoformat(each["at"])})
        for name, each in stored.items()
    ]


def stored(left_out: Iterable[LeftOut]) -> dict[str, dict[str, Any]]:
    return {
        each.name: {name: value for name, value in asdict(each).items() if name != "name"} | {"at": each.at.isoformat()}
        for each in left_out
    }


def all_names(left_out: Iterable[LeftOut]) -> list[LeftOut]:
    """The records of refused names before an order that tries every name: none is left out."""
    return [replace(each, out=False) for each in left_out]


def ordered(names: Sequence[str], left_out: Iterable[LeftOut]) -> list[str]:
    """The names of the order under way."""
    out = {each.name for each in left_out if each.out}
    return [name for name in names if name not in out]


def refused(left_out: Sequence[LeftOut], refusals: Iterable[Refusal], now: datetime) -> list[LeftOut]:
    """The records after the authority has refused these names as well: they are left out."""
    found = {each.name: each for each in left_out}
    for each in refusals:
        before = found.get(each.name)
        found[each.name] = LeftOut(
            name=each.name,
            reason=each.reason,
            found=each.found,
            retry_after=each.retry_after,
            tries=before.tries + 1 if before else 1,
            at=now,
            out=True,
            reported=before is not None and before.reported,
        )
    return list(found.values())


def refused_with_all(left_out: Sequence[LeftOut], refusals: Iterable[Refusal], now: datetime) -> list[LeftOut]:
    """The records if the next attempt tries every name again. They include only names that certificates already do
    without."""
    known = {each.name for each in left_out}
    return all_names(refused(left_out, [each for each in refusals if each.name in known], now))


def waits(
    current: CurrentCertificate | None,
    every_name: Iterable[str],
    names: Iterable[str],
    failures: int,
    *,
    requested: bool = False,
) -> bool:
    """Whether the current certificate is kept for now rather than replaced by one for `names`, a part of `every_name`.
    `requested`: somebody has ordered another one, or the current one is from an authority that is no longer configured.
    """
    if current is None:
        return False
    dropped, gained = (current.names & set(every_name)) - set(names), set(names) - current.names
    if not dropped or current.left <= current.lifetime / PATIENT_UNTIL:
        return False
    return not (gained or requested) or failures < _TRIES_BEFORE_OTHERS
