"""Pending sign-ins: the password was right and the code is missing. A pending sign-in is no session: it only allows the
person to give the code.

Invariants: a pending sign-in leads to at most one session; it ends after `LIFETIME`, after `WRONG_CODES` wrong codes,
and whenever the person's sessions are ended; only the SHA-256 of its token is stored.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, Queryable, Transaction

LIFETIME: Final = timedelta(minutes=5)
WRONG_CODES: Final = 5
"""After so many wrong codes the sign-in starts again with the password."""


async def create(tx: Transaction, user_id: UUID) -> tuple[str, datetime]:
    """Create a pending sign-in; returns the token for the caller's next request, and its expiry."""
    token = new_secret()
    until: datetime = await tx.fetchval(
        """
        INSERT INTO pending_sign_ins (token_hash, user_id, expires_at) VALUES ($1, $2, now() + $3::interval)
        RETURNING expires_at
        """,
        fingerprint(token),
        user_id,
        LIFETIME,
    )
    return token, until


async def owner(queryable: Queryable, token: str) -> UUID | None:
    """The person whose pending sign-in this token may complete; None if it has ended."""
    user_id: UUID | None = await queryable.fetchval(
        """
        SELECT p.user_id FROM pending_sign_ins AS p JOIN users AS u ON u.id = p.user_id
        WHERE p.token_hash = $1 AND p.expires_at > now() AND p.expires_at <= now() + $2::interval
          AND u.suspended_at IS NULL
        """,
        fingerprint(token),
        LIFETIME,
    )
    return user_id


async def end(tx: Transaction, token: str) -> None:
    await tx.execute("DELETE FROM pending_sign_ins WHERE token_hash = $1", fingerprint(token))


async def count_wrong_code(tx: Transaction, token: str) -> None:
    """Count a wrong code; the last allowed one ends the sign-in."""
    wrong = await tx.fetchval(
        "UPDATE pending_sign_ins SET wrong_codes = wrong_codes + 1 WHERE token_hash = $1 RETURNING wrong_codes",
        fingerprint(token),
    )
    if wrong >= WRONG_CODES:
        await end(tx, token)


async def end_all(tx: Transaction, user_id: UUID) -> None:
    await tx.execute("DELETE FROM pending_sign_ins WHERE user_id = $1", user_id)


async def end_everybodys(tx: Transaction) -> None:
    await tx.execute("DELETE FROM pending_sign_ins")


async def forget_expired(database: Database) -> None:
    """Remove expired pending sign-ins. The composer runs this periodically."""
    await database.execute("DELETE FROM pending_sign_ins WHERE expires_at < now()")
