"""How a node joins: a bootstrap token, valid once and for an hour, is exchanged for a node and its certificate.

Invariants:

- one token makes one node, however many requests use it at once. If the same host asks again with the same key (the
  answer was lost) it gets the same node; any other request is refused;
- one host is one node: a host that has already joined is refused under another token;
- a token is shown once and stored as its SHA-256.

Why: docs/decisions/0022-node-enrolment-and-upgrades.md.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from svc_actors.controller.gateway.authority import Authority, NodeCertificate, public_key_digest
from svc_actors.controller.nodes.records import NodeMode, announce, get_node, node_itself
from svc_actors.secrets import fingerprint, new_secret
from svc_actors.store import Caller, Database, Queryable, Record, Target, Transaction, UniqueViolationError, audit
from svc_common.errors import conflict, not_found, unauthenticated

TOKEN_PREFIX: Final = "svcnode_"  # noqa: S105 - the public start of a token
BOOTSTRAP_LIFETIME: Final = timedelta(hours=1)
DEFAULT_LOCATION: Final = "default"


@dataclass(frozen=True)
class Bootstrap:
    id: UUID
    name: str
    location_id: UUID
    mode: NodeMode
    created_at: datetime
    expires_at: datetime

    @property
    def target(self) -> Target:
        return Target("node_bootstrap", self.id, self.name)


@dataclass(frozen=True)
class EnrolledNode:
    node_id: UUID
    certificate: NodeCertificate


async def create_bootstrap(
    tx: Transaction, caller: Caller, *, name: str, location_id: UUID | None, mode: NodeMode
) -> tuple[Bootstrap, str]:
    """A bootstrap and its token. Without a location, the location named `default` is used, and created if necessary."""
    if await tx.fetchval("SELECT 1 FROM nodes WHERE name = $1 AND deleted_at IS NULL", name):
        raise conflict(f"A node is named {name} already.")
    if location_id is None:
        location_id = (
            await tx.fetchone(
                "INSERT INTO locations (name) VALUES ($1) ON CONFLICT (name) DO UPDATE SET name = excluded.name"
                " RETURNING id",
                DEFAULT_LOCATION,
            )
        )["id"]
    elif not await tx.fetchval("SELECT 1 FROM locations WHERE id = $1", location_id):
        raise not_found("There is no such location.")
    token = new_secret(TOKEN_PREFIX)
    row = await tx.fetchone(
        "INSERT INTO node_bootstraps (token_hash, name, location_id, mode, expires_at)"
        " VALUES ($1, $2, $3, $4, now() + $5) RETURNING *",
        fingerprint(token),
        name,
        location_id,
        mode.value,
        BOOTSTRAP_LIFETIME,
    )
    bootstrap = _as_bootstrap(row)
    await audit.record(tx, caller, bootstrap.target)
    return bootstrap, token


async def expire_bootstraps(tx: Transaction) -> None:
    """Expire every unused bootstrap token."""
    await tx.execute("UPDATE node_bootstraps SET expires_at = now() WHERE used_at IS NULL AND expires_at > now()")


async def pending_bootstraps(queryable: Queryable) -> list[Bootstrap]:
    rows = await queryable.fetch(
        "SELECT * FROM node_bootstraps WHERE used_at IS NULL AND expires_at > now() ORDER BY created_at, id"
    )
    return [_as_bootstrap(row) for row in rows]


async def delete_bootstrap(tx: Transaction, caller: Caller, bootstrap_id: UUID) -> None:
    """Revoke an unused bootstrap token."""
    row = await tx.fetchrow("DELETE FROM node_bootstraps WHERE id = $1 AND used_at IS NULL RETURNING *", bootstrap_id)
    if row is None:
        raise not_found("There is no pending bootstrap of this id.")
    await audit.record(tx, caller, _as_bootstrap(row).target)


async def enrol(
    database: Database,
    authority: Authority,
    *,
    token: str,
    csr: str,
    hostname: str,
    host_uuid: UUID,
    address: str | None,
) -> EnrolledNode:
    """Exchange a bootstrap token for a node. Raises unauthenticated (unknown or expired), conflict (used by another
    host, or this host has joined already) and invalid (`csr` is not a signing request)."""
    public_key = public_key_digest(csr)
    async with database.transaction() as tx:
        row = await tx.fetchrow("SELECT * FROM node_bootstraps WHERE token_hash = $1 FOR UPDATE", fingerprint(token))
        if row is None:
            raise unauthenticated("The bootstrap token is unknown.", hint="Ask for a new one: svc node add.")
        if row["used_at"] is not None:
            node_id = await _node_of_repeat(tx, row, public_key, host_uuid)
            await authority.revoke(tx, node_id)
        else:
            if await tx.fetchval("SELECT $1::timestamptz <= now()", row["expires_at"]):
                raise unauthenticated("The bootstrap token has expired.", hint="Ask for a new one: svc node add.")
            node_id = await _make_node(tx, row, host_uuid)
            await tx.execute(
                "UPDATE node_bootstraps SET used_at = now(), node_id = $2, public_key = $3 WHERE id = $1",
                row["id"],
                node_id,
                public_key,
            )
        certificate = await authority.sign_node(tx, node_id, csr)
        node = await get_node(tx, node_id)
        await announce(tx, node, "joined")
        await audit.record(
            tx,
            node_itself(node_id, node.name, "node.enrol", address=address),
            node.target,
            {"hostname": hostname, "host_uuid": str(host_uuid), "certificate": certificate.serial},
        )
    authority.forget(node_id)
    return EnrolledNode(node_id, certificate)


async def _make_node(tx: Transaction, bootstrap: Record, host_uuid: UUID) -> UUID:
    try:
        async with tx.savepoint():
            row = await tx.fetchone(
                "INSERT INTO nodes (name, location_id, mode, host_uuid) VALUES ($1, $2, $3, $4) RETURNING id",
                bootstrap["name"],
                bootstrap["location_id"],
                bootstrap["mode"],
                host_uuid,
            )
    except UniqueViolationError as taken:
        if taken.constraint_name == "nodes_host":
            raise conflict(
                "This host has joined already, as another node.", hint="Delete that node first, or keep it."
            ) from None
        raise conflict(
            f"A node is named {bootstrap['name']} already.", hint="Ask for a token with another name."
        ) from None
    node_id: UUID = row["id"]
    return node_id


async def _node_of_repeat(tx: Transaction, bootstrap: Record, public_key: bytes, host_uuid: UUID) -> UUID:
    node = await tx.fetchrow(
        "SELECT id FROM nodes WHERE id = $1 AND host_uuid = $2 AND state = 'pending' AND deleted_at IS NULL",
        bootstrap["node_id"],
        host_uuid,
    )
    if node is None or not hmac.compare_digest(bytes(bootstrap["public_key"]), public_key):
        raise conflict(
            "The bootstrap token was used already.", hint="Each node needs a token of its own: svc node add."
        )
    node_id: UUID = node["id"]
    return node_id


def _as_bootstrap(row: Record) -> Bootstrap:
    return Bootstrap(
        id=row["id"],
        name=row["name"],
        location_id=row["location_id"],
        mode=NodeMode(row["mode"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
