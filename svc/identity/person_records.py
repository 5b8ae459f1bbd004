"""The records of a person, and the rules that no change of them may break.

Invariants: an email address belongs to one person; there is always an administrator who can sign in, and no
administrator removes their own role.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from svc.identity import sessions
from svc.registry.operation import Context, Model
from svc.registry.principal import Role
from svc_actors.store import Queryable, Target, Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found

_ADMINISTRATORS_LOCK = 0x5356_4144
USER_PIECES = "text_pieces(ARRAY[email, name, company, phone])"
"""The indexed expression for the search of people by a substring."""

PERSON_SELECT = """
SELECT u.id, u.name, u.email, u.role, u.phone, u.company, u.note, u.suspension_reason, u.suspended_at, u.created_at,
       u.last_sign_in_at,
       EXISTS (SELECT FROM second_factors AS f WHERE f.user_id = u.id AND f.confirmed_at IS NOT NULL) AS second_factor,
       CASE WHEN u.suspended_at IS NULL THEN 'active' ELSE 'suspended' END AS status
FROM users AS u"""


class PersonStatus(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"


class Person(Model):
    id: UUID
    name: str
    email: str
    role: Role
    phone: str
    company: str
    note: str
    status: PersonStatus
    suspension_reason: str | None
    suspended_at: datetime | None
    created_at: datetime
    last_sign_in_at: datetime | None
    second_factor: bool

    @property
    def target(self) -> Target:
        return Target("user", self.id, self.email)


async def person(queryable: Queryable, user_id: UUID) -> Person:
    row = await queryable.fetchrow(f"{PERSON_SELECT} WHERE u.id = $1", user_id)
    if row is None:
        raise not_found("There is no such person.")
    return Person(**dict(row))


async def locked(tx: Transaction, user_id: UUID) -> Person:
    """The person, locked until the transaction ends."""
    await tx.execute("SELECT FROM users WHERE id = $1 FOR UPDATE", user_id)
    return await person(tx, user_id)


async def add(
    tx: Transaction, *, email: str, name: str, role: Role, password_hash: str | None, phone: str = "", company: str = ""
) -> UUID:
    """Add a person. Raises `conflict` if the email address is in use."""
    try:
        user_id: UUID = await tx.fetchval(
            """
            INSERT INTO users (email, name, role, password_hash, phone, company)
            VALUES ($1, $2, $3, $4, $5, $6) RETURNING id
            """,
            email,
            name,
            role,
            password_hash,
            phone,
            company,
        )
    except UniqueViolationError:
        raise conflict("Another person already has this email address; nothing was changed.") from None
    return user_id


async def change(tx: Transaction, user_id: UUID, changes: Mapping[str, object]) -> Person:
    """Set the named columns. Raises `conflict` if another person has the email address."""
    if changes:
        columns = ", ".join(f"{column} = ${place}" for place, column in enumerate(changes, start=2))
        try:
            await tx.execute(f"UPDATE users SET {columns} WHERE id = $1", user_id, *changes.values())
        except UniqueViolationError:
            raise conflict("Another person already has this email address; nothing was changed.") from None
    return await person(tx, user_id)


async def suspend(tx: Transaction, user_id: UUID, reason: str) -> Person:
    """End their sessions, and refuse their password and tokens until the suspension is lifted."""
    await tx.execute(
        "UPDATE users SET suspended_at = coalesce(suspended_at, now()), suspension_reason = $2 WHERE id = $1",
        user_id,
        reason,
    )
    await sessions.end_all(tx, user_id)
    return await person(tx, user_id)


async def keep_an_administrator(tx: Transaction, context: Context[Any], target: Person) -> None:
    """Called before `target` stops being an active administrator. Raises `conflict` if `target` is the caller, or the
    last active administrator."""
    if target.role is not Role.ADMINISTRATOR:
        return
    if target.id == context.principal.user_id:
        raise conflict(
            "You cannot remove your own role of administrator; nothing was changed.", hint="Ask another administrator."
        )
    await tx.execute("SELECT pg_advisory_xact_lock($1)", _ADMINISTRATORS_LOCK)
    others = await tx.fetchval(
        "SELECT count(*) FROM users WHERE role = 'administrator' AND suspended_at IS NULL AND id <> $1", target.id
    )
    if not others:
        raise conflict("This is the last administrator who can sign in; nothing was changed.")
