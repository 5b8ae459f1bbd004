"""The throttle of sign-ins: each failure beyond a few makes the next attempt wait, longer each time, up to a bound.

Failures are counted for the account, for the address, and for both together, which is the tightest: guessing from one
address soon means waits of minutes. An address is an IPv4 address or an IPv6 /64, which is what one subscriber has.
Attempts during a wait are refused unchecked and do not prolong the wait. Counts expire 15 minutes after the last
failure; a sign-in also clears the count of the account. Codes of a second factor have separate counts with tighter
limits.

Strangers must not lock the owner out. So a browser or an address from which somebody has signed in to the account
within 90 days is familiar, and is limited only by its own failures, not by those of others.

Why: docs/decisions/0009-sign-in-throttle-and-second-factors.md.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from svc_actors.admission import source_of
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Database, Queryable
from svc_common.errors import rate_limited

FAMILIAR_DAYS = 90
"""People who return after a longer time do not expect to be recognised."""


@dataclass(frozen=True)
class _Bound:
    """After `free` failures, waits of 1, 2, 4 ... seconds, up to `longest`. The count expires `forgotten` seconds after
    the last failure."""

    free: int
    longest: float
    forgotten: float = 900


@dataclass(frozen=True)
class Limits:
    """Limits that apply together. The subjects of the counts start with `kind`."""

    kind: str
    account: _Bound
    address: _Bound
    pair: _Bound
    familiar: _Bound
    """The only limit for a browser or an address that the account is known to sign in from."""


PASSWORDS = Limits(
    "",
    account=_Bound(free=20, longest=30),
    address=_Bound(free=50, longest=60),
    pair=_Bound(free=5, longest=300),
    familiar=_Bound(free=5, longest=300),
)
CODES = Limits(
    "code:",
    # An attempt at a code comes from somebody who knows the password, so the limit of the account is tight for every
    # address. A guess is right once in 333,333 times (three time steps, a million codes): at one attempt an hour, once
    # in 38 years.
    account=_Bound(free=10, longest=3600, forgotten=7200),
    address=_Bound(free=50, longest=60),
    pair=_Bound(free=5, longest=300),
    # As tight as the limit of the account: an address that several people share may be familiar because of any of them.
    familiar=_Bound(free=5, longest=3600, forgotten=7200),
)


@dataclass(frozen=True)
class Recognition:
    """How a sign-in was recognised. `browser` is the cookie for the browser to send at its next one."""

    browser: str
    new_browser: bool
    new_address: bool

    @property
    def new(self) -> str | None:
        """What was new, as text for people."""
        if self.new_browser and self.new_address:
            return "a browser and an address"
        return "a browser" if self.new_browser else "an address" if self.new_address else None


class SignInAttempt:
    """One attempt to sign in as `email` from `address`, by a browser with the cookie `browser`."""

    def __init__(self, email: str, address: str | None, browser: str | None, limits: Limits = PASSWORDS) -> None:
        self._limits = limits
        self._account = hashlib.sha256(email.encode()).hexdigest()
        self._source = source_of(address or "")
        self._browser = browser
        self._bounds: dict[str, _Bound] = {}

    async def admit(self, database: Queryable) -> None:
        """Raise `rate_limited`, with `details.retry_after` in seconds, while this attempt has to wait."""
        self._bounds = await self._bounds_of(database)
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

    async def failed(self, database: Queryable) -> None:
        """Count a failed attempt for everything that limits it, and set from when the next attempt is allowed."""
        bounds = list(self._bounds.values())
        await database.execute(
            """
            INSERT INTO sign_in_attempts AS known (subject, failures, blocked_until, forget_at)
            SELECT subject, 1, now(), now() + make_interval(secs => forgotten)
            FROM unnest($1::text[], $2::float8[]) AS new (subject, forgotten) ORDER BY subject
            ON CONFLICT (subject) DO UPDATE SET
                failures = CASE WHEN known.forget_at < now() THEN 1 ELSE known.failures + 1 END,
                forget_at = excluded.forget_at
            """,
            list(self._bounds),
            [bound.forgotten for bound in bounds],
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

    async def succeeded(self, tx: Queryable) -> Recognition:
        """Forget the account's failures, and make browser and address familiar. The browser keeps its cookie or gets a
        new one."""
        browser = self._browser or new_secret()
        marks = [f"address:{self._source}", _mark(browser)]
        await tx.execute(
            "DELETE FROM sign_in_attempts WHERE subject = ANY($1)",
            [
                kind + subject
                for kind in (PASSWORDS.kind, CODES.kind)
                for subject in (
                    f"account:{self._account}",
                    f"pair:{self._account}:{self._source}",
                    *(f"familiar:{self._account}:{mark}" for mark in marks),
                )
            ],
        )
        # The reads of this statement see the table as it was before its writes (PostgreSQL, Data-Modifying Statements
        # in WITH).
        known = await tx.fetch(
            """
            WITH seen AS (
                INSERT INTO familiar_sign_ins (account, mark) SELECT $1, mark FROM unnest($2::text[]) AS new (mark)
                ON CONFLICT (account, mark) DO UPDATE SET seen_at = now()
            )
            SELECT mark FROM familiar_sign_ins
            WHERE account = $1 AND mark = ANY($2) AND seen_at > now() - make_interval(days => $3)
            """,
            self._account,
            marks,
            FAMILIAR_DAYS,
        )
        address, of_browser = (mark in {row["mark"] for row in known} for mark in marks)
        return Recognition(browser, new_browser=not of_browser, new_address=not address)

    async def _bounds_of(self, database: Queryable) -> dict[str, _Bound]:
        marks = [f"address:{self._source}", *([_mark(self._browser)] if self._browser else [])]
        # If both the address and the browser are familiar, the browser counts, because others may share its address.
        familiar = await database.fetchval(
            """
            SELECT max(mark) FROM familiar_sign_ins
            WHERE account = $1 AND mark = ANY($2) AND seen_at > now() - make_interval(days => $3)
            """,
            self._account,
            marks,
            FAMILIAR_DAYS,
        )
        limits = self._limits
        if familiar is not None:
            return {f"{limits.kind}familiar:{self._account}:{familiar}": limits.familiar}
        return {
            f"{limits.kind}account:{self._account}": limits.account,
            f"{limits.kind}address:{self._source}": limits.address,
            f"{limits.kind}pair:{self._account}:{self._source}": limits.pair,
        }


def _mark(browser: str) -> str:
    return f"browser:{fingerprint(browser).hex()}"


async def forget_old_failures(database: Database) -> int:
    """Remove expired counts, and browsers and addresses not seen for long; returns how many counts. The composer runs
    this periodically."""
    removed = await database.change("DELETE FROM sign_in_attempts WHERE forget_at < now()")
    await database.execute(
        "DELETE FROM familiar_sign_ins WHERE seen_at < now() - make_interval(days => $1)", FAMILIAR_DAYS
    )
    return removed
