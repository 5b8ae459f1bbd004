"""Who asks: a person or a token, with the role, the scopes and the support session that bound what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Role(StrEnum):
    ADMINISTRATOR = "administrator"
    STAFF = "staff"
    CUSTOMER = "customer"


class Scope(StrEnum):
    """What a token may do. A cookie session has every scope its role allows. `ADMIN` contains the others; `WRITE`
    contains `READ`. `PROVISION` opens /provision and nothing else."""

    READ = "read"
    WRITE = "write"
    PROVISION = "provision"
    ADMIN = "admin"


class Access(StrEnum):
    """The least an operation asks of its caller. Unknown means deny."""

    PUBLIC = "public"
    SIGNED_IN = "signed_in"
    STAFF = "staff"
    ADMINISTRATOR = "administrator"


@dataclass(frozen=True)
class Principal:
    """`user_id` is None for the anonymous caller of a public operation. During a support session this is the customer,
    and `impersonator_id` the administrator behind it."""

    user_id: UUID | None
    email: str | None
    role: Role | None
    scopes: frozenset[Scope]
    session_id: UUID | None = None
    token_id: UUID | None = None
    impersonation_id: UUID | None = None
    impersonator_id: UUID | None = None

    @property
    def sees_everything(self) -> bool:
        """Administrators and staff see every project; a customer sees their own."""
        return self.role in (Role.ADMINISTRATOR, Role.STAFF)


ANONYMOUS = Principal(user_id=None, email=None, role=None, scopes=frozenset())
