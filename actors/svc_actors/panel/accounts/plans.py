"""Hosting plans, and which customer has which: the only writer of `hosting_plans` and `hosting_accounts`.

Why: docs/decisions/0056-accounts-and-members.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from svc_actors.panel.accounts.allowances import Allowances
from svc_actors.panel.backups.schedules import DefaultBackups
from svc_actors.store import ForeignKeyViolationError, Queryable, Target, Transaction, UniqueViolationError
from svc_common.errors import conflict, not_found

_COLUMNS: Final = frozenset({"name", "default_backups", *Allowances.__dataclass_fields__})


def plan_target(plan_id: UUID, name: str) -> Target:
    return Target("plan", plan_id, name)


async def create_plan(
    tx: Transaction, name: str, allowed: Allowances, default_backups: DefaultBackups | None = None
) -> UUID:
    """`default_backups`: how often new sites of the plan's customers are backed up; None: as the server's settings say.
    Raises `conflict` if a plan has this name."""
    try:
        plan_id: UUID = await tx.fetchval(
            """INSERT INTO hosting_plans (
                   name, sites, databases, disk_mib, traffic_mib, cpu_percent, memory_mib, processes, shell,
                   mails_per_hour, mails_per_day, default_backups)
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) RETURNING id""",
            name,
            allowed.sites,
            allowed.databases,
            allowed.disk_mib,
            allowed.traffic_mib,
            allowed.cpu_percent,
            allowed.memory_mib,
            allowed.processes,
            allowed.shell,
            allowed.mails_per_hour,
            allowed.mails_per_day,
            default_backups,
        )
    except UniqueViolationError:
        raise _taken(name) from None
    return plan_id


async def change_plan(tx: Transaction, plan_id: UUID, values: Mapping[str, object]) -> None:
    """Set columns of a plan, whose row is locked. Raises `conflict` if another plan has the name."""
    assert values.keys() <= _COLUMNS
    for column, value in values.items():
        try:
            await tx.execute(f"UPDATE hosting_plans SET {column} = $2 WHERE id = $1", plan_id, value)
        except UniqueViolationError:
            raise _taken(str(value)) from None


async def delete_plan(tx: Transaction, plan_id: UUID, name: str) -> None:
    """Delete a plan. Raises `conflict` while a customer has it."""
    try:
        await tx.execute("DELETE FROM hosting_plans WHERE id = $1", plan_id)
    except ForeignKeyViolationError:
        raise conflict(
            f"Customers have the plan {name}; it was not deleted.", hint="Change their plan first."
        ) from None


async def plan_named(queryable: Queryable, name: str) -> UUID:
    plan_id: UUID | None = await queryable.fetchval("SELECT id FROM hosting_plans WHERE name = $1", name)
    if plan_id is None:
        raise not_found(f"There is no plan {name}.", hint="`svc plan list` shows the plans.")
    return plan_id


async def give_plan(tx: Transaction, user_id: UUID, plan_id: UUID | None, ordered_by: str | None = None) -> None:
    """The customer has this plan from now on. `ordered_by` names the order that created the account."""
    await tx.execute(
        """INSERT INTO hosting_accounts (user_id, plan_id, ordered_by) VALUES ($1, $2, $3)
           ON CONFLICT (user_id) DO UPDATE SET plan_id = excluded.plan_id""",
        user_id,
        plan_id,
        ordered_by,
    )


async def write_suspended(tx: Transaction, user_id: UUID, reason: str | None) -> None:
    """Write why the account is suspended; None: it is not suspended."""
    await tx.execute(
        """INSERT INTO hosting_accounts (user_id, suspended_for) VALUES ($1, $2)
           ON CONFLICT (user_id) DO UPDATE SET suspended_for = excluded.suspended_for""",
        user_id,
        reason,
    )


def _taken(name: str) -> Exception:
    return conflict(f"There is a plan {name} already; nothing was changed.")
