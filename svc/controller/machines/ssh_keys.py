"""SSH public keys of people (RFC 4253, section 6.6; OpenSSH's one-line form), offered when a machine is created.

Invariant: a stored key is a well-formed line of a public key without options and newlines, so it can be written to a
machine unchanged. Only operators may have more than `MOST_KEYS`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.controller.services import Controller
from svc.identity.fields import Name
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Request, Route
from svc.registry.paging import EVERYTHING, Page, PageRequest, contains, equals, paginate
from svc.registry.principal import Access, Role
from svc.registry.scopes import Scope
from svc_actors.store import Target, Transaction, UniqueViolationError, audit
from svc_common.errors import capacity, conflict, not_found
from svc_common.public_keys import parse_public_key

operations = Operations[Controller]()

MOST_KEYS: Final = 100
"""A limit, because a key may have 16 KiB."""
_SELECT = """
SELECT k.id, k.user_id, u.email AS owner, k.name, k.public_key, k.fingerprint, k.created_at
FROM ssh_keys AS k JOIN users AS u ON u.id = k.user_id"""


class SshKey(Model):
    """`fingerprint` as ssh-keygen prints it: `SHA256:` and base64 without padding."""

    id: UUID
    user_id: UUID
    owner: str
    name: str
    public_key: str
    fingerprint: str
    created_at: datetime


class SshKeyCreateRequest(Request):
    name: Name
    public_key: Annotated[str, Field(min_length=1, max_length=16_384)]


class SshKeyRequest(Request):
    id: UUID


@operations.declare(
    "ssh_key.list",
    "The caller's SSH keys; an administrator sees everybody's",
    Route.get("/ssh-keys"),
    access=Access.SIGNED_IN,
    scope=Scope.READ,
    columns=("name", "fingerprint", "created=created_at", "id"),
)
async def list_keys(context: Context[Controller], request: PageRequest) -> Page[SshKey]:
    everything = context.principal.role is Role.ADMINISTRATOR
    rows, total = await paginate(
        context.services.database,
        select=_SELECT,
        source="ssh_keys AS k JOIN users AS u ON u.id = k.user_id",
        where=[
            EVERYTHING if everything else equals("k.user_id", context.principal.user_id),
            contains(request.q, "k.name", "k.fingerprint", "u.email"),
        ],
        sortable={"name": "k.name", "created_at": "k.created_at", "owner": "u.email"},
        default_sort="name",
        request=request,
        tie="k.id",
    )
    return Page[SshKey].of([SshKey(**dict(row)) for row in rows], total, request)


@operations.declare(
    "ssh_key.add",
    "Add an SSH public key",
    Route.post("/ssh-keys", status=201),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
    positional=("name", "public_key"),
)
async def add_key(context: Context[Controller], request: SshKeyCreateRequest) -> SshKey:
    line, fingerprint = parse_public_key(request.public_key)
    async with context.services.database.transaction() as tx:
        if not context.principal.is_operator:
            await _require_allowed(tx, context.principal.user_id)
        try:
            key_id: UUID = await tx.fetchval(
                "INSERT INTO ssh_keys (user_id, name, public_key, fingerprint) VALUES ($1, $2, $3, $4) RETURNING id",
                context.principal.user_id,
                request.name,
                line,
                fingerprint,
            )
        except UniqueViolationError:
            raise conflict("This key is here already.", details={"fingerprint": fingerprint}) from None
        await audit.record(tx, context.caller, Target("ssh_key", key_id, request.name), {"fingerprint": fingerprint})
        row = await tx.fetchone(f"{_SELECT} WHERE k.id = $1", key_id)
    return SshKey(**dict(row))


async def _require_allowed(tx: Transaction, user_id: UUID | None) -> None:
    """Raise `capacity` if the person has `MOST_KEYS` keys already. Not called for operators."""
    await tx.execute("SELECT FROM users WHERE id = $1 FOR NO KEY UPDATE", user_id)
    has = await tx.fetchval("SELECT count(*) FROM ssh_keys WHERE user_id = $1", user_id)
    if has >= MOST_KEYS:
        raise capacity(
            f"This account has {has} SSH keys; the limit is {MOST_KEYS}. No key was added.",
            hint="Remove one that is no longer used; machines made with it keep it.",
            details={"limit": MOST_KEYS},
        )


@operations.declare(
    "ssh_key.delete",
    "Remove an SSH public key; machines made with it keep it",
    Route.delete("/ssh-keys/{id}"),
    access=Access.SIGNED_IN,
    scope=Scope.WRITE,
)
async def delete_key(context: Context[Controller], request: SshKeyRequest) -> None:

    async def work(tx: Transaction) -> None:
        row = await tx.fetchrow(
            "DELETE FROM ssh_keys WHERE id = $1 AND ($2 OR user_id = $3) RETURNING name, fingerprint",
            request.id,
            context.principal.role is Role.ADMINISTRATOR,
            context.principal.user_id,
        )
        if row is None:
            raise not_found("There is no such SSH key.")
        await audit.record(
            tx, context.caller, Target("ssh_key", request.id, row["name"]), {"fingerprint": row["fingerprint"]}
        )

    await context.services.database.transact(work)
