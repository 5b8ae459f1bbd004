"""Endpoints: what those of every service have. A service's own columns are written by its own module, which calls this.

Invariants: there are at most `MOST_ENDPOINTS`, however many are made at once; a secret is in the database sealed only,
and leaves this module when it is made, when it is rotated, and to sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from svc_actors.errors import ServiceError, conflict, not_found
from svc_actors.sealing import Sealer
from svc_actors.store import Record, Transaction
from svc_actors.webhooks.outbox import CHANNEL
from svc_actors.webhooks.signature import new_webhook_secret

MOST_ENDPOINTS: Final = 20
ALERTS: Final = "webhook:"
"""With this the keys of alerts about endpoints begin."""


@dataclass(frozen=True)
class Issued:
    """An endpoint with its secret, which is shown this once."""

    id: UUID
    secret: str

    @property
    def last_four(self) -> str:
        return self.secret[-4:]

    def sealed(self, sealer: Sealer) -> bytes:
        return sealer.seal(self.secret.encode(), _purpose(self.id))


async def issue(tx: Transaction) -> Issued:
    """An endpoint to be inserted in this transaction. Raises `conflict` where there are as many as there may be."""
    # Whoever makes one waits for whoever is making one: a count alone would let both in.
    await tx.execute("LOCK TABLE webhook_endpoints IN SHARE ROW EXCLUSIVE MODE")
    if await tx.fetchval("SELECT count(*) FROM webhook_endpoints") >= MOST_ENDPOINTS:
        raise conflict(
            f"There are {MOST_ENDPOINTS} webhook endpoints, which is the most.", hint="Delete one that is not needed."
        )
    return Issued(uuid4(), new_webhook_secret())


async def rotate(tx: Transaction, sealer: Sealer, endpoint_id: UUID) -> Issued:
    """A new secret, with which every later attempt is signed, of whatever delivery. Raises `not_found`."""
    issued = Issued(endpoint_id, new_webhook_secret())
    changed = await tx.change(
        "UPDATE webhook_endpoints SET sealed_secret = $2, last_four = $3, rotated_at = now() WHERE id = $1",
        endpoint_id,
        issued.sealed(sealer),
        issued.last_four,
    )
    if not changed:
        raise no_such_endpoint()
    announce(tx, endpoint_id)
    return issued


async def delete(tx: Transaction, endpoint_id: UUID) -> Record:
    """Remove it with its deliveries, also those that wait. Raises `not_found`."""
    row = await tx.fetchrow("DELETE FROM webhook_endpoints WHERE id = $1 RETURNING url", endpoint_id)
    if row is None:
        raise no_such_endpoint()
    announce(tx, endpoint_id)
    return row


def announce(tx: Transaction, endpoint_id: UUID) -> None:
    """For what delivers to it: what was read of it is true no more."""
    tx.announce(CHANNEL, str(endpoint_id))


def secret_of(sealer: Sealer, endpoint_id: UUID, sealed: bytes) -> str:
    """Raises `CannotUnseal`."""
    return sealer.unseal(sealed, _purpose(endpoint_id)).decode()


def alert_key(endpoint_id: UUID) -> str:
    return f"{ALERTS}{endpoint_id}"


def no_such_endpoint() -> ServiceError:
    return not_found("There is no such webhook endpoint.")


def _purpose(endpoint_id: UUID) -> str:
    return f"webhook:{endpoint_id}"
