"""What is kept of second factors, and what a code proves.

Invariants: the secret is sealed and recovery codes are marks, so that a dump opens nothing; a factor counts once a code
of it was given; a code is good once, of an authenticator (no step is taken twice) as of paper (the row goes with it);
what is looked at does not depend on the code. Callers hold the lock of the person's row, so that of uses at once each
sees the one before.
"""

from __future__ import annotations

import base64
import secrets
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from svc.identity import sessions, totp
from svc_actors.errors import conflict
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction

RECOVERY_CODES: Final = 10
_RECOVERY_BYTES: Final = 10
"""80 bits: sixteen letters that somebody types. Tries are throttled, and no dump can be searched for them."""
_GROUP: Final = 4
_PURPOSE: Final = "recovery code"


@dataclass(frozen=True)
class Proof:
    """A code was right. `recovery_codes_left` where it was one of paper."""

    recovery_codes_left: int | None = None


@dataclass(frozen=True)
class State:
    """`confirmed_at` is None where there is none that counts."""

    confirmed_at: datetime | None
    recovery_codes: int


async def state(queryable: Queryable, user_id: UUID | None) -> State:
    row = await queryable.fetchone(
        """
        SELECT (SELECT confirmed_at FROM second_factors WHERE user_id = $1) AS confirmed_at,
               (SELECT count(*) FROM recovery_codes WHERE user_id = $1) AS recovery_codes
        """,
        user_id,
    )
    return State(**dict(row))


async def enrol(tx: Transaction, sealer: Sealer, user_id: UUID) -> bytes:
    """Begin to set one up, in place of one that was begun before; returns the secret. Raises `conflict` where there is
    one that counts."""
    secret = totp.new_secret()
    begun = await tx.fetchval(
        """
        INSERT INTO second_factors AS known (user_id, sealed_secret) VALUES ($1, $2)
        ON CONFLICT (user_id) DO UPDATE SET sealed_secret = excluded.sealed_secret, last_step = 0
        WHERE known.confirmed_at IS NULL RETURNING true
        """,
        user_id,
        sealer.seal(secret, _sealed_for(user_id)),
    )
    if not begun:
        raise conflict("There is a second factor already.", hint="Disable it first, to set up another.")
    return secret


async def confirm(tx: Transaction, sealer: Sealer, user_id: UUID, code: str) -> list[str] | None:
    """Have the one that is being set up count; returns its recovery codes, or None for a code that is not of it."""
    row = await tx.fetchrow(
        "SELECT sealed_secret FROM second_factors WHERE user_id = $1 AND confirmed_at IS NULL", user_id
    )
    if row is None:
        return None
    secret = sealer.unseal(row["sealed_secret"], _sealed_for(user_id))
    step = totp.step_of(secret, _plain(code), time.time(), after=0)
    if step is None:
        return None
    await tx.execute("UPDATE second_factors SET confirmed_at = now(), last_step = $2 WHERE user_id = $1", user_id, step)
    return await new_recovery_codes(tx, sealer, user_id)


async def use(tx: Transaction, sealer: Sealer, user_id: UUID, code: str) -> Proof | None:
    """Use up a code, of the authenticator or of paper; None for one that is wrong or was used before."""
    row = await tx.fetchrow(
        "SELECT sealed_secret, last_step FROM second_factors WHERE user_id = $1 AND confirmed_at IS NOT NULL", user_id
    )
    if row is None:
        return None
    given = _plain(code)
    secret = sealer.unseal(row["sealed_secret"], _sealed_for(user_id))
    step = totp.step_of(secret, given, time.time(), after=row["last_step"])
    await tx.execute(
        "UPDATE second_factors SET last_step = greatest(last_step, $2) WHERE user_id = $1", user_id, step or 0
    )
    from_paper = await tx.change(
        "DELETE FROM recovery_codes WHERE user_id = $1 AND mark = $2", user_id, sealer.mark(given.encode(), _PURPOSE)
    )
    if from_paper:
        return Proof((await state(tx, user_id)).recovery_codes)
    return Proof() if step is not None else None


async def new_recovery_codes(tx: Transaction, sealer: Sealer, user_id: UUID) -> list[str]:
    """Ten codes, in place of those before."""
    codes = [base64.b32encode(secrets.token_bytes(_RECOVERY_BYTES)).decode().lower() for _ in range(RECOVERY_CODES)]
    await tx.execute("DELETE FROM recovery_codes WHERE user_id = $1", user_id)
    await tx.execute(
        "INSERT INTO recovery_codes (user_id, mark) SELECT $1, unnest($2::bytea[])",
        user_id,
        [sealer.mark(code.encode(), _PURPOSE) for code in codes],
    )
    return ["-".join(code[at : at + _GROUP] for at in range(0, len(code), _GROUP)) for code in codes]


async def remove(tx: Transaction, user_id: UUID) -> bool:
    """Whether there was one that counted."""
    row = await tx.fetchrow("DELETE FROM second_factors WHERE user_id = $1 RETURNING confirmed_at", user_id)
    return row is not None and row["confirmed_at"] is not None


async def end_sessions_without(tx: Transaction) -> None:
    """End the sessions of administrators who have none: they set one up when they sign in again."""
    rows = await tx.fetch(
        """
        SELECT u.id FROM users AS u LEFT JOIN second_factors AS f ON f.user_id = u.id
        WHERE u.role = 'administrator' AND f.confirmed_at IS NULL ORDER BY u.id
        """
    )
    for row in rows:
        await sessions.end_all(tx, row["id"])


def _sealed_for(user_id: UUID) -> str:
    """Bound to the person: another's sealed secret does not open in its place."""
    return f"second factor of {user_id}"


def _plain(code: str) -> str:
    """As people type it: with blanks and hyphens, in whichever case."""
    return "".join(sign for sign in code.lower() if sign.isalnum())
