"""Health in the database: the state of each check, and each change of the last 30 days.

The status in force is stored and not only kept in memory: so a core that starts continues with an incident that an
earlier core has reported, and does not report it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from svc_actors.store import Queryable, Record, Transaction

KEPT_DAYS: Final = 30
MOST_EVENTS: Final = 500
"""How many events are shown, the newest first."""


class HealthStatus(StrEnum):
    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """How bad the status is."""
        # `unknown` ranks like a warning: somebody has to look at it, but nobody has to be woken for it.
        return {HealthStatus.OK: 0, HealthStatus.CRITICAL: 2}.get(self, 1)


class CheckName(StrEnum):
    DISK = "disk"
    INODES = "inodes"
    MEMORY = "memory"
    LOAD = "load"
    SERVICES = "services"
    CERTIFICATES = "certificates"
    BACKUPS = "backups"
    REMOTES = "remotes"
    QUEUE = "queue"
    DATABASE = "database"
    DNS = "dns"
    CLOCK = "clock"
    MAIL = "mail"


@dataclass(frozen=True)
class Finding:
    """`value`: the measured number, if there is one."""

    status: HealthStatus
    message: str
    value: float | None = None


@dataclass(frozen=True)
class StatusChange:
    check: CheckName
    before: HealthStatus
    finding: Finding


async def read_statuses(queryable: Queryable) -> dict[CheckName, HealthStatus]:
    rows = await queryable.fetch("SELECT name, status FROM health_checks WHERE name = ANY($1)", list(CheckName))
    return {CheckName(row["name"]): HealthStatus(row["status"]) for row in rows}


async def read_checks(queryable: Queryable) -> list[Record]:
    # A check that only another release knows may have a row; such rows are left out here and in `read_statuses`.
    rows = await queryable.fetch("SELECT * FROM health_checks WHERE name = ANY($1)", list(CheckName))
    order = list(CheckName)
    return sorted(rows, key=lambda row: order.index(CheckName(row["name"])))


async def read_events(queryable: Queryable) -> list[Record]:
    """The newest first."""
    rows: list[Record] = await queryable.fetch(
        """SELECT at, "check", before, status, message FROM health_events
           WHERE at > now() - make_interval(days => $1) ORDER BY id DESC LIMIT $2""",
        KEPT_DAYS,
        MOST_EVENTS,
    )
    return rows


async def write_check(tx: Transaction, name: CheckName, status: HealthStatus, finding: Finding) -> None:
    """`status` is the status in force, `finding` the result of the last look."""
    # Written without a commit mark: if a crash loses a minute of these figures, the database must not count as having
    # stepped back, which would end every session.
    with tx.unmarked():
        await tx.execute(
            """INSERT INTO health_checks (name, status, message, value) VALUES ($1, $2, $3, $4)
               ON CONFLICT (name) DO UPDATE SET
                   since = CASE WHEN health_checks.status = excluded.status THEN health_checks.since ELSE now() END,
                   status = excluded.status, message = excluded.message, value = excluded.value, checked_at = now()""",
            name.value,
            status.value,
            finding.message,
            finding.value,
        )


async def write_event(tx: Transaction, change: StatusChange) -> None:
    await tx.execute(
        'INSERT INTO health_events ("check", before, status, message) VALUES ($1, $2, $3, $4)',
        change.check.value,
        change.before.value,
        change.finding.status.value,
        change.finding.message,
    )


async def forget_old_events(tx: Transaction) -> None:
    await tx.execute("DELETE FROM health_events WHERE at < now() - make_interval(days => $1)", KEPT_DAYS)
