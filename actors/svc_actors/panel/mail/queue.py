"""The queue of sites' mail: the only writer of `site_mails`, a row for each recipient.

Invariants:
- an attempt is counted, and the next one scheduled, before it is made; after a crash in the middle of one it is made
  again with the same Message-ID;
- nothing is sent for a site that is suspended, is being deleted, or whose mail is switched off;
- sites take turns: each gets `_SHARE` mails of a batch at most, so one that sends thousands delays no other.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

from svc_actors.mail.delivery import NoContentError
from svc_actors.mail.queue import FIRST_PAUSE, LONGEST_PAUSE
from svc_actors.panel.mail.spool import Spool
from svc_actors.store import Database, Queryable, Transaction
from svc_actors.store.removal import remove_rows
from svc_common.errors import conflict, not_found

CHANNEL: Final = "site_mail"
"""Announced when mail is due at once."""
LASTS: Final = timedelta(days=3)
MOST_QUEUED: Final = 5_000
MOST_QUEUED_BYTES: Final = 500 * 1024 * 1024
"""Of one site; the second in its messages, each of which is stored once for all its recipients."""
SWEEP_SECONDS: Final = 600.0
_SHARE: Final = 10
_LOOKED_UP: Final = 1000
"""Messages a query of the sweep."""

_SENDS: Final = """sites.status NOT IN ('suspended', 'deleting') AND NOT EXISTS (
    SELECT FROM site_mail_settings WHERE site_mail_settings.site_id = sites.id AND NOT enabled)"""


@dataclass(frozen=True, kw_only=True)
class NewSiteMail:
    """A message that is in the spool. `signature`: the header of a signature, with its line end."""

    message: UUID
    site_id: UUID
    sender: str
    recipients: Sequence[str]
    script: str | None
    bytes: int
    signature: str | None = None


@dataclass(frozen=True)
class ClaimedSiteMail:
    """A mail for one attempt."""

    id: UUID
    message: UUID
    sender: str
    recipient: str
    signature: str | None


async def is_accepted(queryable: Queryable, message: UUID) -> bool:
    return bool(await queryable.fetchval("SELECT EXISTS (SELECT FROM site_mails WHERE message = $1)", message))


async def queued_of(queryable: Queryable, site_id: UUID) -> tuple[int, int]:
    """How many mails of the site are queued, and the bytes of their messages."""
    row = await queryable.fetchone(
        """SELECT coalesce(sum(mails), 0)::int8 AS mails, coalesce(sum(bytes), 0)::int8 AS bytes FROM (
               SELECT count(*) AS mails, max(bytes) AS bytes FROM site_mails
               WHERE site_id = $1 AND state = 'queued' GROUP BY message) AS messages""",
        site_id,
    )
    return row["mails"], row["bytes"]


async def add(tx: Transaction, mail: NewSiteMail) -> None:
    await tx.execute(
        """
        INSERT INTO site_mails (message, site_id, sender, recipient, script, bytes, signature, deadline_at)
        SELECT $1, $2, $3, recipient, $5, $6, $7, now() + $8::interval FROM unnest($4::text[]) AS recipient
        """,
        mail.message,
        mail.site_id,
        mail.sender,
        list(mail.recipients),
        mail.script,
        mail.bytes,
        mail.signature,
        LASTS,
    )
    tx.announce(CHANNEL)


class QueuedSiteMails:
    """The queue as its delivery sees it. A message is removed with the last mail that needs it."""

    name = "site mails"
    channel = CHANNEL

    def __init__(self, database: Database, spool: Spool) -> None:
        self._database = database
        self._spool = spool

    async def due(self, most: int) -> list[UUID]:
        """Of each site the longest due ones, the sites one after the other."""
        rows = await self._database.fetch(
            f"""
            SELECT due.id FROM sites CROSS JOIN LATERAL (
                SELECT id, attempt_at, row_number() OVER (ORDER BY attempt_at, id) AS turn FROM site_mails
                WHERE site_id = sites.id AND state = 'queued' AND attempt_at <= now()
                ORDER BY attempt_at, id LIMIT $1
            ) AS due
            WHERE {_SENDS} ORDER BY due.turn, due.attempt_at LIMIT $2
            """,
            _SHARE,
            most,
        )
        return [row["id"] for row in rows]

    async def seconds_to_next(self) -> float | None:
        seconds: float | None = await self._database.fetchval(
            f"""SELECT extract(epoch FROM min(attempt_at) - now())::float8
                FROM site_mails JOIN sites ON sites.id = site_mails.site_id WHERE state = 'queued' AND {_SENDS}"""
        )
        return seconds

    async def claim(self, mail_id: UUID) -> ClaimedSiteMail | None:
        row = await self._database.fetchrow(
            f"""
            UPDATE site_mails
            SET attempts = attempts + 1,
                attempt_at = now() + make_interval(secs => least($2 * power(2, least(attempts, 20)), $3))
            FROM sites
            WHERE site_mails.id = $1 AND state = 'queued' AND attempt_at <= now() AND sites.id = site_id AND {_SENDS}
            RETURNING message, sender, recipient, signature
            """,
            mail_id,
            float(FIRST_PAUSE),
            float(LONGEST_PAUSE),
        )
        if row is None:
            return None
        return ClaimedSiteMail(mail_id, row["message"], row["sender"], row["recipient"], row["signature"])

    async def content(self, mail: ClaimedSiteMail) -> bytes:
        try:
            message = await self._spool.read(mail.message)
        except FileNotFoundError as error:
            raise NoContentError("the message is no longer in the spool of this server") from error
        return message if mail.signature is None else mail.signature.encode() + message

    async def sent(self, mail: ClaimedSiteMail) -> None:
        await self._database.execute(
            "UPDATE site_mails SET state = 'sent', error = NULL, ended_at = now() WHERE id = $1", mail.id
        )
        await self._remove_unqueued([mail.message])

    async def deferred(self, mail: ClaimedSiteMail, reason: str) -> None:
        await self._database.execute(
            "UPDATE site_mails SET error = $2 WHERE id = $1 AND state = 'queued'", mail.id, reason
        )

    async def rejected(self, mail: ClaimedSiteMail, reason: str) -> None:
        await self._database.execute(
            "UPDATE site_mails SET state = 'failed', error = $2, ended_at = now() WHERE id = $1 AND state = 'queued'",
            mail.id,
            reason,
        )
        await self._remove_unqueued([mail.message])

    async def note_relay_problem(self, mails: Collection[UUID], reason: str) -> None:
        await self._database.execute(
            "UPDATE site_mails SET error = $2 WHERE id = ANY($1) AND state = 'queued' AND error IS DISTINCT FROM $2",
            list(mails),
            reason,
        )

    async def fail_expired(self) -> None:
        rows = await self._database.fetch(
            """
            UPDATE site_mails SET state = 'failed', ended_at = now(),
                error = 'not delivered in time' || coalesce(': ' || error, '')
            WHERE id IN (SELECT id FROM site_mails WHERE state = 'queued' AND deadline_at <= now() LIMIT 1000)
              AND state = 'queued'
            RETURNING message
            """
        )
        await self._remove_unqueued({row["message"] for row in rows})

    async def sweep(self) -> None:
        """Remove messages without a queued mail: of deleted sites, of mails that were cancelled, of refused ones."""
        found = await self._spool.old_messages()
        for start in range(0, len(found), _LOOKED_UP):
            await self._remove_unqueued(found[start : start + _LOOKED_UP])

    async def _remove_unqueued(self, messages: Collection[UUID]) -> None:
        """Remove those of the messages that no queued mail needs."""
        if not messages:
            return
        rows = await self._database.fetch(
            """SELECT message FROM unnest($1::uuid[]) AS message
               WHERE NOT EXISTS (
                   SELECT FROM site_mails WHERE site_mails.message = message.message AND state = 'queued')""",
            list(messages),
        )
        await self._spool.remove([row["message"] for row in rows])


async def retry(tx: Transaction, mail_id: UUID) -> None:
    """Try a queued mail again now. Raises `not_found`, and `conflict` for one that has ended: its message is gone."""
    row = await tx.fetchrow("SELECT state FROM site_mails WHERE id = $1 FOR UPDATE", mail_id)
    if row is None:
        raise not_found("There is no such mail.")
    if row["state"] == "sent":
        raise conflict("This mail was sent.")
    if row["state"] == "failed":
        raise conflict("This mail has failed, and its message was removed.", hint="Have the site send it again.")
    await tx.execute("UPDATE site_mails SET attempt_at = now() WHERE id = $1", mail_id)
    tx.announce(CHANNEL)


async def cancel_queued(tx: Transaction, site_id: UUID, reason: str) -> int:
    """End the site's queued mails without sending them; returns how many. The sweep removes their messages."""
    return await tx.change(
        "UPDATE site_mails SET state = 'failed', error = $2, ended_at = now() WHERE site_id = $1 AND state = 'queued'",
        site_id,
        reason,
    )


async def remove_ended_site_mails(database: Database, keep: timedelta) -> int:
    """Remove mails that were sent or failed longer ago than `keep`; returns how many."""
    return await remove_rows(database, "site_mails", "ended_at < now() - $1::interval", keep)
