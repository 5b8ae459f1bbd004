"""The services that a controller operation can use: the type of `Context.services` in every handler of the
controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from svc.controller.config import ControllerConfig
from svc.controller.loops import ControllerLoops
from svc.controller.newcomers import give_project
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
from svc_actors.store import Database, EventLog, Transaction
from svc_actors.webhooks.receivers import Receivers


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
    """For alert webhooks."""
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
