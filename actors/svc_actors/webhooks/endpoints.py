"""The endpoints of a service's webhooks: created, changed, given new secrets, and deleted. Each service has columns of
its own, which select the events of an endpoint, and passes the statements that write them. The statements are
constants, since a release records its statements, and migrations are tested against them (tools/statements.py).

Invariants: there are at most `MOST_ENDPOINTS`, however many are created at once. The database holds a secret only
sealed; it leaves this module when it is created, when it is rotated, and to sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid4

from svc_actors.alerts import close_alert
from svc_actors.sealing import Sealer
from svc_actors.store import Record, Transaction
from svc_actors.webhooks.outbox import CHANNEL
from svc_actors.webhooks.payload import new_webhook_secret
from svc_common.errors import ServiceError, conflict, not_found

MOST_ENDPOINTS: Final = 20
ALERTS: Final = "webhook:"
"""Prefix of the keys of alerts about endpoints."""


@dataclass(frozen=True)
class EndpointSecret:
    """An endpoint with its secret, which is shown only once."""

    id: UUID
    secret: str

    @property
    def last_four(self) -> str:
        return self.secret[-4:]

    def sealed(self, sealer: Sealer) -> bytes:
        return sealer.seal(self.secret.encode(), _purpose(self.id))


async def create(tx: Transaction, sealer: Sealer, insert: str, *values: object) -> EndpointSecret:
    """Create an endpoint by the statement `insert`, whose parameters are the id, the sealed secret, its last four
    characters, and then the `values`. Raises `conflict` if there are `MOST_ENDPOINTS`."""
    # The lock makes concurrent creations wait for each other: with a count alone, both could exceed the limit.
    await tx.execute("LOCK TABLE webhook_endpoints IN SHARE ROW EXCLUSIVE MODE")
    if await tx.fetchval("SELECT count(*) FROM webhook_endpoints") >= MOST_ENDPOINTS:
        raise conflict(
            f"There are {MOST_ENDPOINTS} webhook endpoints, which is the most.", hint="Delete one that is not needed."
        )
    endpoint = EndpointSecret(uuid4(), new_webhook_secret())
    await tx.execute(insert, endpoint.id, endpoint.sealed(sealer), endpoint.last_four, *values)
    announce(tx, endpoint.id)
    return endpoint


async def update(tx: Transaction, endpoint_id: UUID, statement: str, *values: object | None) -> None:
    """Change an endpoint by `statement`, whose parameters are the id and then the `values`; None leaves a column as it
    is. Pending deliveries go to a new URL; while the endpoint is disabled they wait. Raises `not_found`."""
    if not await tx.change(statement, endpoint_id, *values):
        raise no_such_endpoint()
    announce(tx, endpoint_id)


async def rotate(tx: Transaction, sealer: Sealer, endpoint_id: UUID) -> EndpointSecret:
    """Create a new secret, which signs every later attempt of any delivery. Raises `not_found`."""
    endpoint = EndpointSecret(endpoint_id, new_webhook_secret())
    changed = await tx.change(
        "UPDATE webhook_endpoints SET sealed_secret = $2, last_four = $3, rotated_at = now() WHERE id = $1",
        endpoint_id,
        endpoint.sealed(sealer),
        endpoint.last_four,
    )
    if not changed:
        raise no_such_endpoint()
    announce(tx, endpoint_id)
    return endpoint


async def delete(tx: Transaction, endpoint_id: UUID) -> Record:
    """Remove the endpoint with its deliveries, including pending ones. Raises `not_found`."""
    row = await tx.fetchrow("DELETE FROM webhook_endpoints WHERE id = $1 RETURNING url", endpoint_id)
    if row is None:
        raise no_such_endpoint()
    await close_alert(tx, alert_key(endpoint_id))
    announce(tx, endpoint_id)
    return row


def announce(tx: Transaction, endpoint_id: UUID) -> None:
    """Tell the endpoint's round that its URL, secret or deliveries have changed, so that it reads them again."""
    tx.announce(CHANNEL, str(endpoint_id))


def secret_of(sealer: Sealer, endpoint_id: UUID, sealed: bytes) -> str:
    """The endpoint's secret, unsealed. Raises `CannotUnseal`."""
    return sealer.unseal(sealed, _purpose(endpoint_id)).decode()


def alert_key(endpoint_id: UUID) -> str:
    return f"{ALERTS}{endpoint_id}"


def no_such_endpoint() -> ServiceError:
    return not_found("There is no such webhook endpoint.")


def _purpose(endpoint_id: UUID) -> str:
    return f"webhook:{endpoint_id}"
