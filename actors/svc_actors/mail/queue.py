"""The queue of mail: the only writer of `mails`.

Invariants:
- a mail is written in the transaction of the change it reports: neither exists without the other;
- an attempt is counted, and the next one scheduled, before it is made: after a crash in the middle of one it is tried
  again with the same Message-ID, and a process that cannot write sends nothing;
- a mail's content is sealed, and removed as soon as it was sent; so is a mail whose link has expired;
- the queue is bounded: writing to a full queue raises `unavailable`.

Why: docs/decisions/0014-mail.md.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final
from uuid import UUID, uuid4

from svc_actors.mail.delivery import NOW, NoContentError
from svc_actors.mail.messages import addressee, compose, one_line
from svc_actors.mail.settings import MailSettings
from svc_actors.sealing import CannotUnseal, Sealer
from svc_actors.store import Database, Queryable, Transaction
from svc_actors.store.removal import remove_rows
from svc_common.errors import conflict, not_found, not_ready, unavailable

CHANNEL: Final = "mail"
MOST_QUEUED: Final = 10_000
"""About what a relay takes in an hour. Concurrent writers do not see each other, so a few more may be queued."""
FIRST_PAUSE, LONGEST_PAUSE = 30, 1800
"""Seconds between the attempts of one mail. RFC 5321 (4.5.4.1) asks for half an hour at a recipient's server."""
TRIED_AGAIN_FOR: Final = timedelta(days=1)


class MailKind(StrEnum):
    """A release knows only its own kinds: after a rollback, rows of a newer kind would break `svc mail list`."""

    TEST = "test"
    INVITATION = "invitation"
    MEMBER_INVITATION = "member_invitation"
    PASSWORD_RESET = "password_reset"  # noqa: S105 - the name of a kind
    SIGN_IN = "sign_in"
    SECOND_FACTOR = "second_factor"
    ALERTS = "alerts"
    CERTIFICATE = "certificate"


class MailState(StrEnum):
    QUEUED = "queued"
    SENT = "sent"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class NewMail:
    """`lasts` is how long delivery is tried; a `perishable` mail is useless afterwards, as its link has expired."""

    kind: MailKind
    recipient: str
    subject: str
    text: str
    lasts: timedelta
    perishable: bool = False
    user_id: UUID | None = None


@dataclass(frozen=True)
class ClaimedMail:
    """A mail for one attempt."""

    id: UUID
    recipient: str
    sealed: bytes
    sender: None = None


class Outbox:
    """Writes mail into the queue. Without settings the service sends none."""

    def __init__(self, sealer: Sealer, settings: MailSettings | None, own_url: str) -> None:
        self._sealer = sealer
        self._settings = settings
        self.base_url = settings.base_url if settings is not None and settings.base_url else own_url

    @property
    def configured(self) -> bool:
        return self._settings is not None

    async def admit(self, queryable: Queryable) -> None:
        """Raise `not_ready` if the service sends no mail, and `unavailable` if the queue is full."""
        self._required()
        waiting = await queryable.fetchval(
            "SELECT count(*) FROM (SELECT FROM mails WHERE state = 'queued' LIMIT $1) AS waiting", MOST_QUEUED
        )
        if waiting >= MOST_QUEUED:
            raise unavailable(
                f"{MOST_QUEUED} mails are queued; the limit is reached.",
                hint="An administrator sees with `svc mail list` why.",
                details={"retry_after": 60},
            )

    async def write(self, tx: Transaction, mail: NewMail) -> UUID:
        """Queue a mail if and when `tx` commits. Raises what `admit` does, and `invalid` if the recipient is not an
        address."""
        settings = self._required()
        await self.admit(tx)
        mail_id = uuid4()
        message_id = f"<{mail_id.hex}@{settings.sender.domain}>"
        content = compose(settings.sender, addressee(mail.recipient), mail.subject, mail.text, message_id)
        await tx.execute(
            """
            INSERT INTO mails (id, message_id, kind, user_id, recipient, subject, content, perishable, deadline_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now() + $9::interval)
            """,
            mail_id,
            message_id,
            mail.kind.value,
            mail.user_id,
            mail.recipient,
            one_line(mail.subject),
            self._sealer.seal(content, _purpose(mail_id)),
            mail.perishable,
            mail.lasts,
        )
        tx.announce(CHANNEL, NOW if mail.kind is MailKind.TEST else "")
        return mail_id

    def content(self, mail: ClaimedMail) -> bytes:
        return self._sealer.unseal(mail.sealed, _purpose(mail.id))

    def _required(self) -> MailSettings:
        if self._settings is None:
            raise not_ready(
                "This service sends no mail.", hint="Configure it in the table [mail] of the settings (docs/mail.md)."
            )
        return self._settings


def _purpose(mail_id: UUID) -> str:
    return f"mail:{mail_id}"


