"""Names that the authority refused. They are left out of the order, so that a certificate for the remaining names is
issued.

Invariants: an order has at least one name; a name that the certificate in use covers is left out of the next one only
shortly before the certificate in use expires, or to get a certificate for a name that the certificate in use lacks; a
refused name stays recorded until a certificate includes it.

Rejected: to look names up before an order and leave out those that do not resolve. The authority's resolvers may see
other records than this server's resolver. A name that only the authority can resolve would then never be ordered.
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
"""A name that the certificate in use covers is dropped once a sixth of the certificate's lifetime is left. That is half
of the time for renewals; the other half remains for renewing without the name."""
_TRIES_BEFORE_OTHERS: Final = 2
"""Failed attempts, within some 15 minutes, before a covered name is dropped so that a new name gets a certificate."""


@dataclass(frozen=True)
class Refusal:
    """A name that the authority refused. `reason`: why, and who can change it. `found`: what its DNS said.
    `retry_after`: the seconds that the authority asks to wait, if given."""

    name: str
    reason: str
    found: tuple[str, ...] = ()
    retry_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class RefusedName(Refusal):
    """A name with its refusals. `tries`: how many in a row, the last one at `at`. `out`: the order under way leaves the
    name out; otherwise the order tries the name again. `reported`: the owner was notified. The field names are those of
    the stored JSON."""

    tries: int
    at: datetime
    out: bool = False
    reported: bool = False

    @property
    def next_try(self) -> datetime:
        """When the name may be ordered again."""
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


def read(stored: Mapping[str, Mapping[str, Any]]) -> list[RefusedName]:
    return [
        RefusedName(**{**each, "name": name, "found": tuple(each["found"]), "at": datetime.fromisoformat(each["at"])})
        for name, each in stored.items()
    ]


def stored(left_out: Iterable[RefusedName]) -> dict[str, dict[str, Any]]:
    return {
        each.name: {name: value for name, value in asdict(each).items() if name != "name"} | {"at": each.at.isoformat()}
        for each in left_out
    }


def all_names(left_out: Iterable[RefusedName]) -> list[RefusedName]:
    """The records of refused names before an order that tries every name: none is left out."""
    return [replace(each, out=False) for each in left_out]


def ordered(names: Sequence[str], left_out: Iterable[RefusedName]) -> list[str]:
    """The names of the order under way."""
    out = {each.name for each in left_out if each.out}
    return [name for name in names if name not in out]


def refused(left_out: Sequence[RefusedName], refusals: Iterable[Refusal], now: datetime) -> list[RefusedName]:
    """The records after the authority has refused these names as well: they are left out."""
    found = {each.name: each for each in left_out}
    for each in refusals:
        before = found.get(each.name)
        found[each.name] = RefusedName(
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


def refused_with_all(left_out: Sequence[RefusedName], refusals: Iterable[Refusal], now: datetime) -> list[RefusedName]:
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
