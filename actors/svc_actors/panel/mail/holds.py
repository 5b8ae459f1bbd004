"""Holds the mail of sites, and stores what an administrator sets for a site's mail: the only writer of
`site_mail_settings`.

A site that passes a limit is held in the transaction that finds it, with the audit row, the alert and the mail to its
owner. A hold by the hourly limit ends an hour later, when nothing that counted then counts any longer; one by the daily
limit ends when somebody releases it. From a release on the limits count anew, since the site would be held again at its
next mail otherwise.

All functions expect the site's row to be locked (`lock_site`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.alerts import close_alert, raise_alert
from svc_actors.panel.mail.limits import MailCounts, MailLimits, busiest_scripts
from svc_actors.panel.mail.queue import CHANNEL
from svc_actors.panel.sites.records import SiteRow, lock_site
from svc_actors.store import Database, Queryable, Transaction, audit
from svc_actors.store.audit import service_itself
from svc_common.errors import ErrorCode, ServiceError, conflict

HOLD_OPERATION: Final = "site.mail.hold"
RELEASE_OPERATION: Final = "site.mail.release"
LOOK_SECONDS: Final = 30.0
_HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Hold:
    """`until`: None if somebody must release it."""

    reason: str
    until: datetime | None


TellOwner = Callable[[Transaction, SiteRow, Hold], Awaitable[None]]
"""Writes the mail to the site's owner."""


@dataclass(frozen=True)
class SiteMailSettings:
    enabled: bool = True
    per_hour: int | None = None
    per_day: int | None = None
    held_at: datetime | None = None
    hold: Hold | None = None
    owner_released: datetime | None = None


async def mail_settings_of(queryable: Queryable, site_id: UUID) -> SiteMailSettings:
    row = await queryable.fetchrow("SELECT * FROM site_mail_settings WHERE site_id = $1", site_id)
    if row is None:
        return SiteMailSettings()
    return SiteMailSettings(
        enabled=row["enabled"],
        per_hour=row["mails_per_hour"],
        per_day=row["mails_per_day"],
        held_at=row["held_at"],
        hold=None if row["held_at"] is None else Hold(row["held_reason"], row["held_until"]),
        owner_released=row["owner_released"],
    )


def alert_of(site_id: UUID) -> str:
    return f"mail:{site_id}"


async def hold_for_limit(
    tx: Transaction,
    site: SiteRow,
    limits: MailLimits,
    counts: MailCounts,
    *,
    script: str | None,
    number: int,
    tell_owner: TellOwner,
) -> Hold:
    """Hold a site that would pass a limit with `number` more mails of `script`."""
    daily = counts.day + number > limits.per_day
    most, period = (limits.per_day, "day") if daily else (limits.per_hour, "hour")
    scripts = await busiest_scripts(tx, site.id, {script or "unknown": number})
    named = ", ".join(f"{name}: {sent}" for name, sent in scripts)
    reason = f"more than {most} mails in a {period}".replace("a hour", "an hour")
    reason = f"{reason}; programs that sent most in the last hour: {named}"
    until = None if daily else await tx.fetchval("SELECT now() + $1::interval", _HOUR)
    return await hold(tx, site, reason, until=until, tell_owner=tell_owner)


async def hold(
    tx: Transaction, site: SiteRow, reason: str, *, until: datetime | None = None, tell_owner: TellOwner | None = None
) -> Hold:
    """Refuse the site's mail from now on. With `tell_owner` the panel itself does it, which it records and, at most
    once a day, tells the owner."""
    row = await tx.fetchone(
        """
        INSERT INTO site_mail_settings (site_id, held_at, held_reason, held_until) VALUES ($1, now(), $2, $3)
        ON CONFLICT (site_id) DO UPDATE SET held_at = now(), held_reason = $2, held_until = $3
        RETURNING owner_told > now() - interval '1 day' AS told
        """,
        site.id,
        reason,
        until,
    )
    found = Hold(reason, until)
    message = f"The mail of {site.domain} is held: {reason}"
    await raise_alert(tx, alert_of(site.id), message, resource_kind="site", resource_id=site.id)
    if tell_owner is not None:
        await audit.record(tx, service_itself(HOLD_OPERATION), site.target, {"reason": reason})
        if not row["told"]:
            await tx.execute("UPDATE site_mail_settings SET owner_told = now() WHERE site_id = $1", site.id)
            await tell_owner(tx, site, found)
    return found


async def release(tx: Transaction, site: SiteRow, *, by_owner: bool = False) -> None:
    """Accept the site's mail again; the limits count from now. Raises `conflict` if it is not held, and for an owner
    who has released it within a day."""
    settings = await mail_settings_of(tx, site.id)
    if settings.hold is None:
        raise conflict(f"The mail of {site.domain} is not held; nothing was changed.")
    if by_owner:
        free = await tx.fetchval("SELECT $1::timestamptz > now() - interval '1 day'", settings.owner_released)
        if free:
            raise conflict(
                f"You released the mail of {site.domain} within the last day; it stays held.",
                hint="Ask the provider to release it.",
            )
    await tx.execute(
        """
        UPDATE site_mail_settings
        SET counted_from = now(), owner_released = CASE WHEN $2 THEN now() ELSE owner_released END WHERE site_id = $1
        """,
        site.id,
        by_owner,
    )
    await _end_hold(tx, site)


async def _end_hold(tx: Transaction, site: SiteRow) -> None:
    await tx.execute(
        "UPDATE site_mail_settings SET held_at = NULL, held_reason = NULL, held_until = NULL WHERE site_id = $1",
        site.id,
    )
    await close_alert(tx, alert_of(site.id))


async def set_enabled(tx: Transaction, site: SiteRow, enabled: bool) -> None:
    """Switch the site's mail on or off. While it is off, new mail is refused and queued mail waits."""
    await tx.execute(
        """INSERT INTO site_mail_settings (site_id, enabled) VALUES ($1, $2)
           ON CONFLICT (site_id) DO UPDATE SET enabled = $2""",
        site.id,
        enabled,
    )
    tx.announce(CHANNEL)


async def set_limits(tx: Transaction, site: SiteRow, per_hour: int | None, per_day: int | None) -> None:
    """Set the limits of the site; None: as the plan of its owner says."""
    await tx.execute(
        """INSERT INTO site_mail_settings (site_id, mails_per_hour, mails_per_day) VALUES ($1, $2, $3)
           ON CONFLICT (site_id) DO UPDATE SET mails_per_hour = $2, mails_per_day = $3""",
        site.id,
        per_hour,
        per_day,
    )


async def release_ended_holds(database: Database) -> None:
    """End the holds whose time is over."""
    rows = await database.fetch("SELECT site_id FROM site_mail_settings WHERE held_until <= now() ORDER BY site_id")
    for row in rows:

        async def work(tx: Transaction, site_id: UUID = row["site_id"]) -> None:
            try:
                site = await lock_site(tx, site_id)
            except ServiceError as error:
                if error.code is not ErrorCode.NOT_FOUND:
                    raise
                return
            over = await tx.fetchval("SELECT held_until <= now() FROM site_mail_settings WHERE site_id = $1", site_id)
            if over:
                # The mails of the day still count.
                await _end_hold(tx, site)
                await audit.record(tx, service_itself(RELEASE_OPERATION), site.target, {"reason": "the hour is over"})

        await database.transact(work)
