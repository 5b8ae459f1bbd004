"""Which sites a caller may use: their own, and those of accounts that they are a member of.

Invariants: an id that belongs to somebody else and an id that does not exist give the same error, `not_found`.
Memberships are read by the same query as the row, so a membership that has ended, or whose account is suspended, gives
access to nothing from then on. If a member may see a row but their role does not allow the operation, `visible_row`
raises `forbidden`, and lists leave the row out. The same applies to a member of a single site for an operation that
needs a membership of the whole account (`member_roles.whole_accounts_only`). A change to a site is authorised while its
row is locked (`locked_site_of`), because the owner may change between a check before the lock and the lock itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from svc.panel.accounts.member_roles import MEMBER_ROLES, beyond_role
from svc.registry.operation import Request
from svc.registry.paging import EVERYTHING, Condition, joined
from svc.registry.principal import Principal
from svc_actors.panel.sites.records import SITE_COLUMNS, SiteRow, as_site, lock_site
from svc_actors.store import Queryable, Record, Transaction
from svc_common.errors import ServiceError, not_found

IN_FORCE: Final = """account_members AS member JOIN users AS account ON account.id = member.account_id
    WHERE member.user_id = $1 AND member.role = ANY($2) AND member.accepted_at IS NOT NULL
      AND account.suspended_at IS NULL"""
"""FROM clause of the memberships in force of a person ($1) with one of the roles ($2)."""

OWN_OR_MEMBER: Final = f"""SELECT $1::uuid
    UNION ALL SELECT member.account_id FROM {IN_FORCE} AND member.site_id IS NULL"""
"""SELECT of the accounts of which a person sees all sites: their own, and those in which they are a member of the whole
account."""
_SINGLE_SITES: Final = f"""SELECT shared.id FROM sites AS shared JOIN (SELECT member.site_id FROM {IN_FORCE}
        AND member.account_id = (SELECT owner_id FROM sites AS held WHERE held.id = member.site_id)) AS let_in
    ON shared.id = let_in.site_id OR shared.staging_of = let_in.site_id"""
"""Single sites that the person is a member of, and their staging copies, except sites that have another owner by now.
"""
_ALL_ROLES: Final = frozenset(MEMBER_ROLES)


class SiteRequest(Request):
    """A read of one site; `id` is in the path."""

    id: UUID


class SiteChange(SiteRequest):
    """A change to one site. The body may name a site as well; the path's wins (the panel's specification,
    Endpoints)."""

    site_id: Annotated[UUID | None, Field(description="Ignored: the site in the path is used.")] = None


def visible_sites(principal: Principal, owner: str = "sites.owner_id", site: str = "sites.id") -> Condition:
    """An SQL condition for the sites on which the caller may use the current operation. `owner` and `site` are the
    columns of a row's owner and site."""
    return _sites_of(principal, owner, site)


def _sites_of(principal: Principal, owner: str, site: str) -> Condition:
    if principal.is_operator:
        return EVERYTHING
    args = (principal.user_id, sorted(principal.member_roles))
    if principal.whole_accounts_only:
        return Condition(f"{owner} = ANY(ARRAY({OWN_OR_MEMBER}))", args)
    # With ARRAY the subqueries are evaluated once, and the rows can be found by indexes.
    return Condition(f"{owner} = ANY(ARRAY({OWN_OR_MEMBER})) OR {site} = ANY(ARRAY({_SINGLE_SITES}))", args)


async def visible_row(
    queryable: Queryable,
    principal: Principal,
    select: str,
    where: Condition,
    absent: ServiceError,
    *,
    owner: str = "sites.owner_id",
    site: str = "sites.id",
    lock: str = "",
) -> Record:
    """The row of `select` that meets `where`, if the caller may use the current operation on its site. Raises `absent`,
    and `forbidden` for a member whose role does not allow it."""
    seeing = replace(principal, member_roles=_ALL_ROLES, whole_accounts_only=False)
    for asking in (principal, seeing):
        found = joined([where, _sites_of(asking, owner, site)])
        row = await queryable.fetchrow(f"{select} WHERE {found.sql} {lock}", *found.args)
        if row is not None and asking is seeing:
            raise beyond_role(principal.member_roles, whole_account=principal.whole_accounts_only)
        if row is not None:
            return row
    raise absent


async def accounts_open_to(
    queryable: Queryable, principal: Principal, *, whatever_role: bool = False
) -> dict[str, UUID]:
    """Other people's accounts, by their owners' email addresses, in which the caller is a member of the whole account
    and may use the current operation; with `whatever_role`, whatever their role."""
    roles = _ALL_ROLES if whatever_role else principal.member_roles
    rows = await queryable.fetch(
        f"SELECT id, email FROM users WHERE id IN ({OWN_OR_MEMBER}) AND id <> $1", principal.user_id, sorted(roles)
    )
    return {row["email"]: row["id"] for row in rows}


async def site_of(queryable: Queryable, principal: Principal, site_id: UUID, *, whole_account: bool = False) -> SiteRow:
    """The site, if the caller may use the current operation on it. `whole_account`: a membership of this site alone is
    not enough. Raises not_found, forbidden."""
    if whole_account:
        principal = replace(principal, whole_accounts_only=True)
    select = f"SELECT {SITE_COLUMNS} FROM sites"
    absent = not_found("There is no such site.")
    return as_site(await visible_row(queryable, principal, select, Condition("sites.id = $1", (site_id,)), absent))


async def locked_site_of(
    tx: Transaction, principal: Principal, site_id: UUID, *, whole_account: bool = False
) -> SiteRow:
    """As `site_of`, with the row locked until the transaction ends. Permission is checked again once the row is locked,
    since a handover of the site or the end of a membership may have committed during the wait. It is also checked
    before, so that nobody waits for, or locks, a site that they may not see."""
    site = await site_of(tx, principal, site_id, whole_account=whole_account)
    await lock_site(tx, site.id)
    return await site_of(tx, principal, site.id, whole_account=whole_account)
