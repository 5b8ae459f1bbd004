"""The first transaction of a controller whose database shows an earlier time, before the controller serves anybody. The
controller was restored from a backup, or its database was put back to an earlier time or has lost its last commits.

So the records are older than the hosts, and nothing is done because of a record alone: every machine and node waits to
be confirmed (`orphans`), orders that were under way are ended and not carried out a second time, and everybody has to
sign in again.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from svc_actors.alerts import Severity, raise_alert
from svc_actors.controller.machines.outcomes import interrupted
from svc_actors.controller.machines.records import lock_machine
from svc_actors.controller.nodes.enrolment import expire_bootstraps
from svc_actors.controller.reconcile.orphans import RESTORED_ALERT
from svc_actors.controller.tasks.runner import Ending, ResourceKind, TaskStatus, end_task, open_tasks
from svc_actors.controller.volumes import orders as volume_orders
from svc_actors.store import Transaction
from svc_common.errors import ErrorCode

SKIPPED_RELEASES: Final = 10_000
"""How many numbers of releases are skipped: in all likelihood more than are used between two backups. Skipping them
takes some milliseconds."""


class Past(StrEnum):
    """How the database came to show an earlier time."""

    BACKUP = "the controller was restored from a backup"
    PUT_BACK = "the controller's database was restored to an earlier time"
    LOST_COMMITS = "the controller's database has lost its last commits"


async def record_restoration(tx: Transaction, *, taken_at: datetime, release: str, past: Past = Past.BACKUP) -> int:
    """Returns how many orders were ended. `taken_at` is the time that the database shows."""
    await tx.execute("INSERT INTO restorations (taken_at, release) VALUES ($1, $2)", taken_at, release)
    when = f"{taken_at:%Y-%m-%d %H:%M} UTC"
    ended = 0
    for task in await open_tasks(tx):
        if task.op == "vm.delete":
            continue
        ending = Ending(
            TaskStatus.FAILED,
            f"Interrupted: {past} and shows {when}. Check on the machine itself whether this was done before.",
            error_code=ErrorCode.UNAVAILABLE,
        )
        await end_task(tx, task.id, ending)
        ended += 1
        if task.resource_kind is ResourceKind.VM:
            await interrupted(tx, await lock_machine(tx, task.resource_id, gone=True), task, ending)
        elif task.resource_kind is ResourceKind.VOLUME:
            await volume_orders.record_end(tx, task, ending, known=False)
    await tx.execute("UPDATE vms SET unconfirmed = true WHERE deleted_at IS NULL")
    await tx.execute("UPDATE nodes SET unheard = true WHERE state <> 'pending' AND deleted_at IS NULL")
    # Nodes may still confirm releases that were ordered after the backup, by their numbers. Numbers are skipped, so
    # that no new release has the number of one of those. They are drawn one by one, since the service's database role
    # may not set a sequence.
    await tx.fetchval("SELECT max(nextval('releases')) FROM generate_series(1, $1::integer)", SKIPPED_RELEASES)
    await expire_bootstraps(tx)
    await raise_alert(
        tx,
        RESTORED_ALERT,
        f"{past[0].upper()}{past[1:]} and shows {when}. Machines are left alone, and nodes' pools give out no address, "
        "until their hosts were compared with the records. What was made since is shown by `svc node orphans`.",
        severity=Severity.CRITICAL,
    )
    return ended
