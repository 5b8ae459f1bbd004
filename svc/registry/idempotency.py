"""Idempotency keys: however often an order is sent, and however concurrently, its work is done once and its answer is
the same.

Invariants:

- a key belongs to the calling token, to the person of a session, or to root of the server. It is claimed in a
  transaction of its own before the work starts; the same key with another request is a conflict, and nothing happens;
- a key is freed if the work was refused or crashed, so the order can be tried again; if the work succeeded it is kept,
  with the answer sealed, for 24 hours;
- a claim is a lease, renewed by the process that does the work. If that process dies, the lease expires and the next
  caller takes over the claim. The work itself then has to find what was already created, by a unique column of that
  resource;
- a key whose order the database has lost (`svc_actors.store.marks`) is refused for as long as the key would have been
  kept.

The claim is a transaction of its own because the work of an order consists of several transactions and waits for
actors. A claim within one of them would be invisible to concurrent callers until that transaction commits, and would
block them by the lock of its row.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
import trio
from pydantic import TypeAdapter
from pydantic_core import to_json

from svc.registry.operation import Context, Model, Services
from svc.registry.principal import Principal
from svc_actors.store import Database, Transaction
from svc_actors.store.marks import LOST, REFUSE_KEYS
from svc_common.errors import ServiceError, conflict, unauthenticated, unavailable

T = TypeVar("T")

KEY_FIELD = "idempotency_key"
LEASE = 15.0  # Seconds, like all of these. A lease is renewed after a third of it, so one renewal may fail.
PATIENCE = 120.0
_CLOCK_MARGIN = 60.0  # A lease that ends more than LEASE plus this in the future is ignored; see `claim`.
_FIRST_POLL, _SLOWEST_POLL = 0.02, 0.5
_RELEASE_DEADLINE = 5.0

log: structlog.stdlib.BoundLogger = structlog.get_logger("svc.registry")


async def run_idempotent(
    context: Context[Any], *, key: str | None, request: Model, run: Callable[[], Awaitable[T]]
) -> tuple[T, bool]:
    """The answer of `run`, and whether it is the stored answer of an earlier call. Without a key, `run` is called and
    nothing is stored.

    Raises `conflict` if the key was used for a different request, `unavailable` if an earlier caller with this key is
    still at work after two minutes, and what `run` raises.
    """
    if key is None:
        return await run(), False
    answers: TypeAdapter[T] = TypeAdapter(context.response)
    order = _Order(context, key, request)
    deadline = trio.current_time() + PATIENCE
    pause = _FIRST_POLL
    # Each round tries to claim the key first: since the last round the earlier caller may have been refused (then its
    # row is gone) or have died (then its lease has run out), and this caller does the work.
    while not await order.claim():
        sealed = await order.earlier_answer()
        if sealed is not None:
            return answers.validate_json(order.unseal(sealed)), True
        if trio.current_time() >= deadline:
            raise unavailable(
                "An earlier call with this idempotency key is still running.",
                hint="Repeat the call with the same key, or look at the tasks.",
            )
        await trio.sleep(pause)
        pause = min(pause * 2, _SLOWEST_POLL)
    # Noted before the work: if the database loses this order, its key must be known outside the database.
    order.note()
    answer = await _do(order, run)
    # The work is done, so its answer is returned even if it cannot be stored. Then the lease expires, and a repeated
    # call finds what the work has created by the unique column of that resource.
    try:
        await order.keep(answers.dump_json(answer))
    except ServiceError as error:
        log.warning("idempotency.answer_not_stored", operation=order.operation, error=error.message)
    return answer, False


def key_owner(principal: Principal) -> str:
    """The owner of this caller's idempotency keys. Raises `unauthenticated` for an anonymous caller."""
    if principal.local:
        return "local"
    if principal.token_id is None and principal.user_id is None:
        raise unauthenticated("An idempotency key belongs to a token or a person: sign in first.")
    return f"token:{principal.token_id}" if principal.token_id else f"user:{principal.user_id}"


async def forget_expired(database: Database) -> int:
    """Remove the answers older than 24 hours; returns how many. The composer runs this periodically."""
    return await database.change(
        "DELETE FROM idempotency_keys WHERE created_at < now() - interval '24 hours' AND leased_until < now()"
    )


async def refuse_lost(tx: Transaction, keys: Sequence[tuple[str, str]]) -> None:
    """Refuse these keys, each with its owner, for 24 hours, except keys with a stored answer. The database has lost
    what was done under these keys, so a repeated call would do the work twice."""
    await tx.execute(REFUSE_KEYS, [owner for owner, _ in keys], [key for _, key in keys])


async def _do(order: _Order, run: Callable[[], Awaitable[T]]) -> T:
    """Do the work while renewing the lease. If the work does not succeed, the claim is released."""
    succeeded = False
    refusal: ServiceError | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(order.renew_for_ever)
            try:
                answer = await run()
                succeeded = True
            except ServiceError as error:
                # Raised only after the nursery has ended, since the nursery would wrap it in an exception group.
                refusal = error
                # After a refusal nothing was done, so the key is forgotten. If the answer to a COMMIT was lost, the
                # order may have been done: then the key stays noted, and is refused if the database turns out to have
                # lost the order.
                if (error.details or {}).get("outcome") != "unknown":
                    order.forget()
            nursery.cancel_scope.cancel()
    finally:
        # Also after a crash or a cancellation: if the key stayed claimed, the caller's retry would have to wait until
        # the lease ends.
        if not succeeded:
            with trio.CancelScope(shield=True, relative_deadline=_RELEASE_DEADLINE):
                await order.release()
    if refusal is not None:
        raise refusal
    return answer


