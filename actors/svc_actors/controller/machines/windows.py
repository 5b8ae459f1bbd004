"""The first boot of a Windows machine, and the password of its administrator's account (specification, Password rule).

Windows takes no crypt hash: the agent in the guest sets the password itself, once the first boot has ended. Until then
an ordered password is only in this process's memory. If the process ends earlier, or Windows refuses the password, this
is recorded, and the password that the machine has set for itself is offered once instead. That password is stored in
the machine, and read there on request.

Why: docs/decisions/0037-hosts-kvm-and-windows.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Protocol
from uuid import UUID

from svc_actors.controller.gateway.gateway import OperationFailed
from svc_actors.controller.machines.records import MachineRow, announce_machine
from svc_actors.store import Caller, Queryable, Transaction, audit
from svc_common.errors import conflict, not_ready, unavailable
from svc_nodeagent.protocol import NodeOperation, OperationResult, VmWindowsReport, WindowsReport

ACCOUNT: Final = "Administrator"
"""The account whose password is set. It is the same on every Windows machine, so these have no access mode to
choose."""
LOST: Final = (
    "The service was restarted before the machine's first boot had ended, and an ordered password is not stored."
)
_TIMEOUT: Final = 30.0


class NodeQueries(Protocol):
    """The part of the gateway that is used here."""

    async def query(self, node_id: UUID, operation: NodeOperation, *, timeout: float) -> OperationResult: ...


class WindowsPasswords:
    """Passwords that were ordered and not set yet, by the id of the machine or, for a change of password, of the task.
    One instance per process: the passwords are lost when the process ends."""

    def __init__(self) -> None:
        self._ordered: dict[UUID, str] = {}

    def keep(self, key: UUID, password: str) -> None:
        self._ordered[key] = password

    def of(self, key: UUID) -> str | None:
        return self._ordered.get(key)

    def forget(self, key: UUID) -> None:
        self._ordered.pop(key, None)


@dataclass(frozen=True)
class FirstBoot:
    """The order for a new Windows: a password, or none."""

    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Setup:
    """`booted_at`: when the first boot was seen to have ended."""

    password_ordered: bool
    booted_at: datetime | None
    password_set_at: datetime | None
    password_error: str | None
    credential_taken_at: datetime | None

    @property
    def offered(self) -> bool:
        """Whether the password that the machine has set for itself may be taken."""
        return self.booted_at is not None and self.password_set_at is None and self.credential_taken_at is None


UNKNOWN: Final = Setup(False, None, None, None, None)
"""For a machine that was created before setups were recorded."""


@dataclass(frozen=True)
class PendingFirstBoot:
    """`ordered_at` distinguishes the system from another one that replaces it meanwhile."""

    vm_id: UUID
    node_id: UUID
    ordered_at: datetime
    password_ordered: bool


async def record_first_boot(tx: Transaction, vm_id: UUID, *, password: bool) -> None:
    """Record that Windows was ordered for this machine and its first boot is pending."""
    await forget(tx, vm_id)
    await tx.execute("INSERT INTO windows_setups (vm_id, password_ordered) VALUES ($1, $2)", vm_id, password)


async def forget(tx: Transaction, vm_id: UUID) -> None:
    await tx.execute("DELETE FROM windows_setups WHERE vm_id = $1", vm_id)


async def setup_of(queryable: Queryable, vm_id: UUID) -> Setup | None:
    row = await queryable.fetchrow(
        """SELECT password_ordered, booted_at, password_set_at, password_error, credential_taken_at
           FROM windows_setups WHERE vm_id = $1""",
        vm_id,
    )
    return None if row is None else Setup(**dict(row))


async def pending_first_boots(queryable: Queryable) -> list[PendingFirstBoot]:
    """The running machines whose first boot has not been seen to end yet."""
    rows = await queryable.fetch(
        """SELECT vm_id, node_id, ordered_at, password_ordered FROM windows_setups JOIN vms ON vms.id = vm_id
           WHERE booted_at IS NULL AND vms.status = 'running' AND node_id IS NOT NULL AND vms.deleted_at IS NULL"""
    )
    return [PendingFirstBoot(**dict(row)) for row in rows]


async def booted(tx: Transaction, vm: MachineRow, ordered_at: datetime, error: str | None) -> None:
    """Record that the first boot has ended. An ordered password is now set; with `error`, it is not set for this
    reason."""
    changed = await tx.fetchval(
        """UPDATE windows_setups SET booted_at = now(), password_error = $3,
               password_set_at = CASE WHEN password_ordered AND $3::text IS NULL THEN now() END
           WHERE vm_id = $1 AND ordered_at = $2 AND booted_at IS NULL RETURNING true""",
        vm.id,
        ordered_at,
        error,
    )
    if changed:
        await announce_machine(tx, vm.id)


async def password_set(tx: Transaction, vm_id: UUID) -> None:
    """Record that a password ordered for the running machine was set."""
    await tx.execute("UPDATE windows_setups SET password_set_at = now(), password_error = NULL WHERE vm_id = $1", vm_id)


async def require_booted(queryable: Queryable, vm_id: UUID) -> None:
    """Raises not_ready until the first boot has ended: a password set before that would be lost."""
    setup = await setup_of(queryable, vm_id)
    if setup is not None and setup.booted_at is None:
        raise not_ready(
            "The machine's first boot has not ended, so no password can be set yet.",
            hint="Try again when `svc vm windows` shows that the first boot has ended.",
        )


async def take(tx: Transaction, caller: Caller, vm: MachineRow) -> None:
    """Record that the machine's own password was taken. Raises conflict if it was taken before, or is not offered,
    not_ready during the first boot."""
    require_offered(await setup_of(tx, vm.id))
    await tx.execute("UPDATE windows_setups SET credential_taken_at = now() WHERE vm_id = $1", vm.id)
    await audit.record(tx, caller, vm.target, {})


def require_offered(setup: Setup | None) -> None:
    """Raises not_ready during the first boot, conflict if the machine's own password may not be taken."""
    again = "Set another one with `svc vm reset-password`."
    if setup is None:
        raise conflict("Nothing is recorded of this machine's first boot.", hint=again)
    if setup.booted_at is None:
        raise not_ready("The machine's first boot has not ended.", hint="`svc vm windows` shows when it has.")
    if setup.password_set_at is not None:
        raise conflict("The machine has the password that was ordered, and no other one is offered.", hint=again)
    if setup.credential_taken_at is not None:
        raise conflict(f"The password was already read, at {setup.credential_taken_at:%Y-%m-%d %H:%M} UTC.", hint=again)


async def own_password(gateway: NodeQueries, *, node_id: UUID | None, vm_id: UUID) -> str:
    """The password that the machine has set for itself, read in the guest. Raises unavailable, not_ready, conflict."""
    if node_id is None:
        raise unavailable("The machine is on no node.")
    try:
        report = await gateway.query(node_id, VmWindowsReport(vm_id=vm_id), timeout=_TIMEOUT)
    except OperationFailed as failure:
        raise unavailable(f"The node could not query the machine: {failure.message}", hint=failure.hint) from failure
    assert isinstance(report, WindowsReport)
    if not report.booted:
        raise not_ready("The machine is off, or its agent does not answer.", hint="Start it, then try again.")
    if report.password is None:
        raise conflict(
            "The machine has not set its own password, or no longer has it.",
            hint="Set one with `svc vm reset-password`.",
        )
    return report.password
