"""The services that a controller operation can use: the type of `Context.services` in every handler of the
controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from uuid import UUID

from svc.controller.config import ControllerConfig
from svc.controller.realm import REALM
from svc.identity.passwords import Passwords
from svc.registry.downloads import Downloads
from svc.registry.principal import Role
from svc.registry.realm import Realm
from svc_actors.acme import Http01
from svc_actors.certificates import Keeper
from svc_actors.controller.gateway.authority import Authority
from svc_actors.controller.gateway.gateway import Gateway
from svc_actors.controller.machines.windows import WindowsPasswords
from svc_actors.controller.nodes.upgrades import AgentRelease
from svc_actors.controller.reconcile.network_watch import NetworkWatch
from svc_actors.controller.tasks.runner import TaskRunner
from svc_actors.mail import Outbox
from svc_actors.runtime import ActorSystem
from svc_actors.sealing import Sealer
from svc_actors.store import Database, EventLog, Loops, ServiceLoop, Transaction
from svc_actors.webhooks.receivers import Receivers

# Background loops, by their names in alerts and in the log.
ControllerLoop = (
    ServiceLoop
    | Literal[
        "alert webhooks",
        "backups",
        "backups of machines",
        "certificate by ACME",
        "first boots of Windows",
        "machine watch",
        "network watch",
        "node watch",
        "power watch",
        "remains of moves",
        "service watch",
        "traffic watch",
    ]
)
ControllerLoops = Loops[ControllerLoop]


@dataclass(frozen=True)
class Controller:
    config: ControllerConfig
    database: Database
    events: EventLog
    actors: ActorSystem
    authority: Authority
    gateway: Gateway
    networks: NetworkWatch
    tasks: TaskRunner
    sealer: Sealer
    passwords: Passwords
    windows_passwords: WindowsPasswords
    outbox: Outbox
    receivers: Receivers
    """Sends the deliveries of alert webhooks."""
    agent: AgentRelease
    """The release that nodes are upgraded to."""
    loops: ControllerLoops
    certificate: Keeper[Http01] | None = None
    """Keeps the certificate from ACME, if the settings ask for one."""
    downloads: Downloads = field(default_factory=Downloads)
    realm: Realm = REALM

    @property
    def audit_folder(self) -> Path:
        return self.config.data_dir / "audit"

    async def person_added(self, tx: Transaction, user_id: UUID, email: str, role: Role) -> None:
        await give_project(tx, user_id, email, role)


# A new customer gets a project, since machines and groups belong to a project.
async def give_project(tx: Transaction, user_id: UUID, email: str, role: Role) -> None:
    """Create a project for a new customer, named after their address. Administrators and staff get none, since they see
    every project."""
    if role is not Role.CUSTOMER:
        return
    # An operator may have given this name to a project already; then the new project gets a number appended.
    await tx.execute(
        """
        WITH made AS (
            INSERT INTO projects (name)
            SELECT name FROM (
                SELECT CASE number WHEN 1 THEN $1::text ELSE $1::text || ' ' || number END AS name, number
                FROM generate_series(1, 1 + (SELECT count(*) FROM projects WHERE starts_with(name, $1::text)))
                     AS number
            ) candidate
            WHERE NOT EXISTS (SELECT FROM projects WHERE projects.name = candidate.name)
            ORDER BY number LIMIT 1
            RETURNING id
        )
        INSERT INTO project_members (project_id, user_id) SELECT id, $2 FROM made
        """,
        email,
        user_id,
    )
