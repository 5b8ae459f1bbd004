"""The records of second factors, and the verification of codes.

Invariants: the secret is sealed and recovery codes are stored as keyed hashes, so a dump of the database gives no
access; a factor is in force only once a first code of it was confirmed; a code works once: no time step of an
authenticator is accepted twice, and the row of a used recovery code is deleted; the same rows are read for every code,
so the time of an answer reveals nothing. Callers hold the lock of the person's row, so that two concurrent requests
cannot use the same code.
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
from svc_actors.sealing import Sealer
from svc_actors.store import Queryable, Transaction
from svc_common.errors import conflict

RECOVERY_CODES: Final = 10
_RECOVERY_BYTES: Final = 10
"""80 bits: sixteen letters to type. Attempts are throttled, and a dump does not allow offline guessing."""
_GROUP: Final = 4
_PURPOSE: Final = "recovery code"


@dataclass(frozen=True)
class AcceptedCode:
    """A code that was accepted and is used up. `recovery_codes_left` is set if it was a recovery code."""

    recovery_codes_left: int | None = None


@dataclass(frozen=True)
class SecondFactorState:
    """`confirmed_at` is None if there is no confirmed second factor."""

    confirmed_at: datetime | None
    recovery_codes: int


async def state(queryable: Queryable, user_id: UUID | None) -> SecondFactorState:
    row = await queryable.fetchone(
        """
        SELECT (SELECT confirmed_at FROM second_factors WHERE user_id = $1) AS confirmed_at,
               (SELECT count(*) FROM recovery_codes WHERE user_id = $1) AS recovery_codes
        """,
        user_id,
    )
    return SecondFactorState(**dict(row))


async def enrol(tx: Transaction, sealer: Sealer, user_id: UUID) -> bytes:
    """Start setting up a second factor, replacing an unconfirmed one; returns the secret. Raises `conflict` if there is
    a confirmed one."""
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
    """Confirm the second factor that is being set up. Returns its recovery codes, or None for a wrong code."""
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


async def use(tx: Transaction, sealer: Sealer, user_id: UUID, code: str) -> AcceptedCode | None:
    """Use up a code of the authenticator or a recovery code; None for one that is wrong or was used before."""
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
        return AcceptedCode((await state(tx, user_id)).recovery_codes)
    return AcceptedCode() if step is not None else None


async def new_recovery_codes(tx: Transaction, sealer: Sealer, user_id: UUID) -> list[str]:
    """Ten codes, which replace the previous ones."""
    codes = [base64.b32encode(secrets.token_bytes(_RECOVERY_BYTES)).decode().lower() for _ in range(RECOVERY_CODES)]
    await tx.execute("DELETE FROM recovery_codes WHERE user_id = $1", user_id)
    await tx.execute(
        "INSERT INTO recovery_codes (user_id, mark) SELECT $1, unnest($2::bytea[])",
        user_id,
        [sealer.mark(code.encode(), _PURPOSE) for code in codes],
    )
    return ["-".join(code[at : at + _GROUP] for at in range(0, len(code), _GROUP)) for code in codes]


async def remove(tx: Transaction, user_id: UUID) -> bool:
    """Remove the person's second factor. Returns whether it was a confirmed one."""
    row = await tx.fetchrow("DELETE FROM second_factors WHERE user_id = $1 RETURNING confirmed_at", user_id)
    return row is not None and row["confirmed_at"] is not None


async def end_sessions_without(tx: Transaction) -> None:
    """End the sessions of administrators without a second factor: they set one up when they sign in again."""
    rows = await tx.fetch(
        """
        SELECT u.id FROM users AS u LEFT JOIN second_factors AS f ON f.user_id = u.id
        WHERE u.role = 'administrator' AND f.confirmed_at IS NULL ORDER BY u.id
        """
    )
    for row in rows:
        await sessions.end_all(tx, row["id"])


def _sealed_for(user_id: UUID) -> str:
    """The purpose for which a secret is sealed. It names the person, so a sealed secret that is copied to another
    person's row cannot be unsealed."""
    return f"second factor of {user_id}"


def _plain(code: str) -> str:
    """The code as it is compared: without the spaces and hyphens that people type, and in one case."""
    return "".join(sign for sign in code.lower() if sign.isalnum())
