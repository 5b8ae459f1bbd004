"""Sign-ins between the password and the code: no session yet, and nothing that opens anything else.

Invariants: one is good for one session, for a few minutes and a few codes; only its SHA-256 is kept; it ends with
whatever ends the person's sessions.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, Queryable, Transaction

LASTS: Final = timedelta(minutes=5)
WRONG_CODES: Final = 5
"""Then it has ended, and the password is asked for again."""


async def begin(tx: Transaction, user_id: UUID) -> tuple[str, datetime]:
    token = new_secret()
    until: datetime = await tx.fetchval(
        """
        INSERT INTO pending_sign_ins (token_hash, user_id, expires_at) VALUES ($1, $2, now() + $3::interval)
        RETURNING expires_at
        """,
        fingerprint(token),
        user_id,
        LASTS,
    )
    return token, until


async def owner(queryable: Queryable, token: str) -> UUID | None:
    """Who may go on with it now."""
    user_id: UUID | None = await queryable.fetchval(
        """
        SELECT p.user_id FROM pending_sign_ins AS p JOIN users AS u ON u.id = p.user_id
        WHERE p.token_hash = $1 AND p.expires_at > now() AND p.expires_at <= now() + $2::interval
          AND u.suspended_at IS NULL
        """,
        fingerprint(token),
        LASTS,
    )
    return user_id


async def end(tx: Transaction, token: str) -> None:
    await tx.execute("DELETE FROM pending_sign_ins WHERE token_hash = $1", fingerprint(token))


async def count_wrong_code(tx: Transaction, token: str) -> None:
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
    """For the composer to run from time to time."""
    await database.execute("DELETE FROM pending_sign_ins WHERE expires_at < now()")
