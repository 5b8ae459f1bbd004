"""Adoption: links an existing machine to a service that a billing system has sold, without changing the machine.

Before a migration from another system, it is staged which machine belongs to which service (`staged_machines`). An
adoption compares these entries with the records, and links only those that agree. Linking creates the service's row and
event, and does not change the machine: no disk, no address, no power state.

| verdict | the billing system's reference |
|---|---|
| match | is staged with a machine that exists here and has no service |
| staged_only | is staged with a machine that does not exist here |
| already_linked | has that machine already |
| taken | has another machine, or the machine has another reference |
| no_uuid | is staged without a machine |
| not_found | is not staged |
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from uuid import UUID

from svc_actors.controller.machines.records import announce_machine, lock_machine
from svc_actors.controller.machines.states import MachineStatus
from svc_actors.controller.provisioning.records import add_linked, find_service
from svc_actors.store import Caller, Queryable, Target, Transaction, audit
from svc_common.errors import conflict, require_name, wrong_field


class Verdict(StrEnum):
    MATCH = "match"
    STAGED_ONLY = "staged_only"
    ALREADY_LINKED = "already_linked"
    TAKEN = "taken"
    NO_UUID = "no_uuid"
    NOT_FOUND = "not_found"


@dataclass(frozen=True)
class Preview:
    """The verdict on a reference. `vm_name` is None if the machine does not exist here."""

    verdict: Verdict
    external_ref: str
    legacy_server_id: str | None = None
    vm_id: UUID | None = None
    vm_name: str | None = None

    @property
    def line(self) -> str:
        """<billing_service_id> to <legacy_server_id> to <vm_id> <vm_name> <verdict>; a hyphen for a missing value."""
        legacy, vm_id, name = (str(part or "-") for part in (self.legacy_server_id, self.vm_id, self.vm_name))
        return f"{self.external_ref} to {legacy} to {vm_id} {name} {self.verdict.value}"


_HERE: Final = """
SELECT id, name FROM vms
WHERE id = $1 AND deleted_at IS NULL AND built_at IS NOT NULL AND status <> 'deleting'"""
_OWNER: Final = "SELECT integration, external_ref FROM services WHERE vm_id = $1"


async def stage(
    tx: Transaction, caller: Caller, integration: str, external_ref: str, legacy_server_id: str, vm_id: UUID | None
) -> None:
    """Record which machine (`vm_id`, None if unknown) belongs to the billing system's reference `external_ref`, for
    `preview` and `adopt`; this replaces an earlier record of the reference."""
    await tx.execute(
        """INSERT INTO staged_machines (integration, external_ref, legacy_server_id, vm_id) VALUES ($1, $2, $3, $4)
           ON CONFLICT (integration, external_ref)
           DO UPDATE SET legacy_server_id = excluded.legacy_server_id, vm_id = excluded.vm_id, staged_at = now()""",
        integration,
        external_ref,
        legacy_server_id,
        vm_id,
    )
    details = {"legacy_server_id": legacy_server_id, "vm_id": str(vm_id) if vm_id else None}
    await audit.record(tx, caller, Target("service", None, f"{integration}/{external_ref}"), details)


async def preview(queryable: Queryable, integration: str, external_ref: str) -> Preview:
    """The verdicts on all staged references. Writes nothing."""
    staged = await queryable.fetchrow(
        "SELECT legacy_server_id, vm_id FROM staged_machines WHERE integration = $1 AND external_ref = $2",
        integration,
        external_ref,
    )
    if staged is None:
        return Preview(Verdict.NOT_FOUND, external_ref)
    legacy, vm_id = staged["legacy_server_id"], staged["vm_id"]
    if vm_id is None:
        return Preview(Verdict.NO_UUID, external_ref, legacy)
    vm = await queryable.fetchrow(_HERE, vm_id)
    if vm is None:
        return Preview(Verdict.STAGED_ONLY, external_ref, legacy, vm_id)
    verdict = await _verdict(queryable, integration, external_ref, vm_id)
    return Preview(verdict, external_ref, legacy, vm_id, vm["name"])


async def adopt(tx: Transaction, caller: Caller, integration: str, external_ref: str, confirm: UUID) -> UUID:
    """Link the staged machine; returns the service's id. Raises conflict if the verdict is not match, invalid if
    `confirm` is another machine's id."""
    # The machine is locked first, so that the second of two concurrent adoptions sees the link that the first one made.
    await tx.execute(
        """SELECT FROM vms WHERE deleted_at IS NULL AND id = (
               SELECT vm_id FROM staged_machines WHERE integration = $1 AND external_ref = $2)
           FOR NO KEY UPDATE""",
        integration,
        external_ref,
    )
    found = await preview(tx, integration, external_ref)
    if found.verdict is not Verdict.MATCH or found.vm_id is None:
        raise conflict(
            f"This cannot be adopted; nothing was changed: {found.line}", details={"verdict": found.verdict.value}
        )
    if confirm != found.vm_id:
        raise wrong_field("confirm", "this is not the id of the machine that was staged; nothing was changed")
    return await _link(tx, caller, integration, external_ref, found.vm_id)


async def link(tx: Transaction, caller: Caller, integration: str, external_ref: str, vm_id: UUID, confirm: str) -> UUID:
    """Link a machine that was not staged; returns the service's id."""
    vm = await lock_machine(tx, vm_id)
    require_name(vm.name, confirm, of="machine")
    if vm.built_at is None or vm.status is MachineStatus.DELETING:
        raise conflict(f"The machine is {vm.status.value}; nothing was changed.")
    verdict = await _verdict(tx, integration, external_ref, vm_id)
    if verdict is not Verdict.MATCH:
        raise conflict(
            "The machine belongs to a service, or the reference has one; nothing was changed.",
            details={"verdict": verdict.value},
        )
    return await _link(tx, caller, integration, external_ref, vm_id)


async def _verdict(queryable: Queryable, integration: str, external_ref: str, vm_id: UUID) -> Verdict:
    """The verdict on a reference whose machine exists."""
    owner = await queryable.fetchrow(_OWNER, vm_id)
    if owner is not None:
        same = (owner["integration"], owner["external_ref"]) == (integration, external_ref)
        return Verdict.ALREADY_LINKED if same else Verdict.TAKEN
    other = await find_service(queryable, integration, external_ref)
    return Verdict.MATCH if other is None else Verdict.TAKEN


async def _link(tx: Transaction, caller: Caller, integration: str, external_ref: str, vm_id: UUID) -> UUID:
    service_id = await add_linked(tx, caller, integration, external_ref, vm_id)
    await announce_machine(tx, vm_id)
    return service_id
