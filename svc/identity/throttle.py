"""The throttle of sign-ins: each failure past a few makes the next try wait, longer each time, up to a bound.

Failures are counted for the account, for the address, and for both together, which bounds most tightly: who guesses
from one address soon waits minutes, while the account's owner elsewhere waits half a minute at most and is never
locked out. Tries made while one has to wait are not judged, and do not prolong the wait. Counts are forgotten 15
minutes after the last failure, and the account's at a sign-in.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from svc_actors.errors import rate_limited
from svc_actors.store import Database, Queryable


@dataclass(frozen=True)
class _Bound:
    """After `free` failures, waits of 1, 2, 4 ... seconds, up to `longest`."""

    free: int
    longest: float


_PAIR = _Bound(free=5, longest=300)
_ACCOUNT = _Bound(free=20, longest=30)
_ADDRESS = _Bound(free=50, longest=60)


class SignInAttempt:
    """One try to sign in as `email` from `address`."""

    def __init__(self, email: str, address: str | None) -> None:
        account = hashlib.sha256(email.encode()).hexdigest()
        self._bounds = {
            f"account:{account}": _ACCOUNT,
            f"address:{address}": _ADDRESS,
            f"pair:{account}:{address}": _PAIR,
        }
        self._of_account = (f"account:{account}", f"pair:{account}:{address}")

    async def admit(self, database: Database) -> None:
        """Raise `rate_limited`, with `details.retry_after` in seconds, while this try has to wait."""
        left = await database.fetchval(
            """
            SELECT extract(epoch FROM max(blocked_until) - now())::float8 FROM sign_in_attempts
            WHERE subject = ANY($1) AND blocked_until > now()
              -- What ends later than any wait can was written before the clock was set back.
              AND blocked_until <= now() + make_interval(secs => $2)
            """,
            list(self._bounds),
            max(bound.longest for bound in self._bounds.values()),
        )
        if left is not None:
            seconds = max(1, math.ceil(left))
            wait = "1 second" if seconds == 1 else f"{seconds} seconds"
            raise rate_limited(
                "Too many failed sign-ins.", hint=f"Try again in {wait}.", details={"retry_after": seconds}
            )

    async def failed(self, database: Database) -> None:
        bounds = list(self._bounds.values())
        await database.execute(
            """
            INSERT INTO sign_in_attempts AS known (subject, failures, blocked_until, forget_at)
            SELECT subject, 1, now(), now() + interval '15 minutes'
            FROM unnest($1::text[]) AS new (subject) ORDER BY subject
            ON CONFLICT (subject) DO UPDATE SET
                failures = CASE WHEN known.forget_at < now() THEN 1 ELSE known.failures + 1 END,
                forget_at = excluded.forget_at
            """,
            list(self._bounds),
        )
        await database.execute(
            """
            UPDATE sign_in_attempts AS known
            SET blocked_until = now() + make_interval(
                secs => least(bound.longest, power(2, least(known.failures - bound.free - 1, 20)))
            )
            FROM unnest($1::text[], $2::integer[], $3::float8[]) AS bound (subject, free, longest)
            WHERE known.subject = bound.subject AND known.failures > bound.free
            """,
            list(self._bounds),
            [bound.free for bound in bounds],
            [bound.longest for bound in bounds],
        )

    async def succeeded(self, tx: Queryable) -> None:
        await tx.execute("DELETE FROM sign_in_attempts WHERE subject = ANY($1)", list(self._of_account))


async def forget_old_failures(database: Database) -> int:
    """Remove counts past their time; returns how many. For the composer to run from time to time."""
    tag = await database.execute("DELETE FROM sign_in_attempts WHERE forget_at < now()")
    return int(tag.split()[-1])
