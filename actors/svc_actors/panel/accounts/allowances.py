"""Enforces what a customer's plan allows.

Invariant: code that adds something to a customer's account holds the lock of the customer's row (`lock_owner`) while it
counts and adds. So concurrent additions see each other, and an allowance is never exceeded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from uuid import UUID

from svc_actors.store import Queryable, Transaction
from svc_common.errors import ServiceError, conflict, forbidden

MOST_SITES: Final = 100
"""The most sites of a customer, whatever the plan. Each site has a system account and a part of the web server's
configuration, and a server has room for a few thousand sites: no single customer may take them all."""
MIB: Final = 1024 * 1024


@dataclass(frozen=True)
class Allowances:
    """What a plan allows; None means without a limit. The last six apply to each site. `shell`: logins may have a
    shell. `mails_per_hour` and `mails_per_day`: counted by recipient; None: as the server's settings say."""

    sites: int | None = None
    databases: int | None = None
    disk_mib: int | None = None
    traffic_mib: int | None = None
    cpu_percent: int | None = None
    memory_mib: int | None = None
    processes: int | None = None
    shell: bool = False
    mails_per_hour: int | None = None
    mails_per_day: int | None = None


WITHOUT_PLAN: Final = Allowances()
ALLOWANCE_COLUMNS: Final = ", ".join(f"hosting_plans.{name}" for name in Allowances.__dataclass_fields__)

SHELL_ALLOWED: Final = """coalesce(
    sites.shell,
    (SELECT hosting_plans.shell FROM hosting_accounts JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id
     WHERE hosting_accounts.user_id = sites.owner_id),
    (SELECT role = 'administrator' FROM users WHERE users.id = sites.owner_id))"""
"""SQL: whether logins of a site may have a shell. The administrator's setting for the site decides, then the plan of
its owner; without either, only logins of administrators' sites may."""


@dataclass(frozen=True)
class Owner:
    """The owner of sites, whose row is locked. `allowed` is what their plan allows."""

    id: UUID
    email: str
    unbounded: bool
    """True for administrators, who have neither a plan nor a limit."""
    plan: str | None
    allowed: Allowances


async def lock_owner(tx: Transaction, owner_id: UUID) -> Owner:
    """Raises `forbidden` for a suspended customer, to whose account nothing may be added."""
    person = await tx.fetchone("SELECT email, role, suspended_at FROM users WHERE id = $1 FOR NO KEY UPDATE", owner_id)
    if person["suspended_at"] is not None:
        raise forbidden(f"The account {person['email']} is suspended; nothing was changed.")
    plan = await tx.fetchrow(
        f"""SELECT hosting_plans.name, {ALLOWANCE_COLUMNS}
            FROM hosting_accounts JOIN hosting_plans ON hosting_plans.id = hosting_accounts.plan_id
            WHERE hosting_accounts.user_id = $1""",
        owner_id,
    )
    return Owner(
        id=owner_id,
        email=person["email"],
        unbounded=person["role"] == "administrator",
        plan=None if plan is None else plan["name"],
        allowed=WITHOUT_PLAN if plan is None else Allowances(**{k: v for k, v in plan.items() if k != "name"}),
    )


async def require_site_room(tx: Transaction, owner: Owner) -> None:
    """Raises `conflict` if the owner may not have another site."""
    held = await tx.fetchval("SELECT count(*) FROM sites WHERE owner_id = $1", owner.id)
    allowed = owner.allowed.sites
    if owner.plan is not None and allowed is not None and held >= allowed:
        raise _used_up(owner.plan, "sites", allowed)
    if not owner.unbounded and held >= MOST_SITES:
        raise conflict(
            f"A customer has at most {MOST_SITES} sites; nothing was created.",
            hint="Delete a site that is no longer needed, or ask the provider for another.",
        )


async def require_database_room(tx: Transaction, owner: Owner) -> None:
    """Raises `conflict` if the owner may not have another database."""
    allowed = owner.allowed.databases
    if owner.plan is None or allowed is None:
        return
    held = await tx.fetchval(
        "SELECT count(*) FROM databases JOIN sites ON sites.id = databases.site_id WHERE sites.owner_id = $1", owner.id
    )
    if held >= allowed:
        raise _used_up(owner.plan, "databases", allowed)


def _used_up(plan: str, what: str, allowed: int) -> ServiceError:
    return conflict(
        f"The plan {plan} allows {allowed} {what}, and all of them are used; nothing was created.",
        hint="Delete what is no longer needed, or change to a larger plan.",
    )


@dataclass(frozen=True)
class ResourceUse:
    """What a customer uses of their allowance. `traffic_mib` is that of the current month."""

    sites: int
    databases: int
    disk_mib: int
    traffic_mib: int

    def over(self, allowed: Allowances) -> list[str]:
        """The parts of the use that exceed the allowance, in words."""
        found = []
        for name, word in (("sites", "sites"), ("databases", "databases"), ("disk_mib", "MiB of disk")):
            most, held = getattr(allowed, name), getattr(self, name)
            if most is not None and held > most:
                found.append(f"{held} {word}, {most} are allowed")
        if allowed.traffic_mib is not None and self.traffic_mib > allowed.traffic_mib:
            found.append(f"{self.traffic_mib} MiB of traffic this month, {allowed.traffic_mib} are allowed")
        return found


USE_OF: Final = """
    (SELECT count(*) FROM sites WHERE owner_id = {owner}) AS sites_used,
    (SELECT count(*) FROM databases JOIN sites ON sites.id = databases.site_id
     WHERE sites.owner_id = {owner}) AS databases_used,
    (SELECT coalesce(ceil(sum(bytes) / 1048576.0), 0)::bigint
     FROM site_disk_use JOIN sites ON sites.id = site_disk_use.site_id WHERE sites.owner_id = {owner}) AS disk_used,
    (SELECT coalesce(max(ceil(bytes / 1048576.0)), 0)::bigint FROM account_traffic
     WHERE user_id = {owner} AND month = date_trunc('month', now() AT TIME ZONE 'UTC')::date) AS traffic_used"""
"""The columns of a `ResourceUse`; format with an SQL expression for the owner's id."""


async def use_of(queryable: Queryable, owner_id: UUID) -> ResourceUse:
    row = await queryable.fetchone(f"SELECT {USE_OF.format(owner='$1::uuid')}", owner_id)
    return ResourceUse(row["sites_used"], row["databases_used"], row["disk_used"], row["traffic_used"])
