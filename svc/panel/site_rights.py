"""What a caller may do with one site that they see.

Invariants: the answer is the registry's own: authentication, scope and support session by `authorise`, then whose the
site is, then the table of roles (`member_roles`). It is for what is shown: each operation checks for itself, behind the
lock of what it changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from svc.panel.access import IN_FORCE
from svc.panel.member_roles import MEMBER_ROLES, roles_for, whole_accounts_only
from svc.panel.realm import REALM
from svc.registry.operation import Operation
from svc.registry.principal import Principal
from svc.registry.registry import authorise
from svc_actors.errors import ServiceError
from svc_actors.panel.sites.records import SiteRow
from svc_actors.store import Queryable


@dataclass(frozen=True)
class SiteRights:
    """`everything`: the site is the caller's own, or they are an administrator. `account_roles` are their roles as a
    member of the owner's whole account, `site_roles` as one of this site alone."""

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
    if principal.sees_everything or principal.user_id == site.owner_id:
        return SiteRights(principal, everything=True, account_roles=frozenset(), site_roles=frozenset())
    rows = await queryable.fetch(
        f"SELECT member.role, member.site_id FROM {IN_FORCE} AND member.account_id = $3"
        " AND (member.site_id IS NULL OR member.site_id = $4)",
        principal.user_id,
        sorted(MEMBER_ROLES),
        site.owner_id,
        site.id,
    )
    return SiteRights(
        principal,
        everything=False,
        account_roles=frozenset(row["role"] for row in rows if row["site_id"] is None),
        site_roles=frozenset(row["role"] for row in rows if row["site_id"] is not None),
    )
