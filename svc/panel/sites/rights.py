"""What a caller may do with one site that they see.

The pages use this to show only the operations that a caller may use. It applies the rules of the registry: first
`authorise` (authentication, scope, support session), then the owner of the site, then the table of roles
(`member_roles`). It authorises nothing: each operation checks its caller again, after locking the rows that it changes,
and may refuse for further reasons (only administrators set limits, for example).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from svc.panel.accounts.member_roles import MEMBER_ROLES, about_sites, roles_for, whole_accounts_only
from svc.panel.realm import REALM
from svc.panel.services import Panel
from svc.panel.sites.access import IN_FORCE, SiteRequest, site_of
from svc.registry.declare import Operations
from svc.registry.operation import Context, Model, Operation, Route
from svc.registry.principal import Access, Principal
from svc.registry.registry import authorise
from svc.registry.scopes import Scope
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable
from svc_common.errors import ServiceError


@dataclass(frozen=True)
class SiteRights:
    """What a caller may do with a site. `everything`: the caller owns the site or is an operator. `account_roles` are
    the caller's roles as a member of the owner's whole account, `site_roles` those as a member of this site alone."""

    principal: Principal
    everything: bool
    account_roles: frozenset[str]
    site_roles: frozenset[str]

    def allow(self, operation: Operation[Any, Any, Any]) -> bool:
        try:
            authorise(operation, self.principal, REALM)
        except ServiceError:
            return False
        roles = self.account_roles if whole_accounts_only(operation) else self.account_roles | self.site_roles
        return self.everything or not roles.isdisjoint(roles_for(operation))


async def rights_in(queryable: Queryable, principal: Principal, site: SiteRow) -> SiteRights:
    if principal.is_operator or principal.user_id == site.owner_id:
        return SiteRights(principal, everything=True, account_roles=frozenset(), site_roles=frozenset())
    rows = await queryable.fetch(
        f"SELECT member.role, member.site_id FROM {IN_FORCE} AND member.account_id = $3"
        " AND (member.site_id IS NULL OR member.site_id = $4)",
        principal.user_id,
        sorted(MEMBER_ROLES),
        site.owner_id,
        # A member of a site may also work in its staging copy.
        site.staging_of or site.id,
    )
    return SiteRights(
        principal,
        everything=False,
        account_roles=frozenset(row["role"] for row in rows if row["site_id"] is None),
        site_roles=frozenset(row["role"] for row in rows if row["site_id"] is not None),
    )


class SiteOperations(Model):
    """The names of the operations that the caller's role, the scopes of their token and their support session allow, in
    alphabetical order."""

    operations: list[str]


def declare_rights(offered: Sequence[Operation[Panel, Any, Any]]) -> Operations[Panel]:
    """Declare the operation that lists which of the `offered` operations, and whether itself, the caller may use on a
    site."""
    operations = Operations[Panel]()

    @operations.declare(
        "site.operations",
        "The operations that the caller may use on a site",
        Route.get("/sites/{id}/operations"),
        access=Access.SIGNED_IN,
        scope=Scope.READ,
    )
    async def list_operations(context: Context[Panel], request: SiteRequest) -> SiteOperations:
        database = context.services.database
        rights = await rights_in(database, context.principal, await site_of(database, context.principal, request.id))
        about = [operation for operation in (*offered, *operations) if about_sites(operation)]
        return SiteOperations(operations=sorted(operation.name for operation in about if rights.allow(operation)))

    return operations
