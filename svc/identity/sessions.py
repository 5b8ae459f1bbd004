"""Browser sessions: how long they last, and how they start and end.

Invariants: the cookie's value is generated anew at each sign-in, and at the start and the end of a support session;
only its SHA-256 is stored. A session ends 12 hours after its last use, 7 days after its start, and with anything that
ends the person's sessions (sign-out by an administrator, suspension, a new password), including support sessions that
the person leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from svc.identity import pending_sign_ins
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, Transaction
from svc_actors.store.removal import remove_rows

IDLE = timedelta(hours=12)
ABSOLUTE = timedelta(days=7)
SUPPORT = timedelta(minutes=30)
_MAX_USER_AGENT = 300


@dataclass(frozen=True)
class NewSession:
    cookie: str
    expires_at: datetime


async def create(
    tx: Transaction,
    user_id: UUID,
    *,
    address: str | None,
    user_agent: str | None,
    replaces: UUID | None,
    lasts: timedelta = ABSOLUTE,
    not_after: datetime | None = None,
    impersonation_id: UUID | None = None,
) -> NewSession:
    """Start a session. The session that it `replaces` ends."""
    if replaces is not None:
        await end(tx, replaces)
    cookie = new_secret()
    expires_at: datetime = await tx.fetchval(
        """
        INSERT INTO sessions (token_hash, user_id, impersonation_id, address, user_agent, expires_at)
        VALUES ($1, $2, $3, $4, $5, least(now() + $6::interval, coalesce($7, 'infinity'::timestamptz)))
        RETURNING expires_at
        """,
        fingerprint(cookie),
        user_id,
        impersonation_id,
        address,
        user_agent[:_MAX_USER_AGENT] if user_agent else None,
        lasts,
        not_after,
    )
    return NewSession(cookie, expires_at)


async def end(tx: Transaction, session_id: UUID) -> None:
    """End one session, and the support session that it belongs to, if any."""
    await tx.execute(
        """
        WITH ended AS (DELETE FROM sessions WHERE id = $1 RETURNING impersonation_id)
        UPDATE impersonations SET ended_at = now()
        WHERE id = (SELECT impersonation_id FROM ended) AND ended_at IS NULL
        """,
        session_id,
    )


async def end_all(tx: Transaction, user_id: UUID) -> int:
    """End every session of a person, including support sessions in their account and support sessions that they lead,
    and their pending sign-ins. Returns how many sessions were ended."""
    await tx.execute(
        "UPDATE impersonations SET ended_at = now() WHERE $1 IN (customer_id, operator_id) AND ended_at IS NULL",
        user_id,
    )
    await pending_sign_ins.end_all(tx, user_id)
    return await tx.change(
        """
        DELETE FROM sessions
        WHERE user_id = $1 OR impersonation_id IN (SELECT id FROM impersonations WHERE operator_id = $1)
        """,
        user_id,
    )


async def end_everybodys(tx: Transaction) -> int:
    """End every session of every person; returns how many were ended."""
    await tx.execute("UPDATE impersonations SET ended_at = now() WHERE ended_at IS NULL")
    await pending_sign_ins.end_everybodys(tx)
    return await tx.change("DELETE FROM sessions")


async def remove_ended_sessions(database: Database, keep: timedelta) -> int:
    """Remove sessions that ended longer ago than `keep`; returns how many. Until then they show who was signed in."""
    return await remove_rows(database, "sessions", "expires_at < now() - $1::interval", keep)
