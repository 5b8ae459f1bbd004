"""The caller: a person or a token, with the role, the scopes and the support session that bound what they may do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Role(StrEnum):
    ADMINISTRATOR = "administrator"
    STAFF = "staff"
    CUSTOMER = "customer"
    MEMBER = "member"
    """Somebody who owns nothing, and works in customers' accounts."""


class Access(StrEnum):
    """The least access that the caller of an operation must have. An unknown value allows nobody."""

    PUBLIC = "public"
    SIGNED_IN = "signed_in"
    STAFF = "staff"
    ADMINISTRATOR = "administrator"


_ROLES: dict[Access, frozenset[Role]] = {
    Access.PUBLIC: frozenset(Role),
    Access.SIGNED_IN: frozenset(Role),
    Access.STAFF: frozenset({Role.STAFF, Role.ADMINISTRATOR}),
    Access.ADMINISTRATOR: frozenset({Role.ADMINISTRATOR}),
}


def roles_of(access: Access) -> frozenset[Role]:
    """The roles of signed-in callers that have this access."""
    return _ROLES[access]


@dataclass(frozen=True)
class Principal:
    """`user_id` is None for the anonymous caller of a public operation. During a support session it is the customer's,
    and `impersonator_id` is the administrator's. `scopes` includes all scopes that the token's own contain
    (`ScopePolicy.closed`); None is the full authority of the role. `local`: no account, but root of the server that the
    service runs on. `member_roles`: the roles with which a member of another account may call the running operation.
    The registry sets them; outside of an operation there are none. `whole_accounts_only`: only as a member of the whole
    account, not of one of its sites."""

    user_id: UUID | None
    email: str | None
    role: Role | None
    scopes: frozenset[str] | None
    session_id: UUID | None = None
    token_id: UUID | None = None
    impersonation_id: UUID | None = None
    impersonator_id: UUID | None = None
    impersonator_email: str | None = None
    local: bool = False
    member_roles: frozenset[str] = frozenset()
    whole_accounts_only: bool = False

    @property
    def is_known(self) -> bool:
        return self.user_id is not None or self.local

    @property
    def is_operator(self) -> bool:
        """Administrators and staff see every project and have no customer limits; a customer sees their own
        projects."""
        return self.role in (Role.ADMINISTRATOR, Role.STAFF)

    @property
    def display(self) -> str:
        """The actor's name in the audit."""
        if self.impersonator_email is not None:
            return f"{self.impersonator_email} as {self.email}"
        return self.email or "anonymous"

    def has_access(self, access: Access) -> bool:
        return access is Access.PUBLIC or self.role in roles_of(access)


ANONYMOUS = Principal(user_id=None, email=None, role=None, scopes=frozenset())
LOCAL_ADMINISTRATOR = Principal(user_id=None, email="local", role=Role.ADMINISTRATOR, scopes=None, local=True)
"""Root of the server, over the service's own socket: root could read the database as well."""
