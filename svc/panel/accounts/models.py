"""A customer's account as the API shows it: the person, their plan, and what they use of it."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc.panel.accounts.plans import PlanAllowances
from svc.panel.sites.access import OWN_OR_MEMBER, visible_row
from svc.registry.operation import Model
from svc.registry.paging import EVERYTHING, Condition, joined
from svc.registry.principal import Principal
from svc_actors.panel.accounts.allowances import ALLOWANCE_COLUMNS, USE_OF, WITHOUT_PLAN, Allowances, ResourceUse
from svc_actors.store import Queryable, Record
from svc_common.errors import not_found


class AccountStatus(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"


class AccountUse(Model):
    """Usage of what the plan limits. `disk_mib`: files, databases and exports at the last count. `traffic_mib`: sent to
    visitors this month (UTC), up to some minutes ago."""

    sites: int
    databases: int
    disk_mib: int
    traffic_mib: int


class Account(Model):
    """`id` is the customer's. `over` names the limits of the plan that the customer exceeds."""

    id: UUID
    email: str
    name: str
    status: AccountStatus
    suspension_reason: str | None
    plan_id: UUID | None
    plan: str | None
    allowed: PlanAllowances
    used: AccountUse
    over: list[str]
    created_at: datetime


SOURCE: Final = """users LEFT JOIN hosting_accounts ON hosting_accounts.user_id = users.id
LEFT JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id"""

SELECT_ACCOUNTS: Final = f"""
SELECT users.id, users.email, users.name, users.suspension_reason, users.created_at,
       hosting_plans.id AS plan_id, hosting_plans.name AS plan, {ALLOWANCE_COLUMNS},
       {USE_OF.format(owner="users.id")}
FROM {SOURCE}"""

CUSTOMERS: Final = Condition("users.role = 'customer'")


def account_model(row: Record) -> Account:
    """The account of a row of `SELECT_ACCOUNTS`."""
    columns = {name: row[name] for name in Allowances.__dataclass_fields__}
    allowed = WITHOUT_PLAN if row["plan_id"] is None else Allowances(**columns)
    used = ResourceUse(row["sites_used"], row["databases_used"], row["disk_used"], row["traffic_used"])
    reason = row["suspension_reason"]
    return Account(
        id=row["id"],
        email=row["email"],
        name=row["name"],
        status=AccountStatus.ACTIVE if reason is None else AccountStatus.SUSPENDED,
        suspension_reason=reason,
        plan_id=row["plan_id"],
        plan=row["plan"],
        allowed=PlanAllowances(**vars(allowed)),
        used=AccountUse(**vars(used)),
        over=used.over(allowed),
        created_at=row["created_at"],
    )


def visible_accounts(principal: Principal) -> Condition:
    if principal.is_operator:
        return EVERYTHING
    return Condition(f"users.id IN ({OWN_OR_MEMBER})", (principal.user_id, sorted(principal.member_roles)))


async def shown_account(queryable: Queryable, principal: Principal, account_id: UUID) -> Account:
    """The account of a customer. Raises not_found, forbidden."""
    where, absent = (
        joined([Condition("users.id = $1", (account_id,)), CUSTOMERS]),
        not_found("There is no such account."),
    )
    return account_model(
        await visible_row(queryable, principal, SELECT_ACCOUNTS, where, absent, owner="users.id", site="NULL::uuid")
    )