class _Order:
    """One call: an owner's key, the request it stands for, and this caller's claim on it."""

    def __init__(self, context: Context[Any], key: str, request: Model) -> None:
        services: Services = context.services
        self._database = services.database
        self._sealer = services.sealer
        self._owner = key_owner(context.principal)
        self._key = key
        self._claim = uuid.uuid4()
        self.operation = context.caller.operation
        body = request.model_dump(mode="json", exclude={KEY_FIELD})
        # A keyed hash, because an order may contain a chosen password, which could be guessed from a plain hash.
        self._fingerprint = self._sealer.mark(to_json(_ordered(body)), f"order:{self.operation}")

    def note(self) -> None:
        """Record the key outside the database, before anything is done under it."""
        if self._database.marks is not None:
            self._database.marks.note_key((self._owner, self._key))

    def forget(self) -> None:
        """Remove the record that `note` wrote, since the order was refused."""
        if self._database.marks is not None:
            self._database.marks.forget_key((self._owner, self._key))

    async def claim(self) -> bool:
        """Claim the key if it is new, if its 24 hours are over, or if it is of the same request, has no answer and its
        lease has expired. This is one statement, so only one of several callers succeeds."""
        claimed = await self._database.fetchval(
            """
            INSERT INTO idempotency_keys AS held (owner, key, operation, fingerprint, claim, leased_until)
            VALUES ($1, $2, $3, $4, $5, now() + make_interval(secs => $6))
            ON CONFLICT (owner, key) DO UPDATE
            SET operation = excluded.operation, fingerprint = excluded.fingerprint, claim = excluded.claim,
                leased_until = excluded.leased_until, answer = NULL, created_at = now()
            WHERE (held.created_at < now() - interval '24 hours'
                   OR held.answer IS NULL AND held.fingerprint = excluded.fingerprint)
              -- A lease that runs far longer than a lease does was made before the clock was set back. Not merely
              -- longer: now() is when this statement started, and it may have waited for another that made the lease.
              AND held.leased_until NOT BETWEEN now() AND now() + make_interval(secs => $6 + $7)
            RETURNING claim
            """,
            self._owner,
            self._key,
            self.operation,
            self._fingerprint,
            self._claim,
            LEASE,
            _CLOCK_MARGIN,
        )
        return bool(claimed == self._claim)

    async def earlier_answer(self) -> bytes | None:
        """The sealed answer, or None while the work runs. Raises `conflict` for another request."""
        row = await self._database.fetchrow(
            "SELECT fingerprint, answer FROM idempotency_keys WHERE owner = $1 AND key = $2", self._owner, self._key
        )
        # The key was released after `claim` had failed, so the next `claim` can succeed.
        if row is None:
            return None
        if row["fingerprint"] == LOST:
            raise conflict(
                "The database has lost its latest changes, including an order with this idempotency key. It is "
                "unknown whether that order was carried out; nothing was done now.",
                hint="Check whether it was carried out, also on the hosts; then order with a new key.",
            )
        if row["fingerprint"] != self._fingerprint:
            raise conflict(
                "This idempotency key was used for a different request; nothing was done.",
                hint="Use a new key for a new order.",
            )
        answer: bytes | None = row["answer"]
        return answer

    async def keep(self, answer: bytes) -> None:
        await self._database.execute(
            "UPDATE idempotency_keys SET answer = $4 WHERE owner = $1 AND key = $2 AND claim = $3",
            self._owner,
            self._key,
            self._claim,
            self._sealer.seal(answer, self._purpose),
        )

    def unseal(self, answer: bytes) -> bytes:
        return self._sealer.unseal(answer, self._purpose)

    async def release(self) -> None:
        """Free the key. If the database fails, the key becomes free when the lease expires."""
        try:
            await self._database.execute(
                "DELETE FROM idempotency_keys WHERE owner = $1 AND key = $2 AND claim = $3",
                self._owner,
                self._key,
                self._claim,
            )
        except ServiceError as error:
            log.warning("idempotency.key_not_released", operation=self.operation, error=error.message)

    async def renew_for_ever(self) -> None:
        while True:
            await trio.sleep(LEASE / 3)
            try:
                await self._database.execute(
                    """
                    UPDATE idempotency_keys SET leased_until = now() + make_interval(secs => $4)
                    WHERE owner = $1 AND key = $2 AND claim = $3
                    """,
                    self._owner,
                    self._key,
                    self._claim,
                    LEASE,
                )
            except ServiceError as error:
                log.warning("idempotency.lease_not_renewed", operation=self.operation, error=error.message)

    @property
    def _purpose(self) -> str:
        return f"idempotency:{self._owner}:{self._key}"


def _ordered(value: Any) -> Any:
    # Objects are sorted by their keys: the same order must have the same fingerprint, however its JSON was written.
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return [_ordered(item) for item in value] if isinstance(value, list) else value
