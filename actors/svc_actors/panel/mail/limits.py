"""How many mails a site may send, counted by recipient, and how many it has sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.store import Queryable

PER_HOUR, PER_DAY = 200, 1000
"""Unless the server's settings say otherwise: what shops and forums of a shared host need, and what a hacked script
sends in a minute."""
_TOP: Final = 3


@dataclass(frozen=True)
class MailLimits:
    """0: the site may not send at all."""

    per_hour: int
    per_day: int


@dataclass(frozen=True)
class MailCounts:
    """Mails that were accepted from a site in the last hour and day, but not before its last release."""

    hour: int
    day: int


async def limits_of(queryable: Queryable, site_id: UUID) -> MailLimits:
    """The site's limits as an administrator has set them, else those of its owner's plan, else those of the server."""
    row = await queryable.fetchone(
        """
        SELECT coalesce(own.mails_per_hour, plan.mails_per_hour,
                        (SELECT (value #>> '{}')::integer FROM settings WHERE name = 'site_mails_per_hour'), $2)
                   AS hour,
               coalesce(own.mails_per_day, plan.mails_per_day,
                        (SELECT (value #>> '{}')::integer FROM settings WHERE name = 'site_mails_per_day'), $3)
                   AS day
        FROM sites
        LEFT JOIN site_mail_settings AS own ON own.site_id = sites.id
        LEFT JOIN hosting_accounts ON hosting_accounts.user_id = sites.owner_id
        LEFT JOIN hosting_plans AS plan ON plan.id = hosting_accounts.plan_id
        WHERE sites.id = $1
        """,
        site_id,
        PER_HOUR,
        PER_DAY,
    )
    return MailLimits(row["hour"], row["day"])


async def counts_of(queryable: Queryable, site_id: UUID) -> MailCounts:
    row = await queryable.fetchone(
        """
        SELECT count(*) FILTER (WHERE accepted_at > now() - interval '1 hour') AS hour, count(*) AS day
        FROM site_mails
        WHERE site_id = $1 AND accepted_at > greatest(
            now() - interval '1 day', (SELECT counted_from FROM site_mail_settings WHERE site_id = $1))
        """,
        site_id,
    )
    return MailCounts(row["hour"], row["day"])


async def busiest_scripts(queryable: Queryable, site_id: UUID, more: Mapping[str, int]) -> list[tuple[str, int]]:
    """The programs that sent most in the last hour, with their numbers of mails. `more`: what is not accepted yet."""
    rows = await queryable.fetch(
        """
        SELECT coalesce(script, 'unknown') AS script, count(*) AS number FROM site_mails
        WHERE site_id = $1 AND accepted_at > now() - interval '1 hour'
        GROUP BY 1 ORDER BY 2 DESC LIMIT 20
        """,
        site_id,
    )
    numbers = {row["script"]: row["number"] for row in rows}
    for script, number in more.items():
        numbers[script] = numbers.get(script, 0) + number
    return sorted(numbers.items(), key=lambda item: -item[1])[:_TOP]