class QueuedMails:
    """The queue as its delivery sees it."""

    name = "mails"
    channel = CHANNEL

    def __init__(self, database: Database, outbox: Outbox) -> None:
        self._database = database
        self._outbox = outbox

    async def due(self, most: int) -> list[UUID]:
        """The longest due first."""
        rows = await self._database.fetch(
            "SELECT id FROM mails WHERE state = 'queued' AND attempt_at <= now() ORDER BY attempt_at LIMIT $1", most
        )
        return [row["id"] for row in rows]

    async def seconds_to_next(self) -> float | None:
        """Seconds until the next mail is due or reaches its deadline; None if none waits."""
        seconds: float | None = await self._database.fetchval(
            "SELECT extract(epoch FROM min(least(attempt_at, deadline_at)) - now())::float8 FROM mails"
            " WHERE state = 'queued'"
        )
        return seconds

    async def claim(self, mail_id: UUID) -> ClaimedMail | None:
        row = await self._database.fetchrow(
            """
            UPDATE mails
            SET attempts = attempts + 1,
                attempt_at = now() + make_interval(secs => least($2 * power(2, least(attempts, 20)), $3))
            WHERE id = $1 AND state = 'queued' AND attempt_at <= now() RETURNING recipient, content
            """,
            mail_id,
            float(FIRST_PAUSE),
            float(LONGEST_PAUSE),
        )
        return None if row is None else ClaimedMail(mail_id, row["recipient"], row["content"])

    async def content(self, mail: ClaimedMail) -> bytes:
        try:
            return self._outbox.content(mail)
        except CannotUnseal as error:
            raise NoContentError(str(error)) from error

    async def sent(self, mail: ClaimedMail) -> None:
        await self._database.execute(
            "UPDATE mails SET state = 'sent', content = NULL, error = NULL, ended_at = now() WHERE id = $1", mail.id
        )

    async def deferred(self, mail: ClaimedMail, reason: str) -> None:
        await self._database.execute("UPDATE mails SET error = $2 WHERE id = $1 AND state = 'queued'", mail.id, reason)

    async def rejected(self, mail: ClaimedMail, reason: str) -> None:
        await self._database.execute(
            "UPDATE mails SET state = 'failed', error = $2, ended_at = now() WHERE id = $1 AND state = 'queued'",
            mail.id,
            reason,
        )

    async def note_relay_problem(self, mails: Collection[UUID], reason: str) -> None:
        await self._database.execute(
            "UPDATE mails SET error = $2 WHERE id = ANY($1) AND state = 'queued' AND error IS DISTINCT FROM $2",
            list(mails),
            reason,
        )

    async def fail_expired(self) -> None:
        """Fail mails that have passed their deadline, and delete the content of perishable ones."""
        await self._database.execute(
            """
            UPDATE mails
            SET state = 'failed', ended_at = now(), content = CASE WHEN perishable THEN NULL ELSE content END,
                error = 'not delivered in time' || coalesce(': ' || error, '')
            WHERE state = 'queued' AND deadline_at <= now()
            """
        )
        await self._database.execute(
            "UPDATE mails SET content = NULL"
            " WHERE state = 'failed' AND perishable AND content IS NOT NULL AND deadline_at <= now()"
        )


async def retry(tx: Transaction, mail_id: UUID) -> None:
    """Try a failed or waiting mail again now. Raises `not_found`, and `conflict` for one that was sent or whose link
    has expired."""
    row = await tx.fetchrow("SELECT state, content IS NULL AS gone FROM mails WHERE id = $1 FOR UPDATE", mail_id)
    if row is None:
        raise not_found("There is no such mail.")
    if row["state"] == MailState.SENT:
        raise conflict("This mail was sent.")
    if row["gone"]:
        raise conflict("The link in this mail has expired, so the mail was removed.", hint="Request a new one.")
    await tx.execute(
        """
        UPDATE mails
        SET state = 'queued', ended_at = NULL, error = NULL, attempt_at = now(),
            deadline_at = CASE WHEN perishable THEN deadline_at ELSE greatest(deadline_at, now() + $2::interval) END
        WHERE id = $1
        """,
        mail_id,
        TRIED_AGAIN_FOR,
    )
    tx.announce(CHANNEL, NOW)


async def end_all(tx: Transaction, reason: str, *, perishable: bool = False) -> int:
    """Fail every waiting mail, or the `perishable` ones only, without delivery; returns how many."""
    return await tx.change(
        """UPDATE mails SET state = 'failed', content = NULL, error = $1, ended_at = now()
           WHERE state = 'queued' AND (perishable OR NOT $2)""",
        reason,
        perishable,
    )


async def remove_ended_mails(database: Database, keep: timedelta) -> int:
    """Remove mails that were sent or failed longer ago than `keep`; returns how many."""
    return await remove_rows(database, "mails", "ended_at < now() - $1::interval", keep)
