"""Passwords of people: argon2id (RFC 9106; 19 MiB, two passes) in separate threads, so that it blocks nothing else.

Invariants: a sign-in of an unknown person computes the same hash as that of a known one; at most `parallel` hashes are
computed at once, and the queue for them is bounded.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError

from svc_common.errors import unavailable, wrong_field

MIN_LENGTH, MAX_LENGTH = 12, 128
_CLASSES = (string.ascii_lowercase, string.ascii_uppercase, string.digits, string.punctuation)
_CLASSES_NEEDED = 3
_SHORTEST_NAME = 3
_MAX_WAITING = 1000
_HASHER = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1)


class Passwords:
    """`hashed` counts the computed hashes: for metrics, and for tests that unknown and known people cost the same."""

    def __init__(self, *, parallel: int = 2, hasher: PasswordHasher = _HASHER) -> None:
        self._hasher = hasher
        self._threads = trio.CapacityLimiter(parallel)
        self._turns = trio.Semaphore(parallel)
        self._nobody = self._hasher.hash(secrets.token_urlsafe(16))
        self.hashed = 0

    async def hash(self, password: str) -> str:
        """The encoded hash to store."""
        self.hashed += 1
        return await trio.to_thread.run_sync(self._hasher.hash, password, limiter=self._threads)

    async def verify(self, stored: str | None, password: str) -> bool:
        """Whether the password matches the hash `stored`. If nothing is stored, the result is False, at the same
        cost."""
        self.hashed += 1
        matches = await trio.to_thread.run_sync(
            self._matches, stored or self._nobody, password[: MAX_LENGTH + 1], limiter=self._threads
        )
        return matches and stored is not None

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a slot to verify a password. Raises `unavailable` if too many already wait."""
        if self._turns.statistics().tasks_waiting >= _MAX_WAITING:
            raise unavailable(
                "Too many people are signing in at once.",
                hint="Try again in a few seconds.",
                details={"retry_after": 5},
            )
        async with self._turns:
            yield

    def _matches(self, stored: str, password: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerifyMismatchError, InvalidHashError):
            return False


def check_password(password: str, names: Iterable[str] = (), *, field: str = "password") -> None:
    """Raise `invalid`, about the request's `field`, unless the password follows the policy (specification, Password
    rule): 12 to 128 characters, three of four classes, printable ASCII without spaces, and none of the account's
    `names` in it."""
    problem = _problem(password, names)
    if problem is not None:
        raise wrong_field(field, problem)


def _problem(password: str, names: Iterable[str]) -> str | None:
    if not MIN_LENGTH <= len(password) <= MAX_LENGTH:
        return f"must have {MIN_LENGTH} to {MAX_LENGTH} characters"
    if any(not "!" <= character <= "~" for character in password):
        return "must be printable ASCII without spaces"
    if sum(any(character in kind for character in password) for kind in _CLASSES) < _CLASSES_NEEDED:
        return "must mix at least three of lowercase, uppercase, digits and symbols"
    lowered = password.lower()
    if any(len(name) >= _SHORTEST_NAME and name.lower() in lowered for name in names):
        return "must not contain the account's name"
    return None
